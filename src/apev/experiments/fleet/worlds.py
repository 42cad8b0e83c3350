"""The worlds with a hidden kind: their logs, their environments, and what is known of the best that can be done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np

from apev.data import Dataset
from apev.envs.fleet.customers import ENVIRONMENT as CUSTOMERS
from apev.envs.fleet.customers import NEW, counted, customers_log, exact_values, posterior
from apev.envs.fleet.pendulum import ENVIRONMENT as PENDULUM
from apev.envs.fleet.pendulum import pendulum_log
from apev.envs.fleet.wiring import ENVIRONMENT as WIRING
from apev.envs.fleet.wiring import wired
from apev.envs.fleet.worn import ENVIRONMENT as WORN
from apev.envs.make import make as make_env
from apev.experiments.fleet.teachers import JOINTS, taught_log
from apev.rollout import GymnasiumBatch

WorldName = Literal["customers", "pendulum", "cheetah-wiring", "unseen-wiring", "rewired", "worn-joint"]
Log = tuple[Dataset, np.ndarray]  # the log, and the kind of each context, which no agent sees
LIFE = (1, 2, 5)  # episodes of a machine's life that are told of, with the belief kept from one to the next


@dataclass(frozen=True)
class World:
    """A world, and how long agents train in it."""

    name: WorldName
    title: str
    environment: str
    kinds: int  # in the environment
    log: Callable[[Path | None, int], Log]  # (what it is made from, seed)
    updates: int  # of the adaptive agent and of those with memory
    episodes: int  # a kind, in the table
    static: tuple[str, ...]  # pooled algorithms without memory: the blind
    static_updates: int
    printed: Mapping[str, Any]  # settings of APE-V as printed
    printed_updates: int
    needs_data: str = ""  # what --data must name
    exact: Mapping[str, float] = field(default_factory=dict)  # returns that are known exactly
    best_agreement: Callable[[Log], float] = lambda log: 1.0  # of an assignment by the true likelihoods
    tested: tuple[int, ...] = ()  # kinds of the environment that are tested; all unless given
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the environment
    trained: tuple[str, ...] = ()  # agents that are trained unless others are asked for; all unless given
    agents_of: WorldName | None = None  # the world whose agents are tested here: nothing is trained
    oracle_of: WorldName | None = None  # the world whose agent with labels knows every kind that is tested here
    change_at: int | None = None  # the step from which on a machine is of another kind
    life: tuple[int, ...] = (1,)  # episodes of a machine's life that are told of
    taught: bool = False  # teachers are trained first, and act in the log
    gate: float | None = None  # normalised points by which knowing the kind must beat the best blind policy

    def sized(self, updates: int | None = None, episodes: int | None = None) -> World:
        """The same world with other numbers of updates and test episodes, where they are given."""
        sizes: dict[str, int] = {} if episodes is None else {"episodes": episodes}
        if updates is not None:
            sizes |= dict.fromkeys(("updates", "static_updates", "printed_updates"), updates)
        return replace(self, **sizes)  # type: ignore[arg-type]

    def batch(self, episodes: int, seed: int) -> tuple[GymnasiumBatch, np.ndarray]:
        """So many episodes of every kind, and which kind each is of."""
        kinds = np.repeat(np.array(self.tested or range(self.kinds)), episodes)
        waiting = iter(kinds.tolist())

        def make() -> gymnasium.Env[Any, Any]:
            return make_env(self.environment, kind=next(waiting), **self.settings)

        return GymnasiumBatch(make, len(kinds), seed), kinds


def _customers(_: Path | None, seed: int) -> Log:
    """Every customer is a context of their own, which says no more than that every episode is."""
    log, segments = customers_log(seed=seed)
    return replace(log, contexts=log.episodes), segments


def _agreement_of_customers(log: Log) -> float:
    """How often the exact posterior of a customer's whole episode names the segment."""
    data, segments = log
    counts = [NEW] * len(segments)
    for customer, offer, reward in zip(data.group, data.actions, data.rewards, strict=True):
        counts[customer] = counted(counts[customer], int(offer), bool(reward > 0))
    named = np.array([posterior(c).argmax() for c in counts])
    return float((named == segments).mean())


def _pendulum(_: Path | None, seed: int) -> Log:
    return pendulum_log(seed=seed)


def _wiring(path: Path | None, seed: int) -> Log:
    assert path is not None
    return wired(Dataset.load(path), seed=seed)


def _three_wirings(path: Path | None, seed: int) -> Log:
    assert path is not None
    return wired(Dataset.load(path), seed=seed, kinds=(0, 1, 2))


def _worn(folder: Path | None, seed: int) -> Log:
    assert folder is not None
    return taught_log(folder, seed)


DISCRETE: dict[str, Any] = {"surprise": "paper", "likelihood": "paper", "floor": 0.0, "evidence_share": 0.0, "bootstrap": 1.0}
DISCRETE |= {"target_rate": 0.005, "support": 0.0, "members": 5}
CONTINUOUS: dict[str, Any] = {"surprise": "paper", "likelihood": "paper", "floor": 0.0, "target_floor": False, "members": 3}

_values = exact_values()
_cheetah = World(
    "cheetah-wiring",
    "Half-cheetahs, each leg wired right or wrong",
    WIRING,
    4,
    _wiring,
    updates=10_000,
    episodes=10,
    static=("bc", "iql", "td3-bc", "sac-n"),
    static_updates=10_000,
    printed=CONTINUOUS,
    printed_updates=5_000,
    needs_data="a half-cheetah's log",
    life=LIFE,
)
WORLDS: dict[WorldName, World] = {
    "customers": World(
        "customers",
        "Customers of three hidden segments",
        CUSTOMERS,
        3,
        _customers,
        updates=1_500,
        episodes=400,
        static=("bc", "iql", "cql", "dqn"),
        static_updates=1_500,
        printed=DISCRETE,
        printed_updates=1_500,
        exact={"knows": _values.knows, "best without knowing": _values.adaptive, "best blind": _values.blind},
        best_agreement=_agreement_of_customers,
    ),
    "pendulum": World(
        "pendulum",
        "Pendulums, half of them wired the wrong way round",
        PENDULUM,
        2,
        _pendulum,
        updates=5_000,
        episodes=50,
        static=("bc", "iql", "td3-bc", "sac-n"),
        static_updates=5_000,
        printed=CONTINUOUS,
        printed_updates=5_000,
        life=LIFE,
    ),
    "cheetah-wiring": _cheetah,
    "unseen-wiring": replace(
        _cheetah,
        name="unseen-wiring",
        title="A wiring that is in nobody's log",
        log=_three_wirings,
        episodes=10,
        tested=(3,),
        trained=("ape-v", "bc", "iql", "td3-bc"),
        oracle_of="cheetah-wiring",
        life=(1,),
    ),
    "rewired": replace(
        _cheetah,
        name="rewired",
        title="Half-cheetahs that are wired otherwise in the middle of an episode",
        settings={"rewire_at": 500},
        agents_of="cheetah-wiring",
        change_at=500,
        life=(1,),
    ),
    "worn-joint": replace(
        _cheetah,
        name="worn-joint",
        title="Half-cheetahs, healthy or with a weak thigh",
        environment=WORN,
        kinds=JOINTS + 1,
        log=_worn,
        needs_data="",
        settings={"joints": JOINTS},
        life=(1,),
        taught=True,
        gate=15.0,
    ),
}
# {world: (it, with few updates, and the agents that are trained)}: minutes on two cores, for `apev demo`
DEMOS = {
    "pendulum": (replace(WORLDS["pendulum"].sized(1500, 10), life=(1,)), ("ape-v", "td3-bc")),
    "customers": (WORLDS["customers"].sized(600, 100), ("ape-v", "dqn")),
}
