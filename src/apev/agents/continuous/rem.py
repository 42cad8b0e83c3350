"""Random ensemble mixtures (Agarwal et al., 2020) in actor-critic form: every mixture of critics obeys Bellman's equation.

    w    = u / sum u,  u_j ~ U(0, 1)                                                              drawn for each update
    L_Q  = (sum_j w_j Q_j(s, a) - r - gamma (1 - terminated) (sum_j w_j Q-_j(s', a') - alpha log pi(a' | s')))^2
    L_pi = alpha log pi(a | s) - mean_j Q_j(s, a)

SAC's minimum does not appear: the mixture regularises, nothing is pessimistic.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from apev.agents.continuous.sac import SAC, SACConfig
from apev.data.batch import Batch


@dataclass(frozen=True)
class REMConfig(SACConfig):
    """Random ensemble mixtures: one Bellman equation for every mixture of the critics."""

    critics: int = 10
    """N: how many value functions are mixed."""


class REM(SAC):
    """SAC whose critics learn as random mixtures."""

    config: REMConfig

    def reduce(self, q: Tensor) -> Tensor:
        """[1, N, B] -> [1, B]: the mean over critics, not the minimum."""
        return q.mean(1)

    def critic_loss(self, batch: Batch, log_belief: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared TD error of one random mixture."""
        u = torch.rand(self.config.critics, 1, generator=self.generator, device=self.device)
        w = u / u.sum()  # [N, 1]
        next_obs = batch.next_obs.vector
        q = self.values(self.critics, batch.obs.vector, self.to_unit(batch.action))[0]  # [N, B]
        with torch.no_grad():
            next_action, log_prob, log_alpha = self.sample(next_obs)
            next_q = (w * self.values(self.target, next_obs, next_action)[0]).sum(0)
            next_q = next_q - log_alpha.exp() * log_prob
            target_q = (batch.reward + self.config.gamma * (1 - batch.terminated) * next_q).clamp(self.lowest, self.highest)
        loss = ((w * q).sum(0) - target_q).square().mean()
        return loss, {"critic_loss": loss.detach()}

    def policy_value(self, obs: Tensor, action: Tensor, belief: Tensor | None) -> Tensor:
        """[B]: the mean over critics, differentiable by the action only."""
        return self.critics(obs, action, frozen=True)[..., 0].mean(0)
