"""Which rows of a log are held out: whole contexts where that is possible, else later episodes, else ends of episodes."""

from __future__ import annotations

import numpy as np

ENOUGH = 0.1  # of the rows that are wanted: contexts of a row beside some of a thousand give too few


def held_out_rows(
    group: np.ndarray, episodes: np.ndarray, shown: np.ndarray, fraction: float, rng: np.random.Generator
) -> np.ndarray:
    """bool [N]: about this share of the rows that are shown; group, episodes: int64 [N], shown: bool [N]."""
    groups, sizes = np.unique(group[shown], return_counts=True)
    wanted = max(1, round(fraction * int(shown.sum())))
    count = round(fraction * len(groups))
    if count:
        chosen = rng.choice(groups, size=min(count, len(groups) - 1), replace=False)
        rows = sizes[np.searchsorted(groups, chosen)].cumsum()
        # Contexts may differ in size: no more of them than the share needs.
        chosen = chosen[: max(1, int(np.searchsorted(rows, 2 * wanted, side="right")))]
        if ENOUGH * wanted <= rows[len(chosen) - 1] <= max(2 * wanted, shown.sum() // 2):
            return shown & np.isin(group, chosen)
    ends = np.zeros(len(group), dtype=bool)
    numbers, starts = np.unique(episodes[shown], return_index=True)
    contexts = group[shown][starts]
    later = np.ones(len(numbers), dtype=bool)
    later[np.unique(contexts, return_index=True)[1]] = False  # the first episode of every context stays
    for episode in rng.permutation(numbers[later]):
        rows = shown & (episodes == episode)
        if ends.sum() + rows.sum() <= wanted:
            ends |= rows
    for episode in rng.permutation(numbers) if not ends.any() else ():
        rows = np.flatnonzero(shown & (episodes == episode))
        if len(rows) > 1 and ends.sum() < wanted:
            ends[rows[-max(1, int(fraction * len(rows))) :]] = True
    if not ends.any():  # every episode is one row
        ends[np.flatnonzero(shown)[-1]] = True
    return ends
