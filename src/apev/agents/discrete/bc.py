"""Behaviour cloning of discrete actions: maximum likelihood of the logged ones.

    pi(. | s) = softmax(f(s))
    L         = -log pi(a | s)

It has no value function: its TD errors are 0, and there is nothing to adapt.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from apev.agents.discrete.base import DQNConfig, QAgent, permitted, take
from apev.data.batch import Batch


@dataclass(frozen=True)
class DiscreteBCConfig(DQNConfig):
    """Behaviour cloning: do as the log does."""

    members: int = 1
    """How many networks; the logits of several are averaged."""
    softness: float = 1.0
    """Temperature of drawn actions; 1 draws as often as the log does."""


class DiscreteBC(QAgent):
    """A network whose outputs are read as logits instead of values."""

    config: DiscreteBCConfig
    limits_actions = False
    errs = False

    def td_errors(
        self, step: Batch, log_belief: Tensor, features: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """[B, K] of zeros: no value, no surprise."""
        return step.reward.new_zeros(step.reward.shape[0], self.members)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step of maximum likelihood."""
        self.check_batch(batch)
        logits = self.net.plain(self.net.encode_rows(batch.obs, batch.shares_pictures), batch.obs.vector)  # [K, B, A]
        return self.descend(
            -take(permitted(logits, batch.obs.allowed).log_softmax(-1), batch.action), self.trains_on[batch.group].T
        )
