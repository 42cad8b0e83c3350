"""Agents that learn the three worlds from their logs, several at a time, and what they are worth there, exactly.

Moves are certain and policies greedy, so that one episode for every hypothesis and start tells a learned policy's value
without any sampling. For the city's intervals, days are drawn as they come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from apev.api import Extras, train
from apev.data import Dataset, Sampler
from apev.experiments.theory.batch import TabularBatch
from apev.experiments.theory.worlds import WORLDS, World
from apev.loop import Schedule
from apev.policy import Policy
from apev.rollout import rollout

PER_GROUP = 32  # steps of each context in a batch
HELD_OUT = 0.1  # share of the contexts no agent trains on


@dataclass(frozen=True)
class Task:
    """One agent to train in one world, with one seed for the log, the networks and the days it is tested on."""

    world: str
    agent: str
    seed: int
    updates: int | None = None  # the world's own unless given
    days: int = 0  # days drawn for the intervals, besides the exact value


def learn(task: Task) -> dict[str, Any]:
    """Train one agent; its exact value, its episodes, and the ways it goes from the usual start."""
    world = WORLDS[task.world]()
    config = world.agents[task.agent]
    kept, held_out = Dataset.from_arrays(**world.log(task.seed)).split(HELD_OUT, task.seed)
    updates = task.updates or world.updates
    extras = Extras(
        sampler=lambda log, config: Sampler(log, seed=task.seed, batch_groups=world.groups, per_group=PER_GROUP),
        schedule=Schedule(updates, log_every=updates, eval_every=0, checkpoint_every=updates, lr_decay=True),
        held_out=held_out,
    )
    policy = train(kept, config=config, seed=task.seed, console=Console(quiet=True), extras=extras)
    policy = policy.with_adapt("bayes" if task.agent == "ape-v" else "uniform", seed=task.seed)
    return {
        "world": task.world,
        "agent": task.agent,
        "seed": task.seed,
        "value": exact_value(policy, world),
        "episodes": drawn_days(policy, world, task) if task.days else [],
        "routes": routes(policy, world) if task.world == "city" else {},
    }


def exact_value(policy: Policy, world: World) -> float:
    """The expected return of a learned policy: one episode for each hypothesis and start, weighted as they occur."""
    posterior = world.posterior
    weight = posterior.prior[:, None] * posterior.start  # [K, S]
    hypothesis, start = np.nonzero(weight)
    result = rollout(policy, TabularBatch(posterior, hypothesis, world.features, world.horizon, start=start))
    return float(weight[hypothesis, start] @ result.returns)


def drawn_days(policy: Policy, world: World, task: Task) -> list[dict[str, Any]]:
    """Episodes in hypotheses drawn from the prior, one record each."""
    rng = np.random.default_rng([task.seed, 7])
    hypothesis = rng.choice(len(world.posterior), size=task.days, p=world.posterior.prior)
    result = rollout(policy, TabularBatch(world.posterior, hypothesis, world.features, world.horizon, seed=task.seed))
    return [
        {
            "world": task.world,
            "policy": task.agent,
            "seed": task.seed,
            "episode": i,
            "hypothesis": int(hypothesis[i]),
            "length": int(result.lengths[i]),
            "return": float(result.returns[i]),
            "success": bool(result.success[i]),
        }
        for i in range(task.days)
    ]


def routes(policy: Policy, world: World) -> dict[str, Any]:
    """For each hypothesis: the states passed, and the belief in the hypotheses' members on the way."""
    K = len(world.posterior)
    batch = TabularBatch(world.posterior, np.arange(K), world.features, world.horizon)
    result = rollout(policy, batch, trace=True)
    found = {}
    for k, name in enumerate(world.posterior.names):
        steps = int(result.lengths[k]) + 1
        found[name] = {
            "states": [int(obs[k].argmax()) for obs in result.observations[:steps]],
            "belief": [[round(float(b), 3) for b in belief[k]] for belief in result.beliefs[:steps]],
            "arrived": bool(result.success[k]),
        }
    return found
