"""A proof of how good Markov policies can be: branch and bound over boxes of policies.

A box gives each pi(a | s) an interval. Take all *belief* policies whose pi(. | s, b) stays in the box of s for every b: the
Markov policies of the box are among them, so that the best of these is a bound. It is an ordinary dynamic programme over
(state, belief), in which the greedy step fills the best actions up to their upper ends. The box of all policies gives the
Bayes-optimal value. Where the best belief policy acts differently in one state under two beliefs, the box is split there; as
boxes shrink, adapting is no longer possible and the bound falls to the best Markov value.

The number of boxes grows exponentially with the number of states in which hypotheses disagree: a handful can be closed.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count

import numpy as np

from apev.bayes.evaluate import chain_values, chain_visits, evaluate_markov, mix
from apev.bayes.graph import BeliefGraph, build_graph
from apev.bayes.mdp import FloatArray, Posterior

_ROUNDS = 50  # of policy iteration in a box; fewer than ten are needed


@dataclass(frozen=True, eq=False)
class MarkovBound:
    """No Markov policy is worth more than `upper`; `policy` is worth `lower`."""

    upper: float
    lower: float
    policy: FloatArray  # [S, A]
    boxes: int  # looked at

    @property
    def gap(self) -> float:
        """How much better than `policy` a Markov policy might be."""
        return self.upper - self.lower


def bound_markov(
    posterior: Posterior, policy: FloatArray | None = None, tolerance: float = 0.01, max_boxes: int = 2000
) -> MarkovBound:
    """Split boxes until the gap is at most `tolerance` of the value, or `max_boxes` were looked at.

    `policy` is a good Markov policy to begin with, e.g. that of `best_markov`.
    """
    S, A = posterior.num_states, posterior.num_actions
    graph = build_graph(posterior)
    best = np.full((S, A), 1 / A) if policy is None else policy
    lower = evaluate_markov(posterior, best).mean
    low, high = np.zeros((S, A)), np.ones((S, A))
    bound, pi = _best_in_box(graph, low, high, np.inf)
    order = count()  # boxes of equal bound: first come, first served
    queue = [(-bound, next(order), low, high, pi)]
    boxes, closed = 1, -np.inf
    while queue and boxes < max_boxes and -queue[0][0] - lower > tolerance * max(abs(lower), 1e-300):
        negative, _, low, high, pi = heapq.heappop(queue)
        state, action, value, tried = _where_it_adapts(graph, pi, low, high)
        found = evaluate_markov(posterior, tried).mean
        if found > lower:
            lower, best = found, tried
        if state < 0:  # no belief changes what it does: its bound is a Markov policy's value
            closed = max(closed, -negative)
            continue
        for upper_half in (False, True):
            least, most = low.copy(), high.copy()
            (least if upper_half else most)[state, action] = value
            # Whatever the others must or can have at least or at most limits each one further.
            most[state] = np.minimum(most[state], 1 - (least[state].sum() - least[state]))
            least[state] = np.maximum(least[state], 1 - (most[state].sum() - most[state]))
            bound, inside = _best_in_box(graph, least, most, -negative)
            boxes += 1
            if bound > lower:
                heapq.heappush(queue, (-bound, next(order), least, most, inside))
    upper = max([-queue[0][0] if queue else -np.inf, closed, lower])
    return MarkovBound(upper, lower, best, boxes)


def _best_in_box(graph: BeliefGraph, low: FloatArray, high: FloatArray, parent: float) -> tuple[float, FloatArray]:
    """The value of the best belief policy of the box, by policy iteration, and that policy [N, A]."""
    matrix, gamma = graph.matrix, graph.posterior.gamma
    least = low[graph.states]  # [N, A]
    room = high[graph.states] - least
    free = 1 - least.sum(1, keepdims=True)
    pi = least + free * room / np.maximum(room.sum(1, keepdims=True), 1e-300)
    for _ in range(_ROUNDS):
        values = chain_values(mix(matrix, pi), (pi * graph.reward).sum(1), (pi * graph.ending).sum(1), gamma)
        value = float(graph.root_weight @ values[graph.root])
        if not np.isfinite(value):
            break
        q = graph.reward + gamma * (matrix @ values).reshape(pi.shape)
        q = np.maximum(q, -1e300)
        order = np.argsort(-q, axis=1, kind="stable")  # the best actions are filled first
        seats = np.take_along_axis(room, order, 1)
        given = np.clip(free - (np.cumsum(seats, 1) - seats), 0, seats)
        new = np.empty_like(pi)
        np.put_along_axis(new, order, np.take_along_axis(least, order, 1) + given, 1)
        if (((new - pi) * q).sum(1) <= 1e-10 * max(1.0, abs(value))).all():
            return min(value + 1e-9 * max(1.0, abs(value)), parent), pi
        pi = new
    return parent, pi  # nothing learnt about this box


def _where_it_adapts(
    graph: BeliefGraph, pi: FloatArray, low: FloatArray, high: FloatArray
) -> tuple[int, int, float, FloatArray]:
    """The state and action to split, where, and the Markov policy that does on average what `pi` does."""
    S, A = low.shape
    start = np.zeros(len(graph))
    np.add.at(start, graph.root, graph.root_weight)
    visits = chain_visits(mix(graph.matrix, pi), start, graph.posterior.gamma)  # [N]
    total = np.bincount(graph.states, visits, minlength=S)
    mean = np.stack([np.bincount(graph.states, visits * pi[:, a], minlength=S) for a in range(A)], 1)
    average = np.full((S, A), 1 / A)  # where it never is, anything goes
    average[total > 1e-12] = mean[total > 1e-12] / total[total > 1e-12, None]
    spread = np.zeros((S, A))
    np.add.at(spread, graph.states, visits[:, None] * np.abs(pi - average[graph.states]))
    state, action = np.unravel_index(int(spread.argmax()), spread.shape)
    average /= average.sum(1, keepdims=True)
    if spread[state, action] < 1e-9:
        return -1, 0, 0.0, average
    return int(state), int(action), float((low[state, action] + high[state, action]) / 2), average
