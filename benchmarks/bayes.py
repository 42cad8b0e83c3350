"""What the exact Bayes-optimal solver costs: python benchmarks/bayes.py

Random grid worlds from a few dozen to 1,024 states, with 2 to 8 hypotheses, are solved exactly. Three families:

    goals       certain moves; the goal is in one of K places, and only going there tells: 2^K - 1 beliefs
    blockades   certain moves; each of log2 K passages through a wall is open or not: 3^(log2 K) beliefs
    slippery    as goals with K up to 4, but one move in five goes astray: loops that only a linear solve can close

The growth exponent of a family is the slope of log(seconds) over log(states x reachable beliefs), fitted by least squares to
the problems where that product is at least `--fit-from`: below, fixed costs would flatter it. 1 is linear. The table also shows
microseconds for each (state, belief). The last line is JSON with the largest exponent of the families of certain moves, the
ones whose cost is meant to be linear; `slippery` pays for factorising planar graphs, which is a little more than linear.

Writes bayes.json and bayes.svg to `--out`.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table

from apev.bayes import Posterior, TabularMDP, solve
from apev.experiments.common.provenance import keep_answer

COLOURS = {"goals": "#1c7ed6", "blockades": "#e8590c", "slippery": "#868e96"}
MEANT_LINEAR = ("goals", "blockades")


@dataclass(frozen=True)
class Options:
    """Time the exact Bayes-optimal solver over a range of sizes, and fit how its cost grows."""

    sides: tuple[int, ...] = (8, 11, 16, 23, 32)
    """Sides of the square grids; 32 makes 1,024 states."""
    hypotheses: tuple[int, ...] = (2, 4, 8)
    """Numbers of hypotheses."""
    rounds: int = 3
    """How often each problem is solved; the fastest counts."""
    fit_from: int = 1000
    """Smallest states x beliefs that the exponent is fitted to."""
    seed: int = 0
    """Places goals, walls and starts."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs/benchmarks")
    """Folder for bayes.json and bayes.svg."""


@dataclass(frozen=True)
class Point:
    """One problem."""

    family: str
    states: int
    hypotheses: int
    beliefs: int
    nodes: int
    seconds: float

    @property
    def size(self) -> int:
        return self.states * self.beliefs


def grid_moves(side: int) -> np.ndarray:
    """[S, 4]: up, right, down, left."""
    cell = np.arange(side * side)
    y, x = np.divmod(cell, side)
    steps = [(y > 0, -side), (x < side - 1, 1), (y < side - 1, side), (x > 0, -1)]
    return np.stack([np.where(free, cell + step, cell) for free, step in steps], axis=1)


def goals(side: int, K: int, rng: np.random.Generator) -> Posterior:
    """The goal is in one of K places."""
    *places, start = rng.choice(side * side, K + 1, replace=False).tolist()
    return Posterior([TabularMDP.deterministic(grid_moves(side), start=start, terminal=[goal]) for goal in places])


def blockades(side: int, K: int, rng: np.random.Generator) -> Posterior:
    """A wall with a far gap that is open and log2 K nearer ones that may be."""
    count, middle = int(math.log2(K)), side // 2
    moves = grid_moves(side)
    nearer = rng.choice(np.arange(1, side), count, replace=False)
    worlds = []
    for k in range(2**count):
        wall = np.ones(side, dtype=bool)
        wall[0] = False
        wall[nearer] = [bool(k >> i & 1) for i in range(count)]
        closed = np.zeros(side * side, dtype=bool)
        closed[np.flatnonzero(wall) * side + middle] = True
        follow = np.where(closed[moves], np.arange(side * side)[:, None], moves)
        last = side * (side - 1)
        worlds.append(TabularMDP.deterministic(follow, start=last, terminal=[last + side - 1]))
    return Posterior(worlds)


def slippery(side: int, K: int, rng: np.random.Generator) -> Posterior:
    """As `goals`, but one move in five goes to a side."""
    moves, S = grid_moves(side), side * side
    following = np.stack([moves, np.roll(moves, 1, axis=1), np.roll(moves, -1, axis=1)], axis=-1)  # [S, 4, 3]
    chance = np.broadcast_to([0.8, 0.1, 0.1], following.shape).copy()
    *places, start = rng.choice(S, K + 1, replace=False).tolist()
    cost, first = np.full(following.shape, -1.0), np.eye(S)[start]
    return Posterior([TabularMDP(following, chance, cost, first, np.arange(S) == goal) for goal in places])


FAMILIES: dict[str, Callable[[int, int, np.random.Generator], Posterior]] = {
    "goals": goals,
    "blockades": blockades,
    "slippery": slippery,
}


def measure(family: str, side: int, K: int, options: Options) -> Point:
    """Solve one problem a few times; the fastest counts, since others use the machine too."""
    posterior = FAMILIES[family](side, K, np.random.default_rng(options.seed))
    seconds = []
    for _ in range(options.rounds):
        begin = time.perf_counter()
        solution = solve(posterior)
        seconds.append(time.perf_counter() - begin)
    return Point(family, side * side, K, len(solution.graph.beliefs), solution.num_nodes, min(seconds))


def exponent(points: list[Point], fit_from: int) -> tuple[float, float]:
    """Slope and intercept of log(seconds) over log(states x beliefs)."""
    fitted = [p for p in points if p.size >= fit_from]
    if len({p.size for p in fitted}) < 2:
        raise SystemExit("fewer than two sizes to fit. Fix: more --sides or --hypotheses, or a smaller --fit-from.")
    slope, offset = np.polyfit(np.log([p.size for p in fitted]), np.log([p.seconds for p in fitted]), 1)
    return float(slope), float(offset)


def figure(points: list[Point], fits: dict[str, tuple[float, float]], fit_from: int) -> str:
    """Seconds over states x beliefs, both on logarithmic axes, as SVG."""
    width, height, left, right, top, bottom = 720, 460, 74, 24, 86, 404
    low_x, high_x = (f(math.log10(p.size) for p in points) for f in (min, max))
    low_y, high_y = (f(math.log10(p.seconds) for p in points) for f in (min, max))
    low_x, high_x, low_y, high_y = low_x - 0.1, high_x + 0.1, math.floor(low_y), math.ceil(high_y)

    def px(size: float) -> float:
        return left + (math.log10(size) - low_x) / (high_x - low_x) * (width - left - right)

    def py(seconds: float) -> float:
        return bottom - (math.log10(seconds) - low_y) / (high_y - low_y) * (bottom - top)

    parts = ['<text x="16" y="26" font-size="16" font-weight="650">Exact Bayes-optimal solver: cost over size</text>']
    for power in range(low_y, high_y + 1):
        y = py(10.0**power)
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e3e6ea"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#5c6370">{10.0**power:g} s</text>')
    for power in range(math.ceil(low_x), math.floor(high_x) + 1):
        parts.append(
            f'<text x="{px(10**power):.1f}" y="{bottom + 20}" text-anchor="middle" fill="#5c6370">{10**power:,}</text>'
        )
    parts.append(f'<line x1="{left}" x2="{width - right}" y1="{bottom}" y2="{bottom}" stroke="#5c6370"/>')
    for i, (family, (slope, offset)) in enumerate(fits.items()):
        own = [p for p in points if p.family == family]
        ends = [f(p.size for p in own if p.size >= fit_from) for f in (min, max)]
        path = "L".join(f"{px(x):.1f} {py(math.exp(offset) * x**slope):.1f}" for x in ends)
        parts.append(f'<path d="M{path}" stroke="{COLOURS[family]}" stroke-width="1.5" stroke-dasharray="5 4" fill="none"/>')
        for p in own:
            note = f"{family}: {p.states} states, {p.hypotheses} hypotheses, {p.beliefs} beliefs: {p.seconds:.3g} s"
            parts.append(
                f'<circle cx="{px(p.size):.1f}" cy="{py(p.seconds):.1f}" r="4.2" fill="{COLOURS[family]}" stroke="#fff">'
                f"<title>{note}</title></circle>"
            )
        x = 16 + 220 * i
        parts.append(f'<circle cx="{x + 6}" cy="52" r="4.2" fill="{COLOURS[family]}"/>')
        parts.append(f'<text x="{x + 18}" y="56">{family}: exponent {slope:.2f}</text>')
    middle = (left + width - right) / 2
    parts.append(f'<text x="{middle}" y="{height - 14}" text-anchor="middle" fill="#5c6370">states × reachable beliefs</text>')
    font = "ui-sans-serif, system-ui, 'Segoe UI', Roboto, Arial, sans-serif"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="Cost of the exact Bayes-optimal solver over size" font-family="{font}" font-size="13" fill="#1f2430">'
        f'<rect width="{width}" height="{height}" rx="10" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def main(options: Options) -> None:
    """Measure, print the table, write the files, and end with the line of JSON."""
    if options.rounds < 1:
        raise SystemExit(f"--rounds is {options.rounds}. Fix: at least 1.")
    if not options.sides or min(options.sides) < 5:
        raise SystemExit(f"--sides is {options.sides}. Fix: sides from 5.")
    if not options.hypotheses or any(K < 2 or K & (K - 1) for K in options.hypotheses):
        raise SystemExit(f"--hypotheses is {options.hypotheses}. Fix: powers of two, from 2.")
    torch.set_num_threads(1)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")  # how busy others keep the machine
    table = Table("family", "states", "hypotheses", "beliefs", "(state, belief)", "s", "µs each", title="exact solver")
    points = []
    for family in FAMILIES:
        for K in options.hypotheses:
            for side in options.sides if family in MEANT_LINEAR or K <= 4 else ():
                p = measure(family, side, K, options)
                points.append(p)
                cells = (
                    p.states,
                    p.hypotheses,
                    p.beliefs,
                    f"{p.nodes:,}",
                    f"{p.seconds:.3f}",
                    f"{1e6 * p.seconds / p.nodes:.1f}",
                )
                table.add_row(family, *map(str, cells))
    Console().print(table)
    fits = {f: exponent([p for p in points if p.family == f], options.fit_from) for f in FAMILIES}
    growth = max(fits[f][0] for f in MEANT_LINEAR)
    for family, (slope, _) in fits.items():
        print(f"{family}: seconds grow as (states x beliefs)^{slope:.2f}")
    options.out.mkdir(parents=True, exist_ok=True)
    answer = {
        "growth_exponent": round(growth, 3),
        "exponents": {family: round(slope, 3) for family, (slope, _) in fits.items()},
        "fit_from": options.fit_from,
        "load_before": round(load, 2),
        "points": [asdict(p) for p in points],
    }
    keep_answer(options.out / "bayes.json", answer)
    (options.out / "bayes.svg").write_text(figure(points, fits, options.fit_from), encoding="utf-8")
    print(json.dumps({"growth_exponent": round(growth, 3)}))


if __name__ == "__main__":
    main(tyro.cli(Options, description=Options.__doc__))
