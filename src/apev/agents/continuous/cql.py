"""Conservative Q-learning (Kumar et al., 2020), CQL(H): SAC whose critics are pushed down wherever the log has no actions.

L_Q = SAC's + w sum_j (log sum_a exp Q_j(s, a) - Q_j(s, a_log))
log sum_a exp Q  estimated from 10 actions each of the uniform policy, pi(. | s) and pi(. | s'), each as Q(s, a) - log p(a)
y   = r + gamma (1 - terminated) min_j Q-_j(s', a')               a' ~ pi(. | s'), without the entropy's bonus
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from apev.agents.continuous.base import parameters
from apev.agents.continuous.sac import SAC, SACConfig, squash
from apev.data.batch import Batch, Layout


@dataclass(frozen=True)
class CQLConfig(SACConfig):
    """Conservative Q-learning: values outside the log are pushed down."""

    conservative: float = 5.0
    """w: weight of the push."""
    samples: int = 10
    """Actions drawn from each of three policies to estimate the values outside the log."""
    actor_lr: float = 1e-4
    """Adam's learning rate for the actor and the entropy's weight, slower than the critics'."""


class CQL(SAC):
    """SAC with conservative critics."""

    config: CQLConfig
    soft = False

    def __init__(self, layout: Layout, config: CQLConfig, *, seed: int = 0) -> None:
        if config.samples < 1:
            raise ValueError(f"samples is {config.samples}. Fix: at least 1.")
        super().__init__(layout, config, seed=seed)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Adam, slower for the actor."""
        slow = [*parameters(self.actors), self.log_alpha]
        groups: list[dict[str, Any]] = [
            {"params": parameters(self.critics)},
            {"params": slow, "lr": self.config.actor_lr},
        ]
        return torch.optim.Adam(groups, lr=self.config.lr, fused=True)

    def critic_loss(self, batch: Batch, log_belief: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """SAC's, and how far values outside the log lie above those inside."""
        loss, metrics = super().critic_loss(batch, log_belief)
        gap = self.gap(batch)
        return loss + self.config.conservative * gap, metrics | {"gap": gap.detach() / self.config.critics}

    def gap(self, batch: Batch) -> Tensor:
        """sum_j (log sum_a exp Q_j(s, a) - Q_j(s, a_log)), the mean over rows."""
        obs, M = batch.obs.vector, self.config.samples
        with torch.no_grad():
            drawn = [self.draw(at) for at in (obs, batch.next_obs.vector)]
            uniform = 2 * torch.rand(drawn[0][0].shape, generator=self.generator, device=obs.device) - 1
            log_uniform = torch.full_like(drawn[0][1], -self.layout.action_dim * math.log(2))
            actions = torch.cat([*(a for a, _ in drawn), uniform])  # [3M, B, A]
            log_prob = torch.cat([*(p for _, p in drawn), log_uniform])  # [3M, B]
        everywhere = obs.expand(3 * M, *obs.shape).flatten(0, 1)
        q = self.values(self.critics, everywhere, actions.flatten(0, 1))[0].unflatten(1, (3 * M, len(obs)))  # [N, 3M, B]
        logged = self.values(self.critics, obs, self.to_unit(batch.action))[0]  # [N, B]
        gap: Tensor = ((q - log_prob).logsumexp(1) - logged).mean(1).sum()
        return gap

    def draw(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """M actions of the actor in each state, [M, B, A], and their log-probabilities [M, B]."""
        mean, std = (part.expand(self.config.samples, *part.shape) for part in self.actors(obs))
        return squash(mean, std, self.noise(mean))
