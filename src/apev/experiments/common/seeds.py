"""A folder of an experiment, made seed by seed: by one process or several, interrupted or not.

OUT/recipe.json          what was asked for; a folder holds one recipe
OUT/seeds/K.json         all of seed K, written when all of it is there
OUT/seeds/K/             parts of its evaluation and what its trainings cost, until then
OUT/episodes.jsonl.gz    of every seed together
OUT/curves.jsonl
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from apev.experiments.common.provenance import peak_memory_gb
from apev.files import read_json, write_json, write_lines

COST = "cost of "


def open_folder(out: Path, recipe: dict[str, Any], resume: bool, may_change: str | None = None) -> None:
    """Make the folder, or go on with it; what another recipe made is refused, not mixed.

    may_change: an entry that may be another one; what was evaluated with the old one is then evaluated again.
    """
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()) and not resume:
        raise FileExistsError(f"{out} is not empty. Fix: pass --resume to go on with it, or name another folder.")
    asked = json.loads(json.dumps(recipe))
    path = out / "recipe.json"
    if path.exists() and (begun := read_json(path)) != asked:
        if may_change is None or begun | {may_change: None} != asked | {may_change: None}:
            raise ValueError(f"{out} was begun with another recipe or other data. Fix: name another folder.")
        for evaluated in (out / "seeds").glob("*.json"):
            evaluated.unlink()
    write_json(path, asked)


def missing(out: Path, seeds: Iterable[int]) -> list[int]:
    """Which of the seeds are not there yet."""
    return [seed for seed in seeds if not (out / "seeds" / f"{seed}.json").exists()]


def cost_since(began: float) -> dict[str, Any]:
    """What this process has spent since time.monotonic() was `began`."""
    return {"seconds": time.monotonic() - began, "peak_memory_gb": peak_memory_gb(), "threads": torch.get_num_threads()}


def note_cost(out: Path, seed: int, agent: str, began: float) -> None:
    """Keep what a training has cost, for `keep_seed`: another process may have done it."""
    write_json(out / "seeds" / str(seed) / f"{COST}{agent}.json", cost_since(began))


def keep_seed(out: Path, seed: int, began: float, result: dict[str, Any]) -> None:
    """Write a seed's episodes, curves and replays, and what they cost, with the trainings; began: time.monotonic() then."""
    costs = [cost_since(began), *(read_json(path) for path in (out / "seeds" / str(seed)).glob(f"{COST}*.json"))]
    most = {name: max(cost[name] for cost in costs) for name in ("peak_memory_gb", "threads")}
    spent = {"seconds": sum(cost["seconds"] for cost in costs)}
    write_json(out / "seeds" / f"{seed}.json", result | spent | most, indent=None)
    shutil.rmtree(out / "seeds" / str(seed), ignore_errors=True)


def part_of_seed(out: Path, seed: int, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `make` gives, or gave before the process was interrupted."""
    path = out / "seeds" / str(seed) / f"{name}.json"
    if not path.exists():
        write_json(path, make(), indent=None)
    found: dict[str, Any] = read_json(path)
    return found


def gather(out: Path, seeds: Sequence[int]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """Put the seeds' files together: (episodes, the first seed's replays, what goes into the summary's "meta")."""
    stored = [read_json(out / "seeds" / f"{seed}.json") for seed in seeds]
    episodes = [line for s in stored for line in s["episodes"]]
    write_lines(out / "episodes.jsonl.gz", episodes)
    write_lines(out / "curves.jsonl", [line for s in stored for line in s["curves"]])
    meta = {
        "seeds": list(seeds),
        "seconds": round(sum(s["seconds"] for s in stored)),
        "threads": max(s["threads"] for s in stored),
        "peak_memory_gb": max(s["peak_memory_gb"] for s in stored),
    }
    return episodes, stored[0]["replays"], meta
