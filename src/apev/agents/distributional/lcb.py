"""The conservative ensemble on C51 (Appendix D): acts on mean minus beta standard deviations of expected returns."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from apev.agents.discrete.lcb import LCB, LCBConfig
from apev.agents.distributional.c51 import C51, C51Config


@dataclass(frozen=True)
class C51LCBConfig(C51Config, LCBConfig):
    """A conservative C51 ensemble: acts on mean minus beta standard deviations of its members' expected returns."""


class C51LCB(C51, LCB):
    """An ensemble that avoids what its members disagree on."""

    config: C51LCBConfig

    def chosen(self, q: Tensor, belief: Tensor) -> Tensor:
        """The conservative policy's action."""
        return self.mix(q, belief).argmax(-1)

    def followed_action(self, q: Tensor) -> Tensor:
        """All learn the value of the one conservative policy: [P]."""
        return self.mix(q, q).argmax(-1)

    def worth(self, q: Tensor, follow: Tensor) -> Tensor:
        """The lower bound of that policy: [1, P]."""
        return self.mix(q, q).amax(-1)[None]
