"""Behaviour cloning: maximum likelihood of the logged actions, the simplest thing to do with a log.

    pi(. | s) = N(tanh(mu(s)), sigma)      sigma is learned, the same in every state; actions in [-1, 1]
    L         = -log pi(a | s)

Where sigma is the same everywhere, the best mu is that of least squares: the greedy policy is that of deterministic cloning.
It has no value function: its TD errors are 0, and there is nothing to adapt. IQL (`iql.py`) is this with weighted rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from apev.agents.continuous.base import ContinuousAgent
from apev.data.batch import Batch, Observations
from apev.nn.ensemble import EnsembleMLP

LOG_STD = (-5.0, 2.0)


@dataclass(frozen=True)
class BCConfig:
    """Behaviour cloning: do as the log does."""

    gamma: float = 0.99
    """Not used: cloning looks at no reward."""
    lr: float = 3e-4
    """Adam's learning rate."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the fully connected layers."""


class GaussianActor(nn.Module):
    """A Gaussian around tanh of a network; its deviation is the same in every state."""

    def __init__(self, inputs: int, hidden: tuple[int, ...], actions: int) -> None:
        super().__init__()
        self.net = EnsembleMLP(1, inputs, hidden, actions)
        self.log_std = nn.Parameter(torch.zeros(actions))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean [B, A] in (-1, 1) and deviation [A]."""
        return self.net(obs)[0].tanh(), self.log_std.clamp(*LOG_STD).exp()

    def log_likelihood(self, obs: Tensor, action: Tensor) -> Tensor:
        """log pi(a | s): [B]."""
        mean, std = self(obs)
        log_prob: Tensor = (-0.5 * ((action - mean) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)).sum(-1)
        return log_prob


class BC(ContinuousAgent):
    """One Gaussian actor that imitates."""

    config: BCConfig
    deployed: tuple[str, ...] = ("actor",)

    def build(self) -> None:
        """The actor."""
        self.actor = GaussianActor(self.layout.vector_dim, self.config.hidden, self.layout.action_dim)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Adam over the actor."""
        return torch.optim.Adam(self.actor.parameters(), lr=self.config.lr, fused=True)

    @torch.no_grad()
    def act(
        self,
        obs: Observations,
        log_belief: Tensor,
        greedy: bool = True,
        features: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Actions [B, A] in the environment's units; drawn ones are cut off at its bounds."""
        mean, std = self.actor(obs.vector)
        return self.from_unit(mean if greedy else (mean + std * self.noise(mean, generator)).clamp(-1, 1))

    def td_errors(
        self, step: Batch, log_belief: Tensor, features: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """[B, 1] of zeros: no value, no surprise."""
        return step.reward.new_zeros(len(step.reward), 1)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step of maximum likelihood."""
        self.check_batch(batch)
        loss = -self.actor.log_likelihood(batch.obs.vector, self.to_unit(batch.action)).mean()
        self.descend(loss)
        return {"loss": loss.detach(), "deviation": self.actor.log_std.detach().exp().mean()}
