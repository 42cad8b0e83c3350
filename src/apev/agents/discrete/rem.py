"""Random ensemble mixtures (Agarwal et al., 2020): every mixture of the members' values obeys Bellman's equation.

    w = u / sum u,  u_k ~ U(0, 1)                                                     drawn for each update
    L = (sum_k w_k Q_k(s, a) - r - gamma (1 - terminated) max_a' sum_k w_k Q-_k(s', a'))^2
    pi = argmax_a mean_k Q_k(s, a)

A mixture is a belief that is drawn at random and never updated.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from apev.agents.discrete.base import DQNConfig, take
from apev.agents.discrete.dqn import DQN


@dataclass(frozen=True)
class DiscreteREMConfig(DQNConfig):
    """Random ensemble mixtures: one Bellman equation for every mixture of the members."""


class DiscreteREM(DQN):
    """An ensemble that learns as one, in random mixtures, and acts on its mean."""

    config: DiscreteREMConfig

    def mix(self, q: Tensor, belief: Tensor) -> Tensor:
        """The mean: [K, B, A] -> [B, A]; the belief plays no part."""
        return q.mean(0)

    def draw_belief(self, rows: int) -> Tensor:
        """[B, K]: the same random mixture for every row."""
        u = torch.rand(self.members, generator=self.generator, device=self.device)
        return (u / u.sum()).expand(rows, -1)

    def next_value(self, q: Tensor, belief: Tensor, log_clone: Tensor | None) -> Tensor:
        """V(s') of the mixture, [1, B], from the target's q [K, B, A]."""
        return self.likely(super().mix(q, belief), log_clone, belief).amax(-1)[None]

    def row_loss(self, q: Tensor, action: Tensor, target_q: Tensor, belief: Tensor) -> Tensor:
        """[K, B]: the mixture's squared error, shared out among the members."""
        mixed = take(super().mix(q, belief)[None], action)  # [1, B]
        return (mixed - target_q).square().expand(self.members, -1) / self.members
