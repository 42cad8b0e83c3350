"""The conservative ensemble on C51 (Appendix D): acts on mean minus beta standard deviations of expected returns."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from apev.agents.discrete.lcb import lower_bound
from apev.agents.distributional.base import C51Config
from apev.agents.distributional.c51 import C51


@dataclass(frozen=True)
class C51LCBConfig(C51Config):
    """A conservative C51 ensemble: acts on mean minus beta standard deviations of its members' expected returns."""

    beta: float = 1.0
    """Degree of pessimism (the paper does not give it)."""


class C51LCB(C51):
    """An ensemble that avoids what its members disagree on."""

    config: C51LCBConfig

    def mix(self, q: Tensor, belief: Tensor | None) -> Tensor:
        """The lower bound: [K, B, A] -> [B, A]; the belief plays no part."""
        return lower_bound(q, self.config.beta)

    def next_action(self, q: Tensor, belief: Tensor | None) -> Tensor:
        """All learn the value of the one conservative policy: [B]."""
        return self.mix(q, belief).argmax(-1)

    def planning_value(self, q: Tensor, action: Tensor) -> Tensor:
        """The lower bound of that policy: [1, P]."""
        return self.mix(q, None).amax(-1)[None]
