"""Policies whose value is known exactly: what they do and believe is written down, not learned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from apev.agents import Agent
from apev.bayes.mdp import Posterior
from apev.data.batch import Batch, Layout, Observations
from apev.data.dataset import Dataset
from apev.envs.fleet.customers import BUYS, NEW, ODDS, SPENDS, VISITS, Counts, counted, posterior
from apev.policy import Policy


@dataclass(frozen=True)
class KnownConfig:
    gamma: float = 0.9


class Known(Agent):
    """Acts by a function of observation and weights; evidence by another."""

    errs = False

    def __init__(
        self,
        log: Dataset,
        choose: Callable[[Tensor, Tensor], Tensor],
        evidence: Callable[[Batch], Tensor] | None = None,
        members: int = 1,
        gamma: float = 0.9,
    ) -> None:
        super().__init__()
        self.layout, self.config, self.members, self.measured = Layout.of(log), KnownConfig(gamma), members, members
        self.worlds = None
        self.choose, self.told = choose, evidence
        self.register_buffer("scale", torch.ones(members))
        self.nothing = nn.Parameter(torch.zeros(1))
        self.generator = torch.Generator()

    def act(
        self, obs: Observations, log_belief: Tensor, greedy: bool = True, features: Any = None, generator: Any = None
    ) -> Tensor:
        return self.choose(obs.vector, log_belief.exp())

    def log_evidence(self, step: Batch, log_belief: Tensor, features: Any = None, generator: Any = None) -> Tensor:
        assert self.told is not None
        return self.told(step)

    @classmethod
    def for_data(cls, dataset: Dataset, config: Any, *, seed: int = 0) -> Any:
        raise NotImplementedError

    def update(self, batch: Batch) -> dict[str, Tensor]:
        raise NotImplementedError

    def encode(self, pictures: Tensor | None) -> Tensor | None:
        return None

    def td_errors(self, step: Batch, log_belief: Tensor, features: Any = None, generator: Any = None) -> Tensor:
        raise NotImplementedError

    def make_optimizer(self) -> torch.optim.Optimizer:
        raise NotImplementedError

    def policy_state(self) -> dict[str, Tensor]:
        return {}

    def load_policy_state(self, state: dict[str, Tensor]) -> None:
        pass


def always(log: Dataset, action: int) -> Policy:
    """One action, whatever happens."""
    return Policy(Known(log, lambda obs, weights: torch.full((len(obs),), action)))


def myopic(log: Dataset) -> Policy:
    """Offers customers what they will most probably buy at this visit, by the exact belief over segments."""
    buys = torch.from_numpy(BUYS).float()

    def evidence(step: Batch) -> Tensor:
        chance = buys[:, step.action].T
        return torch.where((step.reward > 0)[:, None], chance, 1 - chance).log()

    return Policy(Known(log, lambda obs, weights: (weights @ buys).argmax(1), evidence, members=len(BUYS)))


def myopic_value(counts: Counts = NEW) -> float:
    """What `myopic` earns, by following every history."""
    if sum(counts) == VISITS:
        return 0.0
    chances = posterior(counts) @ BUYS
    offer = int(chances.argmax())
    yes, no = (myopic_value(counted(counts, offer, bought)) for bought in (True, False))
    chance = float(chances[offer])
    return chance * (float(SPENDS @ ODDS) + yes) + (1 - chance) * no


def tabular_log(worlds: Posterior, episodes: int, length: int, seed: int) -> Dataset:
    """Random actions in worlds drawn anew for each episode, cut off after `length` steps; states are one-hot."""
    rng, rows = np.random.default_rng(seed), []
    eye = np.eye(worlds.num_states, dtype=np.float32)
    for _ in range(episodes):
        mdp = worlds.mdps[rng.choice(len(worlds), p=worlds.prior)]
        state = int(rng.choice(worlds.num_states, p=mdp.start))
        for t in range(length):
            action = int(rng.integers(worlds.num_actions))
            outcome = int(rng.choice(mdp.probability.shape[2], p=mdp.probability[state, action]))
            after = int(mdp.next_state[state, action, outcome])
            rows.append((eye[state], action, mdp.reward[state, action, outcome], False, t == length - 1, eye[after]))
            state = after
    *columns, following = (np.array(column) for column in zip(*rows, strict=True))
    return Dataset.from_arrays(*columns, next_observations=following, num_actions=worlds.num_actions)
