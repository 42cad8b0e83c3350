"""Wildcards: cheap members that see no picture and each explain one *kind* of world found in the log.

Members that read the picture can all be wrong together; then every hypothesis is refuted and nothing is left to try. A
wildcard claims that the world is always of one kind ("the left door is the open one"). Which kinds there are is found by
hard expectation maximisation over contexts, with the TD errors every member produces anyway:

    e_m(context)  running mean of wildcard m's squared TD errors in that context
    owner         argmin_m e_m(context) * load_m      the wildcard that explains it best trains on it, the others do not
    load_m        share of the contexts m owns, times M: a wildcard that owns nothing is cheap to join, so none dies

No labels are used: a context is a picture (or an episode) of the log, told apart by what happened in it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Wildcards(nn.Module):
    """Who of M wildcards owns each context of the log."""

    evidence: Tensor
    first_owner: Tensor
    load: Tensor
    updates: Tensor

    def __init__(self, count: int, num_groups: int, *, warm_up: int = 300, rate: float = 0.02) -> None:
        super().__init__()
        self.count, self.warm_up, self.rate = count, warm_up, rate
        self.register_buffer("evidence", torch.zeros(num_groups, count))
        self.register_buffer("first_owner", torch.randint(max(count, 1), (num_groups,)))
        self.register_buffer("load", torch.full((count,), 1.0 / max(count, 1)))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def claim(self, group: Tensor, squared: Tensor) -> Tensor:
        """Which wildcard trains on which row, [M, B] of 0 and 1, after taking in squared TD errors [M, B]."""
        self.evidence.index_add_(0, group, self.rate * (squared.T - self.evidence[group]))
        owner = self.owner(group)
        claimed = nn.functional.one_hot(owner, self.count).to(squared.dtype)  # [B, M]
        self.load.lerp_(claimed.mean(0), self.rate)
        self.updates += 1
        return claimed.T

    def owner(self, group: Tensor) -> Tensor:
        """The wildcard that owns each of these contexts: [B]. Until all have learned the basics it is a fixed random one."""
        best = (self.evidence[group] * (self.load * self.count).clamp_min(0.25)).argmin(1)
        return torch.where(self.updates < self.warm_up, self.first_owner[group], best)
