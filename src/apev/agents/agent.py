"""What every agent offers: one gradient step, acting under a belief, and the TD errors a belief is updated from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from apev.belief import BeliefFilter
from apev.data.batch import Batch, Layout, Observations


class Agent(nn.Module, ABC):
    """A value ensemble and the policy it implies. Agents that do not adapt have one member: same code, no special case."""

    layout: Layout
    config: Any  # a frozen dataclass
    members: int  # K
    optimizer: torch.optim.Optimizer
    generator: torch.Generator  # every random draw of a training step comes from here

    @abstractmethod
    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step; the metrics stay tensors, so that nothing waits for the device."""

    @abstractmethod
    def encode(self, pictures: Tensor | None) -> Tensor | None:
        """Features [K, P, F] of pictures [P, C, H, W], to be handed to `act` and `td_errors` while they stay the same."""

    @abstractmethod
    def act(self, obs: Observations, log_belief: Tensor, greedy: bool = True, features: Tensor | None = None) -> Tensor:
        """pi(a | s, b): actions [B] under log-beliefs [B, K]."""

    @abstractmethod
    def td_errors(self, step: Batch, log_belief: Tensor, features: Tensor | None = None) -> Tensor:
        """[B, K]: how wrong each member was about this step; what belief.py turns into surprise."""

    @property
    @abstractmethod
    def filter(self) -> BeliefFilter:
        """The belief filter this agent was trained for."""

    @abstractmethod
    def policy_state(self) -> dict[str, Tensor]:
        """The tensors a deployed policy needs, and no more."""

    @abstractmethod
    def load_policy_state(self, state: dict[str, Tensor]) -> None:
        """Take back what `policy_state` gave."""

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return next(self.parameters()).device
