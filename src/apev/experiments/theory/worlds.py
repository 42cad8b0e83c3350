"""Three small worlds in which learned policies can be held against exact ones: the chain, the city, the locked room.

Each comes with its posterior, the features a network reads, and a log whose contexts are the days (rooms, chains) it was
written in. No log says which hypothesis a context belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from apev.agents import APEVConfig, DQNConfig, LCBConfig
from apev.bayes import Posterior, TabularMDP
from apev.experiments.locked_doors.images import ImageSet
from apev.experiments.locked_doors.rooms import Room
from apev.experiments.locked_doors.walkers import collect as collect_walks
from apev.experiments.theory.batch import TabularBatch, collect
from apev.experiments.theory.chain import chain
from apev.experiments.theory.city import City, collect_drives

CHAIN_N = 4


@dataclass(frozen=True)
class World:
    """A world to learn in."""

    name: str
    posterior: Posterior
    features: np.ndarray  # [S, D]: what a network sees of each state
    horizon: int  # steps until an episode of the evaluation is cut off
    log: Callable[[int], dict[str, Any]]  # seed -> columns of `Dataset.from_arrays`
    agents: dict[str, DQNConfig]
    updates: int  # gradient steps, the same for every agent of the world
    groups: int = 16  # contexts a batch


def networks(**more: Any) -> dict[str, Any]:
    """What the agents of these worlds share unless they say otherwise."""
    return {"hidden": (64, 64), "gamma": 0.95, "lr": 3e-3, "target_rate": 0.1} | more


def adaptive(kinds: int, temperature: float = 0.1, **more: Any) -> APEVConfig:
    """APE-V with one member that learns the average world, and a wildcard for each kind of context.

    A step costs 1, so that exp(-error^2) has a natural unit here; the temperature lets one refusal settle the matter.
    """
    return APEVConfig(**networks(members=1, wildcards=kinds, likelihood="paper", temperature=temperature, **more))


def city_world() -> World:
    """Figure 1: side street or wide road."""
    city = City()
    agents = {
        "ape-v": adaptive(2),
        "average": DQNConfig(**networks(members=10)),
        # Members that each know a tenth of the days disagree about streets that few days show.
        "lcb": LCBConfig(**networks(members=10, bootstrap=0.1, beta=8.0)),
    }
    return World(
        "city", city.posterior, city.features, city.horizon, lambda seed: collect_drives(city, seed=seed), agents, 1000
    )


def chain_world(n: int = CHAIN_N) -> World:
    """Theorem 4.1, logged by random walks from anywhere."""
    posterior = chain(n)
    features = np.eye(2 * n + 1, dtype=np.float32)

    def log(seed: int, chains: int = 100, walks: int = 4) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        context = np.repeat(np.arange(chains), walks)
        goal = rng.integers(2, size=chains)[context]
        start = rng.integers(1, 2 * n, size=len(context))
        batch = TabularBatch(posterior, goal, features, 20 * n, seed=seed + 1, start=start)
        return collect(batch, lambda b: b.rng.integers(2, size=b.num_envs), context)

    return World("chain", posterior, features, 50 * n, log, {"ape-v": adaptive(2)}, 400, groups=8)


def doors_world(room: Room | None = None) -> World:
    """Locked Doors without the photograph: each door is the open one in a quarter of the rooms, and that is known."""
    room = room or Room()
    size, cells = room.size, room.size**2
    y, x = np.divmod(np.arange(cells), size)
    features = np.concatenate([room.one_hot(x, y), np.zeros((1, 2 * size), np.float32)])  # the last state: outside

    def log(seed: int, rooms: int = 240) -> dict[str, Any]:
        door = np.random.default_rng(seed).integers(4, size=rooms)
        unseen = np.zeros((rooms, 32, 32, 3), dtype=np.uint8)
        walks = collect_walks(ImageSet(unseen, door, unseen[:4], np.arange(4)), room, seed=seed)
        kept = {key: walks[key] for key in ("actions", "rewards", "terminated", "truncated", "episodes")}
        return kept | {
            "observations": walks["observations"]["position"].astype(np.float32),
            "next_observations": walks["next_observations"]["position"].astype(np.float32),
            "contexts": walks["observations"]["image"],
            "num_actions": 4,
        }

    # More cells and longer ways: errors of dull steps add up, so that the filter is softer, and failures must not drown steps.
    ours = adaptive(4, temperature=0.25, gamma=0.9, hidden=(128, 128))
    return World("doors", doors_posterior(room), features, 4 * room.horizon, log, {"ape-v": ours}, 2700)


def doors_posterior(room: Room) -> Posterior:
    """The room's four hypotheses as tables: state y * size + x, and one more outside."""
    size, cells = room.size, room.size**2
    y, x = np.divmod(np.arange(cells), size)
    start = np.r_[np.full(cells, 1 / cells), 0]
    worlds = []
    for door in range(4):
        follow = np.full((cells + 1, 4), cells)
        reward = np.full((cells + 1, 4), -1.0)
        for action in range(4):
            next_x, next_y, exited, _ = room.step(x, y, np.full(cells, action), np.full(cells, door))
            follow[:-1, action] = np.where(exited, cells, next_y * size + next_x)
            reward[:-1, action] = np.where(exited, 0.0, -1.0)
        worlds.append(TabularMDP.deterministic(follow, reward, start=start, terminal=[cells]))
    return Posterior(worlds)


WORLDS: dict[str, Callable[[], World]] = {"chain": chain_world, "city": city_world, "doors": doors_world}
