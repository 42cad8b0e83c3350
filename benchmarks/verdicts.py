"""How often the search for kinds says "one kind" of logs that hold one: python benchmarks/verdicts.py cartpole pendulum LOG.npz

Each log is searched with `--seeds` seeds, which decide folds, starts and networks. Names without a suffix are our examples, or
walks in a square towards goals that are not seen, made here:

    one-goal             the episode ends there: one kind
    three-goals          one of three an episode, and a reward there alone
    three-goals-dense    the same, where the reward is the distance

The last line is JSON with the number of kinds found for each log and seed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from apev.data import Dataset
from apev.experiments.common.provenance import keep_answer
from apev.worlds import kinds

QUIET = Console(quiet=True)
GOALS = ((0.7, 0.7), (-0.7, 0.7), (0.0, -0.8))
NEAR = 0.25  # of a goal
MADE: dict[str, dict[str, Any]] = {
    "one-goal": {"goals": 1, "episodes": 60, "ends": True},
    "three-goals": {"goals": 3, "episodes": 200},
    "three-goals-dense": {"goals": 3, "episodes": 60, "dense": True},
}


def main() -> None:
    """Search, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", help="files, or names of examples")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    found: dict[str, list[int]] = {}
    for name in asked.logs:
        own = found.setdefault(Path(name).name, [])
        for seed in range(asked.seeds):
            log = walks(**MADE[name], seed=seed) if name in MADE else read(name)
            own.append(kinds(log, seed=seed, console=QUIET).count)
            print(f"{Path(name).name}, seed {seed}: {own[-1]}", flush=True)
    answer = {"benchmark": "verdicts", "kinds": found, "one_kind": {name: own.count(1) for name, own in found.items()}}
    keep_answer(asked.out, answer)
    print(json.dumps(answer))


def read(name: str) -> Dataset:
    """A file, or an example."""
    return Dataset.load(name) if Path(name).suffix else Dataset.example(name)


def walks(goals: int, *, episodes: int, steps: int = 100, ends: bool = False, dense: bool = False, seed: int = 0) -> Dataset:
    """Walks in a square, rewarded near one of the goals, another one in each episode."""
    rng = np.random.default_rng(seed)
    rows = []
    for episode in range(episodes):
        goal = np.array(GOALS[episode % goals])
        place, heading = rng.uniform(-1, 1, 2), rng.uniform(-1, 1, 2)
        for step in range(steps):
            if np.linalg.norm(heading - place) < 0.1:
                heading = rng.uniform(-1, 1, 2)
            action = np.clip(3 * (heading - place) + rng.normal(0, 0.3, 2), -1, 1)
            after = np.clip(place + 0.1 * action + rng.normal(0, 0.005, 2), -1, 1)
            distance = np.linalg.norm(after - goal)
            over = ends and distance < NEAR
            cut = step == steps - 1 and not over
            rows.append((place, action, -distance if dense else float(distance < NEAR), after, over, cut))
            place = after
            if over:
                break
    obs, actions, rewards, following, ended, cut_off = (np.array(column) for column in zip(*rows, strict=True))
    before, after = obs.astype(np.float32), following.astype(np.float32)
    return Dataset.from_arrays(before, actions.astype(np.float32), rewards, ended, cut_off, next_observations=after)


if __name__ == "__main__":
    main()
