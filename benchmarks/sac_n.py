"""How fast SAC-N and APE-V on it learn: python benchmarks/sac_n.py

It needs d3rlpy, which pins an old Gymnasium: make an environment of its own with `pip install torch==2.13.0 -e '.[benchmark]'`.

Four questions, answered in one run on the machine at hand; networks of 3 x 256, batches of 256, half-cheetah's sizes:

    vs_d3rlpy                  updates/s of our SAC-N over those of d3rlpy's SAC with n_critics=N
    peak_share                 floating-point operations/s of our update over those of the best float32 matrix product
    apev_shared_vs_sacn        time of an APE-V update, K = 9 members sharing 10 networks, over that of SAC-10
    apev_shared_vs_separate    the same over the time of nine separate SAC-n agents, n = 2 to 10, one update each

Every contestant is a process of its own, as its users run it, and they take turns: one works while the others wait. Rounds of
all of them are interleaved and the best round of each counts, so that a slow minute of the machine hits none of them alone.
Batches are drawn beforehand (d3rlpy's own sampling would add 2 ms to each of its updates). With --threads 1 CPU time is
measured, which others on the machine lengthen less than the wall's. The last line is JSON.

What is counted as an operation: FlopCounterMode counts matrix products, two a multiply-add, and nothing else (no ReLU, bias,
Adam, target network). For N = 10, with D = 23 inputs, P = 2 B (D 256 + 2 256^2 + 256) operations a pass of one critic:

    critics        N P forward, N (2 P - 2 B D 256) backward
    target         N P
    actor's loss   N P to find the smallest critic, then P - 2 B 256 for its slope
    actor          two passes forward, one backward
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table

from apev.agents import APEVSAC, SAC, APEVSACConfig, SACConfig
from apev.data import Batch, Layout, Observations
from apev.experiments.common.provenance import keep_answer
from apev.machine import keep_memory, quick_products

OBS, ACTIONS, BATCH, HIDDEN = 17, 6, 256, (256, 256, 256)
BATCHES = 8
MATMUL = 2048  # side of the square matrices whose product is the machine's peak
SIZES = (10, 20)
LAYOUT = Layout((("observation", OBS),), None, None, 0, True, (-1.0,) * ACTIONS, (1.0,) * ACTIONS)


@dataclass(frozen=True)
class Options:
    """Time an update of SAC-N against d3rlpy's, and one of APE-V against SAC-N's."""

    rounds: int = 8
    """Rounds of measurements; the best of each contestant counts."""
    updates: int = 10
    """Updates timed in a round."""
    threads: int | None = None
    """CPU threads; as many as there are cores unless given."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write all numbers to this JSON file."""


# ---------------------------------------------------------------------- contestants


def columns(rows: int) -> dict[str, np.ndarray]:
    """A made-up log; the numbers in it do not change the time of an update."""
    rng = np.random.default_rng(0)
    shapes = {"observations": (rows, OBS), "next_observations": (rows, OBS), "rewards": (rows,)}
    drawn = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return drawn | {"actions": np.tanh(rng.normal(size=(rows, ACTIONS))).astype(np.float32)}


def our_batches() -> list[Batch]:
    data = {name: torch.from_numpy(column).split(BATCH) for name, column in columns(BATCH * BATCHES).items()}
    zeros, no_group = torch.zeros(BATCH), torch.zeros(BATCH, dtype=torch.int64)
    together = zip(*(data[name] for name in ("observations", "actions", "rewards", "next_observations")), strict=True)
    return [Batch(Observations(o), a, r, Observations(after), zeros, no_group) for o, a, r, after in together]


def ours(*agents: SAC) -> Callable[[int], None]:
    """Updates of our agents, one of each a turn."""
    batches = our_batches()

    def update(turn: int) -> None:
        for agent in agents:
            agent.update(batches[turn % BATCHES])

    return update


def sac_n(critics: int) -> SAC:
    return SAC(LAYOUT, SACConfig(critics=critics, hidden=HIDDEN))


def our_sac(critics: int) -> Callable[[int], None]:
    return ours(sac_n(critics))


def apev() -> SAC:
    return APEVSAC(LAYOUT, APEVSACConfig(critics=10, hidden=HIDDEN))


def d3rlpy_sac(critics: int) -> Callable[[int], None]:
    import d3rlpy
    from d3rlpy.models.encoders import VectorEncoderFactory

    network = VectorEncoderFactory(list(HIDDEN))
    config = d3rlpy.algos.SACConfig(
        n_critics=critics, batch_size=BATCH, actor_encoder_factory=network, critic_encoder_factory=network
    )
    agent = config.create(device="cpu:0")
    agent.create_impl((OBS,), ACTIONS)
    data, rows = columns(5000), np.arange(5000)
    log = d3rlpy.dataset.MDPDataset(
        data["observations"], data["actions"], data["rewards"], np.zeros(5000), (rows % 1000 == 999).astype(np.float32)
    )
    batches = [log.sample_transition_batch(BATCH) for _ in range(BATCHES)]
    return lambda turn: agent.update(batches[turn % BATCHES])


def matmul() -> Callable[[int], None]:
    """The machine's peak: a large product, by the library that is quickest here."""
    quick_products()
    a, out = torch.randn(MATMUL, MATMUL), torch.empty(MATMUL, MATMUL)

    def multiply(turn: int) -> None:
        torch.mm(a, a, out=out)

    return multiply


CONTESTANTS: dict[str, Callable[[], Callable[[int], None]]] = {
    "matmul": matmul,
    **{f"d3rlpy SAC, {n} critics": partial(d3rlpy_sac, n) for n in SIZES},
    **{f"SAC-{n}": partial(our_sac, n) for n in SIZES},
    "APE-V, 9 members, shared": lambda: ours(apev()),
    "nine SAC-n": lambda: ours(*(sac_n(n) for n in range(2, 11))),
}


def work(name: str, threads: int) -> None:
    """The process of one contestant: for each number of updates read, the seconds they took."""
    torch.set_num_threads(threads)
    if "d3rlpy" not in name:
        keep_memory()  # as every command of ours does
    sys.stdout = sys.stderr  # what libraries print is not an answer
    update = CONTESTANTS[name]()
    clock = time.process_time if threads == 1 else time.perf_counter
    for line in sys.stdin:
        begin = clock()
        for turn in range(int(line)):
            update(turn)
        sys.__stdout__.write(f"{clock() - begin}\n")  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]


class Worker:
    """A contestant, waiting to be asked."""

    def __init__(self, name: str, threads: int) -> None:
        words = [sys.executable, __file__, "--work", name, str(threads)]
        self.told = tempfile.TemporaryFile("w+")  # noqa: SIM115 (a pipe that nobody reads could fill up)
        how: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.told, "text": True}
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(words, env=environment, **how)
        self.name = name

    def seconds(self, updates: int) -> float:
        """An update's time, measured now."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(f"{updates}\n")
            self.process.stdin.flush()
            return float(self.process.stdout.readline()) / updates
        except (ValueError, BrokenPipeError):
            self.process.communicate()
            self.told.seek(0)
            raise SystemExit(
                f"{self.name} failed:\n{self.told.read()}\nFix: pip install -e '.[benchmark]' if d3rlpy is missing."
            ) from None

    def stop(self) -> None:
        """Let it end."""
        self.process.communicate()


# ---------------------------------------------------------------------- the whole


def operations(agent: SAC) -> int:
    """Counted floating-point operations of an update."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        agent.update(our_batches()[0])
    return int(counter.get_total_flops())


def measure(options: Options) -> dict[str, float]:
    """Seconds of each contestant's update: the best round."""
    threads = options.threads or os.cpu_count() or 1
    workers = [Worker(name, threads) for name in CONTESTANTS]
    best: dict[str, float] = {}
    console = Console(stderr=True)
    try:
        for worker in workers:
            worker.seconds(2)  # warm
        for number in range(options.rounds):
            for worker in workers:
                updates = max(1, options.updates // 5) if worker.name == "nine SAC-n" else options.updates
                best[worker.name] = min(best.get(worker.name, float("inf")), worker.seconds(updates))
            console.print(f"round {number + 1} of {options.rounds}", style="dim")
    finally:
        for worker in workers:
            worker.stop()
    return best


def main(options: Options) -> None:
    if options.rounds < 1 or options.updates < 1:
        raise SystemExit(f"--rounds {options.rounds} --updates {options.updates}. Fix: at least 1 each.")
    load = os.getloadavg()[0]
    seconds = measure(options)
    peak = 2 * MATMUL**3 / seconds["matmul"]
    shares = {n: operations(sac_n(n)) / seconds[f"SAC-{n}"] / peak for n in SIZES}
    answer: dict[str, Any] = {
        str(n): {
            "vs_d3rlpy": round(seconds[f"d3rlpy SAC, {n} critics"] / seconds[f"SAC-{n}"], 3),
            "peak_share": round(shares[n], 3),
        }
        for n in SIZES
    }
    shared = seconds["APE-V, 9 members, shared"]
    answer["apev_shared_vs_sacn"] = round(shared / seconds["SAC-10"], 3)
    answer["apev_shared_vs_separate"] = round(shared / seconds["nine SAC-n"], 3)
    table = Table("", "ms an update", "updates/s")
    for name, value in seconds.items():
        table.add_row(name, f"{1e3 * value:.2f}", f"{1 / value:.1f}")
    Console().print(table)
    if options.out is not None:
        more = {
            "peak_gflops": round(peak / 1e9, 1),
            "gflop_an_update": {str(n): round(operations(sac_n(n)) / 1e9, 3) for n in SIZES},
            "updates_per_second": {name: round(1 / value, 2) for name, value in seconds.items()},
            "threads": options.threads or os.cpu_count(),
            "clock": "cpu" if options.threads == 1 else "wall",
            "rounds": options.rounds,
            "load_before": round(load, 2),
        }
        keep_answer(options.out, answer | more)
    print(json.dumps(answer))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], int(sys.argv[3]))
    else:
        main(tyro.cli(Options, description=__doc__))
