"""The Bayes-optimal policy, exactly: dynamic programming over every (state, belief) that can be reached.

    V(s, b) = max over a of  r(s, b, a) + gamma sum over outcomes of P(outcome | s, b, a) V(s', b')

With a horizon this is backward induction. Without one it takes two steps:

1. Sweeps from below. Values start at a bound that no policy undercuts (minus infinity when gamma is 1), and a node is looked
   at again only when one it leads to has improved. Goals are found from the end backwards, so that in a world of certain
   moves each node is settled after a few looks, whatever its distance: plain value iteration would look at all nodes once
   for each step of the longest path.
2. Policy iteration from there, with a sparse linear solve each time: exact to rounding also where chance makes loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from apev.bayes.evaluate import can_reach, chain_values, mix
from apev.bayes.graph import MAX_NODES, BeliefGraph, build_graph
from apev.bayes.mdp import BoolArray, FloatArray, IntArray, Posterior

_TIE = 1e-12  # a change of policy must gain this much, relative to the largest value
_LOOKS = 100  # how often an edge is looked at on average before policy iteration takes over


@dataclass(frozen=True, eq=False)
class Solution:
    """The best adaptive policy and its values at every (state, belief) that can be reached."""

    graph: BeliefGraph
    values: FloatArray  # [N]; with a horizon [H + 1, N], the row is the time (0 where a node cannot be met by then)
    actions: IntArray  # [N]; with a horizon [H, N]
    horizon: int | None = None

    @property
    def value(self) -> float:
        """The best Bayesian return that any policy can have, however it uses the history."""
        return float(self.graph.root_weight @ self._row(self.values, 0)[self.graph.root])

    @property
    def num_nodes(self) -> int:
        """How many (state, belief) pairs can be reached."""
        return len(self.graph)

    @property
    def policy(self) -> TablePolicy:
        """pi(a | s, b), for `evaluate_belief`."""
        return TablePolicy(self)

    def act(self, state: int, belief: ArrayLike, time: int = 0) -> int:
        """The best action for a state and a belief; `time` counts steps, and matters with a horizon only."""
        return int(self._row(self.actions, time)[self.graph.find(state, belief)])

    def value_at(self, state: int, belief: ArrayLike, time: int = 0) -> float:
        """The best expected return from here on."""
        return float(self._row(self.values, time)[self.graph.find(state, belief)])

    def _row(self, table: Any, time: int) -> Any:
        if self.horizon is None:
            return table
        if not 0 <= time < len(table):
            raise ValueError(f"time {time} is outside the horizon. Fix: a step from 0 to {len(table) - 1}.")
        return table[time]


@dataclass(frozen=True)
class TablePolicy:
    """A solution as a policy: certain of its action everywhere."""

    solution: Solution

    def __call__(self, states: IntArray, beliefs: FloatArray, time: int = 0) -> IntArray:
        """The best actions [N]."""
        graph = self.solution.graph
        everywhere = len(states) == len(graph) and np.array_equal(states, graph.states)
        same = everywhere and np.array_equal(beliefs, graph.node_beliefs)
        nodes = np.arange(len(graph)) if same else graph.find_all(states, beliefs)
        actions: IntArray = self.solution._row(self.solution.actions, time)[nodes]
        return actions


def solve(posterior: Posterior, horizon: int | None = None, max_nodes: int = MAX_NODES) -> Solution:
    """The Bayes-optimal policy: for `horizon` steps, or for ever where only finitely many beliefs can be reached.

    Beliefs that agree to 1e-12 count as one. Minus infinity is the value where gamma is 1 and no policy is sure to end.
    """
    if horizon is not None and horizon < 1:
        raise ValueError(f"horizon is {horizon}. Fix: at least 1 step, or None for ever.")
    if horizon is None and posterior.gamma == 1:
        _check_costs(posterior)
    graph = build_graph(posterior, depth=horizon, max_nodes=max_nodes)
    if horizon is not None:
        return _backward_induction(graph, horizon)
    values, actions = optimise(graph)
    return Solution(graph, values, actions)


def optimal_values(posterior: Posterior) -> FloatArray:
    """[K]: the best return in each hypothesis for one who knows it is the truth."""
    return np.array([solve(Posterior([mdp])).value for mdp in posterior.mdps])


def _backward_induction(graph: BeliefGraph, horizon: int) -> Solution:
    N, A = graph.reward.shape
    values, actions = np.zeros((horizon + 1, N)), np.zeros((horizon, N), dtype=np.int64)
    matrix = graph.matrix
    found = np.searchsorted(graph.depth, np.arange(horizon + 1), side="right")  # nodes met by step t are the first so many
    for t in reversed(range(horizon)):
        n = found[t]
        q = graph.reward[:n] + graph.posterior.gamma * (matrix[: n * A] @ values[t + 1]).reshape(n, A)
        actions[t, :n] = q.argmax(1)
        values[t, :n] = q.max(1)
    return Solution(graph, values, actions, horizon)


def optimise(graph: BeliefGraph) -> tuple[FloatArray, IntArray]:
    """Optimal values [N] and actions [N] of a complete graph."""
    A, gamma, matrix = graph.posterior.num_actions, graph.posterior.gamma, graph.matrix
    values = sweep_from_below(graph)
    actions = _action_values(graph, matrix, values).argmax(1)
    pi = np.eye(A)[actions]
    if np.isneginf(values).any():
        # Chance makes loops that no sweep closes: begin there with any way out, at random among the safe actions.
        sure, safe = _ends_almost_surely(graph, matrix)
        open_ = np.isneginf(values) & sure
        pi[open_] = safe[open_] / safe[open_].sum(1, keepdims=True)
        actions[open_] = -1
    before = np.full(len(graph), -np.inf)
    while True:
        values = chain_values(mix(matrix, pi), (pi * graph.reward).sum(1), (pi * graph.ending).sum(1), gamma)
        q = _action_values(graph, matrix, values)
        finite = np.isfinite(values)
        tie = _TIE * max(1.0, float(np.abs(values[finite]).max(initial=0)))
        change = finite & ((actions < 0) | (q.max(1) > values + tie))
        # A change that does not raise the values is rounding: it could go on for ever.
        if not change.any() or not (values[finite] > before[finite] + tie / 2).any():
            return values, actions
        actions[change], before = q.argmax(1)[change], values
        pi = np.eye(A)[actions]


def sweep_from_below(graph: BeliefGraph) -> FloatArray:
    """[N]: values that rise towards the optimum; a node is looked at again only when one that follows it has risen."""
    N, A = graph.reward.shape
    gamma = graph.posterior.gamma
    bound = -np.inf if gamma == 1 else min(float(graph.reward.min()), 0.0) / (1 - gamma)
    values = np.full(N, bound)
    source = np.repeat(np.arange(N * A), np.diff(graph.first)) // A
    before = sp.csr_array((np.ones(len(source), dtype=np.int8), (graph.target, source)), shape=(N, N))
    claim = np.zeros(N, dtype=np.int64)
    active, looks = np.arange(N), 0
    with np.errstate(invalid="ignore"):  # minus infinity meets itself
        while len(active) and looks < _LOOKS * (len(graph.target) + N):
            q = _values_of(graph, values, active)
            new = q.max(1)
            risen = new > values[active] + _TIE * np.abs(new)
            risen |= np.isneginf(values[active]) & np.isfinite(new)
            values[active[risen]] = new[risen]
            rows, _ = _ranges(before.indptr, active[risen])
            looks += q.size + len(rows)
            affected = before.indices[rows]
            claim[affected] = np.arange(len(affected))  # of equal ones the last stays: each node once, without sorting
            active = affected[claim[affected] == np.arange(len(affected))]
    return values


def _values_of(graph: BeliefGraph, values: FloatArray, nodes: IntArray) -> FloatArray:
    """[n, A]: the action values of some nodes."""
    A = graph.reward.shape[1]
    rows = (nodes[:, None] * A + np.arange(A)).reshape(-1)
    edges, place = _ranges(graph.first, rows)
    following = np.bincount(place, graph.chance[edges] * values[graph.target[edges]], minlength=len(rows))
    return graph.reward[nodes] + graph.posterior.gamma * following.reshape(-1, A)


def _ranges(first: Any, rows: IntArray) -> tuple[IntArray, IntArray]:
    """The entries of some rows of a compressed table, and which of the rows each belongs to."""
    size = np.asarray(first[rows + 1] - first[rows], dtype=np.int64)
    place = np.repeat(np.arange(len(rows)), size)
    start = np.asarray(first[rows], dtype=np.int64) - (np.cumsum(size) - size)
    return np.arange(len(place)) + start[place], place


def _action_values(graph: BeliefGraph, matrix: Any, values: FloatArray) -> FloatArray:
    """[N, A]."""
    q: FloatArray = graph.reward + graph.posterior.gamma * (matrix @ values).reshape(graph.reward.shape)
    return q


def _ends_almost_surely(graph: BeliefGraph, matrix: Any) -> tuple[BoolArray, FloatArray]:
    """From which nodes [N] some policy ends with probability 1, and the actions [N, A] that keep it possible (0 or 1)."""
    N, A = graph.reward.shape
    safe = np.ones((N, A))
    while True:
        sure = can_reach(mix(matrix, safe), np.flatnonzero((safe * graph.ending).sum(1)))
        risky = (matrix @ (~sure).astype(np.float64)).reshape(N, A) > 0
        left = safe * ~risky * sure[:, None]
        if np.array_equal(left, safe):
            return sure, safe
        safe = left


def _check_costs(posterior: Posterior) -> None:
    """With gamma 1 a loop that costs nothing has no value: refuse it, and name it."""
    for k, mdp in enumerate(posterior.mdps):
        goes_on = (mdp.probability > 0) & ~mdp.terminal[:, None, None] & ~mdp.terminal[mdp.next_state]
        free = np.argwhere(goes_on & (mdp.reward >= 0))
        if len(free):
            s, a, _ = free[0]
            raise ValueError(
                f"hypothesis {posterior.names[k]}, state {s}, action {a}: gamma is 1 and the step costs nothing, so that "
                "an endless episode could be as good as any. Fix: a negative reward for every step that does not end "
                "the episode, a gamma below 1, or a horizon."
            )
