"""The conservative ensemble: pessimism by a lower confidence bound, in training and at evaluation (Appendix C).

    pi(a | s) = argmax_a  mean_k Q_k(s, a) - beta std_k Q_k(s, a)

It differs from DQN in what the policy maximises, and in that all members learn the value of that one policy.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from apev.agents.discrete.base import DQNConfig, take
from apev.agents.discrete.dqn import DQN


@dataclass(frozen=True)
class LCBConfig(DQNConfig):
    """A conservative ensemble: acts on mean minus beta standard deviations of its members' values."""

    beta: float = 1.0
    """Degree of pessimism (the paper does not give it)."""


class LCB(DQN):
    """An ensemble that avoids what its members disagree on."""

    config: LCBConfig

    def mix(self, q: Tensor, belief: Tensor) -> Tensor:
        """The lower bound: [K, B, A] -> [B, A]; the belief plays no part."""
        return lower_bound(q, self.config.beta)

    def next_value(self, q: Tensor, belief: Tensor, log_clone: Tensor | None) -> Tensor:
        """V(s') of each member under the conservative policy."""
        return take(q, self.likely(self.mix(q, belief), log_clone, belief).argmax(-1))


def lower_bound(q: Tensor, beta: float) -> Tensor:
    """Mean minus beta standard deviations over members: [K, B, A] -> [B, A]; a single member's values as they are."""
    return q[0] if len(q) == 1 else q.mean(0) - beta * q.std(0)
