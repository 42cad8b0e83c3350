"""How fast Locked Doors trains: python benchmarks/locked_doors.py

Two questions, answered in one run on the machine at hand:

    speedup      transitions/s of training with batches drawn by picture (32 pictures, 16 transitions each) over those of the
                 same networks, code and number of transitions with one encoding a transition (512 pictures, 1 each)
    peak_share   floating-point operations/s of the by-picture update over those of the best float32 matrix product

Rounds of all measurements are interleaved, so that a slow minute of the machine hits each of them; the table shows medians
over rounds. Drawing the batch is part of the time. The peak is the best of all products, so that noise can only lower the
share. The last line is JSON.

What is counted as an operation: FlopCounterMode counts convolutions, matrix products and their backward passes, two a
multiply-add, and nothing else (no ReLU, pooling, Adam). For APE-V with 5 members, 4 wildcards and 32 x 16 transitions that
is, in 10^9, and equal to the count by hand:

    convolution            1.227    2 P members (32^2 32 27 + 16^2 32 288 + 8^2 32 288)
    convolution_backward   2.171    twice that, less the gradient of the pixels, which nobody needs
    baddbmm                2.760    plain values 2 K B (28 256 + 256 256 + 256 4), corrections with 37 inputs; online and target
    bmm                    2.673    backward of the online ones, weights and inputs; nobody needs those of the corrections
    addmm, mm              0.010    the encoders' dense layer, and the evidence behind a belief

With one encoding a transition the convolutions cost 16 times as much and all else the same: 59.9 against 8.8, 6.8 times as
many operations. The allocator is set as `apev` sets it (`machine.keep_memory`); with glibc's defaults the large buffers of 512
pictures are faulted in again at every update, which would flatter the speedup.
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
from torch.utils.flop_counter import FlopCounterMode

from apev.agents import Agent
from apev.agents.registry import agent_of
from apev.data import Dataset, Sampler
from apev.envs import Room, collect, load_images
from apev.experiments.common.provenance import keep_answer
from apev.experiments.locked_doors.scales import Recipe
from apev.machine import keep_memory
from apev.progress import progress_bar

MATMUL = 2048  # side of the square matrices whose product is the machine's peak
SLOWER = 8  # one encoding a transition takes about this much longer, so that many fewer updates are timed


@dataclass(frozen=True)
class Options:
    """Time the training of Locked Doors: sampling by picture against one encoding a transition, and the share of the peak."""

    agent: tuple[Literal["ape-v", "ape-v-printed", "ensemble", "lcb"], ...] = ("ape-v", "ensemble")
    """Agents to time, with the recipe of `apev reproduce locked-doors`; the first one gives the numbers of the last line."""
    rounds: int = 7
    """How often each measurement is repeated, in turn; the medians are reported."""
    updates: int = 32
    """Updates by picture in a round; an eighth of that (at least one) is timed with one encoding a transition."""
    threads: int = 0
    """Threads of torch; 0 leaves its own choice, all cores."""
    images: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Photographs to train on (an .npz, or the CIFAR-10 archive); without it the small set in the package."""
    batch_images: int = 32
    """Pictures in a batch drawn by picture."""
    per_image: int = 16
    """Transitions of each of them."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write all numbers to this JSON file."""


@dataclass
class Contender:
    """An agent with a way to draw its batches, and what was measured of it."""

    agent: Agent
    sampler: Sampler
    updates: int  # in a round
    gflop: float  # 10^9 operations of one update
    seconds: list[float] = field(default_factory=list)  # of one update, an entry a round

    @classmethod
    def prepare(cls, name: str, recipe: Recipe, dataset: Dataset, groups: int, per_group: int, updates: int) -> Contender:
        """Build it, run it warm, and count its operations."""
        agent = agent_of(recipe.config(name)).for_data(dataset, recipe.config(name))
        sampler = Sampler(dataset, batch_groups=groups, per_group=per_group)
        agent.update(sampler.sample())
        with FlopCounterMode(display=False) as counter:
            agent.update(sampler.sample())
        return cls(agent, sampler, updates, counter.get_total_flops() / 1e9)

    def train(self) -> None:
        """One round."""

        def some() -> None:
            for _ in range(self.updates):
                self.agent.update(self.sampler.sample())

        self.agent.update(self.sampler.sample())  # brings its weights and buffers back into the caches
        self.seconds.append(timed(some) / self.updates)

    @property
    def transitions_per_second(self) -> float:
        """Of the median round."""
        return self.sampler.batch_size / median(self.seconds)

    @property
    def gflops(self) -> float:
        """10^9 operations a second in the median round."""
        return self.gflop / median(self.seconds)


def timed(work: Callable[[], object]) -> float:
    """Seconds of wall clock."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main(options: Options) -> None:
    """Measure, print the table, and end with the line of JSON."""
    numbers = {name: getattr(options, name) for name in ("rounds", "updates", "batch_images", "per_image")}
    for name, value in numbers.items():
        if value < 1:
            raise SystemExit(f"--{name.replace('_', '-')} is {value}. Fix: at least 1.")
    if not options.agent:
        raise SystemExit("--agent names no agent. Fix: e.g. --agent ape-v.")
    if options.threads > 0:
        torch.set_num_threads(options.threads)
    keep_memory()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")  # how busy others keep the machine
    recipe = Recipe()
    columns = collect(load_images(options.images), Room(), recipe.episodes_per_image, seed=0)
    dataset = Dataset.from_arrays(**columns, num_actions=4)
    rows = options.batch_images * options.per_image
    by_picture, by_transition = {}, {}
    for name in options.agent:
        by_picture[name] = Contender.prepare(name, recipe, dataset, options.batch_images, options.per_image, options.updates)
        by_transition[name] = Contender.prepare(name, recipe, dataset, rows, 1, max(1, options.updates // SLOWER))

    left, right = torch.randn(MATMUL, MATMUL), torch.randn(MATMUL, MATMUL)
    result = torch.empty(MATMUL, MATMUL)
    products: list[float] = []
    console = Console(stderr=True)
    with progress_bar(console) as progress:
        for _ in progress.track(range(options.rounds), description="rounds"):
            for name in options.agent:
                products += [timed(lambda: torch.mm(left, right, out=result)) for _ in range(3)]
                by_picture[name].train()
                by_transition[name].train()
    peak = 2 * MATMUL**3 / min(products) / 1e9

    threads = torch.get_num_threads()
    table = Table(title=f"Locked Doors, updates of {rows} rows (transitions), {threads} threads, load before {load:.1f}")
    for column in ("agent", "pictures", "rows/s", "ms", "GFLOP", "GFLOP/s", "of peak", "speedup"):
        table.add_column(column, justify="left" if column == "agent" else "right")
    speedup = {}
    for name in options.agent:
        fast, slow = by_picture[name], by_transition[name]
        speedup[name] = fast.transitions_per_second / slow.transitions_per_second
        for contender, factor in ((fast, f"{speedup[name]:.1f}"), (slow, "1")):
            table.add_row(
                name,
                str(contender.sampler.batch_groups),
                f"{contender.transitions_per_second:,.0f}",
                f"{1e3 * median(contender.seconds):.1f}",
                f"{contender.gflop:.2f}",
                f"{contender.gflops:.1f}",
                f"{contender.gflops / peak:.0%}",
                factor,
            )
    table.add_row("matmul", "", "", "", "", f"{peak:.1f}", "100%", "")
    Console().print(table)
    first = options.agent[0]
    answer = {
        "speedup": round(speedup[first], 2),
        "peak_share": round(by_picture[first].gflops / peak, 3),
        "agent": first,
        "transitions_per_second": {name: round(c.transitions_per_second) for name, c in by_picture.items()},
        "speedups": {name: round(value, 2) for name, value in speedup.items()},
        "peak_gflops": round(peak, 1),
        "threads": threads,
        "load_before": round(load, 2),
    }
    keep_answer(options.out, answer)
    print(json.dumps(answer))


if __name__ == "__main__":
    main(tyro.cli(Options, description=Options.__doc__))
