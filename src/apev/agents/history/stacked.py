"""BC and IQL on stacked steps: the network reads the last few steps of the episode beside what is seen now.

    x_t = (s_t, (s, a, r, 1)_{t-5}, ..., (s, a, r, 1)_{t-1})       all zeros for steps before the start of the episode

The 1 says that there was a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from apev.agents.continuous.bc import BC, BCConfig
from apev.agents.continuous.iql import IQL, IQLConfig
from apev.agents.discrete.bc import DiscreteBC, DiscreteBCConfig
from apev.agents.discrete.iql import DiscreteIQL, DiscreteIQLConfig
from apev.agents.history.base import DiscreteHistoryConfig, HistoryAgent, HistoryConfig, zero_where_missing
from apev.data.batch import Batch, Layout, Observations
from apev.data.dataset import Dataset
from apev.data.history import HistoryBatch, HistorySampler


@dataclass(frozen=True)
class StackedConfig(HistoryConfig):
    """How much is stacked."""

    steps: int = 5
    """Steps of the past that the network reads."""


class Stacked(HistoryAgent):
    """The history is the last steps themselves, [B, steps * W], the latest last."""

    config: StackedConfig

    def __init__(self, layout: Layout, config: Any, *, num_groups: int = 0, seed: int = 0) -> None:
        if config.steps < 1:
            raise ValueError(f"steps is {config.steps}. Fix: at least 1.")
        super().__init__(layout, config, num_groups=num_groups, seed=seed)

    @property
    def width(self) -> int:
        """W: of one step."""
        return self.layout.vector_dim + self.action_width + 2

    @property
    def input_dim(self) -> int:
        """Observation and steps."""
        return self.layout.vector_dim + self.config.steps * self.width

    def sampler(self, log: Dataset, **how: Any) -> HistorySampler:
        """Rows with the steps before them."""
        return HistorySampler(log, steps=self.config.steps, **how)

    def start_history(self, count: int) -> Tensor:
        """No step: zeros."""
        return torch.zeros(count, self.config.steps * self.width, device=self.device)

    def take_in(self, history: Tensor, step: Batch) -> Tensor:
        """The oldest step falls out."""
        latest = self.read_step(step.obs.vector, step.action, step.reward)
        return torch.cat([history[:, self.width :], latest], -1)

    def read_step(self, vector: Tensor, action: Tensor, reward: Tensor) -> Tensor:
        """(s, a, r, 1): [..., W]."""
        return torch.cat([self.read_vector(vector), self.read_outcome(action, reward)], -1)

    def recall(self, obs: Observations) -> Observations:
        """Observation and steps in one vector."""
        history = obs.history if obs.history is not None else self.start_history(len(obs.vector))
        return Observations(torch.cat([self.read_vector(obs.vector), history], -1), allowed=obs.allowed)

    def recall_past(self, batch: HistoryBatch) -> Batch:
        """Every row, with the steps before it as its history."""
        past = batch.past
        history = zero_where_missing(past, self.read_step(past.vector, past.action, past.reward)).flatten(1)
        return self.recall_step(replace(batch, obs=replace(batch.obs, history=history)))


@dataclass(frozen=True)
class StackedBCConfig(StackedConfig, BCConfig):
    """Behaviour cloning on stacked steps."""


class StackedBC(Stacked):
    """BC of continuous actions."""

    algorithm = BC


@dataclass(frozen=True)
class StackedIQLConfig(StackedConfig, IQLConfig):
    """Implicit Q-learning on stacked steps."""


class StackedIQL(Stacked):
    """IQL of continuous actions."""

    algorithm = IQL


@dataclass(frozen=True)
class StackedDiscreteBCConfig(DiscreteHistoryConfig, StackedConfig, DiscreteBCConfig):
    """Behaviour cloning on stacked steps."""


class StackedDiscreteBC(Stacked):
    """BC of discrete actions."""

    algorithm = DiscreteBC


@dataclass(frozen=True)
class StackedDiscreteIQLConfig(DiscreteHistoryConfig, StackedConfig, DiscreteIQLConfig):
    """Implicit Q-learning on stacked steps."""


class StackedDiscreteIQL(Stacked):
    """IQL of discrete actions."""

    algorithm = DiscreteIQL
