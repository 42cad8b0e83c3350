"""`apev data kinds LOG --picture FILE`: what a verdict on a log rests on, as one SVG or as a page."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np

from apev.experiments.common.charts import _axis_names, _svg, _text_width, _ticks
from apev.experiments.common.html import escaped, figure, header, section, whole_page
from apev.experiments.fleet.figures import columns_chart, reliability_chart
from apev.experiments.fleet.filmstrip import COLOURS
from apev.files import write_text
from apev.worlds import Kinds

LINES = 12  # contexts drawn beside the median
GAP, HALF = 20, 400
Draw = Callable[[int, str], str]  # (width, title) -> SVG


def write_picture(path: Path, found: Kinds, log: str) -> Path:
    """Draw what was found in `log` to a .svg or a .html file."""
    check_name(path)
    write_text(path, (picture(found, log) if path.suffix == ".svg" else page(found, log)) + "\n")
    return path


def check_name(path: Path) -> None:
    """A name that does not say which of the two is refused."""
    if path.suffix not in (".svg", ".html"):
        raise ValueError(f"--picture {path}: pictures are .svg or .html. Fix: end the name with one of them.")


def charts(found: Kinds) -> list[tuple[str, str, Draw]]:
    """(heading, note, chart) of what there is to show."""
    shown: list[tuple[str, str, Draw]] = []
    if found.tried:
        note = "Gain over one kind for all, on steps of contexts that were held out, with its standard error."
        shown.append(("How many kinds?", note, lambda width, title: tried_chart(found, width, title)))
    if found.models is None:
        return shown
    if found.traces:
        note = f"The belief in the right kind: the median {found.group_is}, bold, and some in the colours of their kinds."
        shown.append(("How soon is it known?", note, lambda width, title: traces_chart(found, width, title)))
    columns = [{"name": name, "share": share} for name, share in found.columns]
    note = "The share of the evidence that each column brings."
    shown.append(("What tells them apart?", note, lambda width, title: columns_chart(columns, width, title)))
    if found.reliability:
        bins = [vars(entry) for entry in found.reliability]
        note = "On the dashed line it is as often right as it says; a dot is as large as it has beliefs."
        shown.append(("Can the belief be trusted?", note, lambda width, title: reliability_chart(bins, width, title)))
    return shown


def page(found: Kinds, log: str) -> str:
    """The page."""
    verdict = found.in_words()
    sections = [header(f"Kinds in {log}", verdict[:1].upper() + verdict[1:], headline(found))]
    if found.models is not None:
        note = f"How many {found.group_is}s are of each."
        sections.append(figure("sizes", "The kinds", note, lambda width: sizes_chart(found, width)))
    for number, (heading, note, draw) in enumerate(charts(found)):
        small = heading in ("What tells them apart?", "Can the belief be trusted?")
        if not small:
            sections.append(figure(f"chart-{number}", heading, note, lambda width, draw=draw: draw(width, "")))  # type: ignore[misc]
    halves = "".join(
        f'<div><h3>{escaped(heading)}</h3><p class="note">{escaped(note)}</p>{draw(360, "")}</div>'
        for heading, note, draw in charts(found)[2:]
    )
    if halves:
        sections.append(section("evidence", "The evidence", "", f'<div class="halves">{halves}</div>'))
    return whole_page(f"Kinds in {log}", sections)


def headline(found: Kinds) -> str:
    """The numbers that matter."""
    numbers = [(" class=hero", f"{found.count}", "kinds" if found.count > 1 else "kind")]
    if found.count > 1:
        steps = "never" if math.isinf(found.steps_to_95) else f"{found.steps_to_95:.0f}"
        numbers.append(("", steps, "steps until the median one is 95% sure"))
        numbers.append(("", f"{found.halfway:.0%}", "belief in the right kind after half an episode"))
    items = (f"<li{mark}><b>{escaped(value)}</b>{escaped(told)}</li>" for mark, value, told in numbers)
    return f'<ul class="headline many">{"".join(items)}</ul>'


def picture(found: Kinds, log: str) -> str:
    """All of it in one SVG."""
    width = 2 * HALF + GAP
    verdict = textwrap.wrap(found.in_words(), 104)
    parts = [f'<text class="soft" x="16" y="{50 + 19 * i}">{escaped(line)}</text>' for i, line in enumerate(verdict)]
    y = 50.0 + 19 * len(verdict)
    if found.models is not None:
        parts.append(_placed(sizes_chart(found, width), 0, y))
        y += _height(sizes_chart(found, width)) + GAP
    drawn = [draw(HALF, heading) for heading, _, draw in charts(found)]
    for left, right in zip(drawn[::2], [*drawn[1::2], ""], strict=False):
        parts.append(_placed(left, 0, y) + (_placed(right, HALF + GAP, y) if right else ""))
        y += max(_height(left), _height(right) if right else 0) + GAP
    return _svg(width, y, f"Kinds in {log}", "".join(parts), "kinds")


def sizes_chart(found: Kinds, width: int = 720) -> str:
    """One bar of all contexts, in the colours that kinds have in the other charts."""
    sizes = [*found.sizes, *([found.of_no_kind] if found.of_no_kind else [])]
    names = [f"kind {number + 1}" for number in range(found.count)] + (["no kind"] if found.of_no_kind else [])
    parts, x, room = [], 16.0, width - 32 - 3 * (len(sizes) - 1)
    for number, (name, size) in enumerate(zip(names, sizes, strict=True)):
        wide = room * size / max(1, sum(sizes))
        said = next((said for said in (f"{name}: {size:,}", f"{size:,}", "") if _text_width(said) < wide - 6), "")
        colour = COLOURS[number % len(COLOURS)] if number < found.count else "#868e96"
        parts.append(
            f"<g><title>{escaped(name)}: {size:,} {escaped(found.group_is)}s</title>"
            f'<rect x="{x:.1f}" y="8" width="{wide:.1f}" height="30" rx="5" fill="{colour}"/>'
            f'<text x="{x + wide / 2:.1f}" y="27.5" text-anchor="middle" style="fill:#fff" font-weight="650">'
            f"{escaped(said)}</text></g>"
        )
        x += wide + 3
    return _svg(width, 46, "", "".join(parts), "contexts of each kind")


def tried_chart(found: Kinds, width: int = 720, title: str = "") -> str:
    """How much better each number of kinds predicts than one kind; the one that was taken stands out."""
    best = {t.kinds: t for t in sorted(found.tried, key=lambda t: t.gain) if t.kinds > 1}  # a search may end with fewer
    points = [(0.0, 0.0, 1), *((best[kinds].gain, best[kinds].error, kinds) for kinds in sorted(best))]
    left, right, top = 64, 18, 44 if title else 14
    bottom = top + 220
    low = min(0.0, *(gain - error for gain, error, _ in points))
    high = max(*(gain + error for gain, error, _ in points), low + 1e-3)
    pad = 0.08 * (high - low)
    low, high = low - pad * (low < 0), high + pad

    def px(kinds: int) -> float:
        return left + (kinds - 0.5) / max(kinds for *_, kinds in points) * (width - left - right)

    def py(gain: float) -> float:
        return bottom - (gain - low) / (high - low) * (bottom - top)

    parts = []
    for tick in _ticks(low, high, 5):
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{py(tick):.1f}" y2="{py(tick):.1f}"/>')
        parts.append(f'<text class="soft" x="{left - 8}" y="{py(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    parts.append(f'<line class="axis" x1="{left}" x2="{width - right}" y1="{py(0):.1f}" y2="{py(0):.1f}"/>')
    for gain, error, kinds in points:
        taken = kinds == found.count
        colour, bold = ("#e8590c", ' font-weight="650"') if taken else ("#868e96", "")
        x, least, most = px(kinds), py(gain - error), py(gain + error)
        parts.append(
            f"<g><title>{kinds} kinds: {gain:+.3f} nats a step, error {error:.3f}</title>"
            f'<path class="whisker" fill="none" style="stroke:{colour}" d="M{x:.1f} {least:.1f}V{most:.1f}'
            f'M{x - 5:.1f} {least:.1f}h10M{x - 5:.1f} {most:.1f}h10"/>'
            f'<circle class="dot" cx="{x:.1f}" cy="{py(gain):.1f}" r="{7 if taken else 5}" fill="{colour}"/>'
            f'<text x="{x:.1f}" y="{bottom + 19}" text-anchor="middle"{bold}>{kinds}</text></g>'
        )
    parts.append(
        _axis_names("kinds", "nats a step, over one kind", (left + width - right) / 2, bottom + 40, (top + bottom) / 2)
    )
    return _svg(width, bottom + 52, title, "".join(parts), "how well each number of kinds predicts")


def traces_chart(found: Kinds, width: int = 720, title: str = "") -> str:
    """The belief in the right kind over steps, which are told slowly at first."""
    left, right, top = 64, 18, 44 if title else 14
    bottom, steps = top + 220, max(len(belief) for _, belief in found.traces) - 1

    def px(step: int) -> float:
        return left + math.log1p(step) / math.log1p(max(steps, 1)) * (width - left - right)

    def py(share: float) -> float:
        return bottom - share * (bottom - top)

    def way(belief: np.ndarray) -> str:
        return "M" + "L".join(f"{px(step):.1f} {py(float(share)):.1f}" for step, share in enumerate(belief))

    parts = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{py(tick):.1f}" y2="{py(tick):.1f}"/>')
        parts.append(f'<text class="soft" x="{left - 8}" y="{py(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in [step for step in (0, 1, 2, 4, 8, 16, 32, 64, 128, 256) if step <= steps]:
        parts.append(f'<text class="soft" x="{px(tick):.1f}" y="{bottom + 19}" text-anchor="middle">{tick}</text>')
    every = -(-len(found.traces) // LINES)
    for kind, belief in found.traces[::every]:  # they are in the order of their kinds
        colour = COLOURS[kind % len(COLOURS)]
        parts.append(f'<path d="{way(belief)}" fill="none" stroke="{colour}" stroke-opacity=".55" stroke-width="1.3"/>')
    lengths = np.array([len(belief) for _, belief in found.traces])
    enough = [step for step in range(steps + 1) if (lengths > step).sum() * 2 >= len(lengths)]  # of half the contexts and more
    median = np.array([np.median([belief[step] for _, belief in found.traces if len(belief) > step]) for step in enough])
    parts.append(f'<path d="{way(median)}" fill="none" class="whisker" style="stroke-width:3" stroke-linejoin="round"/>')
    parts.append(f'<path class="axis" stroke-dasharray="4 4" d="M{left} {py(0.95):.1f}H{width - right}"/>')
    parts.append(f'<text class="soft" x="{left + 6}" y="{py(0.95) + 15:.1f}" font-size="12">95% sure</text>')
    middle = (left + width - right) / 2
    parts.append(_axis_names("steps seen", "belief in the right kind", middle, bottom + 40, (top + bottom) / 2))
    return _svg(width, bottom + 52, title, "".join(parts), "belief in the right kind over steps")


def _placed(chart: str, x: float, y: float) -> str:
    """A chart at a place inside another."""
    return chart.replace("<svg ", f'<svg x="{x:g}" y="{y:g}" ', 1)


def _height(chart: str) -> float:
    """Of a chart, as it says."""
    return float(chart.partition(' height="')[2].partition('"')[0])
