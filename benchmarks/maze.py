"""How fast mazes are logged and trained on: python benchmarks/maze.py

    speedup        transitions/s of training on whole levels (each picture encoded once; the four steps from it and all steps
                   to it share the encoding) over those of the same networks and code with one encoding for every state and
                   one for every next state of a transition
    lean_speedup   the same over code written for that case: next states are encoded without gradient
    peak_share     floating-point operations/s of training on whole levels over those of the best float32 matrix product
    ms_per_level   time to lay out and draw one level for the log, with `--renderer` and `--mode`

Counted by hand, a picture costs 3 units to encode with gradient (forward 1, backward 2) and 1 without. A transition of a whole
level costs 3/4; by itself it costs 6 in the same code and 4 in the lean one. So 8 and 5.3 are what operations allow.

Rounds of all measurements are interleaved, so that a slow minute of the machine hits each of them; medians over rounds are
reported. Drawing the batch is part of the time. The last line is JSON.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Literal

import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from apev.agents import C51, C51Config
from apev.agents.distributional.base import take_logits
from apev.data import Batch, Sampler
from apev.data.prioritised import PrioritisedSampler
from apev.experiments.common.provenance import keep_answer
from apev.experiments.procgen.log import log_mazes, make_mazes
from apev.experiments.procgen.pictures import make_renderer
from apev.progress import progress_bar

MATMUL = 2048  # side of the square matrices whose product is the machine's peak


@dataclass(frozen=True)
class Options:
    """Time the log and the training of Procgen's mazes."""

    mode: Literal["easy", "hard"] = "hard"
    """Which mazes."""
    renderer: Literal["procgen", "simple"] = "procgen"
    """procgen: the real pixels (`make procgen` installs it); simple: our own drawing."""
    levels: int = 30
    """How many levels are logged and timed, and trained on."""
    batch_levels: int = 2
    """Levels in a batch of whole levels."""
    batch_rows: int = 64
    """Transitions in a batch of single ones."""
    rounds: int = 5
    """How often each measurement is repeated, in turn."""
    updates: int = 2
    """Updates of each in a round."""
    threads: int = 0
    """Threads of torch; 0 leaves its own choice, all cores."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write all numbers to this JSON file."""


class Lean(C51):
    """C51 for single transitions: what follows is encoded without gradient."""

    def update(self, batch: Batch) -> dict[str, Tensor]:
        features = self.net.encode(batch.obs.of_rows())
        logits = take_logits(self.net.logits(features, batch.obs.vector), batch.action)
        with torch.no_grad():
            after = self.net.encode(batch.next_obs.of_rows())
            ahead = self.net.logits(after, batch.next_obs.vector).softmax(-1)
            target = self.one_step_target(batch, take_logits(ahead, (ahead @ self.net.atoms).argmax(-1)))
        return self.learn(batch, logits, target)


@dataclass
class Contender:
    """An agent with a way to draw its batches, and what was measured of it."""

    agent: C51
    sampler: Sampler
    speeds: list[float] = field(default_factory=list)  # transitions/s, an entry a round
    gflops: list[float] = field(default_factory=list)

    def train(self, updates: int) -> None:
        rows, spent, flop = 0, 0.0, 0.0
        for _ in range(updates):
            begin = time.perf_counter()
            batch = self.sampler.sample()
            self.agent.update(batch)
            spent += time.perf_counter() - begin
            rows += len(batch.action)
            assert batch.obs.pictures is not None
            flop += self.per_picture * len(batch.obs.pictures)
        self.speeds.append(rows / spent)
        self.gflops.append(flop / spent)

    def count(self) -> Contender:
        """Operations a picture in 10^9, and a warm start."""
        batch = self.sampler.sample()
        assert batch.obs.pictures is not None
        with FlopCounterMode(display=False) as counter:
            self.agent.update(batch)
        self.per_picture = counter.get_total_flops() / 1e9 / len(batch.obs.pictures)
        return self


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main(options: Options) -> None:
    for name in ("levels", "batch_levels", "batch_rows", "rounds", "updates"):
        if getattr(options, name) < 1:
            raise SystemExit(f"--{name.replace('_', '-')} is {getattr(options, name)}. Fix: at least 1.")
    if options.threads > 0:
        torch.set_num_threads(options.threads)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    make_renderer(options.renderer, options.mode)  # making the environment is not a level's time
    begin = time.perf_counter()
    dataset = log_mazes(make_mazes(0, options.levels, options.mode), options.renderer)
    per_level = 1e3 * (time.perf_counter() - begin) / options.levels
    assert dataset.pictures is not None
    config = C51Config()
    rows = Sampler(dataset, batch_groups=max(1, options.batch_rows // 16), per_group=min(16, options.batch_rows))
    contenders = {
        "whole levels": Contender(C51.for_data(dataset, config), PrioritisedSampler(dataset, options.batch_levels)).count(),
        "one by one": Contender(C51.for_data(dataset, config), rows).count(),
        "one by one, lean": Contender(Lean.for_data(dataset, config), rows).count(),
    }
    left, right = torch.randn(MATMUL, MATMUL), torch.randn(MATMUL, MATMUL)
    products: list[float] = []
    with progress_bar(Console(stderr=True)) as progress:
        for _ in progress.track(range(options.rounds), description="rounds"):
            products += [timed(lambda: torch.mm(left, right)) for _ in range(3)]
            for contender in contenders.values():
                contender.train(options.updates)
    peak = 2 * MATMUL**3 / min(products) / 1e9
    speed = {name: median(c.speeds) for name, c in contenders.items()}
    threads = torch.get_num_threads()
    table = Table(title=f"mazes, {options.mode}, {config.members} networks, {threads} threads, load before {load:.1f}")
    for column in ("batches", "transitions/s", "GFLOP/s", "of peak", "whole levels are faster by"):
        table.add_column(column, justify="left" if column == "batches" else "right")
    for name, contender in contenders.items():
        gflops, faster = median(contender.gflops), speed["whole levels"] / speed[name]
        table.add_row(name, f"{speed[name]:,.0f}", f"{gflops:.1f}", f"{gflops / peak:.0%}", f"{faster:.1f}")
    Console().print(table)
    answer = {
        "speedup": round(speed["whole levels"] / speed["one by one"], 2),
        "peak_share": round(median(contenders["whole levels"].gflops) / peak, 3),
        "ms_per_level": round(per_level, 1),
        "lean_speedup": round(speed["whole levels"] / speed["one by one, lean"], 2),
        "transitions_per_second": round(speed["whole levels"]),
        "gb_per_1000_levels": round(dataset.pictures.nbytes / options.levels * 1000 / 1e9, 2),
        "mode": options.mode,
        "renderer": options.renderer,
        "peak_gflops": round(peak, 1),
        "threads": threads,
        "load_before": round(load, 2),
    }
    keep_answer(options.out, answer)
    print(json.dumps(answer))


if __name__ == "__main__":
    main(tyro.cli(Options, description=Options.__doc__))
