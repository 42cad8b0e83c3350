"""Small SVG charts as strings: no plotting library, readable in a page, a README or a slide.

Colours of text and background are CSS variables with a light fallback: inside the report page they follow its light or
dark theme, and a stand-alone file is a white card. A policy has the same colour, dash and marker in every chart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from apev.agents import ALGORITHMS
from apev.experiments.common.html import escaped
from apev.experiments.common.statistics import wilson
from apev.experiments.common.tables import display_name, read_folder, success_by_members_correct, table_order
from apev.files import write_text

# At least 3:1 against white and against the page's dark card; markers and dashes repeat what the colours say.
COLOURS = {
    "oracle": "#868e96",
    "ape-v": ALGORITHMS["ape-v"].colour,
    "ape-v-printed": "#d6336c",
    "ape-v-eval-only": "#b8860b",
    "ape-v-td3-bc": "#5f3dc4",
    "ape-v-no-floor": "#a61e4d",
    "random-member": "#099268",
    "random-member-step": "#66a80f",
    "average": "#1c7ed6",
    "single": "#845ef7",
    **{name: ALGORITHMS[name].colour for name in ("lcb", "sac-n", "edac", "cql", "iql", "rem", "sac", "bc")},
    "forgetting": "#1c7ed6",
    "committed": "#d6336c",
    "errors and likelihood as printed": "#d6336c",
    "errors at the belief": "#845ef7",
    "calibrated likelihood": "#099268",
}
COMPARED = ("ape-v", "ape-v-printed", "ape-v-eval-only", "average")
"""The policies of the paper's figure by right members: trained to adapt, as printed, adapting untaught, and not adapting."""
_MEMBERS = ("#1c7ed6", "#e8590c", "#099268", "#845ef7", "#d6336c", "#b8860b", "#0c8599", "#66a80f")
_SPARE = ("#ae3ec9", "#5f7d00", "#c2410c", "#0c8599", "#7a6f5d")
_DASHES = {"oracle": "5 4", "ape-v-printed": "7 3", "ape-v-no-floor": "3 3", "random-member-step": "2 3", "single": "8 3 2 3"}
_MARKERS = ("circle", "square", "diamond", "triangle")
_FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_STYLE = (
    f".chart{{font-family:{_FONT};font-size:13px}}.chart .card{{fill:var(--card,#fff)}}"
    ".chart text{fill:var(--ink,#1f2430)}.chart .soft{fill:var(--soft,#5c6370)}"
    ".chart .grid{stroke:var(--line,#e3e6ea);stroke-width:1}.chart .axis{stroke:var(--soft,#5c6370);stroke-width:1}"
    ".chart .whisker{stroke:var(--ink,#1f2430);stroke-width:1.6}.chart .dot{stroke:var(--card,#fff);stroke-width:1.2}"
)


def policy_colour(policy: str) -> str:
    """The policy's colour everywhere; an unknown policy gets one that depends on its name only."""
    if policy.startswith("e_"):  # a belief frozen at one member
        return "#868e96"
    if policy in ALGORITHMS:
        return ALGORITHMS[policy].colour
    if policy.startswith("member ") and policy[7:].isdecimal():
        return _MEMBERS[int(policy[7:]) % len(_MEMBERS)]
    return COLOURS.get(policy) or _SPARE[crc32(policy.encode(errors="backslashreplace")) % len(_SPARE)]


@dataclass(frozen=True)
class Series:
    """One line: points, and the ends of its band where there is one."""

    policy: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = field(default_factory=tuple)
    high: Sequence[float] = field(default_factory=tuple)
    notes: Sequence[str] = field(default_factory=tuple)  # shown when the pointer rests on a point


def line_chart(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    title: str = "",
    width: int = 720,
    x_ticks: Sequence[float] | None = None,
    whiskers: bool = False,
    unit: bool = True,
) -> str:
    """Lines with a band, or with whiskers where the points are few and apart; `unit`: values are shares, from 0 to 1."""
    if not series or not any(len(s.x) for s in series):
        raise ValueError("line_chart() got no points; pass at least one series with one point")
    legend, legend_height = _legend([s.policy for s in series], width, y=50 if title else 22)
    left, right, top = 52, 32, (42 if title else 12) + legend_height + 12
    height = top + (300 if width >= 560 else 240) + 52
    bottom = height - 52
    x_low, x_high = min(min(s.x) for s in series), max(max(s.x) for s in series)
    pad = 0.04 * ((x_high - x_low) or 1)
    x_low, x_high = (x_low - pad, x_high + pad) if whiskers or x_high == x_low else (x_low, x_high)
    floor = min(min([*s.y, *s.low]) for s in series)
    if unit:
        y_low, y_high = max(0.0, math.floor((floor - 0.02) * 10) / 10), 1.0
    else:
        ceiling = max(max([*s.y, *s.high]) for s in series)
        room = 0.05 * ((ceiling - floor) or 1)
        y_low, y_high = min(floor - room, 0.0), ceiling + room

    def px(x: float) -> float:
        return left + (x - x_low) / (x_high - x_low) * (width - left - right)

    def py(y: float) -> float:
        return bottom - (y - y_low) / (y_high - y_low) * (bottom - top)

    parts = [legend]
    for tick in _ticks(y_low, y_high, 6):
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{py(tick):.1f}" y2="{py(tick):.1f}"/>')
        parts.append(
            f'<text class="soft" x="{left - 8}" y="{py(tick) + 4:.1f}" text-anchor="end">{tick:{".1f" if unit else "g"}}</text>'
        )
    for tick in x_ticks if x_ticks is not None else _ticks(x_low, x_high, 6 if width >= 560 else 4):
        parts.append(f'<text class="soft" x="{px(tick):.1f}" y="{bottom + 19}" text-anchor="middle">{tick:,.10g}</text>')
    parts.append(f'<line class="axis" x1="{left}" x2="{width - right}" y1="{bottom}" y2="{bottom}"/>')
    parts.append(_axis_names(x_label, y_label, (left + width - right) / 2, height - 12, (top + bottom) / 2))
    # The lines that matter most are drawn last, on top.
    for i, s in reversed(list(enumerate(series))):
        # Whiskers of different policies at the same place would hide each other: set them side by side.
        shift = (i - (len(series) - 1) / 2) * 4 if whiskers else 0.0
        parts.append(_line(s, [px(x) + shift for x in s.x], py, whiskers))
    return _svg(width, height, title, "".join(parts), y_label)


def bar_chart(
    rows: Sequence[tuple[str, float, float, float]], *, x_label: str, title: str = "", width: int = 720, unit: bool = True
) -> str:
    """Horizontal bars: (policy, value, low, high) a row, whiskers for the interval; `unit`: shares, from 0 to 1."""
    if not rows:
        raise ValueError("bar_chart() got no rows; pass (policy, value, low, high) for each bar")
    top, row_height = (44 if title else 12), 34
    left = (164 if width >= 560 else 138) if unit else 16 + max(_text_width(display_name(row[0])) for row in rows)
    right = 62
    bottom = top + row_height * len(rows)
    most = 1.0 if unit else max(max(value, high) for _, value, _, high in rows) or 1.0
    scale = (width - left - right) / most
    digits = 3 if unit else 1
    parts = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0) if unit else _ticks(0.0, most, 6):
        x = left + tick * scale
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
        parts.append(f'<text class="soft" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>')
    for i, (policy, value, low, high) in enumerate(rows):
        y = top + row_height * (i + 0.5)
        weight = ' font-weight="650"' if policy == "ape-v" else ""
        note = f"{display_name(policy)}: {value:.{digits}f}, 95% interval {low:.{digits}f} to {high:.{digits}f}"
        x_low, x_high = left + max(low, 0) * scale, left + max(high, 0) * scale
        parts.append(
            f"<g><title>{escaped(note)}</title>"
            f'<text x="{left - 10}" y="{y + 4.5:.1f}" text-anchor="end"{weight}>{escaped(display_name(policy))}</text>'
            f'<rect x="{left}" y="{y - 10:.1f}" width="{max(value * scale, 1):.1f}" height="20" rx="3" '
            f'fill="{policy_colour(policy)}" fill-opacity=".82"/>'
            f'<path class="whisker" fill="none" d="M{x_low:.1f} {y - 5:.1f}v10M{x_low:.1f} {y:.1f}H{x_high:.1f}'
            f'M{x_high:.1f} {y - 5:.1f}v10"/>'
            f'<text x="{width - 14}" y="{y + 4.5:.1f}" text-anchor="end"{weight}>{value:.{digits}f}</text></g>'
        )
    parts.append(f'<line class="axis" x1="{left}" x2="{left}" y1="{top}" y2="{bottom}"/>')
    parts.append(
        f'<text class="soft" x="{left + most * scale / 2:.1f}" y="{bottom + 40}" text-anchor="middle">{escaped(x_label)}</text>'
    )
    return _svg(width, bottom + 54, title, "".join(parts), x_label)


def stacked_chart(
    shares: Sequence[Sequence[float]],
    labels: Sequence[str],
    *,
    every: int,
    x_label: str,
    y_label: str,
    title: str = "",
    width: int = 720,
) -> str:
    """Shares that add up to 1, one above the other, the first at the bottom: a row each `every` steps, a column each label."""
    if len(shares) < 2 or any(len(row) != len(labels) for row in shares):
        raise ValueError("stacked_chart() needs two rows or more, each with a share for every label")
    legend, legend_height = _legend(labels, width, y=50 if title else 22, colours=_ramp(len(labels)))
    left, right, top = 52, 32, (42 if title else 12) + legend_height + 12
    bottom = top + (200 if width >= 560 else 160)
    end = every * (len(shares) - 1)
    xs = [left + i / (len(shares) - 1) * (width - left - right) for i in range(len(shares))]
    edges = np.concatenate([np.zeros((len(shares), 1)), np.cumsum(np.asarray(shares, dtype=float), axis=1)], axis=1)
    edges /= np.maximum(edges[:, -1:], 1e-9)  # stored shares are rounded
    ys = bottom - edges * (bottom - top)
    parts = [legend]
    for k, (label, colour) in enumerate(zip(labels, _ramp(len(labels)), strict=True)):
        ends = [f"{x:.1f} {y:.1f}" for x, y in zip(xs, ys[:, k + 1], strict=True)]
        ends += [f"{x:.1f} {y:.1f}" for x, y in zip(xs[::-1], ys[::-1, k], strict=True)]
        parts.append(f'<path d="M{"L".join(ends)}Z" fill="{colour}"><title>{escaped(display_name(label))}</title></path>')
    for tick in (0.0, 0.5, 1.0):
        y = bottom - tick * (bottom - top)
        parts.append(f'<text class="soft" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in _ticks(0, end, 6 if width >= 560 else 4):
        x = left + tick / end * (width - left - right)
        parts.append(f'<text class="soft" x="{x:.1f}" y="{bottom + 19}" text-anchor="middle">{tick:,.10g}</text>')
    parts.append(_axis_names(x_label, y_label, (left + width - right) / 2, bottom + 40, (top + bottom) / 2))
    return _svg(width, bottom + 52, title, "".join(parts), y_label)


def _ramp(count: int) -> list[str]:
    """Colours from the boldest to the most careful of some members."""
    low, high = (232, 89, 12), (28, 78, 150)
    shares = [i / max(count - 1, 1) for i in range(count)]
    return ["#" + "".join(f"{round(a + (b - a) * t):02x}" for a, b in zip(low, high, strict=True)) for t in shares]


def success_bars(summary: Mapping[str, Any], width: int = 720, title: str = "") -> str:
    """Success of every policy with its 95% interval."""
    policies = summary["policies"]
    rows = [(p, policies[p]["success"], *policies[p]["ci95"]) for p in table_order(policies)]
    return bar_chart(rows, x_label="success, with 95% interval", width=width, title=title)


def learning_curves(curves: Iterable[Mapping[str, Any]], width: int = 720, title: str = "") -> str:
    """Success against updates: the mean of the seeds; the band runs from the worst to the best seed.

    With one seed the band is Wilson's 95% interval of its evaluation episodes.
    """
    table: dict[str, dict[int, list[tuple[float, int]]]] = {}
    for row in curves:
        points = table.setdefault(row["policy"], {}).setdefault(int(row["update"]), [])
        points.append((float(row["success"]), int(row["episodes"])))
    series = []
    for policy in table_order(table):
        updates = sorted(table[policy])
        x, y, low, high = [], [], [], []
        for update in updates:
            values = [v for v, _ in table[policy][update]]
            if len(values) > 1:
                ends = (min(values), max(values))
            else:
                episodes = table[policy][update][0][1]
                ends = wilson(values[0] * episodes, episodes)
            x.append(float(update))
            y.append(float(np.mean(values)))
            low.append(ends[0])
            high.append(ends[1])
        series.append(Series(policy, x, y, low, high))
    return line_chart(series, x_label="updates", y_label="success", width=width, title=title)


def members_chart(groups: Mapping[str, Sequence[Mapping[str, Any]]], width: int = 720, title: str = "") -> str:
    """Success by the number of members that are right (the paper's figure), with 95% intervals; at most four policies."""
    series, ticks = [], set()
    known = [policy for policy in COMPARED if policy in groups]
    shown = (known + [policy for policy in table_order(groups) if policy not in known])[:4]
    for policy in shown:
        rows = groups[policy]
        if not rows:
            continue
        notes = [f"{r['correct']} right: {r['success']:.3f} ({r['episodes']:,} episodes)" for r in rows]
        x = [float(r["correct"]) for r in rows]
        ticks.update(x)
        ends = [r["ci95"] for r in rows]
        y = [r["success"] for r in rows]
        series.append(Series(policy, x, y, [e[0] for e in ends], [e[1] for e in ends], notes))
    label = "members that are right"
    return line_chart(series, x_label=label, y_label="success", width=width, title=title, x_ticks=sorted(ticks), whiskers=True)


def write_figures(folder: str | Path) -> list[Path]:
    """Write `figures/*.svg` for what the results folder holds, and say which."""
    results = read_folder(folder)
    name = str(results.summary.get("title", ""))
    with results.part("summary.json"):
        figures = {"success": success_bars(results.summary, title=f"{name}: success by policy")}
    if results.curves:
        with results.part("curves.jsonl"):
            figures["learning_curves"] = learning_curves(results.curves, title=f"{name}: learning curves")
    with results.part("episodes.jsonl"):
        groups = success_by_members_correct(results.episodes)
        if groups:
            figures["members_correct"] = members_chart(groups, title=f"{name}: success by number of right members")
    written = []
    for stem, svg in figures.items():
        path = results.folder / "figures" / f"{stem}.svg"
        write_text(path, svg + "\n")
        written.append(path)
    return written


def _line(s: Series, xs: list[float], py: Any, whiskers: bool) -> str:
    """One policy's band or whiskers, line and markers."""
    colour = policy_colour(s.policy)
    points = [(x, py(y)) for x, y in zip(xs, s.y, strict=True)]
    parts = [f"<g><title>{escaped(display_name(s.policy))}</title>"]
    if len(s.low) and whiskers:
        ends = zip(xs, s.low, s.high, strict=True)
        path = "".join(f"M{x:.1f} {py(low):.1f}V{py(high):.1f}" for x, low, high in ends)
        parts.append(f'<path d="{path}" stroke="{colour}" stroke-width="1.5" stroke-opacity=".5" fill="none"/>')
    elif len(s.low):
        upper = [f"{x:.1f} {py(v):.1f}" for x, v in zip(xs, s.high, strict=True)]
        lower = [f"{x:.1f} {py(v):.1f}" for x, v in zip(xs, s.low, strict=True)]
        parts.append(f'<path d="M{"L".join(upper + lower[::-1])}Z" fill="{colour}" fill-opacity=".14"/>')
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    wide = 3 if s.policy == "ape-v" else 2
    dash = f' stroke-dasharray="{_DASHES[s.policy]}"' if s.policy in _DASHES else ""
    parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="{wide}" stroke-linejoin="round"{dash}/>')
    notes = list(s.notes) or [f"{x:,.10g}: {y:.3f}" for x, y in zip(s.x, s.y, strict=True)]
    for (x, y), note in zip(points, notes, strict=True):
        title = f"<title>{escaped(display_name(s.policy))}, {escaped(note)}</title>"
        parts.append(_marker(s.policy, x, y, title))
    return "".join(parts) + "</g>"


def _marker(policy: str, x: float, y: float, title: str = "") -> str:
    order = list(COLOURS)
    shape = _MARKERS[
        (order.index(policy) if policy in order else crc32(policy.encode(errors="backslashreplace"))) % len(_MARKERS)
    ]
    paths = {
        "square": "M-3.4 -3.4h6.8v6.8h-6.8Z",
        "diamond": "M0 -4.8L4.8 0L0 4.8L-4.8 0Z",
        "triangle": "M0 -4.6L4.4 3.4H-4.4Z",
        "circle": "M-3.8 0a3.8 3.8 0 1 0 7.6 0a3.8 3.8 0 1 0 -7.6 0Z",
    }
    place = f'transform="translate({x:.1f} {y:.1f})"'
    return f'<path class="dot" d="{paths[shape]}" fill="{policy_colour(policy)}" {place}>{title}</path>'


def _legend(policies: Sequence[str], width: int, y: float, colours: Sequence[str] = ()) -> tuple[str, float]:
    """Entries in rows that fit the width, and the height they take; with colours of their own: areas, not lines."""
    parts, x, row = [], 16.0, 0
    for i, policy in enumerate(policies):
        label = display_name(policy)
        size = 29 + _text_width(label) + 18
        if x > 16 and x + size > width:
            x, row = 16.0, row + 1
        dy = y + 21 * row
        dash = f' stroke-dasharray="{_DASHES[policy]}"' if policy in _DASHES else ""
        line = f'<path d="M{x:.1f} {dy - 4:.1f}h22" stroke="{policy_colour(policy)}" stroke-width="2.5"{dash}/>'
        weight = ' font-weight="650"' if policy == "ape-v" else ""
        text = f'<text x="{x + 29:.1f}" y="{dy:.1f}"{weight}>{escaped(label)}</text>'
        area = f'<rect x="{x:.1f}" y="{dy - 11:.1f}" width="22" height="13" rx="3" fill="{colours[i]}"/>' if colours else ""
        parts.append((area or line + _marker(policy, x + 11, dy - 4)) + text)
        x += size
    return "".join(parts), 21.0 * (row + 1)


def _text_width(text: str) -> float:
    """Generous width at 13 px: fonts differ between machines, and labels must not touch on any of them."""
    return sum(12.6 if c in "mwMW" else 4.6 if c in "il,.'() " else 9.0 if c.isupper() else 7.9 for c in text)


def _axis_names(x_label: str, y_label: str, x_middle: float, x_base: float, y_middle: float) -> str:
    return (
        f'<text class="soft" x="{x_middle:.1f}" y="{x_base:.1f}" text-anchor="middle">{escaped(x_label)}</text>'
        f'<text class="soft" transform="translate(14 {y_middle:.1f}) rotate(-90)" text-anchor="middle">'
        f"{escaped(y_label)}</text>"
    )


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers inside [low, high], at most about `most` of them."""
    rough = (high - low) / most
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _svg(width: float, height: float, title: str, body: str, fallback: str) -> str:
    heading = f'<text x="16" y="24" font-size="16" font-weight="650">{escaped(title)}</text>' if title else ""
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" {size} role="img" '
        f'aria-label="{escaped(title or fallback)}"><style>{_STYLE}</style>'
        f'<rect class="card" width="{width:g}" height="{height:g}" rx="10"/>{heading}{body}</svg>'
    )
