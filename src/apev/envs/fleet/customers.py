"""Customers of hidden segments: an episode is one customer, who comes eight times and is made an offer each time.

    P(buys)     advice  bundle  discount  nothing
    segment 0      .85     .10       .10      .08
    segment 1      .10     .85       .10      .08
    segment 2      .10     .10       .85      .08

Who buys spends 3, 4 or 5. What is seen of a customer (age, usual basket) says nothing of the segment; only what they buy does,
and one visit seldom settles it. Rewards take four values, so the best that anybody can earn is known exactly: `exact_values`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from apev.data.dataset import Dataset
from apev.data.formats.frame import pandas as pandas_or_fix
from apev.envs.fleet.kinds import checked, choose, deal

if TYPE_CHECKING:
    import pandas

ENVIRONMENT = "apev/Customers-v0"
OFFERS = ("advice", "bundle", "discount", "nothing")
SEEN = ("visit", "age", "basket")  # the observation, column by column
SEGMENTS = 3
VISITS = 8
BUYS = np.array([[0.85, 0.10, 0.10, 0.08], [0.10, 0.85, 0.10, 0.08], [0.10, 0.10, 0.85, 0.08]])  # [segment, offer]
SPENDS = np.array([3.0, 4.0, 5.0])
ODDS = np.array([0.25, 0.5, 0.25])
Counts = tuple[int, ...]  # how often each offer was bought, then how often each was not
NEW: Counts = (0,) * (2 * len(OFFERS))


class CustomersEnv(gymnasium.Env[Any, Any]):
    """One customer. Agents never see the segment; `info["kind"]` is for evaluation, as is `info["oracle_belief"]`.

    The observation is the number of the visit, the age in decades and the usual basket. What happened at earlier visits is
    not in it. `reset(options={"kind": 1})` chooses the segment of an episode, `kind` that of all; else each is drawn.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium's own type)

    def __init__(self, kind: int | None = None) -> None:
        self.asked = None if kind is None else checked(kind, SEGMENTS)
        self.action_space = spaces.Discrete(len(OFFERS))
        self.observation_space = spaces.Box(np.zeros(3, np.float32), np.array([VISITS, 10, 10], np.float32), dtype=np.float32)
        self.kind, self.visit, self.counts = 0, VISITS, NEW
        self.age, self.basket = 0.0, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """A new customer."""
        super().reset(seed=seed)
        self.kind = choose(self.asked, SEGMENTS, options, self.np_random)
        self.age, self.basket = drawn_features(self.np_random)
        self.visit, self.counts = 0, NEW
        return self._seen(), self._info()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One visit: an offer is made, and something is bought or not."""
        if self.visit == VISITS:
            raise ValueError("the customer has left. Fix: reset().")
        reward = drawn_reward(self.kind, int(action), self.np_random)
        self.counts = counted(self.counts, int(action), reward > 0)
        self.visit += 1
        return self._seen(), reward, self.visit == VISITS, False, self._info()

    def _seen(self) -> np.ndarray:
        return np.array([self.visit, self.age, self.basket], dtype=np.float32)

    def _info(self) -> dict[str, Any]:
        return {"kind": self.kind, "oracle_belief": posterior(self.counts)}


def drawn_features(rng: np.random.Generator) -> tuple[float, float]:
    """(age in decades, usual basket) of a customer of any segment."""
    return round(float(rng.uniform(1.8, 8.0)), 1), round(float(rng.uniform(1.0, 9.0)), 1)


def drawn_reward(segment: int, offer: int, rng: np.random.Generator) -> float:
    """What a customer spends at a visit."""
    bought, spends = rng.random() < BUYS[segment, offer], float(rng.choice(SPENDS, p=ODDS))
    return spends if bought else 0.0


def counted(counts: Counts, offer: int, bought: bool) -> Counts:
    """The counts after one more visit."""
    place = offer if bought else len(OFFERS) + offer
    return (*counts[:place], counts[place] + 1, *counts[place + 1 :])


def posterior(counts: Counts) -> np.ndarray:
    """The exact belief over the segments [3], given what was bought and what was not."""
    bought, refused = np.reshape(counts, (2, len(OFFERS)))
    likelihood = (BUYS**bought * (1 - BUYS) ** refused).prod(axis=1)
    return np.asarray(likelihood / likelihood.sum())


@lru_cache(maxsize=1 << 14)
def plan(counts: Counts) -> tuple[float, int]:
    """(what the best policy that does not know the segment still earns, its next offer), by dynamic programming."""
    if sum(counts) == VISITS:
        return 0.0, 0
    chances = posterior(counts) @ BUYS
    ahead = [[plan(counted(counts, offer, bought))[0] for bought in (True, False)] for offer in range(len(OFFERS))]
    worth = [p * (SPENDS @ ODDS + yes) + (1 - p) * no for p, (yes, no) in zip(chances, ahead, strict=True)]
    return float(max(worth)), int(np.argmax(worth))


@dataclass(frozen=True)
class Values:
    """Expected returns of a customer."""

    knows: float  # the best with the segment known
    adaptive: float  # the best without: it learns from what is bought
    blind: float  # the best offer, the same at every visit
    uniform: float  # any offer, as in the log


def exact_values() -> Values:
    """What policies can earn, exactly."""
    visits = VISITS * float(SPENDS @ ODDS)
    blind = float(BUYS.mean(axis=0).max())
    return Values(visits * float(BUYS.max(axis=1).mean()), plan(NEW)[0], visits * blind, visits * float(BUYS.mean()))


def _visits(customers: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """(columns of a log under uniformly random offers, the segment of each customer)."""
    rng = np.random.default_rng(seed)
    segments = deal(range(SEGMENTS), customers, rng)
    features = np.array([drawn_features(rng) for _ in range(customers)]).repeat(VISITS, axis=0)
    offers = rng.integers(len(OFFERS), size=customers * VISITS)
    rewards = [drawn_reward(kind, offer, rng) for kind, offer in zip(segments.repeat(VISITS), offers, strict=True)]
    columns = {
        "customer": np.arange(customers).repeat(VISITS),
        "visit": np.tile(np.arange(VISITS), customers),
        "age": features[:, 0],
        "basket": features[:, 1],
        "offer": offers,
        "reward": np.array(rewards),
    }
    return columns, segments


def customers_log(customers: int = 1000, seed: int = 0) -> tuple[Dataset, np.ndarray]:
    """(a log of customers under uniformly random offers, the segment of each customer [customers])."""
    columns, segments = _visits(customers, seed)
    log = Dataset.from_arrays(
        np.stack([columns[name] for name in SEEN], axis=1).astype(np.float32),
        columns["offer"],
        columns["reward"],
        columns["visit"] == VISITS - 1,
        np.zeros(customers * VISITS, dtype=bool),
        num_actions=len(OFFERS),
        source={"environment": ENVIRONMENT, "observation_names": list(SEEN), "action_names": list(OFFERS)},
    )
    return log, segments


def customers_frame(customers: int = 1000, seed: int = 0) -> tuple[pandas.DataFrame, dict[str, int]]:
    """(the same log as a table of visits, the segment of each customer by id)."""
    columns, segments = _visits(customers, seed)
    table = pandas_or_fix().DataFrame(columns)
    table["customer"] = [f"c{number:04d}" for number in columns["customer"]]
    table["offer"] = [OFFERS[offer] for offer in columns["offer"]]
    return table, {f"c{number:04d}": int(segment) for number, segment in enumerate(segments)}
