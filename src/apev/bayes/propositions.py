"""Propositions 5.1 to 5.3 measured on random problems, each by a route that does not assume what it tests.

    5.1   the best policy of state and belief is worth as much as the best policy of the whole history
    5.2   the gradient of the Bayesian objective is that of the belief-weighted values
    5.3   the values satisfy a Bellman equation with the *updated* belief b' on the right, not with b

Two things the paper leaves to the reader: with a horizon, the steps left are part of the state; and in 5.2 the expectation
over histories is a sum over steps t, each weighted with gamma^t.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apev.bayes.evaluate import History, evaluate_history
from apev.bayes.graph import BeliefGraph, Outcomes, build_graph
from apev.bayes.mdp import FloatArray, IntArray, Posterior
from apev.bayes.random_worlds import random_posterior
from apev.bayes.solver import solve


@dataclass(frozen=True)
class BeliefSuffices:
    """Proposition 5.1: how far the best belief policy is from the best history policy."""

    problems: int
    policies_tried: int  # every deterministic history policy of the short problems, one by one
    worst_gap_enumerated: float  # largest |difference| of values there
    worst_gap_tree: float  # largest |difference| on longer problems, searched history by history


def belief_suffices(problems: int = 20, seed: int = 0) -> BeliefSuffices:
    """Solve random noisy problems over (state, belief), and by brute force over histories."""
    rng = np.random.default_rng(seed)
    tried, enumerated, tree = 0, 0.0, 0.0
    for _ in range(problems):
        posterior = random_posterior(rng, states=2, hypotheses=int(rng.integers(2, 4)))
        best, count = best_history_policy(posterior, horizon=2)
        tried += count
        enumerated = max(enumerated, abs(best - solve(posterior, horizon=2).value))
        posterior = random_posterior(rng, states=3, hypotheses=3)
        tree = max(tree, abs(search_histories(posterior, horizon=4) - solve(posterior, horizon=4).value))
    return BeliefSuffices(problems, tried, enumerated, tree)


def best_history_policy(posterior: Posterior, horizon: int) -> tuple[float, int]:
    """The value of the best deterministic history policy, by evaluating all of them, and how many there are."""
    histories: dict[History, int] = {}

    def note(history: History) -> FloatArray:
        histories.setdefault(history, len(histories))
        return np.full(posterior.num_actions, 1 / posterior.num_actions)  # tries everything: all histories are met

    evaluate_history(posterior, note, horizon)
    policies = list(product(range(posterior.num_actions), repeat=len(histories)))
    best = max(evaluate_history(posterior, lambda h, p=p: p[histories[h]], horizon).mean for p in policies)  # type: ignore[misc]
    return best, len(policies)


def search_histories(posterior: Posterior, horizon: int) -> float:
    """The same by searching the tree of histories: every history its own decision, no beliefs and no merging."""
    outcomes, A = Outcomes.of(posterior), posterior.num_actions

    def search(state: int, weight: FloatArray, left: int) -> float:
        """weight: [K] prior times probability of the history so far."""
        gain = np.zeros(A)
        for o in range(outcomes.first[state], outcomes.first[state + 1]) if left else ():
            after = weight * outcomes.likelihood[o]
            if after.any():
                rest = 0.0 if outcomes.terminated[o] else search(int(outcomes.next_state[o]), after, left - 1)
                gain[outcomes.action[o]] += after.sum() * outcomes.reward[o] + posterior.gamma * rest
        return float(gain.max())

    first = np.flatnonzero(posterior.prior @ posterior.start)
    return sum(search(int(s), posterior.prior * posterior.start[:, s], horizon) for s in first)


@dataclass(frozen=True)
class PolicyGradient:
    """Proposition 5.2: the formula against automatic differentiation, relative to the gradient's largest entry."""

    problems: int
    worst_error: float  # belief-weighted formula
    worst_error_unweighted: float  # the same with b = 1: the values averaged under the prior, nothing learnt from h
    median_error_unweighted: float


def policy_gradient(problems: int = 20, horizon: int = 4, seed: int = 0) -> PolicyGradient:
    """Random smooth policies pi_theta(a | s, b): noisy problems with a horizon, eliminating ones without."""
    rng = np.random.default_rng(seed)
    errors, unweighted = [], []
    for i in range(problems):
        steps = horizon if i % 2 == 0 else None
        posterior = random_posterior(rng, states=3, hypotheses=3, kind="noisy" if steps else "eliminating")
        autograd, formula, plain = gradients(posterior, torch.from_numpy(rng.normal(size=(3, 2, 4))), steps)
        size = float(autograd.abs().max())
        errors.append(float((formula - autograd).abs().max()) / size)
        unweighted.append(float((plain - autograd).abs().max()) / size)
    return PolicyGradient(problems, max(errors), max(unweighted), float(np.median(unweighted)))


def gradients(posterior: Posterior, theta: Tensor, horizon: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """dJ/dtheta for pi_theta(a | s, b) = softmax(theta[s, a] . (1, b)), theta [S, A, 1 + K] in float64, three times.

    By automatic differentiation of the exact objective; by Proposition 5.2; and by it without the weights b(h).
    """
    graph = build_graph(posterior, depth=horizon)
    K, N, gamma = len(posterior), len(graph), posterior.gamma
    P, R = _as_tensors(graph)  # [K, N, A, N], [K, N, A]
    prior = torch.from_numpy(posterior.prior)
    beliefs = torch.from_numpy(graph.node_beliefs)
    inputs = torch.cat([torch.ones(N, 1, dtype=torch.float64), beliefs], 1)  # [N, 1 + K]
    start = torch.zeros(K, N, dtype=torch.float64)
    start[:, graph.root] = torch.from_numpy(posterior.start[:, graph.states[graph.root]])

    def policy(parameters: Tensor) -> Tensor:
        return torch.einsum("nai,ni->na", parameters[torch.from_numpy(graph.states)], inputs).softmax(-1)

    # Automatic differentiation: push each hypothesis' distribution over nodes forward, add up the rewards.
    leaf = theta.clone().requires_grad_()
    pi = policy(leaf)
    T, r = torch.einsum("na,knam->knm", pi, P), torch.einsum("na,kna->kn", pi, R)
    if horizon is None:
        visits = torch.linalg.solve(torch.eye(N) - gamma * T.mT, start)
        objective = (prior[:, None] * visits * r).sum()
    else:
        objective, here = torch.zeros((), dtype=torch.float64), start
        for t in range(horizon):
            objective = objective + gamma**t * (prior[:, None] * here * r).sum()
            here = torch.einsum("kn,knm->km", here, T)
    (autograd,) = torch.autograd.grad(objective, leaf)

    # The proposition: values backward, visits forward, and only pi differentiated.
    with torch.no_grad():
        forward = [start]
        for _ in range(horizon or _forever(gamma)):
            forward.append(gamma * torch.einsum("kn,knm->km", forward[-1], T))
        q, values = R, [R]
        for _ in range(horizon or _forever(gamma)):
            q = R + gamma * torch.einsum("knam,km->kna", P, (pi * q).sum(-1))
            values.append(q)  # values[i]: with i more steps to go after this one
        relative = beliefs / prior  # [N, K]
    answers = []
    for weight in (relative, torch.ones_like(relative)):
        leaf = theta.clone().requires_grad_()
        pi = policy(leaf)
        target = torch.zeros((), dtype=torch.float64)
        steps = range(horizon) if horizon else [0]
        for t in steps:
            met = prior @ (forward[t] if horizon else torch.stack(forward).sum(0))  # [N] gamma^t Pr(h_t)
            mean = torch.einsum("k,nk,kna->na", prior, weight, values[horizon - 1 - t] if horizon else values[-1])
            target = target + (met[:, None] * pi * mean).sum()
        answers.append(torch.autograd.grad(target, leaf)[0])
    return autograd, answers[0], answers[1]


@dataclass(frozen=True)
class ValueRecursion:
    """Proposition 5.3: how far exact values are from satisfying the recursion, with b' and with b on the right."""

    problems: int
    worst_with_updated: float  # max |Q - (r + gamma E Q(s', b', a'))|
    worst_with_old: float  # max |Q - (r + gamma E Q(s', b, a'))|
    mean_with_old: float  # over all states, beliefs, actions and hypotheses still believed in
    share_wrong_with_old: float  # of them, how many are off by more than 1e-6


def value_recursion(problems: int = 20, seed: int = 0) -> ValueRecursion:
    """Random policies on random problems; values are sums of discounted rewards, not solutions of the recursion."""
    rng = np.random.default_rng(seed)
    updated, old = [], []
    for i in range(problems):
        posterior = random_posterior(rng, states=4, hypotheses=3, kind=("eliminating", "certain")[i % 2])
        graph = build_graph(posterior, everywhere=True)
        pi = rng.dirichlet(np.ones(posterior.num_actions), size=len(graph))
        with_updated, with_old = recursion_residuals(graph, pi)
        updated.append(with_updated)
        old.append(with_old)
    off = np.concatenate(old)
    return ValueRecursion(
        problems, float(np.concatenate(updated).max()), float(off.max()), float(off.mean()), float((off > 1e-6).mean())
    )


def recursion_residuals(graph: BeliefGraph, pi: FloatArray) -> tuple[FloatArray, FloatArray]:
    """|Q - backup| with b' and with b, at all (node, action, hypothesis) whose hypothesis has weight at the node."""
    updated, old = [], []
    gamma = graph.posterior.gamma
    node_of = same_belief(graph)
    for k, mdp in enumerate(graph.posterior.mdps):
        transition, reward, _ = graph.hypothesis(k)
        q = discounted_sums(graph, pi, k)
        v = (pi * q).sum(1)
        held = graph.node_beliefs[:, k] > 0
        updated.append(np.abs(q - reward - gamma * (transition @ v).reshape(q.shape))[held].reshape(-1))
        following = node_of[graph.belief_of[:, None, None], mdp.next_state[graph.states]]  # [N, A, M]: (s', b)
        frozen = (mdp.probability[graph.states] * v[following]).sum(-1)
        old.append(np.abs(q - reward - gamma * frozen)[held].reshape(-1))
    return np.concatenate(updated), np.concatenate(old)


def discounted_sums(graph: BeliefGraph, pi: FloatArray, k: int) -> FloatArray:
    """[N, A]: Q_k from its definition, the sum over t of gamma^t times the mean reward after t steps."""
    transition, reward, _ = graph.hypothesis(k)
    mean = reward.copy()  # [N, A] mean reward t steps after taking the action
    total = reward.copy()
    for t in range(1, _forever(graph.posterior.gamma)):
        mean = (transition @ (pi * mean).sum(1)).reshape(reward.shape)
        total = total + graph.posterior.gamma**t * mean
    return total


def same_belief(graph: BeliefGraph) -> IntArray:
    """[B, S]: the node of each belief in each state, for graphs built `everywhere`."""
    table = np.full((len(graph.beliefs), graph.posterior.num_states), -1, dtype=np.int64)
    table[graph.belief_of, graph.states] = np.arange(len(graph))
    return table


def _forever(gamma: float) -> int:
    """Steps after which what is left is below rounding."""
    return int(np.ceil(np.log(1e-17) / np.log(gamma)))


def _as_tensors(graph: BeliefGraph) -> tuple[Tensor, Tensor]:
    """Dense transitions [K, N, A, N] and rewards [K, N, A] of small graphs; from the rim of a horizon no way leads on."""
    N, A = graph.reward.shape
    parts: list[tuple[Any, FloatArray, FloatArray]] = [graph.hypothesis(k) for k in range(len(graph.posterior))]
    P = np.stack([transition.toarray().reshape(N, A, N) for transition, _, _ in parts])
    return torch.from_numpy(P), torch.from_numpy(np.stack([reward for _, reward, _ in parts]))
