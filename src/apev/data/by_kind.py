"""Batches for members that are kinds of the world: a block of rows for each, with beliefs that the log's own evidence leads to.

    rows       k0 k0 k0 ...   k1 k1 k1 ...          equally many of each kind, drawn uniformly from its contexts
    belief     what the last m steps before the row have taught, and after the row's own step

m is drawn for each row, from none to `LONGEST`, small numbers as often as large ones: a policy meets every state with beliefs
of every age.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from apev.belief import normalise
from apev.data.batch import Batch
from apev.data.dataset import Dataset
from apev.data.sampler import Sampler
from apev.data.validate import DataError

LONGEST = 64  # steps of evidence behind a belief


class KindSampler(Sampler):
    """Random batches of K equal blocks; block k is of contexts of kind k."""

    def __init__(
        self,
        dataset: Dataset,
        kind: np.ndarray,
        *,
        evidence: np.ndarray | None = None,
        batch_size: int,
        device: str | torch.device = "cpu",
        seed: int = 0,
        returns: np.ndarray | None = None,
    ) -> None:
        """kind: int64 [num_groups], -1 for contexts of no kind; evidence: float32 [N, K] log-likelihood of each row."""
        kinds = int(kind.max()) + 1
        if batch_size < kinds:
            raise ValueError(f"batch_size is {batch_size} for {kinds} kinds. Fix: at least a row a kind.")
        super().__init__(
            dataset, batch_groups=1, per_group=1, batch_size=1, device=device, seed=seed, draw="rows", returns=returns
        )
        usable = np.flatnonzero(dataset.usable)
        of_rows = kind[dataset.group[usable]]
        self._own = [self._column(usable[of_rows == k]) for k in range(kinds)]
        for k, own in enumerate(self._own):
            if not len(own):
                raise DataError("contexts", f"no row is of kind {k}", "another number of kinds")
        self.each = batch_size // kinds
        self.batch_size = self.each * kinds
        self._evidence: Tensor | None = None
        if evidence is not None:
            order = np.argsort(dataset.group, kind="stable")  # context by context, each in the order of the log
            at = np.empty(len(order), dtype=np.int64)
            at[order] = np.arange(len(order))
            groups = dataset.group[order]
            begins = np.flatnonzero(np.append(True, groups[1:] != groups[:-1]))
            before = np.arange(len(order)) - begins[np.searchsorted(begins, np.arange(len(order)), side="right") - 1]
            told = np.where(dataset.usable[:, None], evidence, 0)[order].astype(np.float64)
            sums = np.concatenate([np.zeros((1, told.shape[1])), told.cumsum(0)])
            self._sums = self._column(sums)  # [N + 1, K]: of all rows before this place
            self._at, self._before = self._column(at), self._column(before[at])
            self._evidence = self._column(evidence)

    def sample(self) -> Batch:
        """The next random batch."""
        rows = torch.cat([own[self._draw(len(own), self.each)] for own in self._own])
        batch = replace(self._gather(rows), blocks=True)
        if self._evidence is None:
            return batch
        drawn = torch.rand(len(rows), generator=self._generator, device=self._home)
        steps = (drawn * math.log(LONGEST + 1)).exp().long() - 1
        at = self._at[rows]
        told = self._sums[at] - self._sums[at - torch.minimum(steps, self._before[rows])]
        after = told + self._evidence[rows]
        log_belief, next_log_belief = (normalise(b).float().to(self.device) for b in (told, after))
        return replace(batch, log_belief=log_belief, next_log_belief=next_log_belief)
