"""Deep Q-learning with K independent members: the single DQN (K = 1), or an ensemble.

    y_k  = r + gamma (1 - terminated) max_a' Q-_k(s', a')         each member its own target: nothing is shared
    L    = sum_k w_k (Q_k(s, a) - y_k)^2                          w_k: 1 where member k trains on this context
    pi   = argmax_a sum_k b_k Q_k(s, a)                           uniform b: the average ensemble; e_k: one member

Trained without a belief in mind, the ensemble can still be *evaluated* with one (the paper's "evaluation only"): its TD
errors are defined like APE-V's. LCB, CQL and REM are this file with another `next_value` or `row_loss`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from apev import belief as beliefs
from apev.agents.discrete.base import DQNConfig, QAgent, of_rows, permitted, take
from apev.data.batch import Batch


class DQN(QAgent):
    """K value functions trained side by side."""

    config: DQNConfig

    @torch.no_grad()
    def td_errors(
        self, step: Batch, log_belief: Tensor, features: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """[B, K]: each member's own TD error, with its own greedy next action."""
        features = self.encode(step.obs.pictures) if features is None else features
        belief = log_belief.exp()
        q = take(self.values(features, step.obs, belief), step.action)
        next_q = self.values(features, step.next_obs, belief)
        log_clone = self.net.clone(of_rows(features, step.next_obs), step.next_obs.vector, step.next_obs.allowed)
        return (q - self.backup(step, self.likely(next_q, log_clone).amax(-1))).T

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step for all members."""
        self.check_batch(batch)
        features, next_features = self.encode_batch(batch)
        belief = self.draw_belief(len(batch.action))
        q = self.net(features, batch.obs.vector, belief)  # [K, B, A]
        with torch.no_grad():
            next_q = self.target(next_features, batch.next_obs.vector, belief)
            log_clone = self.target.clone(next_features, batch.next_obs.vector, batch.next_obs.allowed)
            target_q = self.backup(batch, self.next_value(next_q, belief, log_clone))
        loss = self.with_cloning(
            self.row_loss(permitted(q, batch.obs.allowed), batch.action, target_q, belief), features, batch
        )
        return self.descend(loss, self.trains_on[batch.group].T) | {"value": take(q.detach(), batch.action).mean()}

    def draw_belief(self, rows: int) -> Tensor:
        """Weights [B, K] of the members in a training step: all alike."""
        return beliefs.uniform(self.members, rows, self.device).exp()

    def next_value(self, q: Tensor, belief: Tensor, log_clone: Tensor | None) -> Tensor:
        """V(s') of each member from the target's q [K, B, A]: its own maximum, over what is likely by its own log G_k."""
        return self.likely(q, log_clone).amax(-1)

    def row_loss(self, q: Tensor, action: Tensor, target_q: Tensor, belief: Tensor) -> Tensor:
        """[K, B]: squared errors of q [K, B, A] at the logged actions."""
        return (take(q, action) - target_q).square()
