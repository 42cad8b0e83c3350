"""Returns that a log knows without a network: what it went on to earn, and the best that it proves.

`returns_to_go` adds up the rewards that followed each row. `logged_returns` is dynamic programming over logged transitions
between pictures:

    V(p)  =  max over logged steps (p, a, r, p') of  r + shift + gamma V(p')         0 beyond an end, -inf where none is reached

Where every way to an end is in the log (all cells and steps of a maze), this is where deep Q-learning's targets arrive after
enough updates. They are then known from the start, and a batch needs the pictures it learns about and no others.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from apev.data.dataset import Dataset


def returns_to_go(dataset: Dataset, gamma: float) -> NDArray[np.float32]:
    """[N]: the discounted rewards from each row on. Where an episode was cut off, it goes on as in its last steps.

    As many steps as a discount looks ahead, 1 / (1 - gamma), say how that was. With gamma 1, nothing follows a cut.
    """
    from scipy.signal import lfilter

    found = np.empty(len(dataset), dtype=np.float32)
    starts = np.flatnonzero(np.append(True, np.diff(dataset.episodes) != 0))
    for first, end in zip(starts, np.append(starts[1:], len(dataset)), strict=True):
        rewards = np.asarray(dataset.rewards[first:end], dtype=np.float64)
        after = 0.0
        if not dataset.terminated[end - 1] and gamma < 1:
            after = rewards[-math.ceil(1 / (1 - gamma)) :].mean() / (1 - gamma)
        backwards, _ = lfilter([1.0], [1.0, -gamma], rewards[::-1], zi=[gamma * after])
        found[first:end] = backwards[::-1]
    return found


def logged_returns(dataset: Dataset, gamma: float, shift: float = 0.0) -> NDArray[np.float32]:
    """[N]: r + gamma V(p') of every row; NaN where the log shows no way to an end."""
    if dataset.pictures is None or dataset.vector_keys or dataset.given_next is None:
        raise ValueError(
            "logged_returns: states must be pictures alone, with next_observations. Fix: backup_depth of 1 or more."
        )
    key = str(dataset.picture_key)
    now, after = dataset.observations[key].astype(np.int64), dataset.given_next[key].astype(np.int64)
    reward = dataset.rewards.astype(np.float64) + shift
    order = np.argsort(now, kind="stable")
    states, starts = np.unique(now[order], return_index=True)
    value = np.full(len(dataset.pictures), -np.inf)
    while True:
        row = reward + np.where(dataset.terminated, 0.0, gamma * value[after])
        best = np.maximum.reduceat(row[order], starts)
        if np.allclose(best, value[states], rtol=0, atol=1e-6):  # inf equals inf here
            return np.where(np.isfinite(row), row, np.nan).astype(np.float32)
        value[states] = best
