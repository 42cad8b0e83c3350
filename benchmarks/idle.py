"""Does a belief stay where nothing tells the kind? Machines that stand still.

    python benchmarks/idle.py --data halfcheetah-medium-replay-v2.npz     # without --data pendulums alone

A pendulum hangs without torque, and a half-cheetah lies without any action: whichever way they are wired, the same happens.
The search is told how many kinds there are, and a belief follows its models from the uniform one on. `believed` is the
weight of the kind believed in most, after so many steps; it should stay at one over the number of kinds. `back` is how many
logged rows of a context a belief of that age takes until the true kind has 95%, in the median over contexts of kinds that it
had given up; `fresh` the same from the uniform belief. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from apev.api import FLOOR
from apev.belief import BeliefFilter, uniform
from apev.data import Dataset
from apev.data.batch import Batch, Observations
from apev.envs.fleet import pendulum_log, wired
from apev.envs.make import make
from apev.experiments.common.provenance import keep_answer
from apev.machine import Machine
from apev.worlds import kinds
from apev.worlds.rows import Rows

STEPS = (1, 10, 50, 200)
SURE = 0.95


def main() -> None:
    """Search, stand still, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None, help="a half-cheetah's log; without one, pendulums alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    Machine(threads=1).use()
    answer: dict[str, Any] = {"benchmark": "idle", "seed": asked.seed}
    env = make("apev/PendulumFleet-v0", kind=0)
    env.reset(seed=asked.seed)
    env.unwrapped.inside.state = np.array([np.pi, 0.0])  # type: ignore[attr-defined]
    answer["pendulum"] = stood(pendulum_log(seed=asked.seed)[0], 2, env, np.array([-1.0, 0.0, 0.0]), asked.seed)
    if asked.data is not None:
        env = make("apev/CheetahWiring-v0", kind=0)
        start, _ = env.reset(seed=asked.seed)
        log = wired(Dataset.load(asked.data), seed=asked.seed)[0]
        answer["cheetah-wiring"] = stood(log, 4, env, start, asked.seed)
    keep_answer(asked.out, answer)
    print(json.dumps(answer))


def stood(log: Dataset, count: int, env: gymnasium.Env[Any, Any], seen: np.ndarray, seed: int) -> dict[str, Any]:
    """What a belief of `count` kinds comes to while nothing is done."""
    found = kinds(log, count=count, seed=seed, console=Console(quiet=True))
    models = found.models
    assert models is not None
    rule = BeliefFilter(floor=FLOOR)
    still = np.zeros(env.action_space.shape or (), dtype=np.float32)
    belief, believed, back = uniform(count, 1), {}, {}
    rows = Rows.of(log, models.units)
    of_rows = models.of_rows(rows)
    kind = torch.from_numpy(found.kind)
    for step in range(1, max(STEPS) + 1):
        after, reward, *_ = env.step(still)
        belief = rule.weigh(belief, models.log_likelihood(one_row(seen, still, float(reward), after)))
        seen = after
        if step in STEPS:
            believed[step] = round(float(belief.exp().max()), 3)
            given_up = [k for k in range(count) if float(belief[0, k].exp()) < 1 / count]
            back[step] = until_sure(rule, belief[0], of_rows, rows, kind, given_up)
    fresh = until_sure(rule, uniform(count), of_rows, rows, kind, range(count))
    return {"kinds": count, "believed": believed, "back": back, "fresh": fresh}


def one_row(seen: np.ndarray, action: np.ndarray, reward: float, after: np.ndarray) -> Batch:
    """A transition as the models read it."""

    def row(numbers: np.ndarray) -> Tensor:
        return torch.as_tensor(np.asarray(numbers, dtype=np.float32))[None]

    nowhere = torch.zeros(1, dtype=torch.int64)
    return Batch(
        Observations(row(seen)), row(action), torch.tensor([reward]), Observations(row(after)), torch.zeros(1), nowhere
    )


def until_sure(rule: BeliefFilter, start: Tensor, evidence: Tensor, rows: Rows, kind: Tensor, of: Any) -> float | None:
    """Rows until the true kind has 95%, in the median context of these kinds; None where there is none or it is never sure."""
    steps = []
    for context in range(len(rows.sizes)):
        own = int(kind[context])
        if own not in of:
            continue
        belief = start[None]
        for step, told in enumerate(evidence[rows.context == context], 1):
            belief = rule.weigh(belief, told[None])
            if float(belief[0, own].exp()) >= SURE:
                steps.append(float(step))
                break
        else:
            steps.append(float("inf"))
    middle = float(np.median(steps)) if steps else float("inf")
    return middle if np.isfinite(middle) else None


if __name__ == "__main__":
    main()
