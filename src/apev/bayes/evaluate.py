"""Exactly what a policy is worth: in every hypothesis, and on average over the posterior.

Three kinds of policy, from the least to the most able:

    Markov    pi(a | s)        an array [S, A]                              evaluate_markov
    belief    pi(a | s, b)     a function of states, beliefs and time       evaluate_belief
    history   pi(a | h)        a function of (s0, a0, r0, s1, ..., st)      evaluate_history

Without a horizon, values solve the linear equations V = r + gamma T V by sparse elimination: no simulation, no truncation.
Where gamma is 1 and an episode may go on for ever, the value is minus infinity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from scipy.sparse.csgraph import breadth_first_order
from scipy.sparse.linalg import splu

from apev.bayes.graph import MAX_NODES, BeliefPolicy, Outcomes, build_graph, check_probabilities
from apev.bayes.mdp import BoolArray, FloatArray, IntArray, Posterior

_DIGITS = 1e-8  # an ordinary solve must get the chance of ending right to this
_DENSE = 2500  # nodes up to which the solve that loses no digits is affordable

History = tuple[float, ...]  # (s0, a0, r0, s1, a1, r1, ..., st), as in the paper's Section 2


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The return of one policy."""

    values: FloatArray  # [K] expected return in each hypothesis
    mean: float  # the Bayesian objective: their average under the posterior

    @classmethod
    def of(cls, posterior: Posterior, values: FloatArray) -> Evaluation:
        """Average over the hypotheses that have weight."""
        held = posterior.prior > 0
        return cls(values, float(posterior.prior[held] @ values[held]))


def evaluate_markov(posterior: Posterior, policy: ArrayLike, horizon: int | None = None) -> Evaluation:
    """The return of pi(a | s): `policy` is [S, A] probabilities, or [S] actions."""
    pi = check_probabilities(policy, posterior.num_states, posterior.num_actions)
    values = np.empty(len(posterior))
    for k, mdp in enumerate(posterior.mdps):
        transition, reward, ending = markov_chain(posterior, pi, k)
        v = chain_values(transition, reward, ending, posterior.gamma, horizon)
        values[k] = mdp.start[mdp.start > 0] @ v[mdp.start > 0]
    return Evaluation.of(posterior, values)


def evaluate_belief(
    posterior: Posterior, policy: BeliefPolicy, horizon: int | None = None, max_nodes: int = MAX_NODES
) -> Evaluation:
    """The return of pi(a | s, b) where b is the exact belief. `policy` may be a `Solution.policy`.

    Without a horizon the policy is asked with time 0 and must not depend on it.
    """
    A, K = posterior.num_actions, len(posterior)
    # A policy that depends on time may do something else on its second visit: take all actions then.
    graph = build_graph(posterior, depth=horizon, policy=policy if horizon is None else None, max_nodes=max_nodes)
    beliefs, N = graph.node_beliefs, len(graph)
    values = np.empty(K)
    if horizon is None:
        pi = check_probabilities(policy(graph.states, beliefs, 0), N, A)
    for k in range(K):
        transition, reward, ending = graph.hypothesis(k)
        start = posterior.start[k, graph.states[graph.root]]
        if horizon is None:
            v = chain_values(mix(transition, pi), (pi * reward).sum(1), (pi * ending).sum(1), posterior.gamma)
        else:
            v = np.zeros(N)
            for t in reversed(range(horizon)):
                # Only nodes that can be met at step t; those at the rim have no edges and are not among them.
                here = np.flatnonzero(graph.depth <= t)
                pi = np.zeros((N, A))
                pi[here] = check_probabilities(policy(graph.states[here], beliefs[here], t), len(here), A)
                v = (pi * (reward + posterior.gamma * (transition @ v).reshape(N, A))).sum(1)
        values[k] = start[start > 0] @ v[graph.root[start > 0]]
    return Evaluation.of(posterior, values)


def evaluate_history(posterior: Posterior, policy: Callable[[History], ArrayLike], horizon: int) -> Evaluation:
    """The return within `horizon` steps of pi(a | h): the policy gets (s0, a0, r0, ..., st), gives [A] or one action.

    Every history that can happen is followed once, with its probability under each hypothesis. In worlds of certain moves
    that is one path a hypothesis, and the horizon can be long; elsewhere the number of histories grows exponentially.
    """
    outcomes, A = Outcomes.of(posterior), posterior.num_actions
    values = np.zeros(len(posterior))
    open_: list[tuple[History, FloatArray]] = []  # history, and [K] its probability under each hypothesis
    open_ += [((int(s),), posterior.start[:, s]) for s in np.flatnonzero(posterior.prior @ posterior.start)]
    for t in range(horizon):
        following = []
        for history, weight in open_:
            pi = check_probabilities(np.asarray(policy(history))[None], 1, A)[0]
            s = int(history[-1])
            for o in range(outcomes.first[s], outcomes.first[s + 1]):
                a = int(outcomes.action[o])
                reach = weight * outcomes.likelihood[o] * pi[a]
                if not reach.any():
                    continue
                values += posterior.gamma**t * reach * outcomes.reward[o]
                if not outcomes.terminated[o]:
                    following.append(((*history, a, float(outcomes.reward[o]), int(outcomes.next_state[o])), reach))
        open_ = following
    return Evaluation.of(posterior, values)


def markov_chain(posterior: Posterior, pi: FloatArray, k: int) -> tuple[Any, FloatArray, FloatArray]:
    """What pi makes of hypothesis `k`: transitions [S, S] sparse between states that go on, rewards and endings [S]."""
    mdp = posterior.mdps[k]
    S, A, M = mdp.probability.shape
    weight = np.where(mdp.terminal[:, None, None] | mdp.terminal[mdp.next_state], 0.0, pi[:, :, None] * mdp.probability)
    rows = np.repeat(np.arange(S), A * M)
    transition = sp.csr_array((weight.reshape(-1), (rows, mdp.next_state.reshape(-1))), shape=(S, S))
    reward = np.where(mdp.terminal, 0.0, (pi * mdp.expected_reward).sum(1))
    ending = np.where(mdp.terminal, 1.0, (pi * mdp.ending).sum(1))
    return transition, reward, ending


def mix(transition: Any, pi: FloatArray) -> Any:
    """Sparse [N, N]: transitions [N * A, N] when the action is drawn from pi [N, A]."""
    N, A = pi.shape
    rows = np.flatnonzero(pi)
    chosen = sp.csr_array((pi.reshape(-1)[rows], rows, np.r_[0, np.cumsum((pi > 0).sum(1))]), shape=(N, N * A))
    return chosen @ transition


def chain_values(
    transition: Any, reward: FloatArray, ending: FloatArray, gamma: float, horizon: int | None = None
) -> FloatArray:
    """[N]: the expected discounted sum of rewards from each node of a Markov chain, for ever or for `horizon` steps."""
    N = len(reward)
    if horizon is not None:
        v = np.zeros(N)
        for _ in range(horizon):
            v = reward + gamma * (transition @ v)
        return v
    endless = np.zeros(N, dtype=np.bool_) if gamma < 1 else ~ends_surely(transition, ending)
    v = np.full(N, -np.inf)
    keep = np.flatnonzero(~endless)
    if endless.any():
        if not (reward[endless] < 0).all():
            raise ValueError(
                "gamma is 1, an episode may go on for ever, and not every step costs: its value is not defined. "
                "Fix: negative rewards, a gamma below 1, or a horizon."
            )
        transition = transition[keep][:, keep]
    if len(keep):
        v[keep] = _eliminate(transition, reward[keep], ending[keep], gamma)
    return v


def chain_visits(transition: Any, start: FloatArray, gamma: float) -> FloatArray:
    """[N]: how often, discounted, a Markov chain from `start` is in each node."""
    visits = np.zeros(len(start))
    met = np.flatnonzero(can_reach(transition.T, np.flatnonzero(start)))  # the others may be in no order
    system = sp.csc_array(sp.eye_array(len(met)) - gamma * transition[met][:, met].T)
    visits[met] = np.maximum(splu(system).solve(start[met]), 0)
    return visits


def _eliminate(transition: Any, reward: FloatArray, ending: FloatArray, gamma: float) -> FloatArray:
    """[N]: V = r + gamma T V, for a chain that has an end or a discount."""
    N = len(reward)
    system = sp.csc_array(sp.eye_array(N) - gamma * transition)
    try:
        factors = splu(system)
        v: FloatArray = factors.solve(reward)
        v = v + factors.solve(reward - system @ v)  # one refinement: long episodes cost digits
        if gamma < 1 or np.abs(factors.solve(ending) - 1).max() < _DIGITS:  # it ends with probability 1
            return v
    except RuntimeError:  # singular to working precision
        pass
    if N > _DENSE:
        raise ValueError(
            f"episodes of {N:,} nodes are so long, 1e8 steps or more, that elimination loses its digits. "
            "Fix: a gamma below 1, or a horizon."
        )
    # Elimination without subtraction (Grassmann, Taksar and Heyman): every digit, however long the episodes.
    t, r, e = transition.toarray(), reward.copy(), ending.copy()
    leave = np.empty(N)
    for n in reversed(range(N)):
        leave[n] = t[n, :n].sum() + e[n]
        share = t[:n, n] / leave[n]
        t[:n, :n] += share[:, None] * t[n, :n]
        e[:n] += share * e[n]
        r[:n] += share * r[n]
    v = np.empty(N)
    for n in range(N):
        v[n] = (r[n] + t[n, :n] @ v[:n]) / leave[n]
    return v


def ends_surely(transition: Any, ending: FloatArray) -> BoolArray:
    """[N]: from which nodes a Markov chain ends with probability 1."""
    can_end = can_reach(transition, np.flatnonzero(ending > 0))
    return ~can_reach(transition, np.flatnonzero(~can_end))


def can_reach(transition: Any, goals: IntArray) -> BoolArray:
    """[N]: from which nodes some path leads into `goals`."""
    N = transition.shape[0]
    reached = np.zeros(N + 1, dtype=np.bool_)
    if len(goals):
        edges = transition.tocoo()
        held = edges.data > 0
        # All edges turned round, and a node N with an edge to every goal, to start from.
        source = np.concatenate([edges.col[held], np.full(len(goals), N)])
        target = np.concatenate([edges.row[held], goals])
        backward = sp.csr_array((np.ones(len(source)), (source, target)), shape=(N + 1, N + 1))
        reached[breadth_first_order(backward, N, return_predecessors=False)] = True
    return reached[:N]
