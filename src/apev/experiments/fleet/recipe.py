"""What adapting to hidden kinds is worth: every policy in one table, from logs without labels.

    OUT/WORLD/agents/ape-v-s0/    a run folder for every trained agent
    OUT/WORLD/episodes.jsonl      one line an episode of every policy
    OUT/WORLD/worlds.jsonl        which kinds were found, one line a seed
    OUT/WORLD/made.jsonl          what was trained and rolled out, by which command and commit, in how many seconds
    OUT/WORLD/traces.json         an episode a kind of the adaptive policy and of the best blind one, step by step
    OUT/WORLD/summary.json        computed from these
    OUT/WORLD/report.html         the page

A policy's row says what ran: "adaptive" is APE-V with nothing but the log's path and a number of updates; its belief follows
next states and rewards, members' TD errors ("td"), or both. "committed" changes its mind at odds of 20, "held" only between
episodes. "knows the kind" is the same agent with labels in training, certain of the right member at run time. Episodes 2 and
5 are of a machine that has run before, with what was believed then.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from scipy.optimize import linear_sum_assignment

from apev.api import train
from apev.cells import Cell
from apev.data import Dataset
from apev.experiments.common.provenance import provenance
from apev.experiments.fleet.rows import Played, kind_of_members, knowing, lines_of, rows_of
from apev.experiments.fleet.teachers import STEPS, teach
from apev.experiments.fleet.traces import note_traces
from apev.experiments.fleet.worlds import WORLDS, World, WorldName
from apev.files import append_line, read_lines
from apev.rollout import GymnasiumBatch
from apev.worlds.files import load as load_kinds

MEMORY = ("bc-stacked", "iql-stacked", "bc-gru", "iql-gru")


@dataclass(frozen=True)
class Training:
    """One of a seed's trainings."""

    name: str  # of the run folder, with its seed
    algorithm: str
    updates: int
    settings: dict[str, Any]
    labelled: bool = False  # kinds are given, not found


def cells(world: World, only: Sequence[str] = ()) -> list[Training]:
    """The trainings of a seed, the most telling ones first: those asked for, or else the world's."""
    base = {"base": "sac-n"} if "sac-n" in world.static else {}
    every = [
        Training("ape-v", "ape-v", world.updates, {}),
        Training("ape-v-labelled", "ape-v", world.updates, {}, labelled=True),
        *(Training(name, name, world.static_updates, {}) for name in world.static),
        *(Training(name, name, world.updates, {}) for name in MEMORY),
        Training("ape-v-printed", "ape-v", world.printed_updates, dict(world.printed) | base),
    ]
    wanted = only or world.trained or [cell.name for cell in every]
    return [cell for cell in every if cell.name in wanted]


@dataclass(frozen=True)
class Trial:
    """Where the rows of a seed are rolled out: the same environments, from the same starts, for all of them."""

    world: World
    out: Path
    seed: int
    batch: GymnasiumBatch
    kind: np.ndarray  # of each environment
    done: set[str]  # rows that have been

    def play(self, cell: str, rows: list[Played], members: Sequence[int]) -> None:
        """Roll out what has not been, and write its episodes."""
        for row in rows:
            if self.done.issuperset(row.rows):
                continue
            begin = time.perf_counter()
            for name, rolled in zip(row.rows, row.roll(self.batch, self.kind), strict=True):
                if name not in self.done:
                    for line in lines_of(rolled, self.kind, members, self.world.change_at):
                        append_line(self.out / "episodes.jsonl", {"policy": name, "seed": self.seed} | line)
                self.done.add(name)
            note_made(self.out, {"rows": row.rows, "cell": cell, "seed": self.seed}, begin)


def run(
    world: World,
    out: Path,
    *,
    data: Path | None,
    seeds: Sequence[int],
    only: Sequence[str] = (),
    teacher_steps: int = STEPS,
    device: str = "cpu",
    console: Console | None = None,
) -> None:
    """Train what is missing in `out`, roll out what has not been, write episodes and traces."""
    check_asked(world, data, only)
    console = console or Console(stderr=True, highlight=False)
    taught(world, out, teacher_steps, console)
    for seed in seeds:
        log, kinds = world.log(out if world.taught else data, seed)
        path = out / "episodes.jsonl"
        done = {line["policy"] for line in read_lines(path) if line["seed"] == seed} if path.exists() else set()
        trial = Trial(world, out, seed, *world.batch(world.episodes, 10_000 + seed), done)
        for cell in cells(world, only):
            folder = agents_folder(world, out) / f"{cell.name}-s{seed}"
            if not (folder / "policy" / "policy.json").exists():
                if world.agents_of is not None:
                    console.print(f"{folder} is not there: {cell.name} is left out.")
                    continue
                console.print(f"[bold]{world.name}, seed {seed}: {cell.name}[/bold]")
                begin = time.perf_counter()
                train_one(folder, (log, kinds), cell, seed, device, console)
                note_made(out, {"cell": cell.name, "seed": seed, "updates": cell.updates}, begin)
            trial.play(cell.name, rows_of(cell.name, folder, kinds, world), kind_of_members(folder, kinds))
        if world.oracle_of is not None:
            borrow_oracle(trial, data)
        agents = agents_folder(world, out)
        note_worlds(world, out, agents, seed, (log, kinds))
        if seed == seeds[0]:
            note_traces(world, out, agents, seed, kinds)


def train_one(
    folder: Path, log: tuple[Dataset, np.ndarray], cell: Training, seed: int, device: str, console: Console | None
) -> None:
    """Train one agent; picks up where an earlier process stopped."""
    kinds = log[1].tolist() if cell.labelled else None
    given: dict[str, Any] = {"out": folder, "updates": cell.updates, "seed": seed, "device": device, "resume": True}
    train(log[0], cell.algorithm, kinds=kinds, console=console, **given, **cell.settings)


def trainings(
    name: WorldName, world: World, out: Path, data: Path | None, seeds: Sequence[int], only: Sequence[str], device: str
) -> list[Cell]:
    """A cell for every agent of every seed that is not there yet; `world` may have another size than the one of that name."""
    source = out if world.taught else data
    found = []
    for seed in seeds if world.agents_of is None else ():
        for cell in cells(world, only):
            folder = agents_folder(world, out) / f"{cell.name}-s{seed}"
            if not (folder / "policy" / "policy.json").exists():
                given = {"world": name, "source": None if source is None else str(source), "seed": seed, "device": device}
                found.append(Cell(f"seed {seed}: {cell.name}", "fleet", given | {"training": asdict(cell)}, folder))
    return found


@lru_cache(maxsize=1)
def _log(world: WorldName, source: str | None, seed: int) -> tuple[Dataset, np.ndarray]:
    return WORLDS[world].log(None if source is None else Path(source), seed)


def train_cell(
    folder: Path, world: WorldName, source: str | None, seed: int, device: str, training: dict[str, Any]
) -> dict[str, Any]:
    """Train one agent; what made.jsonl says of it."""
    begin, cell = time.perf_counter(), Training(**training)
    train_one(folder, _log(world, source, seed), cell, seed, device, None)
    return {"cell": cell.name, "seed": seed, "updates": cell.updates, "seconds": round(time.perf_counter() - begin, 1)}


def check_asked(world: World, data: Path | None, only: Sequence[str]) -> None:
    """Refuse a world without its data, and agents that it does not have."""
    if world.needs_data and data is None:
        raise ValueError(f"{world.name} is made from {world.needs_data}. Fix: name it with --data.")
    known = {cell.name for cell in cells(world, [*world.static, *MEMORY, "ape-v", "ape-v-labelled", "ape-v-printed"])}
    if unknown := [name for name in only if name not in known | {"teachers"}]:
        raise ValueError(f"--only {unknown[0]}: no such agent here. Fix: some of {', '.join(sorted(known))}.")


def taught(world: World, out: Path, steps: int, console: Console | None = None) -> None:
    """Make the folder, and its teachers where the world has some."""
    out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    if world.taught and teach(out, steps, console or Console(stderr=True, highlight=False)):
        note_made(out, {"cell": "teachers", "steps": steps}, begin)


def agents_folder(world: World, out: Path) -> Path:
    """Where the agents that are tested in a world are."""
    return out / "agents" if world.agents_of is None else out.parent / world.agents_of / "agents"


def borrow_oracle(trial: Trial, data: Path | None) -> None:
    """Roll out the agent of another world that was told of every kind, where it has been trained."""
    assert trial.world.oracle_of is not None
    other = WORLDS[trial.world.oracle_of]
    folder = trial.out.parent / other.name / "agents" / f"ape-v-labelled-s{trial.seed}"
    if (folder / "policy" / "policy.json").exists():
        trial.play("ape-v-labelled", [knowing(folder, other.log(data, trial.seed)[1])], ())


def note_made(out: Path, what: dict[str, Any], begin: float) -> None:
    """Add to made.jsonl what has just been done, by whom, and how long it took."""
    append_line(out / "made.jsonl", what | {"seconds": round(time.perf_counter() - begin, 1)} | provenance())


def note_worlds(world: World, out: Path, agents: Path, seed: int, log: tuple[Any, np.ndarray]) -> None:
    """How the kinds that were found agree with the true ones."""
    folder, path = agents / f"ape-v-s{seed}", out / "worlds.jsonl"
    if not (folder / "kinds.safetensors").exists():
        return
    if path.exists() and any(line["seed"] == seed for line in read_lines(path)):
        return
    found, kinds = load_kinds(folder), log[1]
    size = max(found.count, int(kinds.max()) + 1)
    shared = np.zeros((size, size))
    for context, kind in zip(found.contexts, found.kind, strict=True):
        if kind >= 0:
            shared[kinds[context], kind] += 1
    pairs = linear_sum_assignment(-shared)
    right = float(shared[pairs].sum() / len(found.contexts))
    line = {"seed": seed, "true": len(np.unique(kinds)), "agreement": right / world.best_agreement(log), "right": right}
    append_line(path, line | found.as_json())
