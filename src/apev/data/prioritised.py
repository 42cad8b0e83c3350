"""Prioritised sampling (Schaul et al., 2016): what an agent was most wrong about comes back more often.

    P(i)  =  p_i^x / sum_j p_j^x                     p_i: the loss item i had when last seen; new items have the largest
    w_i   =  (N P(i))^-beta / max_j w_j              importance weights, so that the expected step stays the same (beta = 1)

with an `exponent` x: at 0 all items are drawn alike.

An item is a transition, as in the paper, or a whole context, whose transitions then come together: all pictures of a maze are
encoded once and serve every transition of it, before the step and after. A small maze then counts as much as a large one, as
it does in an evaluation; training on all cells alike, most of them in large mazes, starts far more slowly. Drawing is a
cumulative sum and a search: no tree.

Where returns are known beforehand (`logged_returns`), what comes after a step need not be seen, and a batch can show a few
`pictures` of each of many contexts instead of all of a few: pictures of one maze are much alike.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from apev.data.batch import Batch
from apev.data.dataset import Dataset
from apev.data.sampler import Sampler

LEAST = 1e-3  # an item the agent knows by heart is still drawn now and then


class Priorities:
    """How often each of N items is drawn."""

    def __init__(self, count: int, exponent: float = 0.5, beta: float = 0.5) -> None:
        if exponent < 0 or not 0 <= beta <= 1:
            raise ValueError(f"exponent is {exponent} and beta {beta}. Fix: exponent >= 0 (0: uniform), beta in [0, 1].")
        self.exponent, self.beta = exponent, beta
        self.values = torch.ones(count, dtype=torch.float64)
        self.seen = torch.zeros(count, dtype=torch.bool)

    @property
    def probabilities(self) -> Tensor:
        """P(i): [N]."""
        powers = self.values.pow(self.exponent)
        return powers / powers.sum()

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """`count` items with replacement, and their importance weights."""
        chance = self.probabilities
        heights = torch.rand(count, generator=generator, dtype=torch.float64)
        items = torch.searchsorted(chance.cumsum(0), heights).clamp_(max=len(chance) - 1)
        weights = (len(chance) * chance[items]).pow(-self.beta)
        return items, (weights / weights.max()).float()

    def learn(self, items: Tensor, losses: Tensor) -> None:
        """What these items cost; those never seen are kept as likely as the worst."""
        self.values[items] = losses.double().clamp_min(LEAST)
        self.seen[items] = True
        self.values[~self.seen] = self.values[self.seen].max()


class PrioritisedSampler(Sampler):
    """Batches of `count` transitions, or of all transitions of `count` contexts (or of some of their pictures), by priority."""

    def __init__(
        self,
        dataset: Dataset,
        count: int,
        *,
        by_context: bool = True,
        pictures: int | None = None,
        returns: np.ndarray | None = None,
        exponent: float = 0.5,
        beta: float = 0.5,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__(dataset, device=device, seed=seed, draw="rows")  # losses decide, wherever a row lies
        if count < 1 or (pictures is not None and pictures < 1):
            raise ValueError(f"PrioritisedSampler: count is {count}, pictures {pictures}. Fix: at least 1.")
        if pictures is not None and (returns is None or self._picture is None):
            raise ValueError("PrioritisedSampler: some pictures of a context need `returns` of a log of pictures.")
        if returns is not None and np.isnan(returns[dataset.usable]).any():
            raise ValueError("PrioritisedSampler: some rows lead to no end in the log. Fix: backup_depth of 1 or more.")
        usable = np.flatnonzero(dataset.usable)
        owner = dataset.group[usable] if by_context else np.arange(len(usable))
        order = np.argsort(owner, kind="stable")
        _, counts = np.unique(owner, return_counts=True)
        self._items = torch.from_numpy(usable[order]).split(counts.tolist())  # rows of each item
        self._returns = None if returns is None else torch.from_numpy(returns).to(self.device)
        self.count, self.by_context, self.some = count, by_context, pictures
        self.priorities = Priorities(len(self._items), exponent, beta)
        self._draws = torch.Generator().manual_seed(seed)

    def sample(self) -> Batch:
        """The next batch; its `learned` takes the loss of each row."""
        items, weights = self.priorities.draw(self.count, self._draws)
        parts = [self._part(item) for item in items.tolist()]
        lengths, rows = torch.tensor([len(part) for part in parts]), torch.cat(parts)
        weight = weights.repeat_interleave(lengths).to(self.device)
        if self._returns is None:
            return self.batch(rows).prioritised(weight, None, self._learner(items, lengths))
        assert self._picture is not None
        distinct, place = torch.unique(self._picture[rows], return_inverse=True)  # what follows is not looked at
        batch = self._assemble(rows, self._shown(distinct), place, place, shared=True)
        return batch.prioritised(weight, self._returns[rows], self._learner(items, lengths))

    def _part(self, item: int) -> Tensor:
        """Rows of an item: all, or those of some pictures of it."""
        rows: Tensor = self._items[item]
        if self.some is None or self._picture is None:
            return rows
        shown, place = torch.unique(self._picture[rows], return_inverse=True)
        chosen = torch.zeros(len(shown), dtype=torch.bool)
        chosen[torch.randperm(len(shown), generator=self._draws)[: self.some]] = True
        return rows[chosen[place]]

    def _learner(self, items: Tensor, lengths: Tensor) -> Callable[[Tensor], None]:
        owner = torch.arange(len(items)).repeat_interleave(lengths)

        def learn(losses: Tensor) -> None:
            mean = torch.zeros(len(items)).index_add_(0, owner, losses.detach().cpu()) / lengths
            self.priorities.learn(items, mean)

        return learn

    def state_dict(self) -> dict[str, Tensor]:
        """All that the coming batches depend on."""
        stored = {"priorities": self.priorities.values.clone(), "seen": self.priorities.seen.clone()}
        return super().state_dict() | stored | {"draws": self._draws.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on exactly where `state_dict` was taken."""
        super().load_state_dict(state)
        self.priorities.values.copy_(state["priorities"])
        self.priorities.seen.copy_(state["seen"])
        self._draws.set_state(state["draws"].to("cpu", torch.uint8))
