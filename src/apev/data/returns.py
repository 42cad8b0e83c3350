"""The best returns that a log itself proves: dynamic programming over logged transitions between pictures, without a network.

    V(p)  =  max over logged steps (p, a, r, p') of  r + shift + gamma V(p')         0 beyond an end, -inf where none is reached

Where every way to an end is in the log (all cells and steps of a maze), this is where deep Q-learning's targets arrive after
enough updates. They are then known from the start, and a batch needs the pictures it learns about and no others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from apev.data.dataset import Dataset


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
