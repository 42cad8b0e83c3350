"""How often the search for kinds says "one kind" of logs that hold one: python benchmarks/verdicts.py cartpole pendulum LOG.npz

Each log is searched with `--seeds` seeds, which decide folds, starts and networks. Names without a suffix are our examples, or
walks in a square towards goals that are not seen, made here:

    one-goal             the episode ends there: one kind
    three-goals          one of three an episode, and a reward there alone
    three-goals-dense    the same, where the reward is the distance
    signpost             vehicles whose depot is left or right of a junction, and a signpost that half of the drivers read: two
                         kinds, which one row in fourteen tells apart

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
LANE = 0.1  # half of its width
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
            log = drives(seed=seed) if name == "signpost" else walks(**MADE[name], seed=seed) if name in MADE else read(name)
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


def drives(vehicles: int = 40, episodes: int = 10, seed: int = 0) -> Dataset:
    """Drives on three lanes that meet, of vehicles as contexts: 10 at a vehicle's own depot, -10 at the other one.

    Observed are x, y and, at the upper end of the middle lane alone, on which side the depot is.
    """
    rng = np.random.default_rng(seed)
    rows: list[tuple[Any, ...]] = []
    for vehicle in range(vehicles):
        side = 1.0 if vehicle % 2 else -1.0
        for _ in range(episodes):
            x, y = rng.uniform(-LANE, LANE, 2)
            read = rng.random() < 0.5  # whether the driver has no need of the signpost
            goes = side if rng.random() < (0.5 if read else 0.8) else -side
            over = False
            while not over:
                was = (x, y, side * (y > 0.85))
                read |= y > 0.85
                in_lane = y > LANE / 2 and abs(x) <= LANE
                wanted = (-10 * x, 1.0) if not read else (-10 * x, -1.0) if in_lane else (goes, -10 * y)
                action = np.clip(np.array(wanted) + rng.normal(0, 0.3, 2), -1, 1)
                widest = 1.0 if y <= LANE else LANE
                x = float(np.clip(x + 0.15 * action[0], -widest, widest))
                y = float(np.clip(y + 0.15 * action[1], -LANE, 1.0 if abs(x) <= LANE else LANE))
                over = abs(x) > 0.85
                reward = 10.0 * side * np.sign(x) if over else -0.1
                rows.append((was, action, reward, (x, y, side * (y > 0.85)), over, False, vehicle))
    before, actions, rewards, after, ended, cut_off, contexts = (np.array(column) for column in zip(*rows, strict=True))
    seen, following, moves = (part.astype(np.float32) for part in (before, after, actions))
    return Dataset.from_arrays(seen, moves, rewards, ended, cut_off, next_observations=following, contexts=contexts)


if __name__ == "__main__":
    main()
