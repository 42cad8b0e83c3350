"""EDAC (An et al., 2021): SAC-N whose critics' gradients by the action are kept apart, so that fewer critics are needed.

L_Q = SAC-N's + eta / (N - 1) sum over i != j of <g_i, g_j>      g_j = grad_a Q_j(s, a) / |grad_a Q_j(s, a)|
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from apev.agents.continuous.sac import SAC, SACConfig
from apev.data.batch import Batch, Layout


@dataclass(frozen=True)
class EDACConfig(SACConfig):
    """EDAC: SAC-N with diverse gradients."""

    critics: int = 10
    """N: over how many value functions the minimum is taken."""
    eta: float = 1.0
    """Weight of the gradients' similarity."""


class EDAC(SAC):
    """SAC-N with a penalty on critics whose gradients by the action point the same way."""

    config: EDACConfig

    def __init__(self, layout: Layout, config: EDACConfig, *, seed: int = 0) -> None:
        if config.critics < 2:
            raise ValueError(f"critics is {config.critics}. Fix: at least 2, for there is nothing to tell apart.")
        super().__init__(layout, config, seed=seed)

    def critic_loss(self, batch: Batch, log_belief: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """SAC-N's, and how alike the critics' gradients by the action are."""
        loss, metrics = super().critic_loss(batch, log_belief)
        likeness = self.likeness(batch.obs.vector, self.to_unit(batch.action))
        return loss + self.config.eta * likeness, metrics | {"likeness": likeness.detach()}

    def likeness(self, obs: Tensor, action: Tensor) -> Tensor:
        """1 / (N - 1) of the cosines between different critics' gradients by the action, summed over pairs: from -1 up to N."""
        N, begin = self.config.critics, self.layout.vector_dim
        x = torch.cat([obs, action], -1)
        gradient = self.critics.input_gradients(
            x.expand(N, *x.shape), slice(begin, begin + self.layout.action_dim)
        )  # [N, B, A]
        unit: Tensor = gradient / (gradient.norm(dim=-1, keepdim=True) + 1e-10)
        # The cosines of all pairs are the square of the sum; each critic with itself takes off 1.
        return (unit.sum(0).square().sum(-1) - unit.square().sum((0, 2))).mean() / (N - 1)
