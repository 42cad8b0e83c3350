"""What does drawing rows in blocks cost in the final score?

    python benchmarks/blocks.py --out results/benchmarks/blocks/cartpole.json
    python benchmarks/blocks.py --data halfcheetah-medium-replay.npz --env HalfCheetah-v4 --algorithms td3-bc iql \
      --updates 5000 --hidden 128 128 --out results/benchmarks/blocks/halfcheetah.json

The same trainings, seed by seed, which draw their batches in different ways:

    rows         single rows of the whole log, as a log in memory is drawn
    blocks       blocks of 256 rows, 512 of them in a round: the default. These logs are no larger than a round, so that it is
                 their rows in random order, each once an epoch
    part N       blocks of 256 rows, and a round holds an N-th of the log, as the default does of a log of N x 131,072 rows

`cost` is the mean of `rows` less the mean of the other way, over seeds, with a 95% interval of the paired differences
(Student's t). A replay buffer is the hard case: its rows lie in the order in which an agent learned, so that neighbours are
alike. Trainings that are in --out already are not repeated, if they were asked for in the same way. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from scipy.stats import t as student

import apev
from apev.api import Extras
from apev.data import Dataset, Sampler, scores
from apev.data.blocks import BLOCK_ROWS, POOL_BLOCKS
from apev.experiments.common.provenance import keep_answer
from apev.files import read_json

QUIET = Console(quiet=True)


def sampler(log: Dataset, way: str, batch_size: int, seed: int) -> Sampler:
    """Batches that are drawn in a way."""
    if way == "rows":
        return Sampler(log, batch_size=batch_size, seed=seed, draw="rows")
    share = int(way.removeprefix("part ")) if way.startswith("part ") else 0
    pool = max(1, len(log) // (BLOCK_ROWS * share)) if share else POOL_BLOCKS
    return Sampler(log, batch_size=batch_size, seed=seed, draw="blocks", pool_blocks=pool)


def score(log: Dataset, algorithm: str, way: str, seed: int, asked: dict[str, Any]) -> float:
    """The mean return of what one training has learned; normalised where D4RL has references."""
    policy = apev.train(
        log,
        algorithm,
        updates=asked["updates"],
        seed=seed,
        hidden=tuple(asked["hidden"]),
        console=QUIET,
        extras=Extras(sampler=lambda kept, _: sampler(kept, way, asked["batch_size"], seed)),
    )
    played = apev.evaluate(policy, asked["env"], asked["episodes"], adapt=["uniform"], seed=seed, console=QUIET).rows[0].mean
    if scores.of_source({"environment": asked["env"]}) is None:
        return round(played, 3)
    return round(float(scores.normalised(asked["env"], played)), 3)


def cost(rows: list[float], other: list[float]) -> dict[str, float]:
    """How much less the other way scores, over the seeds that both have."""
    differences = np.array([a - b for a, b in zip(rows, other, strict=False)])
    found = {"mean": round(float(differences.mean()), 3), "seeds": len(differences)}
    if len(differences) > 1:
        half = student.ppf(0.975, len(differences) - 1) * differences.std(ddof=1) / len(differences) ** 0.5
        found |= {"low": round(float(differences.mean() - half), 3), "high": round(float(differences.mean() + half), 3)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None, help="a log; the example cartpole unless given")
    parser.add_argument("--env", default="CartPole-v1", help="where policies are played")
    parser.add_argument("--algorithms", nargs="+", default=["bc", "iql", "cql"])
    parser.add_argument("--ways", nargs="+", default=["rows", "blocks", "part 16"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 64])
    parser.add_argument("--episodes", type=int, default=20, help="that each policy plays")
    parser.add_argument("--out", type=Path, default=None, help="also store the answer in this file, after every training")
    given = parser.parse_args()
    if min(given.updates, given.episodes) < 1 or given.ways[0] != "rows":
        raise SystemExit(
            "--updates and --episodes are at least 1, and --ways begins with what others are compared with. Fix: rows."
        )
    torch.set_num_threads(1)
    log = Dataset.example("cartpole") if given.data is None else Dataset.load(given.data)
    lengths = np.bincount(log.episodes)
    asked: dict[str, Any] = {name: getattr(given, name) for name in ("env", "updates", "hidden", "episodes")}
    asked |= {"batch_size": 512 if log.discrete else 256}
    about = {"name": log.source.get("name"), "rows": len(log), "digest": log.digest, "episode_rows": int(np.median(lengths))}
    found: dict[str, dict[str, list[float]]] = {}
    if given.out is not None and given.out.exists():
        before = read_json(given.out)
        if before["asked"] == asked and before["log"] == about:
            found = before["scores"]
    answer: dict[str, Any] = {}
    turns = [(seed, name, way) for seed in given.seeds for name in given.algorithms for way in given.ways]
    for seed, name, way in track(turns, "trainings", console=Console(stderr=True)):
        done = found.setdefault(name, {}).setdefault(way, [])
        if len(done) > given.seeds.index(seed):
            continue
        done.append(score(log, name, way, seed, asked))
        costs = {
            algorithm: {way: cost(ways["rows"], ways[way]) for way in ways if way != "rows" and ways[way] and ways.get("rows")}
            for algorithm, ways in found.items()
        }
        answer = {"log": about, "asked": asked, "seeds": given.seeds, "scores": found, "cost": costs}
        keep_answer(given.out, answer)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
