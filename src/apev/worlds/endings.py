"""Kinds of contexts by how their episodes end, where pictures hide everything else: what wildcards stand for.

Wildcards are cheap members that see no picture and each explain one *kind* of world found in the log.

Members that read the picture can all be wrong together; then every hypothesis is refuted and nothing is left to try. A
wildcard claims that the world is always of one kind ("the left door is the open one"), trains on the contexts of that kind
alone, and waits until the evidence speaks for it. Contexts whose episodes can end alike are of one kind:

    endings         = k-means++ over (observation vector, action) of the steps that end episodes
    kind(context)   = the rarest ending that its episodes show: that one tells worlds apart (every day one may arrive by the
                      wide road, but through the side street only when it is open)

No labels are used. (Letting wildcards compete for contexts by their TD errors finds the same kinds in most runs and settles in
a wrong split in others; how episodes end is known before training starts.)
"""

from __future__ import annotations

import numpy as np

from apev.data.dataset import Dataset

UNKNOWN = -1  # no episode of this context ends in the log
SAMPLE = 20_000  # centres are found on at most so many points


def kinds_of_contexts(dataset: Dataset, count: int, seed: int = 0) -> np.ndarray:
    """[num_groups] int64: which of `count` kinds each context is, or UNKNOWN."""
    ends = np.flatnonzero(dataset.terminated)
    if not len(ends):
        raise ValueError("wildcards need episodes that end: no row of the log is terminated. Fix: wildcards=0.")
    columns = [dataset.observations[key][ends].astype(np.float64) for key in dataset.vector_keys]
    columns.append(np.eye(dataset.num_actions or 1)[dataset.actions[ends]])
    points = np.concatenate(columns, axis=1)  # [ends, D]
    spread = points.std(axis=0)
    rng = np.random.default_rng(seed)
    ending = k_means(points / np.where(spread > 0, spread, 1), count, rng)
    shows = np.zeros((dataset.num_groups, count), dtype=bool)  # which endings each context shows
    shows[dataset.group[ends], ending] = True
    often = np.where(shows, shows.sum(axis=0), len(shows) + 1)  # of each ending a context shows: how many others show it
    return np.where(shows.any(axis=1), often.argmin(axis=1), UNKNOWN)


def k_means(points: np.ndarray, count: int, rng: np.random.Generator, restarts: int = 8, steps: int = 30) -> np.ndarray:
    """Cluster [N, D] points by Lloyd's algorithm from k-means++ starts; the tightest of `restarts` clusterings."""
    every, points = points, points if len(points) <= SAMPLE else rng.choice(points, SAMPLE, replace=False)
    best, best_cost = points[:1], np.inf
    for _ in range(restarts):
        centres = points[rng.integers(len(points))][None]
        for _ in range(count - 1):
            near = squared_distances(points, centres).min(axis=1)
            total = near.sum()
            chosen = rng.choice(len(points), p=near / total) if total > 0 else rng.integers(len(points))
            centres = np.concatenate([centres, points[chosen][None]])
        for _ in range(steps):
            label = squared_distances(points, centres).argmin(axis=1)
            filled = np.bincount(label, minlength=count) > 0
            moved = np.stack([points[label == k].mean(axis=0) if filled[k] else centres[k] for k in range(count)])
            if np.array_equal(moved, centres):
                break
            centres = moved
        distance = squared_distances(points, centres)
        if distance.min(axis=1).sum() < best_cost:
            best, best_cost = centres, distance.min(axis=1).sum()
    nearest: np.ndarray = squared_distances(every, best).argmin(axis=1)
    return nearest


def squared_distances(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """[N, K]."""
    squared: np.ndarray = np.maximum((points**2).sum(1)[:, None] - 2 * points @ centres.T + (centres**2).sum(1), 0)
    return squared
