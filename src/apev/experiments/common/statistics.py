"""Honest statistics for evaluation episodes: how sure may a reader be of a number in our tables?

Two things make a success rate uncertain, and an interval has to cover both:

    pictures  another set of test photographs would have given other episodes;
    seeds     another training run would have given another policy.

Every seed is evaluated on the *same* photographs. Pooling 3 seeds x 4,000 photographs as 12,000 independent episodes
claims a precision nobody has: a hard photograph is hard for every seed, and a lucky seed is lucky on every photograph.
So we resample photographs (the same draw for all seeds) and seeds, the two-way bootstrap of Owen (2007).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# Two training runs say next to nothing about the spread of training runs; three are the least that say something.
SEEDS_TO_RESAMPLE = 3


def wilson(successes: float, n: float, level: float = 0.95) -> tuple[float, float]:
    """Wilson's interval for a success rate of `successes` in `n` independent episodes.

    Unlike p +- 1.96 sqrt(p (1-p) / n) it stays inside [0, 1] and does not shrink to a point at 0 or n successes.
    `n` may be fractional: an effective number of episodes.
    """
    _check_level(level)
    if n <= 0 or not 0 <= successes <= n:
        raise ValueError(f"wilson() got {successes} successes in {n} episodes; it needs 0 <= successes <= n and n > 0")
    z = NormalDist().inv_cdf(0.5 + level / 2)
    rate = successes / n
    centre = (rate + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * np.sqrt(rate * (1 - rate) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    # Rounding may leave the ends a hair inside the rate at 0 and n.
    return float(max(0.0, min(centre - half, rate))), float(min(1.0, max(centre + half, rate)))


def interquartile_mean(values: ArrayLike) -> float:
    """Mean of the middle half: as robust as the median, nearly as precise as the mean.

    Values that straddle a quartile count by their share inside, so the result is exact for any number of values.
    """
    x = np.sort(_values(values, "interquartile_mean()"))
    edges = np.arange(x.size + 1) / x.size
    inside = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0, None)
    return float(x @ inside / inside.sum())


def probability_of_improvement(a: ArrayLike, b: ArrayLike) -> float:
    """How often a random value of `a` beats a random value of `b`; a tie counts one half."""
    x = _values(a, "probability_of_improvement(), a")
    y = np.sort(_values(b, "probability_of_improvement(), b"))
    wins = np.searchsorted(y, x, side="left")
    ties = np.searchsorted(y, x, side="right") - wins
    return float((wins + ties / 2).sum() / (x.size * y.size))


def bootstrap_ci(
    values_by_seed: Sequence[ArrayLike],
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
    statistic: Callable[[Array], float] = lambda x: float(x.mean()),
) -> tuple[float, float]:
    """Stratified percentile bootstrap of `statistic` over all values.

    Episodes are resampled within their seed. The seeds are resampled too when there are at least 3: with one or two
    there is no spread to resample, and the interval then speaks of *these* trained policies only. The episodes of
    different seeds are taken as independent; for success rates on shared photographs use `success_interval`.
    """
    _check_level(level)
    strata = [_values(v, f"bootstrap_ci(), seed number {i}") for i, v in enumerate(values_by_seed)]
    if not strata:
        raise ValueError("bootstrap_ci() got no seeds; pass one array of episode values a seed")
    rng = np.random.default_rng(seed)
    results = np.empty(draws)
    n = len(strata)
    for draw in range(draws):
        again = [rng.choice(x, x.size) for x in strata]
        results[draw] = statistic(np.concatenate(again))
        if n >= SEEDS_TO_RESAMPLE:
            of_seeds = statistic(np.concatenate([again[i] for i in rng.integers(n, size=n)]))
            results[draw] += np.sqrt(n / (n - 1)) * (of_seeds - results[draw])  # see _crossed_means
    return _percentiles(results, level)


def success_interval(
    successes_by_seed: Sequence[ArrayLike],
    pictures_by_seed: Sequence[ArrayLike] | None = None,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Interval for a success rate, given each seed's episodes (0 or 1) and, better, which photograph each one showed.

    One seed: Wilson's interval; it speaks of this trained policy on new photographs. Where a photograph was shown more
    than once, the repeats count for what they add, not as new photographs.

    Several seeds: two-way bootstrap (module docstring), clipped to [0, 1] and never narrower than Wilson's interval.
    Two seeds cannot be resampled, so the interval is stretched over both seeds' own intervals.

    How honest is it? Simulated with 4,000 shared photographs and a success rate of .93, the nominal 95% covers truth
    in this share of 1,000 trials, by the standard deviation of the seeds (in brackets: pooled Wilson):

        seeds     sd 0          sd .01        sd .02
          2     .996 (.91)    .886 (.53)    .731 (.30)
          3     .992 (.88)    .904 (.52)    .843 (.30)
          5     .988 (.84)    .938 (.49)    .894 (.31)

    So it is far better than pooling and still too sure when few seeds differ much: then read the seeds one by one.
    """
    _check_level(level)
    successes = [_values(v, f"success_interval(), seed number {i}") for i, v in enumerate(successes_by_seed)]
    if not successes:
        raise ValueError("success_interval() got no seeds; pass one array of 0/1 outcomes a seed")
    if any(((x < 0) | (x > 1)).any() for x in successes):
        raise ValueError("success_interval() takes outcomes between 0 and 1; for returns use bootstrap_ci()")
    lengths = [x.size for x in successes]
    if pictures_by_seed is None:
        pictures = np.arange(sum(lengths))
    else:
        if [np.size(p) for p in pictures_by_seed] != lengths:
            raise ValueError("success_interval() needs one picture an episode: the lengths of the two lists differ")
        pictures = np.unique(np.concatenate([np.asarray(p) for p in pictures_by_seed]), return_inverse=True)[1]
    outcome = np.concatenate(successes)
    owner = np.repeat(np.arange(len(lengths)), lengths)

    low, high = _clustered_wilson(outcome, pictures, level)
    if len(lengths) == 1:
        return low, high
    parts = [(low, high)]
    if len(lengths) < SEEDS_TO_RESAMPLE:
        parts += [_clustered_wilson(outcome[owner == s], pictures[owner == s], level) for s in range(len(lengths))]
    parts.append(_percentiles(_crossed_means(outcome, owner, pictures, draws, seed), level))
    return max(0.0, min(p[0] for p in parts)), min(1.0, max(p[1] for p in parts))


@dataclass(frozen=True)
class Difference:
    """Mean of `a - b` over pairs, with its interval."""

    mean: float
    low: float
    high: float
    pairs: int


def paired_difference(
    a: Mapping[tuple[int, int], float],
    b: Mapping[tuple[int, int], float],
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> Difference:
    """Mean difference of two policies over the (seed, picture) keys both have.

    Pairing removes what the two share (a hard photograph is hard for both), so it can tell policies apart whose own
    intervals overlap. The interval is the two-way bootstrap over pictures and, from 3 seeds on, seeds.
    """
    _check_level(level)
    keys = sorted(set(a) & set(b))
    if not keys:
        raise ValueError("paired_difference() found no (seed, picture) that both policies have; evaluate both on the same")
    gaps = _values([a[k] - b[k] for k in keys], "paired_difference()")
    seeds = np.unique([k[0] for k in keys], return_inverse=True)[1]
    pictures = np.unique([k[1] for k in keys], return_inverse=True)[1]
    draws_of_mean = _crossed_means(gaps, seeds, pictures, draws, seed)
    low, high = _percentiles(draws_of_mean, level)
    by_seed = [gaps[seeds == s].mean() for s in range(seeds.max() + 1)]
    return Difference(float(np.mean(by_seed)), low, high, len(keys))


def _crossed_means(values: Array, seeds: NDArray[Any], pictures: NDArray[Any], draws: int, seed: int) -> Array:
    """Bootstrap draws [draws] of the mean over seeds of each seed's mean, resampling pictures and seeds."""
    n_seeds, n_pictures = int(seeds.max()) + 1, int(pictures.max()) + 1
    sums, counts = np.zeros((n_pictures, n_seeds)), np.zeros((n_pictures, n_seeds))
    np.add.at(sums, (pictures, seeds), values)
    np.add.at(counts, (pictures, seeds), 1)
    # Pictures with equal outcomes are exchangeable: drawing how often each *pattern* comes up is the same bootstrap,
    # and 4,000 pictures x 3 seeds have at most 8 patterns.
    patterns, often = np.unique(np.concatenate([sums, counts], axis=1), axis=0, return_counts=True)
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(n_pictures, often / n_pictures, size=draws)
    with np.errstate(invalid="ignore"):  # a seed with few pictures may come up empty in a draw
        means = (weights @ patterns[:, :n_seeds]) / (weights @ patterns[:, n_seeds:])  # [draws, seeds]
    means = np.where(np.isnan(means), np.nanmean(means, axis=0), means)
    centre: Array = means.mean(axis=1)
    if n_seeds < SEEDS_TO_RESAMPLE:
        return centre
    again = np.take_along_axis(means, rng.integers(n_seeds, size=means.shape), axis=1).mean(axis=1)
    # A bootstrap of n values has (n-1)/n of the variance it should have; with 3 seeds that matters.
    widened: Array = centre + np.sqrt(n_seeds / (n_seeds - 1)) * (again - centre)
    return widened


def _clustered_wilson(outcome: Array, clusters: NDArray[Any], level: float) -> tuple[float, float]:
    """Wilson's interval with the number of independent episodes that the repeats within clusters are worth."""
    rate, n = float(outcome.mean()), outcome.size
    index = np.unique(clusters, return_inverse=True)[1]
    groups = int(index.max()) + 1
    effective = float(n)
    if groups < n:
        if rate in (0.0, 1.0) or groups == 1:
            effective = float(groups)  # no spread to measure: count each picture once
        else:
            excess = np.bincount(index, weights=outcome - rate)
            design_effect = groups / (groups - 1) * float(excess @ excess) / (n * rate * (1 - rate))
            effective = n / max(1.0, design_effect)
    return wilson(rate * effective, effective, level)


def _percentiles(draws: Array, level: float) -> tuple[float, float]:
    low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2])
    return float(low), float(high)


def _values(values: ArrayLike, who: str) -> Array:
    x = np.asarray(values, dtype=np.float64).ravel()
    if x.size == 0:
        raise ValueError(f"{who} got no values; at least one episode is needed")
    if not np.isfinite(x).all():
        raise ValueError(f"{who} got a value that is not finite at index {int(np.flatnonzero(~np.isfinite(x))[0])}")
    return x


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level is a share such as 0.95, got {level}")
