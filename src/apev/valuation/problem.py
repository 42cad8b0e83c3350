"""A log as fitted Q evaluation reads it: everything of one size, the same resamples for every policy.

Whoever logged may have known what the policy does not: teachers who know their machine choose actions that suit it. Then good
outcomes of an action say which machine it was, and a policy that cannot know looks better than it is. Where the log's contexts
are of several kinds, and each whole context shows surely which, the functions read the kind beside the state: within a kind
nothing is hidden. The policy never reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from apev.data import Dataset, Sampler
from apev.data.batch import Layout
from apev.valuation.coverage import Tried
from apev.valuation.fit import Problem
from apev.valuation.held import Held
from apev.valuation.results import FEW
from apev.worlds.models import WorldModels

SURE = 0.95  # of the kind of a context, on average, from which on kinds are read
SHORT = 100  # rows: episodes no longer than this that all end need no discount
PIECE = 8192


@dataclass(frozen=True)
class Prepared:
    """What all policies share."""

    rows: np.ndarray  # int64 [N] the usable rows of the log
    state: Tensor  # [N, D]
    next_state: Tensor  # [N, D]
    action: Tensor  # [N, A]
    logged_next: Tensor  # [N, A] the logged action after each row,
    followed: Tensor  # bool [N] and whether there is one
    reward: Tensor  # [N]
    discount: Tensor  # [N]
    weight: Tensor  # [M, N]
    start: np.ndarray  # int64 [E] places in `rows` where episodes begin
    unit: float  # what rewards were divided by
    low: float
    high: float
    gamma: float
    timed: bool  # the time is read, because episodes are cut off and nothing is discounted
    kinds: int  # that are read; 1: none
    sure: float  # how surely whole contexts show their kind
    resampled: str  # "contexts" or "episodes"
    units: int  # how many of them there are
    tried: Tried
    layout: Layout

    def actions(self, action: Tensor) -> Tensor:
        """Actions as the functions read them, [..., A]."""
        return of_one_size(action, self.layout)

    def problem(self, held: Held) -> Problem:
        """A policy's."""
        before, after = _standard(held.held, held.next_held)
        begin = torch.from_numpy(self.start)
        first = self.actions(held.action[0, begin])
        start = torch.cat([self.state[begin], before[0, begin], first], 1)
        return self._problem(slice(None), before, after, self.actions(held.next_action), start)

    def problem_of_log(self) -> Problem:
        """The log's own: what follows is what was logged; last rows that were cut off are left out."""
        kept = self.followed | (self.discount == 0)
        nothing = torch.zeros(1, int(kept.sum()), 0)
        begin = torch.from_numpy(self.start)
        start = torch.cat([self.state[begin], self.action[begin]], 1)
        return self._problem(kept, nothing, nothing, self.logged_next[kept][None], start)

    def _problem(self, kept: slice | Tensor, before: Tensor, after: Tensor, following: Tensor, start: Tensor) -> Problem:
        return Problem(
            state=self.state[kept],
            next_state=self.next_state[kept],
            held=before,
            next_held=after,
            action=self.action[kept],
            next_action=following,
            reward=self.reward[kept],
            discount=self.discount[kept],
            weight=self.weight[:, kept],
            start=start,
            low=self.low,
            high=self.high,
        )


def prepare(log: Dataset, *, gamma: float, models: WorldModels | None, members: int, num_actions: int, seed: int) -> Prepared:
    """Read a log once. models: of its kinds of contexts, where there are several."""
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma is {gamma}. Fix: a discount from 0 to 1.")
    rows = np.flatnonzero(log.usable)
    if not len(rows):
        raise ValueError("no row of this log has a known next observation. Fix: pass next_observations, or longer episodes.")
    sampler = Sampler(log, batch_groups=1, per_group=1, batch_size=1)
    batch = sampler.batch(torch.from_numpy(rows))
    episodes, place, length = log.episodes[rows], _places(log.episodes[rows]), 0
    ended = torch.from_numpy(np.asarray(log.terminated[rows]))
    state, next_state = batch.obs.vector, batch.next_obs.vector
    mean, deviation = state.mean(0), state.std(0).nan_to_num(1.0)
    deviation = torch.where(deviation > 1e-6 * mean.abs(), deviation, 1.0)
    state, next_state = (state - mean) / deviation, (next_state - mean) / deviation
    timed = gamma == 1 and not bool(log.terminated[_lasts(log.episodes)][_shown_lasts(log)].all())
    if timed:
        length = int(place.max()) + 1
        now = torch.from_numpy(place)[:, None].float() / length
        state, next_state = torch.cat([state, 2 * now - 1], 1), torch.cat([next_state, 2 * (now + 1 / length) - 1], 1)
        ended = ended | torch.from_numpy(np.asarray(log.truncated[rows]))
    kind, sure = kinds_of_contexts(log, rows, models)
    if kind is not None:
        assert models is not None
        told = 2.0 * F.one_hot(kind, models.kinds).float()
        state, next_state = torch.cat([state, told], 1), torch.cat([next_state, told], 1)
    low, high = bounds(log, gamma, length)
    unit = _unit(batch.reward.numpy(), episodes, gamma)
    contexts = np.unique(log.group[rows])
    by_context = len(contexts) >= FEW  # of fewer, episodes are resampled
    owner = np.unique(log.group[rows] if by_context else episodes, return_inverse=True)[1]
    layout = Layout.of(log)
    if num_actions > layout.num_actions > 0:  # a policy may know actions that this part of the log never takes
        layout = replace(layout, num_actions=num_actions)
    following = np.append(np.arange(1, len(rows)), 0)
    followed = (np.append(rows[1:], -1) == rows + 1) & np.append(episodes[1:] == episodes[:-1], False)
    action = of_one_size(batch.action, layout)
    return Prepared(
        rows=rows,
        state=state,
        next_state=next_state,
        action=action,
        logged_next=action[torch.from_numpy(following)],
        followed=torch.from_numpy(followed),
        reward=batch.reward / unit,
        discount=torch.where(ended, 0.0, gamma),
        weight=resamples(owner, members, seed),
        start=np.flatnonzero(place == 0),
        unit=unit,
        low=low / unit,
        high=high / unit,
        gamma=gamma,
        timed=timed,
        kinds=1 if kind is None or models is None else models.kinds,
        sure=sure,
        resampled="contexts" if by_context and log.contexts is not None else "episodes",
        units=len(np.unique(owner)),
        tried=Tried(state, action, layout.num_actions, seed),
        layout=layout,
    )


def of_one_size(action: Tensor, layout: Layout) -> Tensor:
    """Actions [..., A]: one-hot, or within [-1, 1]."""
    if layout.num_actions:
        return F.one_hot(action.long(), layout.num_actions).float()
    low, high = torch.tensor(layout.action_low), torch.tensor(layout.action_high)
    return (action - (low + high) / 2) / ((high - low) / 2)


def usual_gamma(log: Dataset, gammas: list[float]) -> float:
    """1 where all episodes are short and end: then values are returns. Else the policies' largest, .99 without one."""
    lasts = _lasts(log.episodes)
    over = bool(log.terminated[lasts][_shown_lasts(log)].all())
    if over and int(_places(log.episodes).max()) < SHORT:
        return 1.0
    return max((gamma for gamma in gammas if gamma < 1), default=0.99)


def kinds_of_contexts(log: Dataset, rows: np.ndarray, models: WorldModels | None) -> tuple[Tensor | None, float]:
    """(the kind [N] of each row's context by all of its rows, how sure that is on average); None where it is not sure."""
    if models is None or models.kinds == 1:
        return None, 1.0
    sampler = Sampler(log, batch_groups=1, per_group=1, batch_size=1)
    parts = [models.log_likelihood(sampler.batch(part)) for part in torch.from_numpy(rows).split(PIECE)]
    owner = torch.from_numpy(np.unique(log.group[rows], return_inverse=True)[1])
    told = torch.zeros(int(owner.max()) + 1, models.kinds).index_add_(0, owner, torch.cat(parts))
    belief = told.softmax(1)
    sure = float(belief.amax(1).mean())
    return (belief.argmax(1)[owner] if sure >= SURE else None), sure


def resamples(owner: np.ndarray, members: int, seed: int) -> Tensor:
    """[M, N]: how often each of M bootstrap resamples of the owners holds a row."""
    rng = np.random.default_rng(seed)
    count = int(owner.max()) + 1
    if count == 1:
        return torch.ones(members, len(owner))
    drawn = np.stack([np.bincount(rng.integers(count, size=count), minlength=count) for _ in range(members)])
    return torch.from_numpy(drawn[:, owner]).float()


def bounds(log: Dataset, gamma: float, length: int) -> tuple[float, float]:
    """What the log's rewards allow a value to be; length: of the longest episode, where episodes are cut off undiscounted."""
    if length:
        rewards = log.rewards[log.usable]
        return min(0.0, float(rewards.min())) * length, max(0.0, float(rewards.max())) * length
    low, high = log.lowest_return(gamma), log.highest_return(gamma)
    room = 0.05 * (high - low) + 1e-6
    return low - room, high + room


def _unit(rewards: np.ndarray, episodes: np.ndarray, gamma: float) -> float:
    """The spread of what follows a row, at least that of a reward."""
    from scipy.signal import lfilter  # a quarter of the time that importing apev took

    starts = np.flatnonzero(np.append(True, episodes[1:] != episodes[:-1]))[1:]
    ahead = [lfilter([1.0], [1.0, -gamma], part[::-1].astype(np.float64)) for part in np.split(rewards, starts)]
    unit = max(float(np.concatenate(ahead).std()), float(rewards.std()))
    return unit if unit > 0 else max(1.0, float(np.abs(rewards).max()))


def _standard(held: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """What is held in units of its own spread; what hardly moves is not blown up."""
    if not held.shape[-1]:
        return held, after
    mean, deviation = held.flatten(0, 1).mean(0), held.flatten(0, 1).std(0).nan_to_num(1.0).clamp_min(0.05)
    return (held - mean) / deviation, (after - mean) / deviation


def _places(episodes: np.ndarray) -> np.ndarray:
    """int64 [N]: 0, 1, 2, ... in each episode."""
    starts = np.flatnonzero(np.append(True, episodes[1:] != episodes[:-1]))
    return np.arange(len(episodes)) - np.repeat(starts, np.diff(np.append(starts, len(episodes))))


def _lasts(episodes: np.ndarray) -> np.ndarray:
    """bool [N]: the last row of its episode."""
    return np.append(episodes[1:] != episodes[:-1], True)


def _shown_lasts(log: Dataset) -> np.ndarray:
    """bool [episodes]: those whose last row is in this part of the log."""
    lasts = _lasts(log.episodes)
    return np.ones(int(lasts.sum()), dtype=bool) if log.hidden is None else ~log.hidden[lasts]
