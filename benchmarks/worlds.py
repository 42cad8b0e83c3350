"""How fast kinds of contexts are found, and how the time grows with the rows of the log and with the number of kinds.

    python benchmarks/worlds.py            # the last line is JSON
    python benchmarks/worlds.py --rows 5000 10000 20000

Logs are of pushed points, in half of whose contexts the push counts the other way round. `rows_per_second` is of the largest
log, search and final models together; the exponents are slopes of log(time) over log(rows) and over log(kinds). Small logs are
searched with fewer updates and every one of their contexts held out in turn, so that exponents are of the large ones.

Seconds are CPU time of this process, which runs on one thread: on a shared machine, the clock on the wall tells of others.

`observe_ms` is what a step of Bayes' rule costs a policy in 20 environments at once, with the evidence of next states and
rewards, and with that of TD errors; their ratio is of the same run.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from apev.api import train
from apev.data import Dataset
from apev.experiments.common.provenance import keep_answer
from apev.worlds import kinds

QUIET = Console(quiet=True)
CONTEXT = 100  # rows


def pushed(rows: int, kinds: int, seed: int = 0) -> Dataset:
    """A log of `rows` rows in contexts of 100, of so many kinds: each pushes in a direction of its own."""
    rng = np.random.default_rng(seed)
    contexts = rows // CONTEXT
    angle = (2 * np.pi * rng.permutation(np.arange(contexts) % kinds) / kinds).repeat(CONTEXT)
    obs = rng.normal(size=(contexts * CONTEXT, 8)).astype(np.float32)
    push = rng.uniform(-1, 1, size=(len(obs), 2)).astype(np.float32)
    turned = np.stack([np.cos(angle) * push[:, 0] - np.sin(angle) * push[:, 1]], axis=1)
    after = obs + 0.1 * np.tanh(obs[:, ::-1]) + np.pad(turned, ((0, 0), (0, 7))) + rng.normal(0, 0.05, obs.shape)
    ends = np.tile(np.arange(CONTEXT) == CONTEXT - 1, contexts)
    nowhere, context = np.zeros(len(obs), dtype=bool), np.arange(contexts).repeat(CONTEXT)
    reward = -np.abs(after[:, 0]).astype(np.float32)
    following = after.astype(np.float32)
    return Dataset.from_arrays(obs, push, reward, nowhere, ends, next_observations=following, contexts=context)


def seconds(log: Dataset, most: int, count: int | None = None) -> tuple[float, int]:
    """(CPU seconds that the search takes, how many kinds it finds)."""
    begin = time.process_time()
    found = kinds(log, count=count, most=most, console=QUIET)
    return time.process_time() - begin, found.count


def observe_ms(rows: int = 2000, environments: int = 20, steps: int = 200) -> dict[str, float]:
    """Milliseconds that `Policy.observe` takes, by the kind of evidence: the median step."""
    log = pushed(rows, 2)
    labels = np.random.default_rng(0).integers(2, size=log.num_groups).tolist()  # whose kind is whose costs nothing
    policy = train(log, "ape-v", updates=1, kinds=labels, console=QUIET)
    seen = log.observations["observation"][:environments]
    taken: dict[str, list[float]] = {"model": [], "td": []}
    for step in range(2 * steps):
        evidence = ("model", "td")[step % 2]
        policy.agent.config = replace(policy.agent.config, evidence=evidence)
        policy.act(seen)
        begin = time.process_time()
        policy.observe(np.zeros(environments), seen, np.zeros(environments, dtype=bool))
        taken[evidence].append(1000 * (time.process_time() - begin))
    return {evidence: float(np.median(each)) for evidence, each in taken.items()}


def exponent(sizes: list[int], times: list[float]) -> float:
    """The slope of log(time) over log(size)."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[25_000, 50_000, 100_000])
    parser.add_argument("--kinds", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--most", type=int, default=6, help="numbers of kinds that are tried")
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    by_rows = {}
    for rows in asked.rows:
        by_rows[rows] = seconds(pushed(rows, 2), asked.most)
        print(f"{rows:,} rows: {by_rows[rows][0]:.1f} s, {by_rows[rows][1]} kinds found of 2", flush=True)
    by_kinds = {}
    for count in asked.kinds:
        by_kinds[count] = seconds(pushed(asked.rows[0], count), count, count)[0]
        print(f"{count} kinds given, {asked.rows[0]:,} rows: {by_kinds[count]:.1f} s", flush=True)
    observe = observe_ms()
    print(f"observe: {observe['model']:.2f} ms with models, {observe['td']:.2f} ms with TD errors", flush=True)
    answer = {
        "benchmark": "worlds",
        "threads": torch.get_num_threads(),
        "clock": "CPU time of the process",
        "seconds_by_rows": {str(rows): round(taken, 2) for rows, (taken, _) in by_rows.items()},
        "seconds_by_kinds": {str(count): round(taken, 2) for count, taken in by_kinds.items()},
        "rows_per_second": round(max(asked.rows) / by_rows[max(asked.rows)][0], 1),
        "found": [found for _, found in by_rows.values()],
        "exponent_rows": round(exponent(asked.rows, [taken for taken, _ in by_rows.values()]), 3),
        "exponent_kinds": round(exponent(asked.kinds, list(by_kinds.values())), 3),
        "observe_ms": {evidence: round(taken, 3) for evidence, taken in observe.items()},
        "observe_ratio": round(observe["model"] / observe["td"], 3),
    }
    keep_answer(asked.out, answer)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
