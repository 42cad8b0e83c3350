"""Does a data set larger than memory train as fast as one in memory? python benchmarks/out_of_memory.py

A folder of mapped columns of `--gb` GB is written (HalfCheetah's shapes: 17 observations, 6 actions, next observations). Three
processes then train the cheapest agent there is, a 3x256 policy that clones the actions, for the same number of batches of 256:

    memory   on rows that fit, in memory
    mapped   on single rows of the whole folder, under the limit
    blocks   on rows of the whole folder that are drawn in blocks, under the limit

A costlier agent waits less for its data, so this is the hard case. What is limited, in the last two processes:

  - its own memory (RLIMIT_DATA: heap, private mappings, stacks) to `--limit-gb`: reading a column into memory would fail;
  - the file's pages that the system may keep for it, to what the limit leaves: the pages are dropped at the start and whenever
    the rows drawn since could have filled that share. A machine with `--limit-gb` in all would at best do the same.

Rounds alternate between the three, and the best of each counts, since others may use the machine. The last line is JSON;
`mapped_vs_memory` and `blocks_vs_memory` are ratios of batches trained a second, `sampling` and `sampling_blocks` those of
batches drawn without training.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro

from apev.data import Dataset, Sampler
from apev.data.blocks import BLOCK_ROWS
from apev.data.formats.columns import FORMAT, VERSION
from apev.data.formats.folder import write_columns
from apev.data.mapped import map_of
from apev.experiments.common.provenance import keep_answer

OBS, ACTIONS, EPISODE = 17, 6, 1000
ROW_BYTES = 4 * (2 * OBS + ACTIONS + 1) + 2 + 8


@dataclass(frozen=True)
class Options:
    """Train from a folder larger than memory, and from memory, and compare."""

    gb: float = 4.0
    """Size of the folder."""
    limit_gb: float = 1.5
    """Memory the mapped process may use, its share of the file cache included."""
    batches: int = 500
    """Batches a round and process."""
    rounds: int = 3
    """Rounds; the best of each process counts."""
    memory_rows: int = 1_000_000
    """Rows of the data set in memory."""
    folder: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs/benchmarks/out_of_memory")
    """Where the folder is written; it is removed at the end."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write all numbers to this JSON file."""
    role: Annotated[
        Literal["all", "memory", "mapped", "blocks"], tyro.conf.arg(help="One process alone; all starts the three.")
    ] = "all"


class Noise:
    """A column of random numbers, made when a piece of it is asked for."""

    def __init__(self, *shape: int) -> None:
        self.shape, self.dtype = shape, np.dtype(np.float32)

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(self.shape[0])
        rng = np.random.default_rng(start)
        return rng.random((stop - start, *self.shape[1:]), dtype=np.float32) * 2 - 1


def columns(rows: int) -> dict[str, Any]:
    return {
        "observations": Noise(rows, OBS),
        "next_observations": Noise(rows, OBS),
        "actions": Noise(rows, ACTIONS),
        "rewards": Noise(rows),
        "terminated": np.zeros(rows, dtype=bool),
        "truncated": np.arange(rows) % EPISODE == EPISODE - 1,
        "episodes": np.arange(rows) // EPISODE,
    }


class Cache:
    """Keeps the share of a folder that the system may hold in memory below a budget."""

    def __init__(self, dataset: Dataset, folder: Path, budget: float, neighbours: int) -> None:
        """neighbours: so many rows are read together."""
        arrays = [*dataset.observations.values(), *(dataset.given_next or {}).values(), dataset.actions]
        areas = {id(area): area for array in arrays if (area := map_of(array)) is not None}
        self.maps = list(areas.values())
        self.files = [os.open(path, os.O_RDONLY) for path in folder.glob("*.npy")]
        a_row = len(areas) * mmap.PAGESIZE / neighbours + sum(array[:1].nbytes for array in arrays)
        self.rows = budget / a_row  # so many rows touch at most the budget
        self.drawn = 0.0

    def drop(self) -> None:
        for area in self.maps:
            area.madvise(mmap.MADV_DONTNEED)  # out of this process ...
        for file in self.files:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)  # ... and out of the system's cache
        self.drawn = 0.0

    def count(self, rows: int) -> None:
        self.drawn += rows
        if self.drawn > self.rows:
            self.drop()


def policy() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    sizes = (OBS, 256, 256, 256, ACTIONS)
    layers = [torch.nn.Linear(*pair) for pair in itertools.pairwise(sizes)]
    net = torch.nn.Sequential(*[part for layer in layers for part in (layer, torch.nn.ReLU())][:-1])
    return net, torch.optim.Adam(net.parameters(), lr=3e-4, fused=True)


def measure(sampler: Sampler, batches: int, cache: Cache | None, learn: bool) -> float:
    """Batches a second, after a start that does not count."""
    net, optimiser = policy()
    begin = 0.0
    for i in range(-20, batches):
        if i == 0:
            begin = time.perf_counter()
        batch = sampler.sample()
        if learn:
            loss = (net(batch.obs.vector) - batch.action).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        if cache is not None:
            cache.count(len(batch.reward))
    return batches / (time.perf_counter() - begin)


def status(name: str) -> float:
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def child(options: Options) -> None:
    """One process: a line of JSON a round, whenever a line comes in."""
    torch.set_num_threads(1)
    begin, cache = time.perf_counter(), None
    if options.role != "memory":
        limit = int(options.limit_gb * 1e9)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        dataset = Dataset.load(options.folder / "data.apev")
        loaded = time.perf_counter() - begin
        blocks = options.role == "blocks"
        sampler = Sampler(dataset, batch_size=256, draw="blocks" if blocks else "rows")
        cache = Cache(dataset, options.folder / "data.apev", max(2e7, limit - status("RssAnon")), BLOCK_ROWS if blocks else 1)
        cache.drop()
    else:
        made = {name: column[slice(None)] for name, column in columns(options.memory_rows).items()}
        begin = time.perf_counter()
        dataset = Dataset.from_arrays(**made)
        loaded = time.perf_counter() - begin
        sampler = Sampler(dataset, batch_size=256)
    for _ in sys.stdin:
        answer = {kind: measure(sampler, options.batches, cache, kind == "train") for kind in ("train", "sample")}
        answer |= {"load_seconds": loaded, "own_memory_gb": status("RssAnon") / 1e9, "rows": len(dataset)}
        print(json.dumps(answer), flush=True)


def main(options: Options) -> None:
    """Write the folder, run the processes in turns, and end with the line of JSON."""
    if options.gb <= 0 or options.limit_gb <= 0 or min(options.batches, options.rounds, options.memory_rows) < 1:
        raise SystemExit("sizes and counts must be positive. Fix: e.g. --gb 0.3 --limit-gb 1.5 --batches 100 --rounds 1.")
    if options.role != "all":
        child(options)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = int(options.gb * 1e9 / ROW_BYTES)
    header = json.dumps({"format": FORMAT, "version": VERSION, "num_actions": None, "source": {}})
    try:
        write_columns(columns(rows), header, options.folder / "data.apev")
        words = [
            f"--{name}={getattr(options, name.replace('-', '_'))}" for name in ("limit-gb", "batches", "memory-rows", "folder")
        ]
        running = {
            role: subprocess.Popen(
                [sys.executable, __file__, *words, "--role", role], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for role in ("memory", "mapped", "blocks")
        }
        best: dict[str, dict[str, float]] = {}
        for _ in range(options.rounds):
            for role, process in running.items():
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("go\n")
                process.stdin.flush()
                line = process.stdout.readline()
                if not line:
                    raise SystemExit(f"the {role} process ended; its error is above.")
                answer = json.loads(line)
                print(role, {name: round(value, 2) for name, value in answer.items()})
                best[role] = {name: max(value, best.get(role, answer)[name]) for name, value in answer.items()}
        for process in running.values():
            process.communicate()
    finally:
        shutil.rmtree(options.folder / "data.apev", ignore_errors=True)
    ratio = {
        (role, kind): round(best[role][kind] / best["memory"][kind], 3)
        for role in ("mapped", "blocks")
        for kind in ("train", "sample")
    }
    answer = {
        "mapped_vs_memory": ratio["mapped", "train"],
        "blocks_vs_memory": ratio["blocks", "train"],
        "sampling": ratio["mapped", "sample"],
        "sampling_blocks": ratio["blocks", "sample"],
        "gb": options.gb,
        "limit_gb": options.limit_gb,
        "own_memory_gb": round(max(best[role]["own_memory_gb"] for role in ("mapped", "blocks")), 2),
        "batches_per_second": {role: round(best[role]["train"], 1) for role in best},
        "load_before": round(os.getloadavg()[0], 2),
    }
    keep_answer(options.out, answer)
    print(json.dumps(answer))


if __name__ == "__main__":
    main(tyro.cli(Options, description=Options.__doc__))
