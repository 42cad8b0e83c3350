"""BC and IQL with a GRU over the episode: all that was seen, done and paid so far, in a state that is learned.

    h_t = GRU(h_{t-1}, (s_t, a_{t-1}, r_{t-1}, 1))       h_{-1} = 0; zeros for the step before the first
    x_t = (s_t, h_t)

It learns from windows of episodes (`WindowSampler`). Where a window begins inside an episode, its first quarter is only read,
so that what is learned from has a history. V(x_{t+1}) is that of one more step of the GRU from h_t.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from apev.agents.continuous.bc import BC, BCConfig
from apev.agents.continuous.iql import IQL, IQLConfig
from apev.agents.discrete.bc import DiscreteBC, DiscreteBCConfig
from apev.agents.discrete.iql import DiscreteIQL, DiscreteIQLConfig
from apev.agents.history.base import DiscreteHistoryConfig, HistoryAgent, HistoryConfig, zero_where_missing
from apev.data.batch import Batch, Layout, Observations
from apev.data.dataset import Dataset
from apev.data.history import HistoryBatch, WindowSampler


@dataclass(frozen=True)
class GRUConfig(HistoryConfig):
    """The GRU, and how it learns."""

    state: int = 128
    """Width of the GRU's state."""
    window: int = 64
    """The most steps of an episode that are read at once in training; longer episodes are cut into windows."""


class GRU(HistoryAgent):
    """The history is the GRU's state and the outcome of the last step, [B, H + A + 2]."""

    config: GRUConfig
    looks_ahead: ClassVar[bool] = True  # the algorithm asks what the next observation is worth

    def __init__(self, layout: Layout, config: Any, *, num_groups: int = 0, seed: int = 0) -> None:
        if config.state < 1 or config.window < 1:
            raise ValueError(f"state is {config.state}, window {config.window}. Fix: at least 1.")
        super().__init__(layout, config, num_groups=num_groups, seed=seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.gru = nn.GRU(layout.vector_dim + self.action_width + 2, config.state, batch_first=True)

    @property
    def input_dim(self) -> int:
        """Observation and state."""
        return self.layout.vector_dim + self.config.state

    def sampler(self, log: Dataset, **how: Any) -> WindowSampler:
        """Windows of episodes."""
        return WindowSampler(log, window=self.config.window, burn_in=self.config.window // 4, **how)

    def start_history(self, count: int) -> Tensor:
        """An empty state, and no step before."""
        return torch.zeros(count, self.config.state + self.action_width + 2, device=self.device)

    @torch.no_grad()
    def take_in(self, history: Tensor, step: Batch) -> Tensor:
        """The GRU's state at this step's observation, then what was done there and what it paid."""
        return torch.cat([self.state_at(step.obs.vector, history), self.read_outcome(step.action, step.reward)], -1)

    def state_at(self, vector: Tensor, history: Tensor) -> Tensor:
        """h_t [B, H]: the GRU's state once it has read observations s_t, from the histories before them."""
        state, outcome = history.split([self.config.state, self.action_width + 2], -1)
        x = torch.cat([self.read_vector(vector), outcome], -1)
        states: Tensor = self.gru(x[:, None], state[None].contiguous())[0]  # [B, 1, H]
        return states[:, 0]

    def recall(self, obs: Observations) -> Observations:
        """Observation and GRU state in one vector."""
        history = obs.history if obs.history is not None else self.start_history(len(obs.vector))
        return self.join(obs, self.state_at(obs.vector, history))

    def join(self, obs: Observations, state: Tensor) -> Observations:
        """Observation and a GRU state that is there already, in one vector."""
        return Observations(torch.cat([self.read_vector(obs.vector), state], -1), allowed=obs.allowed)

    def check_batch(self, batch: Batch) -> None:
        """Refuse what every agent with a history refuses, and batches that are no windows."""
        super().check_batch(batch)
        if isinstance(batch, HistoryBatch) and batch.counted is None:
            raise ValueError("this agent reads windows of episodes. Fix: draw batches with agent.sampler(log).")

    def recall_past(self, batch: HistoryBatch) -> Batch:
        """The rows that count, with the state that the window so far has led to."""
        assert batch.counted is not None
        past, rows = batch.past, batch.counted.nonzero()[:, 0]
        before = zero_where_missing(past, self.read_outcome(past.action, past.reward))[:, 0]
        x = torch.cat([self.read_vector(batch.obs.vector), before], -1)
        state = self.gru(x.unflatten(0, (-1, batch.window)))[0].flatten(0, 1)[rows]
        action, reward = batch.action[rows], batch.reward[rows]
        obs, next_obs = (
            Observations(seen.vector[rows], allowed=None if seen.allowed is None else seen.allowed[rows])
            for seen in (batch.obs, batch.next_obs)
        )
        if self.looks_ahead:
            with torch.no_grad():
                next_obs = self.recall(replace(next_obs, history=torch.cat([state, self.read_outcome(action, reward)], -1)))
        return Batch(
            obs=self.join(obs, state),
            action=action,
            reward=reward / self.reward_deviation,
            next_obs=next_obs,
            terminated=batch.terminated[rows],
            group=batch.group[rows],
        )


@dataclass(frozen=True)
class GRUBCConfig(GRUConfig, BCConfig):
    """Behaviour cloning with a GRU."""


class GRUBC(GRU):
    """BC of continuous actions."""

    algorithm = BC
    looks_ahead = False


@dataclass(frozen=True)
class GRUIQLConfig(GRUConfig, IQLConfig):
    """Implicit Q-learning with a GRU."""


class GRUIQL(GRU):
    """IQL of continuous actions."""

    algorithm = IQL


@dataclass(frozen=True)
class GRUDiscreteBCConfig(DiscreteHistoryConfig, GRUConfig, DiscreteBCConfig):
    """Behaviour cloning with a GRU."""


class GRUDiscreteBC(GRU):
    """BC of discrete actions."""

    algorithm = DiscreteBC
    looks_ahead = False


@dataclass(frozen=True)
class GRUDiscreteIQLConfig(DiscreteHistoryConfig, GRUConfig, DiscreteIQLConfig):
    """Implicit Q-learning with a GRU."""


class GRUDiscreteIQL(GRU):
    """IQL of discrete actions."""

    algorithm = DiscreteIQL
