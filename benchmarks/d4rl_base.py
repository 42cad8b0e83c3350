"""What steadies SAC-N on 10,000 rows of D4RL: candidate settings, tried on SAC-N alone, on medium logs that are in no table.

    python benchmarks/d4rl_base.py hopper-medium-v2.npz halfcheetah-medium-v2.npz --out results/d4rl-10k/base
    python benchmarks/d4rl_base.py --out results/d4rl-10k/base --page docs/continuous-control.md

Every candidate is trained on each log, and its returns are noted throughout. It is steady if they do not swing from one
evaluation to the next. What was found best is frozen as the scale `rows10k` of `apev reproduce d4rl`, for every algorithm that
is built on SAC.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

import apev
from apev.agents import SACConfig
from apev.api import Extras
from apev.data import Dataset
from apev.data.scores import normalised
from apev.data.source import ENVIRONMENTS, d4rl_name, d4rl_robot, without_version
from apev.experiments.common.provenance import keep_answer
from apev.experiments.common.tables import markdown_rows
from apev.experiments.d4rl.recipe import curve_evaluator
from apev.files import read_json, write_text
from apev.loop import Schedule
from apev.machine import Machine

FAST: dict[str, Any] = {"lr": 1e-3, "target_rate": 0.02, "hidden": (256, 256)}  # the scale `cpu`
STEADY: dict[str, Any] = {"layer_norm": True, "target_bounds": True, "actor_average": 0.005}
CANDIDATES = {
    "cpu scale": SACConfig(critics=4, **FAST),
    "norm, bounds, averaged": SACConfig(critics=4, **FAST, **STEADY),
    "norm, bounds, averaged, N = 10": SACConfig(critics=10, **FAST, **STEADY),
    "norm, bounds, averaged, near the log": SACConfig(critics=4, near_log=0.4, **FAST, **STEADY),
    "norm, bounds, averaged, nearer the log": SACConfig(critics=4, near_log=1.0, **FAST, **STEADY),
}
LATE = 5  # evaluations at the end


@dataclass(frozen=True)
class Args:
    """Train candidates, and note their returns."""

    logs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Files of D4RL's rows, each with D4RL's own name: hopper-medium-v2.npz."""
    only: tuple[str, ...] = ()
    """Some of the candidates, by name; all unless given."""
    updates: int = 5000
    """Gradient steps."""
    batch: int = 64
    """Rows an update."""
    seed: int = 0
    """Of the training."""
    evaluations: int = 10
    """How often a candidate is tried."""
    episodes: int = 5
    """Episodes an evaluation."""
    out: Path | None = None
    """Folder for one file a log and candidate."""
    page: Path | None = None
    """Write the table of everything in that folder into this page, between `<!-- base: FOLDER -->` and `<!-- /base -->`."""


def trial(log: Path, name: str, args: Args) -> dict[str, Any]:
    """One candidate on one log: the normalised score of each evaluation."""
    task, began = without_version(d4rl_name(log)), time.process_time()
    robot = d4rl_robot(task)
    if robot is None:
        raise SystemExit(f"{log.name} has no name of D4RL's. Fix: name it as D4RL does, e.g. hopper-medium-v2.npz.")
    lines: list[tuple[int, float]] = []
    told = curve_evaluator(ENVIRONMENTS[robot], args.episodes, args.seed)

    def evaluate(agent: Any, update: int) -> list[dict[str, Any]]:
        found = told(agent, update)
        lines.append((update, float(normalised(task, np.mean(found[0]["returns"])))))
        return found

    every = max(1, args.updates // args.evaluations)
    extras = Extras(evaluator=evaluate, schedule=Schedule(args.updates, every, every, args.updates), title=f"{task}: {name}")
    config = CANDIDATES[name]
    apev.train(Dataset.load(log), config=config, batch_size=args.batch, seed=args.seed, held_out=0.0, extras=extras)
    late = [score for _, score in lines[-LATE:]]
    return {
        "task": task,
        "candidate": name,
        "config": asdict(config),
        "updates": args.updates,
        "batch": args.batch,
        "seed": args.seed,
        "scores": [[update, round(score, 2)] for update, score in lines],
        "late": {"mean": float(np.mean(late)), "min": min(late), "max": max(late)},
        "cpu_seconds": round(time.process_time() - began),
    }


def markdown(folder: Path) -> str:
    """Every candidate that was tried: mean and range of its last evaluations on each log."""
    found = [read_json(path) for path in sorted(folder.glob("*.json"))]
    tasks = sorted({one["task"] for one in found}, reverse=True)
    rows = [["settings of SAC-N", *tasks]]
    for name in CANDIDATES:
        cells = []
        for task in tasks:
            late = [one["late"] for one in found if (one["task"], one["candidate"]) == (task, name)]
            cells.append(f"{late[0]['mean']:.1f} ({late[0]['min']:.0f} to {late[0]['max']:.0f})" if late else "–")
        rows.append([name, *cells])
    return markdown_rows(rows)


def fill(page: Path, folder: Path) -> None:
    """Refresh the table in a page."""
    start, end = f"<!-- base: {folder.as_posix()} -->", "<!-- /base -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(start)
    if end not in rest:
        raise SystemExit(f"{page} has no lines {start!r} and {end!r}. Fix: add them where the table is to stand.")
    write_text(page, before + start + "\n" + markdown(folder) + end + rest.partition(end)[2])


def main(args: Args) -> None:
    """Try what is asked for; print how the last evaluations went."""
    Machine(threads=1).use()
    table = Table("log", "candidate", "last five: mean", "from", "to", "CPU seconds")
    for name in args.only or CANDIDATES:
        for log in args.logs:
            found = trial(log, name, args)
            file = f"{found['task']}, {name}.json".replace(", ", "-").replace(" = ", "").replace(" ", "-")
            keep_answer(None if args.out is None else args.out / file, found)
            late = found["late"]
            table.add_row(
                found["task"], name, *(f"{late[key]:.1f}" for key in ("mean", "min", "max")), str(found["cpu_seconds"])
            )
    if args.logs:
        Console().print(table)
    if args.page is not None and args.out is not None:
        fill(args.page, args.out)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
