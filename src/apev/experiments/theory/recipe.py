"""The paper's theory as claims that are checked: `apev reproduce theory`.

Cells (exact computations and agents to train) run side by side and give plain data. `make_claims` turns that data into
statements with an expected and a measured number; `run` writes the data, the claims, the figures and the page.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from apev.cells import Cell, Many
from apev.experiments.common.statistics import bootstrap_ci
from apev.experiments.theory.claims import make_claims
from apev.experiments.theory.exact import chain_rows, city_exact, frontier, propositions, surrogate
from apev.experiments.theory.learned import HELD_OUT, PER_GROUP, Task, learn
from apev.experiments.theory.report import print_claims, write_theory
from apev.experiments.theory.worlds import WORLDS
from apev.files import write_json, write_lines

ONE = Many(jobs=1)


@dataclass(frozen=True)
class Size:
    """How much is computed."""

    chain: tuple[int, ...] = tuple(range(2, 65))  # n of Theorem 4.1
    problems: int = 20  # random problems a proposition
    surrogate_problems: int = 80  # random worlds for each row of the surrogate's table
    boxes: int = 2000  # of branch and bound over Markov policies
    restarts: int = 4  # of the climb to the best Markov policy of the room
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    updates: int | None = None  # gradient steps of every agent; each world's own unless given
    days: int = 1000  # test days a seed in the city


SIZES = {
    "full": Size(),
    "smoke": Size(chain=(2, 3, 5), problems=2, surrogate_problems=5, boxes=50, restarts=0, seeds=(0, 1), updates=20, days=50),
}

PARTS: dict[str, Callable[..., Any]] = {
    "chain": chain_rows,
    "frontier": frontier,
    "propositions": propositions,
    "surrogate": surrogate,
    "city": city_exact,
    "learned": lambda *task: learn(Task(*task)),
}
"""What is computed, by its name in the summary."""


def work_cell(part: str, arguments: list[Any]) -> Any:
    """One computation; plain data."""
    return PARTS[part](*arguments)


def cells(size: Size) -> list[Cell]:
    """Everything to compute, the longest first. These networks are too small to share: one thread each."""
    learned = [(world, agent, seed) for world in ("doors", "city", "chain") for seed in size.seeds for agent in _agents(world)]
    exact: list[tuple[str, list[Any]]] = [
        ("chain", [list(size.chain[::2])]),
        ("chain", [list(size.chain[1::2])]),
        ("frontier", ["doors", size.restarts, size.boxes // 20]),
        ("propositions", [size.problems]),
        ("surrogate", [size.surrogate_problems]),
        ("city", [size.boxes]),
        ("frontier", ["city", size.restarts, size.boxes]),
        ("frontier", ["chain", size.restarts, 0]),
    ]
    tasks = [("learned", [w, a, s, size.updates, size.days if w == "city" else 0]) for w, a, s in learned]
    found = []
    for part, arguments in exact[:3] + tasks + exact[3:]:
        name = f"{part} {', '.join(str(word) for word in arguments if isinstance(word, str))}".rstrip()
        name += f", seed {arguments[2]}" if part == "learned" else ""
        found.append(Cell(name, "theory", {"part": part, "arguments": arguments}, threads=1))
    return found


def run(
    out: str | Path,
    size: Size | None = None,
    *,
    machines: Many = ONE,
    meta: Mapping[str, Any] | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Compute everything, write it to the folder, print the claims; returns the summary."""
    size, out, console, began = size or Size(), Path(out), console or Console(stderr=True), time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    work, threads = cells(size), torch.get_num_threads()
    found: dict[str, list[Any]] = {}
    for cell, result in zip(work, machines.run_cells(work), strict=True):
        found.setdefault(cell.arguments["part"], []).append(result)
    torch.set_num_threads(threads)
    learned = sorted(found["learned"], key=lambda r: (r["world"], r["agent"], r["seed"]))
    data = {
        "chain": sorted((row for rows in found["chain"] for row in rows), key=lambda row: row["n"]),
        "propositions": found["propositions"][0],
        "surrogate": found["surrogate"][0],
        "city": found["city"][0] | {"learned": city_learned(learned), "routes": city_routes(learned, size.seeds[0])},
        "bayes_optimality": bayes_optimality(sorted(found["frontier"], key=lambda row: row["world"]), learned),
        "agents": {name: {a: asdict(c) for a, c in make().agents.items()} for name, make in WORLDS.items()},
    }
    summary = {
        "kind": "theory",
        "title": "The theory, run",
        "claims": [asdict(claim) for claim in make_claims(data)],
        **data,
        "meta": dict(meta or {})
        | {
            "seeds": list(size.seeds),
            "updates": {name: size.updates or make().updates for name, make in WORLDS.items()},
            "batch": {name: f"{make().groups} contexts x {PER_GROUP} steps" for name, make in WORLDS.items()},
            "held out": f"{HELD_OUT:.0%} of the contexts",
            "workers": machines.ray or machines.jobs,
            "seconds": round(time.monotonic() - began),
        },
    }
    write_json(out / "summary.json", summary)
    write_lines(out / "episodes.jsonl.gz", [line for result in learned for line in result["episodes"]])
    page = write_theory(out)
    print_claims(summary)
    console.print(f"{time.monotonic() - began:.0f} s. Open [bold]{page}[/bold] in a browser for the pictures.")
    return summary


def city_learned(learned: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Travel times of each learned agent: over the days drawn, with the interval over days and seeds, and exact by seed."""
    table = {}
    for agent in _agents("city"):
        runs = [r for r in learned if r["world"] == "city" and r["agent"] == agent]
        times = [[line["length"] for line in r["episodes"]] for r in runs]
        table[agent] = {
            "mean": float(np.mean([t for seed in times for t in seed])),
            "ci95": list(bootstrap_ci(times)),
            "by_seed": {str(r["seed"]): float(np.mean(t)) for r, t in zip(runs, times, strict=True)},
            "exact_by_seed": {str(r["seed"]): -r["value"] for r in runs},
            "by_day": {str(r["seed"]): [len(way["states"]) - 1 for way in r["routes"].values()] for r in runs},
            "arrived": {str(r["seed"]): [way["arrived"] for way in r["routes"].values()] for r in runs},
            "days": sum(map(len, times)),
        }
    return table


def city_routes(learned: Sequence[Mapping[str, Any]], seed: int) -> dict[str, Any]:
    """The ways of one seed's agents, for the picture."""
    return {r["agent"]: r["routes"] for r in learned if r["world"] == "city" and r["seed"] == seed}


def bayes_optimality(frontiers: Sequence[Mapping[str, Any]], learned: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """APE-V's exact value in each world as a share of the way from the best Markov policy (0) to Bayes-optimal (1)."""
    rows = []
    for line in frontiers:
        runs = [r for r in learned if r["world"] == line["world"] and r["agent"] == "ape-v"]
        values = np.array([r["value"] for r in runs])
        way = line["bayes_optimal"] - line["best_markov"]
        shares = (values - line["best_markov"]) / way
        # Should a Markov policy attain the proven bound, less of the way would be left, and this much of it covered.
        least = (values.mean() - line["markov_bound"]) / max(line["bayes_optimal"] - line["markov_bound"], 1e-9)
        rows.append(
            {
                **line,
                "learned": float(values.mean()),
                "learned_by_seed": {str(r["seed"]): float(r["value"]) for r in runs},
                "share": float(shares.mean()),
                "share_by_seed": {str(r["seed"]): float(s) for r, s in zip(runs, shares, strict=True)},
                "share_at_bound": float(least) if line["markov_bound"] < line["bayes_optimal"] - 1e-9 else None,
            }
        )
    return rows


def _agents(world: str) -> list[str]:
    return list(WORLDS[world]().agents)
