"""Conservative Q-learning of discrete actions (Kumar et al., 2020): DQN with values pushed down where the log has no actions.

L = DQN's + w (log sum_a exp Q(s, a) - Q(s, a_log))
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from apev.agents.discrete.base import DQNConfig, take
from apev.agents.discrete.dqn import DQN


@dataclass(frozen=True)
class DiscreteCQLConfig(DQNConfig):
    """Conservative Q-learning: values outside the log are pushed down."""

    members: int = 1
    """How many value functions; those of several are averaged."""
    conservative: float = 1.0
    """w: weight of the push."""


class DiscreteCQL(DQN):
    """DQN with a conservative loss."""

    config: DiscreteCQLConfig

    def row_loss(self, q: Tensor, action: Tensor, target_q: Tensor, belief: Tensor) -> Tensor:
        """[K, B]: DQN's, and how far all actions lie above the logged one."""
        gap = q.logsumexp(-1) - take(q, action)
        return super().row_loss(q, action, target_q, belief) + self.config.conservative * gap
