"""Small worlds written out in full, and a posterior over finitely many of them.

A `TabularMDP` lists, for each state and action, what may happen next:

    next_state  [S, A, M]   the M states that may follow
    probability [S, A, M]   how likely each is; entries of probability 0 are padding
    reward      [S, A, M]   what is received on the way there (given s, a and s' it is certain)
    terminal    [S]         entering such a state ends the episode

Moves that are certain need M = 1, so that 1,000 states cost 1,000 numbers an action and not a million. A dense
`transition` [S, A, S] is taken by `TabularMDP.from_dense`, a sparse one by `TabularMDP.from_sparse`.

A `Posterior` is P(M | D) of the paper's Section 4 with finite support: K such worlds of one shape and their weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

REWARD_DIGITS = 9  # rewards that agree to so many decimals are the same observation
_SUM = 1e-9  # by how much probabilities may miss a sum of 1


@dataclass(frozen=True, eq=False)
class TabularMDP:
    """One world: what may follow each action in each state, where episodes start and where they end."""

    next_state: IntArray  # [S, A, M]
    probability: FloatArray  # [S, A, M]
    reward: FloatArray  # [S, A, M]
    start: FloatArray  # [S] distribution of the first state
    terminal: BoolArray  # [S] entering one of these ends the episode
    gamma: float = 1.0

    def __post_init__(self) -> None:
        shape = self.probability.shape
        if len(shape) != 3 or 0 in shape or self.next_state.shape != shape or self.reward.shape != shape:
            raise ValueError(
                f"next_state {self.next_state.shape}, probability {shape} and reward {self.reward.shape} must share one "
                "shape [S, A, M]. Fix: build the world with from_dense, from_sparse or deterministic."
            )
        if self.start.shape != shape[:1] or self.terminal.shape != shape[:1]:
            raise ValueError(
                f"start {self.start.shape} and terminal {self.terminal.shape} need one entry a state, {shape[0]} in all. "
                "Fix: give the number of the first state, and the numbers of the terminal states."
            )
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma is {self.gamma}. Fix: a discount from 0 to 1.")
        if self.next_state.min() < 0 or self.next_state.max() >= shape[0]:
            raise ValueError(f"next_state leaves the {shape[0]} states. Fix: numbers from 0 to {shape[0] - 1}.")
        if not np.isfinite(self.reward).all():
            raise ValueError("a reward is not a number. Fix: finite rewards only.")
        total = self.probability.sum(-1)
        wrong = np.argwhere(~self.terminal[:, None] & ~(np.abs(total - 1) <= _SUM))
        if len(wrong) or not (self.probability >= 0).all():
            s, a = wrong[0] if len(wrong) else np.argwhere(~(self.probability >= 0))[0][:2]
            raise ValueError(
                f"state {s}, action {a}: {self.probability[s, a]} is not a distribution. "
                "Fix: probabilities from 0 that sum to 1, in every state that is not terminal."
            )
        if not (self.start >= 0).all() or abs(self.start.sum() - 1) > _SUM:
            raise ValueError(f"start sums to {self.start.sum()}. Fix: probabilities that sum to 1.")
        if self.start[self.terminal].any():
            raise ValueError("an episode may start in a terminal state. Fix: start it elsewhere.")

    @classmethod
    def deterministic(
        cls,
        next_state: ArrayLike,
        reward: ArrayLike = -1.0,
        *,
        start: ArrayLike = 0,
        terminal: ArrayLike = (),
        gamma: float = 1.0,
    ) -> TabularMDP:
        """A world of certain moves: `next_state` [S, A]; `reward` [S, A], or one number for every step."""
        follow = np.asarray(next_state, dtype=np.int64)
        if follow.ndim != 2:
            raise ValueError(f"next_state has shape {follow.shape}. Fix: [S, A], the state that follows each action.")
        rewards = np.broadcast_to(np.asarray(reward, dtype=np.float64), follow.shape)
        S = len(follow)
        ones = np.ones(follow.shape)[..., None]
        return cls(follow[..., None], ones, rewards[..., None].copy(), _start(start, S), _mask(terminal, S), gamma)

    @classmethod
    def from_dense(
        cls,
        transition: ArrayLike,
        reward: ArrayLike,
        *,
        start: ArrayLike = 0,
        terminal: ArrayLike = (),
        gamma: float = 1.0,
    ) -> TabularMDP:
        """From `transition` [S, A, S] and `reward` [S, A] or [S, A, S]. Rows of terminal states are not read."""
        p = np.asarray(transition, dtype=np.float64)
        if p.ndim != 3 or p.shape[0] != p.shape[2]:
            raise ValueError(f"transition has shape {p.shape}. Fix: [S, A, S], the chance of each next state.")
        r = np.asarray(reward, dtype=np.float64)
        if r.ndim == 3 and r.shape != p.shape:
            raise ValueError(f"reward has shape {r.shape}. Fix: {p.shape[:2]} or {p.shape}.")
        r = np.broadcast_to(r if r.ndim == 3 else r[..., None] if r.ndim == 2 else r, p.shape)
        if (p < 0).any():
            raise ValueError("transition holds a negative probability. Fix: probabilities from 0 that sum to 1.")
        s, a, following = np.nonzero(p)
        sa = s * p.shape[1] + a
        packed = _pack(p.shape[0], p.shape[1], sa, following, p[s, a, following], r[s, a, following])
        return cls(*packed, _start(start, len(p)), _mask(terminal, len(p)), gamma)

    @classmethod
    def from_sparse(
        cls,
        transition: Any,
        reward: ArrayLike,
        *,
        start: ArrayLike = 0,
        terminal: ArrayLike = (),
        gamma: float = 1.0,
    ) -> TabularMDP:
        """From a scipy sparse `transition` [S * A, S], row s * A + a, and `reward` [S, A]."""
        rows, S = transition.shape
        if rows % S:
            raise ValueError(f"transition has shape {(rows, S)}. Fix: [S * A, S], one row for each state and action.")
        matrix = transition.tocsr()
        matrix.sum_duplicates()
        matrix = matrix.tocoo()
        A = rows // S
        r = np.broadcast_to(np.asarray(reward, dtype=np.float64), (S, A)).reshape(-1)
        sa = matrix.row.astype(np.int64)
        packed = _pack(S, A, sa, matrix.col.astype(np.int64), matrix.data.astype(np.float64), r[sa])
        return cls(*packed, _start(start, S), _mask(terminal, S), gamma)

    @property
    def num_states(self) -> int:
        """S."""
        return int(self.probability.shape[0])

    @property
    def num_actions(self) -> int:
        """A."""
        return int(self.probability.shape[1])

    @property
    def transition(self) -> FloatArray:
        """[S, A, S]: dense, for small worlds."""
        S, A, M = self.probability.shape
        dense = np.zeros((S, A, S))
        s, a, _ = np.ogrid[:S, :A, :M]
        np.add.at(dense, (s, a, self.next_state), self.probability)
        return dense

    @property
    def expected_reward(self) -> FloatArray:
        """[S, A]: the mean reward of each action."""
        mean: FloatArray = (self.probability * self.reward).sum(-1)
        return mean

    @property
    def ending(self) -> FloatArray:
        """[S, A]: the chance that each action ends the episode."""
        chance: FloatArray = (self.probability * self.terminal[self.next_state]).sum(-1)
        return chance


@dataclass(frozen=True, eq=False, init=False)
class Posterior:
    """What the data leave open: K worlds of one shape, the hypotheses, and the weight of each."""

    mdps: tuple[TabularMDP, ...]
    prior: FloatArray  # [K] P(M | D), sums to 1
    names: tuple[str, ...] = ()  # what people call the hypotheses

    def __init__(self, mdps: Sequence[TabularMDP], prior: ArrayLike | None = None, names: Sequence[str] = ()) -> None:
        worlds = tuple(mdps)
        if not worlds:
            raise ValueError("a posterior of no worlds. Fix: at least one TabularMDP.")
        shapes = {(m.num_states, m.num_actions, m.gamma) for m in worlds}
        if len(shapes) > 1:
            raise ValueError(f"the worlds differ in (states, actions, gamma): {sorted(shapes)}. Fix: one shape for all.")
        weights = np.full(len(worlds), 1 / len(worlds)) if prior is None else np.asarray(prior, dtype=np.float64)
        if weights.shape != (len(worlds),) or not (weights >= 0).all() or not 0 < weights.sum() < np.inf:
            raise ValueError(f"prior {prior!r} does not weigh {len(worlds)} worlds. Fix: one number from 0 for each.")
        if names and len(names) != len(worlds):
            raise ValueError(f"{len(names)} names for {len(worlds)} worlds. Fix: one name each, or none.")
        object.__setattr__(self, "mdps", worlds)
        object.__setattr__(self, "prior", weights / weights.sum())
        object.__setattr__(self, "names", tuple(names) or tuple(f"M{k + 1}" for k in range(len(worlds))))

    def __len__(self) -> int:
        return len(self.mdps)

    @property
    def num_states(self) -> int:
        """S."""
        return self.mdps[0].num_states

    @property
    def num_actions(self) -> int:
        """A."""
        return self.mdps[0].num_actions

    @property
    def gamma(self) -> float:
        """The discount that all hypotheses share."""
        return self.mdps[0].gamma

    @cached_property
    def terminal(self) -> BoolArray:
        """[K, S]: where each hypothesis ends the episode."""
        return np.stack([m.terminal for m in self.mdps])

    @cached_property
    def start(self) -> FloatArray:
        """[K, S]: where each hypothesis starts it."""
        return np.stack([m.start for m in self.mdps])

    def likelihood(self, state: int, action: int, reward: float, next_state: int, terminated: bool) -> FloatArray:
        """[K]: how likely each hypothesis finds this transition. Whether the episode went on is evidence too."""
        seen = np.zeros(len(self))
        for k, mdp in enumerate(self.mdps):
            if mdp.terminal[state] or mdp.terminal[next_state] != terminated:
                continue
            same = np.round(mdp.reward[state, action] - reward, REWARD_DIGITS) == 0
            seen[k] = mdp.probability[state, action, same & (mdp.next_state[state, action] == next_state)].sum()
        return seen

    def start_belief(self, state: int) -> FloatArray:
        """[K]: the belief when the first state has been seen and nothing else."""
        weights = self.prior * self.start[:, state]
        if not weights.sum():
            raise ValueError(f"no hypothesis starts in state {state}. Fix: a state with start probability above 0.")
        belief: FloatArray = weights / weights.sum()
        return belief


def _pack(
    S: int, A: int, sa: IntArray, following: IntArray, probability: FloatArray, reward: FloatArray
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Lists of transitions, sorted by state and action, as padded arrays [S, A, M]."""
    count = np.bincount(sa, minlength=S * A)
    M = max(int(count.max(initial=0)), 1)
    place = np.arange(len(sa)) - np.repeat(np.cumsum(count) - count, count)
    next_state = np.repeat(np.arange(S), A * M).reshape(S * A, M)
    chance, rewards = np.zeros((S * A, M)), np.zeros((S * A, M))
    next_state[sa, place], chance[sa, place], rewards[sa, place] = following, probability, reward
    return next_state.reshape(S, A, M), chance.reshape(S, A, M), rewards.reshape(S, A, M)


def _start(start: ArrayLike, S: int) -> FloatArray:
    """A first state, or the distribution of one."""
    given = np.asarray(start)
    if given.ndim == 0 and np.issubdtype(given.dtype, np.integer):
        if not 0 <= int(given) < S:
            raise ValueError(f"start is state {given}. Fix: a state from 0 to {S - 1}.")
        certain: FloatArray = np.eye(S)[int(given)]
        return certain
    return given.astype(np.float64)


def _mask(terminal: ArrayLike, S: int) -> BoolArray:
    """Numbers of states, or a mask of them, as a mask."""
    given = np.asarray(terminal)
    if given.dtype == np.bool_:
        return given
    states = given.astype(np.int64).reshape(-1)
    if len(states) and (states.min() < 0 or states.max() >= S):
        raise ValueError(f"terminal names states {states.tolist()}. Fix: states from 0 to {S - 1}.")
    mask = np.zeros(S, dtype=np.bool_)
    mask[states] = True
    return mask
