"""Charts of a fleet: returns beside what blind and knowing policies earn, how far a belief can be trusted, and what tells kinds
apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from apev.agents import ALGORITHMS
from apev.experiments.common.charts import _svg, _text_width, _ticks, policy_colour
from apev.experiments.common.html import escaped
from apev.experiments.fleet.recipe import MEMORY

COLOURS = {
    "adaptive": ALGORITHMS["ape-v"].colour,
    "knows the kind": "#868e96",
    "labels given": "#868e96",
    "as printed": "#d6336c",
}
MEMBER = "#099268"
SHOWN_COLUMNS = 6
Mark = tuple[str, float]


def label(name: str) -> str:
    """What tables and charts call a policy."""
    algorithm, comma, episode = name.partition(", episode ")
    return ALGORITHMS[algorithm].label + comma + episode if algorithm in ALGORITHMS else name


def telling(summary: Mapping[str, Any]) -> list[str]:
    """The rows that say most, at most eight: of members, of memory and of the blind only the best."""
    policies = summary["policies"]

    def best(names: Sequence[str]) -> list[str]:
        return [max(names, key=lambda name: float(policies[name]["return"]))] if names else []

    rows = [name for name in ("knows the kind", "labels given", "adaptive") if name in policies]
    rows += best([name for name in MEMORY if name in policies])
    rows += [name for name in ("average",) if name in policies]
    rows += best([name for name in policies if name.startswith("member ")])
    rows += [name for name in (summary["best_blind"]["policy"],) if name in policies]
    return rows + [name for name in ("as printed",) if name in policies]


def marks(summary: Mapping[str, Any]) -> list[Mark]:
    """Between which returns the story takes place."""
    exact, blind = summary["exact"], summary["best_blind"]["return"]
    found = [("best blind", float(blind))] if blind is not None else []
    if exact:
        return found + [(name, float(exact[name])) for name in ("best without knowing",) if name in exact]
    knows = summary["policies"].get("knows the kind")
    return found + ([("knows the kind", float(knows["return"]))] if knows else [])


def number(value: float) -> str:
    """A return, as the table has it."""
    return f"{value:,.{0 if abs(value) >= 100 else 1}f}"


def returns_chart(summary: Mapping[str, Any], width: int = 720, title: str = "") -> str:
    """Returns with their intervals; dashed lines are what blind and knowing policies earn."""
    names, lines = telling(summary), marks(summary)
    rows = [(name, float(summary["policies"][name]["return"]), *summary["policies"][name]["ci95"]) for name in names]
    if not rows:
        raise ValueError("no policies to draw")
    top, row_height, right = (36 if title else 4) + 19 * len(lines) + 8, 34, 66
    left = 18 + max(_text_width(label(name)) for name in names)
    bottom = top + row_height * len(rows)
    ends: list[float] = [0.0, *(end for row in rows for end in row[1:]), *(value for _, value in lines)]
    low, high = min(ends), max(ends)
    high += high == low
    scale = (width - left - right) / (high - low)

    def px(value: float) -> float:
        return left + (value - low) * scale

    parts = []
    for tick in _ticks(low, high, 6 if width >= 560 else 3):
        parts.append(f'<line class="grid" x1="{px(tick):.1f}" x2="{px(tick):.1f}" y1="{top}" y2="{bottom}"/>')
        parts.append(f'<text class="soft" x="{px(tick):.1f}" y="{bottom + 18}" text-anchor="middle">{tick:,g}</text>')
    for i, (name, value, least, most) in enumerate(rows):
        parts.append(_bar(name, value, (least, most), px, top + row_height * (i + 0.5), left, width))
    parts.append(f'<line class="axis" x1="{px(0):.1f}" x2="{px(0):.1f}" y1="{top}" y2="{bottom}"/>')
    for i, (name, value) in enumerate(lines):
        said, y = f"{name} {number(value)}", top - 12 - 19 * i
        half = _text_width(said) / 2
        x = min(max(px(value), half + 4), width - half - 4)
        parts.append(
            f'<path class="whisker" d="M{px(value):.1f} {y + 5}V{bottom}" stroke-dasharray="4 4"/>'
            f'<text class="soft" x="{x:.1f}" y="{y}" text-anchor="middle">{escaped(said)}</text>'
        )
    middle = (left + width - right) / 2
    parts.append(f'<text class="soft" x="{middle:.1f}" y="{bottom + 40}" text-anchor="middle">return, with 95% interval</text>')
    return _svg(width, bottom + 52, title, "".join(parts), "returns by policy")


def _bar(name: str, value: float, interval: tuple[float, float], px: Any, y: float, left: float, width: int) -> str:
    """One policy: its name, a bar from 0, the interval and the number."""
    bold = ' font-weight="650"' if name == "adaptive" else ""
    begin, end = sorted((px(0.0), px(value)))
    low, high = px(interval[0]), px(interval[1])
    note = f"{label(name)}: {number(value)}, 95% interval {number(interval[0])} to {number(interval[1])}"
    colour = COLOURS.get(name) or (MEMBER if name.startswith("member ") else policy_colour(name))
    return (
        f"<g><title>{escaped(note)}</title>"
        f'<text x="{left - 10:.1f}" y="{y + 4.5:.1f}" text-anchor="end"{bold}>{escaped(label(name))}</text>'
        f'<rect x="{begin:.1f}" y="{y - 10:.1f}" width="{max(end - begin, 1):.1f}" height="20" rx="3" fill="{colour}" '
        f'fill-opacity=".82"/><path class="whisker" fill="none" '
        f'd="M{low:.1f} {y - 5:.1f}v10M{low:.1f} {y:.1f}H{high:.1f}M{high:.1f} {y - 5:.1f}v10"/>'
        f'<text x="{width - 8}" y="{y + 4.5:.1f}" text-anchor="end"{bold}>{escaped(number(value))}</text></g>'
    )


def reliability_chart(bins: Sequence[Mapping[str, Any]], width: int = 360, title: str = "") -> str:
    """How often beliefs are right against what they say; a dot is as large as it has beliefs."""
    points = [(float(b["stated"]), float(b["right"]), int(b["beliefs"])) for b in bins]
    most = max(count for *_, count in points)
    low = min([0.5, *(min(stated, right) for stated, right, _ in points)])
    low = max(0.0, int(low * 10) / 10)
    left, top = 56, 40 if title else 12
    side = min(width - left - 18, 300)
    bottom = top + side

    def px(share: float) -> float:
        return left + (share - low) / (1 - low) * side

    def py(share: float) -> float:
        return bottom - (share - low) / (1 - low) * side

    parts = []
    for tick in _ticks(low, 1.0, 5):
        parts.append(f'<line class="grid" x1="{left}" x2="{left + side}" y1="{py(tick):.1f}" y2="{py(tick):.1f}"/>')
        parts.append(f'<text class="soft" x="{left - 8}" y="{py(tick) + 4:.1f}" text-anchor="end">{tick:.1f}</text>')
        parts.append(f'<text class="soft" x="{px(tick):.1f}" y="{bottom + 19}" text-anchor="middle">{tick:.1f}</text>')
    parts.append(f'<path class="axis" stroke-dasharray="4 4" d="M{px(low):.1f} {py(low):.1f}L{px(1):.1f} {py(1):.1f}"/>')
    way = "L".join(f"{px(stated):.1f} {py(right):.1f}" for stated, right, _ in points)
    parts.append(f'<path d="M{way}" fill="none" stroke="{COLOURS["adaptive"]}" stroke-width="2"/>')
    for stated, right, count in points:
        note = f"belief {stated:.2f}: right {right:.2f} of the time ({count:,} beliefs)"
        radius = 3 + 6 * (count / most) ** 0.5
        parts.append(
            f'<circle class="dot" cx="{px(stated):.1f}" cy="{py(right):.1f}" r="{radius:.1f}" fill="{COLOURS["adaptive"]}">'
            f"<title>{note}</title></circle>"
        )
    middle = left + side / 2
    parts.append(f'<text class="soft" x="{middle:.1f}" y="{bottom + 40}" text-anchor="middle">what the belief says</text>')
    turn = f"translate(13 {(top + bottom) / 2:.1f}) rotate(-90)"
    parts.append(f'<text class="soft" transform="{turn}" text-anchor="middle">how often it is right</text>')
    return _svg(left + side + 18, bottom + 52, title, "".join(parts), "reliability of the belief")


def columns_chart(columns: Sequence[Mapping[str, Any]], width: int = 360, title: str = "") -> str:
    """The share of the evidence that each column brings, largest first; small ones are left out."""
    rows = [(str(column["name"]), float(column["share"])) for column in columns][:SHOWN_COLUMNS]
    top, row_height, right = (40 if title else 12), 30, 52
    left = min(16 + max(_text_width(name[:24]) for name, _ in rows), width * 0.55)
    scale = (width - left - right) / (max(share for _, share in rows) or 1.0)
    parts = []
    for i, (name, share) in enumerate(rows):
        y = top + row_height * (i + 0.5)
        short = name if len(name) <= 24 else name[:23] + "…"
        parts.append(
            f"<g><title>{escaped(name)}: {share:.1%} of the evidence</title>"
            f'<text x="{left - 10:.1f}" y="{y + 4.5:.1f}" text-anchor="end">{escaped(short)}</text>'
            f'<rect x="{left:.1f}" y="{y - 8:.1f}" width="{max(share * scale, 1):.1f}" height="16" rx="3" fill="#1c7ed6" '
            f'fill-opacity=".82"/><text class="soft" x="{width - 8}" y="{y + 4.5:.1f}" text-anchor="end">{share:.0%}</text></g>'
        )
    return _svg(width, top + row_height * len(rows) + 8, title, "".join(parts), "share of the evidence by column")
