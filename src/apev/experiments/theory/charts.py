"""The pictures of the theory: three routes through the city, the chain's values, what the surrogate gets right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from apev.experiments.common.charts import _svg
from apev.experiments.common.html import escaped

DRIVERS = {  # agent: what people call it, its colour, its lane (pixels to the right of the road's middle)
    "ape-v": ("Adaptive (APE-V)", "#e8590c", 7.0),
    "lcb": ("Pessimist (LCB)", "#0b8a76", -7.0),
    "average": ("Optimist (average)", "#1c7ed6", 0.0),
}
CELL = 47
MOST_CELLS = 100  # a side: each is drawn
ROAD = "#868e96"
MARKED = (2, 4, 8, 16, 32, 64)  # n that have a tick and a dot

Point = tuple[float, float]


def city_map(city: Mapping[str, Any], title: str = "", width: int = 720) -> str:
    """Two maps, an open and a blocked day, side by side or below each other, with the way each learned agent took."""
    plan, routes = city["map"], city["routes"]
    if not 2 <= plan["width"] <= MOST_CELLS or not 2 <= plan["height"] <= MOST_CELLS:
        raise ValueError(f"a map of {plan['width']} by {plan['height']} cells cannot be drawn")
    days = list(next(iter(routes.values())))
    size_x, size_y = plan["width"] * CELL, plan["height"] * CELL
    top, left, gap = (74 if title else 34), 18, 26
    apart, down = (size_x + gap, 0) if width >= 560 else (0, size_y + 140)
    total, height = 2 * left + size_x + apart, top + down + size_y + 100
    parts = []
    for i, day in enumerate(days):
        x, begin = left + i * apart, top + i * down
        parts.append(f'<text x="{x}" y="{begin - 14}" font-size="14" font-weight="650">{escaped(_day_name(day))}</text>')
        parts.append(f'<g transform="translate({x} {begin})">{_streets(plan, blocked=i == 1)}')
        for agent, (name, colour, lane) in reversed(DRIVERS.items()):
            parts.append(_route(plan, routes[agent][day], colour, lane, name))
        parts.append(_places(plan) + "</g>")
        for j, (agent, (name, colour, _)) in enumerate(DRIVERS.items()):
            way, y = routes[agent][day], begin + size_y + 30 + 24 * j
            steps = len(way["states"]) - 1
            told = f"{steps} steps" if way["arrived"] else f"not there after {steps} steps"
            weight = ' font-weight="650"' if agent == "ape-v" else ""
            parts.append(f'<path d="M{x} {y - 4.5}h24" stroke="{colour}" stroke-width="4.5" stroke-linecap="round"/>')
            parts.append(f'<text x="{x + 34}" y="{y}"{weight}>{escaped(name)}</text>')
            parts.append(f'<text x="{x + size_x - 4}" y="{y}" text-anchor="end"{weight}>{escaped(told)}</text>')
    return _svg(total, height, title, "".join(parts), "three ways through the city")


def _streets(plan: Mapping[str, Any], blocked: bool) -> str:
    """Ground, buildings, the wide road, the side street, and the blockade."""
    w, h = plan["width"], plan["height"]
    edge, low = _centre(w - 1, 0)[0], _centre(0, h - 1)[1]
    near = CELL / 2
    parts = [f'<rect width="{w * CELL}" height="{h * CELL}" rx="10" fill="{ROAD}" fill-opacity=".09"/>']
    for x in range(1, w - 1):
        for y in range(1, h - 1):
            inset = 6 + (x * 7 + y * 5) % 4  # houses differ a little
            size = CELL - 2 * inset
            parts.append(
                f'<rect x="{x * CELL + inset}" y="{y * CELL + inset}" width="{size}" height="{size}" rx="4" '
                f'fill="{ROAD}" fill-opacity="{0.16 + 0.05 * ((x + 2 * y) % 3):.2f}"/>'
            )
    around = f"M{near} {low}V{near}H{edge}V{low}"
    parts.append(f'<path d="M{near} {low}H{edge}" stroke="{ROAD}" stroke-opacity=".28" stroke-width="25" fill="none"/>')
    parts.append(
        f'<path d="{around}" stroke="{ROAD}" stroke-opacity=".5" stroke-width="38" fill="none" '
        'stroke-linejoin="round" stroke-linecap="round"/>'
        f'<path d="{around}" stroke="var(--card,#fff)" stroke-width="1.6" stroke-dasharray="7 8" fill="none"/>'
    )
    middle = (near + edge) / 2
    halo = 'text-anchor="middle" font-size="12.5" style="paint-order:stroke;stroke:var(--card,#fff);stroke-width:5px"'
    parts.append(f'<text class="soft" x="{middle}" y="{near + 34}" {halo}>wide road</text>')
    parts.append(f'<text class="soft" x="{middle + 1.2 * CELL}" y="{low - 19}" {halo}>side street</text>')
    if blocked:
        x = (plan["depth"] + 1) * CELL
        stripes = "".join(f'<path d="M{x - 4} {low + d + 4}l8 -7" stroke="#fff" stroke-width="3"/>' for d in (-12, -2, 8))
        parts.append(f'<rect x="{x - 4}" y="{low - 18}" width="8" height="36" rx="2" fill="#c92a2a"/>{stripes}')
    return "".join(parts)


def _places(plan: Mapping[str, Any]) -> str:
    """Home and destination, over the routes' ends."""
    parts = []
    for name, x in (("H", 0), ("D", plan["width"] - 1)):
        cx, cy = _centre(x, plan["height"] - 1)
        told = "home" if name == "H" else "destination"
        parts.append(
            f'<g><title>{told}</title><circle cx="{cx}" cy="{cy}" r="12.5" fill="#1f2430" stroke="#fff" stroke-width="2"/>'
            f'<text x="{cx}" y="{cy + 4.6}" text-anchor="middle" style="fill:#fff" font-weight="700">{name}</text></g>'
        )
    return "".join(parts)


def _route(plan: Mapping[str, Any], way: Mapping[str, Any], colour: str, lane: float, name: str) -> str:
    """One driver's way in its lane; who never arrives ends in a cross."""
    cells = [tuple(plan["cells"][s]) for s in way["states"]]
    passed = [c for i, c in enumerate(cells) if i == 0 or c != cells[i - 1]]
    points = lane_points([_centre(*cell) for cell in passed], lane)
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    end = ""
    if not way["arrived"]:
        x, y = points[-1]
        end = (
            f'<path d="M{x - 6:.1f} {y - 6:.1f}l12 12m0 -12l-12 12" stroke="{colour}" stroke-width="4" stroke-linecap="round"/>'
        )
    note = f"{name}: {len(cells) - 1} steps" + ("" if way["arrived"] else ", and not there")
    return (
        f'<g><title>{escaped(note)}</title><path d="M{path}" fill="none" stroke="{colour}" stroke-width="4.2" '
        f'stroke-linejoin="round" stroke-linecap="round"/>{end}</g>'
    )


def lane_points(points: Sequence[Point], lane: float) -> list[Point]:
    """The path moved `lane` pixels to the right of the way it goes, so that there and back lie side by side."""
    if len(points) < 2:
        return list(points)
    steps = [(bx - ax, by - ay) for (ax, ay), (bx, by) in pairwise(points)]
    # To the right of (dx, dy), y down, is (-dy, dx).
    sides = [(-dy / math.hypot(dx, dy) * lane, dx / math.hypot(dx, dy) * lane) for dx, dy in steps]
    moved = [(points[0][0] + sides[0][0], points[0][1] + sides[0][1])]
    for (x, y), before, after in zip(points[1:-1], sides, sides[1:], strict=False):
        if math.dist(before, after) > 1.5 * abs(lane):  # a turn-about: across the road
            moved += [(x + before[0], y + before[1]), (x + after[0], y + after[1])]
        elif before == after:
            moved.append((x + after[0], y + after[1]))
        else:  # round a corner both lanes meet
            moved.append((x + before[0] + after[0], y + before[1] + after[1]))
    moved.append((points[-1][0] + sides[-1][0], points[-1][1] + sides[-1][1]))
    return moved


def chain_chart(rows: Sequence[Mapping[str, float]], width: int = 720, title: str = "") -> str:
    """Expected steps over n, both on logarithmic axes: adaptive, best Markov, and the paper's bound."""
    lines = (
        ("adaptive", "Adaptive: 2n", "#e8590c", ""),
        ("markov", "Best Markov policy: n coth(ln 2 / 2n)", "#1c7ed6", ""),
        ("paper_bound", "Paper's bound: n²/2", "#ae3ec9", "7 4"),
    )
    left, right, top = 78, 18, (42 if title else 12) + (62 if width >= 560 else 83)
    height = top + 352
    bottom = height - 52
    low_x, high_x = math.log10(rows[0]["n"]), math.log10(rows[-1]["n"])
    values = [-row[key] for row in rows for key, *_ in lines]
    low_y, high_y = math.log10(min(values)) - 0.05, math.log10(max(values)) + 0.08

    def px(n: float) -> float:
        return left + (math.log10(n) - low_x) / ((high_x - low_x) or 1) * (width - left - right)

    def py(value: float) -> float:
        return bottom - (math.log10(value) - low_y) / (high_y - low_y) * (bottom - top)

    parts = []
    for power in range(math.ceil(low_y), math.floor(high_y) + 1):
        y = py(10.0**power)
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="soft" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{10**power:,}</text>')
    for n in (n for n in MARKED if rows[0]["n"] <= n <= rows[-1]["n"]):
        parts.append(f'<text class="soft" x="{px(n):.1f}" y="{bottom + 19}" text-anchor="middle">{n}</text>')
    parts.append(f'<line class="axis" x1="{left}" x2="{width - right}" y1="{bottom}" y2="{bottom}"/>')
    across = 2 if width >= 560 else 1
    for i, (key, label, colour, dash) in enumerate(lines):
        x, y = 16 + (i % across) * 310, (52 if title else 22) + 21 * (i // across)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        parts.append(f'<path d="M{x} {y - 4}h26" stroke="{colour}" stroke-width="3"{dashes}/>')
        parts.append(f'<text x="{x + 34}" y="{y}">{escaped(label)}</text>')
        path = "L".join(f"{px(row['n']):.1f} {py(-row[key]):.1f}" for row in rows)
        thick = 3 if key in ("adaptive", "markov") else 2
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="{thick}"{dashes}/>')
        if key in ("adaptive", "markov"):
            for row in (r for r in rows if r["n"] in MARKED):
                note = f"n = {row['n']:.0f}: {-row[key]:,.1f} steps"
                parts.append(
                    f'<circle class="dot" cx="{px(row["n"]):.1f}" cy="{py(-row[key]):.1f}" r="3.2" fill="{colour}">'
                    f"<title>{escaped(note)}</title></circle>"
                )
    middle = (left + width - right) / 2
    parts.append(
        f'<text class="soft" x="{middle:.1f}" y="{height - 12}" text-anchor="middle">n, steps from the start to an end</text>'
    )
    parts.append(
        f'<text class="soft" transform="translate(14 {(top + bottom) / 2:.1f}) rotate(-90)" text-anchor="middle">'
        "expected steps to the goal</text>"
    )
    return _svg(width, height, title, "".join(parts), "expected steps over n")


MEMBERS = {
    "alone": "values of each world alone",
    "updated": "adaptive values, b' after the step",
    "printed": "adaptive values, b on both sides (as printed)",
}
KINDS = {"certain": "Certain moves", "eliminating": "Chance, but doubts are about certain moves", "noisy": "Chance everywhere"}


def surrogate_bars(rows: Sequence[Mapping[str, Any]], width: int = 720, title: str = "") -> str:
    """How often the likelier of two hypotheses has the smaller TD error; a coin would get 1/2."""
    colours = {"alone": "#e8590c", "updated": "#0b8a76", "printed": "#d6336c"}
    narrow = width < 560
    left, right = (16 if narrow else 332), 72
    step = 46 if narrow else 30
    y = 54 if title else 22
    parts: list[str] = []
    scale = width - left - right
    begin = y - 6
    for kind, heading in KINDS.items():
        parts.append(f'<text x="16" y="{y + 6}" font-weight="650">{escaped(heading)}</text>')
        y += 16
        for row in (r for m in MEMBERS for r in rows if r["kind"] == kind and r["members"] == m):
            value, label = row["pairs_right"], MEMBERS[row["members"]]
            if narrow:
                parts.append(f'<text class="soft" x="{left}" y="{y + 14}" font-size="12">{escaped(label)}</text>')
            else:
                parts.append(f'<text class="soft" x="{left - 10}" y="{y + 16}" text-anchor="end">{escaped(label)}</text>')
            bar = y + (20 if narrow else 3)
            note = f"{heading}, {label}: {value:.3f} of the pairs right, {row['pairs_tied']:.3f} tied, {row['steps']} steps"
            parts.append(
                f'<g><title>{escaped(note)}</title><rect x="{left}" y="{bar}" width="{value * scale:.1f}" height="18" rx="3" '
                f'fill="{colours[row["members"]]}" fill-opacity=".82"/>'
                f'<text x="{width - 14}" y="{bar + 14}" text-anchor="end">{value:.1%}</text></g>'
            )
            y += step
        y += 18
    for tick in (0, 0.5, 1):
        x = left + tick * scale
        parts.insert(0, f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{begin}" y2="{y - 8}"/>')
        parts.append(f'<text class="soft" x="{x:.1f}" y="{y + 8}" text-anchor="middle">{tick:.0%}</text>')
    told = "pairs of hypotheses ranked as their likelihoods are"
    parts.append(f'<text class="soft" x="{left + scale / 2:.1f}" y="{y + 30}" text-anchor="middle">{told}</text>')
    return _svg(width, y + 44, title, "".join(parts), told)


def _centre(x: int, y: int) -> Point:
    return (x + 0.5) * CELL, (y + 0.5) * CELL


def _day_name(name: str) -> str:
    return "An open day" if name.endswith("open") else "A blocked day" if name.endswith("blocked") else name
