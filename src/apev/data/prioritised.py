"""Prioritised sampling (Schaul et al., 2016): what an agent was most wrong about comes back more often.

    P(i)  =  p_i^alpha / sum_j p_j^alpha             p_i: the loss item i had when last seen; new items have the largest
    w_i   =  (N P(i))^-beta / max_j w_j              importance weights, so that the expected step stays the same (beta = 1)

An item is a transition, as in the paper, or a whole context, whose transitions then come together: all pictures of a maze are
encoded once and serve every transition of it, before the step and after. Drawing is a cumulative sum and a search: no tree.
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

    def __init__(self, count: int, alpha: float = 0.5, beta: float = 0.5) -> None:
        if alpha < 0 or not 0 <= beta <= 1:
            raise ValueError(f"alpha is {alpha} and beta {beta}. Fix: alpha >= 0 (0: uniform), beta in [0, 1].")
        self.alpha, self.beta = alpha, beta
        self.values = torch.ones(count, dtype=torch.float64)
        self.seen = torch.zeros(count, dtype=torch.bool)

    @property
    def probabilities(self) -> Tensor:
        """P(i): [N]."""
        powers = self.values.pow(self.alpha)
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
    """Batches of `count` transitions, or of all transitions of `count` contexts, drawn by priority."""

    def __init__(
        self,
        dataset: Dataset,
        count: int,
        *,
        by_context: bool = True,
        alpha: float = 0.5,
        beta: float = 0.5,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__(dataset, device=device, seed=seed)
        if count < 1:
            raise ValueError(f"PrioritisedSampler: count is {count}. Fix: at least 1.")
        usable = np.flatnonzero(dataset.usable)
        owner = dataset.group[usable] if by_context else np.arange(len(usable))
        order = np.argsort(owner, kind="stable")
        _, counts = np.unique(owner, return_counts=True)
        self._items = torch.from_numpy(usable[order]).split(counts.tolist())  # rows of each item
        self.count, self.by_context = count, by_context
        self.priorities = Priorities(len(self._items), alpha, beta)
        self._draws = torch.Generator().manual_seed(seed)

    def sample(self) -> Batch:
        """The next batch; its `learned` takes the loss of each row."""
        items, weights = self.priorities.draw(self.count, self._draws)
        rows = [self._items[item] for item in items.tolist()]
        lengths = torch.tensor([len(part) for part in rows])
        batch = self.batch(torch.cat(rows))
        return batch.prioritised(weights.repeat_interleave(lengths).to(self.device), self._learner(items, lengths))

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
