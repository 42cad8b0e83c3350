"""Trainings an hour as cells: one and two at a time on this machine, in processes and as tasks of Ray; what Ray costs a cell.

    python benchmarks/cells.py             # the last line is JSON
    python benchmarks/cells.py --updates 5000 --cells 8 --out results/benchmarks/cells.json

Each training has one thread. `trainings_per_hour` is by the clock on the wall, from the call to the last result, with the start
of processes or of Ray: the cores must be free. `cell_seconds` is what a cell of one update takes when everything runs, a slope
over their number; `start_seconds` what the first waits for. `ray_seconds_a_cell` is Ray's slope less that of our own processes.
`load` is how many processes wanted a core before each way began: where others use the machine, two jobs get a larger share of
it, and only the ways with as many jobs can be compared. All ways must give the same weights, or the benchmark stops.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from apev.cells import Cell, run_cells
from apev.cells.on_ray import STORE, ray_module
from apev.cells.runner import cores
from apev.data import Dataset
from apev.experiments.common.provenance import keep_answer
from apev.files import read_tensors

QUIET = Console(quiet=True)
WAYS: dict[str, dict[str, Any]] = {
    "one process": {"jobs": 1},
    "2 jobs": {"jobs": 2},
    "Ray, 1 CPU": {"cpus": 1},
    "Ray, 2 CPUs": {"cpus": 2},
}
FEW, MORE = 2, 8  # cells of one update


def trainings(log: Path, out: Path, count: int, updates: int) -> list[Cell]:
    given = {"data": str(log), "algorithm": "cql", "updates": updates, "hidden": [128, 128]}
    return [Cell(f"seed {seed}", "train", given | {"seed": seed}, out / f"seed-{seed}") for seed in range(count)]


def seconds(way: str, log: Path, count: int, updates: int, weights: dict[int, Any]) -> float:
    """How long so many trainings take; their weights are those of the ways before."""
    how = dict(WAYS[way])
    with tempfile.TemporaryDirectory() as out:
        cells = trainings(log, Path(out), count, updates)
        begin = time.perf_counter()
        if cpus := how.pop("cpus", None):
            ray = ray_module()
            quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
            ray.init(address="local", num_cpus=cpus, object_store_memory=STORE, **quiet)
            run_cells(cells, ray="local", console=QUIET)
            took = time.perf_counter() - begin
            ray.shutdown()
        else:
            run_cells(cells, threads=1, console=QUIET, **how)
            took = time.perf_counter() - begin
        for seed, cell in enumerate(cells):
            assert cell.folder is not None
            found, _ = read_tensors(cell.folder / "policy" / "weights.safetensors")
            before = weights.setdefault(seed, found)
            if not all(torch.equal(before[name], found[name]) for name in before):
                raise SystemExit(f"{way}: seed {seed} has other weights than before")
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=4, help="trainings of a way")
    parser.add_argument("--updates", type=int, default=3000, help="of a training")
    parser.add_argument("--rounds", type=int, default=3, help="medians are taken over them")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--out", type=Path, default=None, help="also store the answer in this file")
    asked = parser.parse_args()
    if min(asked.cells, asked.updates, asked.rounds) < 1:
        raise SystemExit("--cells, --updates and --rounds. Fix: at least 1.")
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {way: [] for way in asked.ways}
    small: dict[str, dict[int, list[float]]] = {way: {FEW: [], MORE: []} for way in asked.ways}
    weights: dict[int, dict[int, Any]] = {asked.updates: {}, 1: {}}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.npz"
        Dataset.example("cartpole").save(log)
        turns = [(way, count) for _ in range(asked.rounds) for way in asked.ways for count in (None, FEW, MORE)]
        load: dict[str, list[float]] = {way: [] for way in asked.ways}
        for way, count in track(turns, "cells", console=Console(stderr=True)):
            if count is None:
                load[way].append(round(os.getloadavg()[0], 1))
                found[way].append(seconds(way, log, asked.cells, asked.updates, weights[asked.updates]))
            else:
                small[way][count].append(seconds(way, log, count, 1, weights[1]))
    slope = {way: (median(t[MORE]) - median(t[FEW])) / (MORE - FEW) for way, t in small.items()}
    answer: dict[str, Any] = {"trainings_per_hour": {way: round(3600 * asked.cells / median(t), 1) for way, t in found.items()}}
    answer["cell_seconds"] = {way: round(value, 3) for way, value in slope.items()}
    answer["start_seconds"] = {way: round(median(t[FEW]) - FEW * slope[way], 2) for way, t in small.items()}
    for cpus, other in (("Ray, 1 CPU", "one process"), ("Ray, 2 CPUs", "2 jobs")):
        if {cpus, other} <= slope.keys():
            answer.setdefault("ray_seconds_a_cell", {})[cpus] = round(slope[cpus] - slope[other], 3)
    answer |= {"cells": asked.cells, "updates": asked.updates, "rounds": asked.rounds, "cores": cores(), "load": load}
    keep_answer(asked.out, answer)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
