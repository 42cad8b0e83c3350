"""Batches for agents that keep a history: every row with the steps before it, and whole stretches of episodes.

`HistorySampler` draws rows as `Sampler` does and adds the steps that came before each in its episode. `WindowSampler` draws
windows, for networks that read an episode step by step:

    row of the episode   0 1 2 3 4 5 6 7 8 9        window=4, burn_in=1
    first window         x x x x                    x: learned from
    second window              . x x x              .: only read, so that there is a history to begin with
    third window                     . . x x        the last one ends with the episode

An episode no longer than a window is one. Every usable row is learned from in exactly one window, and windows are drawn with
equal chance, so rows are too. A shorter one is filled up with its last row, which is not learned from again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apev.data.batch import Batch
from apev.data.dataset import Dataset
from apev.data.sampler import Sampler

LEAST_WINDOWS = 16  # in a batch: the rows of a window are alike


@dataclass(frozen=True)
class Past:
    """The L steps before each row, the latest last; whatever stands where there was none means nothing."""

    vector: Tensor  # [B, L, D] float32
    action: Tensor  # [B, L] int64, or float32 [B, L, A]
    reward: Tensor  # [B, L] float32
    there: Tensor  # [B, L] bool: False before the start of the episode

    def to(self, device: torch.device) -> Past:
        """The same on another device."""
        return Past(*(part.to(device) for part in (self.vector, self.action, self.reward, self.there)))


@dataclass(frozen=True)
class HistoryBatch(Batch):
    """Transitions, each with the steps before it."""

    past: Past = field(kw_only=True)
    window: int = 1
    """So many rows follow each other in an episode: columns are [B / window, window] in order."""
    counted: Tensor | None = None
    """[B] bool: the rows to learn from, where others are there to be read alone."""


class HistorySampler(Sampler):
    """Random rows as `Sampler` draws them, each with the `steps` before it."""

    def __init__(self, dataset: Dataset, *, steps: int, **how: Any) -> None:
        super().__init__(dataset, **how)
        first = np.flatnonzero(np.append(True, dataset.episodes[1:] != dataset.episodes[:-1]))
        self._first = self._column(first[dataset.episodes])  # [N] the first row of each row's episode
        self._back = torch.arange(steps, 0, -1, device=self._home)

    def _assemble(self, rows: Tensor, *pictures: Tensor | None, shared: bool = False) -> HistoryBatch:
        batch = super()._assemble(rows, *pictures, shared=shared)
        before = rows[:, None] - self._back
        there = before >= self._first[rows, None]
        flat, shape = before.clamp_min(0).flatten(), before.shape
        past = Past(
            vector=self._concatenated(self._vectors, flat).unflatten(0, shape),
            action=self._actions.index_select(0, flat).unflatten(0, shape),
            reward=self._rewards.index_select(0, flat).unflatten(0, shape),
            there=there,
        )
        return HistoryBatch(**vars(batch), past=past.to(self.device))


class WindowSampler(HistorySampler):
    """Random windows of episodes, each row with the one step before it; about `batch_size` rows of them in a batch."""

    def __init__(self, dataset: Dataset, *, window: int, burn_in: int, **how: Any) -> None:
        super().__init__(dataset, steps=1, **how | {"draw": "rows"})  # a window is a block by itself
        begin, first, end = windows_of(dataset, window, burn_in)
        self._begin, self._counts_from, self._end = (self._column(part) for part in (begin, first, end))
        self.window = int((end - begin).max())
        self.windows = max(LEAST_WINDOWS, self.batch_size // self.window)
        self._steps = torch.arange(self.window, device=self._home)

    def sample(self) -> HistoryBatch:
        """The next random windows."""
        drawn = self._draw(len(self._begin), self.windows)
        rows = self._begin[drawn, None] + self._steps
        counted = (rows >= self._counts_from[drawn, None]) & (rows < self._end[drawn, None])
        rows = torch.minimum(rows, self._end[drawn, None] - 1).flatten()
        batch = self._assemble(rows, None, None, None)
        learn = (counted.flatten() & self._usable[rows]).to(self.device)
        return replace(batch, window=self.window, counted=learn)


def windows_of(dataset: Dataset, window: int, burn_in: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(first row, first row that is learned from, row after the last) of every window that has a row to learn from."""
    start = np.flatnonzero(np.append(True, dataset.episodes[1:] != dataset.episodes[:-1]))
    length = np.diff(np.append(start, len(dataset)))
    new = window - burn_in  # rows that each window after the first adds
    count = 1 + -(-np.maximum(length - window, 0) // new)
    episode = np.repeat(np.arange(len(start)), count)
    number = np.arange(len(episode)) - np.repeat(np.cumsum(count) - count, count)  # of the window in its episode
    end = np.minimum(window + number * new, length[episode])
    begin = np.maximum(end - window, 0)
    first = np.where(number == 0, 0, window + (number - 1) * new)
    begin, first, end = (start[episode] + part for part in (begin, first, end))
    usable = np.append(0, np.cumsum(dataset.usable))
    taught = usable[end] > usable[first]
    return begin[taught], first[taught], end[taught]
