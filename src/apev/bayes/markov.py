"""The best policy that cannot adapt: a stochastic Markov policy pi(a | s), climbed to with exact gradients.

    J(pi)         = sum_k P(M_k) rho_k . V_k               V_k = r_k + gamma T_k V_k           (pi makes T_k and r_k)
    dJ / dpi(a|s) = sum_k P(M_k) d_k(s) Q_k(s, a)          d_k = rho_k + gamma T_k' d_k        (how often s is visited)

One sparse factorisation a hypothesis gives both V_k and d_k. L-BFGS climbs in the logits from several starts; then weights
near 0 and 1 are set to 0 and 1, and single states are changed for as long as that helps, also by large steps: with all other
states fixed, each J_k is a ratio of two linear functions of pi(. | s), known exactly for every step size. In worlds of a few
states all policies that draw nothing are looked at, too.

Finding the best Markov policy is NP-hard in general, so that a climb proves nothing by itself. What is known about the answer
is in its `Certificate`; with `boxes`, branch and bound (`apev.bayes.bound`) proves more where hypotheses differ in few states.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from scipy.sparse.linalg import splu

from apev.bayes.bound import bound_markov
from apev.bayes.evaluate import can_reach, ends_surely, evaluate_markov, markov_chain
from apev.bayes.graph import check_probabilities
from apev.bayes.mdp import FloatArray, Posterior
from apev.bayes.solver import Solution, optimal_values, solve

_STEPS = np.linspace(0, 1, 65)[1:]  # how much of a state's weight a deviation moves
_POLISHED = 3  # of the best climbs, how many are then changed state by state
_CORNERS = 256  # policies that draw nothing, if no more, are all looked at: climbs may all end at a lesser one
_SAME = 1e-7  # climbs whose values agree to this, relatively, found the same


@dataclass(frozen=True, eq=False)
class Certificate:
    """What is known about how good a Markov policy is."""

    upper_bound: float
    """Proven: no Markov policy is worth more. The smallest of the bounds below that could be computed."""
    bayes_optimal: float | None
    """The best adaptive policy's value, a bound on every Markov policy; None if its beliefs are too many."""
    clairvoyant: float
    """The mean of each hypothesis' own best value: what one who knew the truth would get."""
    boxed: float | None
    """What branch and bound over boxes of Markov policies has proven (`bound_markov`), if it was asked for."""
    stationarity: float
    """First-order gain left, sum over s of max_a dJ/dpi(a|s) - sum_a pi(a|s) dJ/dpi(a|s). 0: a stationary point."""
    single_state_gain: float
    """The most any policy gains that moves 1/64, 2/64, ... or all of one state's weight to one action. Exact, not local."""
    climbs: int
    """How many starts were climbed from; climbing stops early at a policy that attains the bound."""
    agreeing: int
    """How many of them ended at the best value."""


@dataclass(frozen=True, eq=False)
class MarkovResult:
    """The best Markov policy found, its exact value, and what is known about it."""

    policy: FloatArray  # [S, A]
    value: float
    values: FloatArray  # [K] in each hypothesis
    certificate: Certificate


def best_markov(
    posterior: Posterior,
    restarts: int = 8,
    seed: int = 0,
    boxes: int = 0,
    solution: Solution | None = None,
    max_nodes: int = 200_000,
) -> MarkovResult:
    """Climb from the uniform policy, from each hypothesis' optimum, from the adaptive one, and from `restarts` random starts.

    `boxes` is how many boxes `bound_markov` may look at to prove how good the result is. Pass the Bayes-optimal `solution` if
    you have it; it is solved for otherwise, and done without if that takes more than `max_nodes`.
    """
    if solution is not None and solution.horizon is not None:
        raise ValueError("the solution has a horizon, and bounds no policy that goes on for ever. Fix: solve(posterior).")
    clairvoyant = float(posterior.prior @ optimal_values(posterior))
    if solution is None:
        try:
            solution = solve(posterior, max_nodes=max_nodes)
        except ValueError as problem:
            if "max_nodes" not in str(problem):
                raise
    adaptive = None if solution is None else solution.value
    upper = clairvoyant if adaptive is None else min(adaptive, clairvoyant)
    objective = _Objective(posterior)
    ends: list[tuple[float, FloatArray]] = []
    for start in _starts(posterior, solution, restarts, np.random.default_rng(seed)):
        climbed = objective.climb(start, upper)
        if climbed is not None:
            ends.append(_snap(posterior, climbed))
        if ends and ends[-1][0] >= upper - _SAME * max(1, abs(upper)):
            break  # as good as the bound: nothing better exists
    if not ends:
        raise ValueError(
            "no Markov policy that was tried is sure to end the episode, so that all are worth minus infinity. "
            "Fix: a gamma below 1, or a world where random actions end the episode."
        )
    ends.sort(key=lambda end: -end[0])
    ends[:_POLISHED] = [_polish(posterior, *end) for end in ends[:_POLISHED]]
    value, policy = max(ends, key=lambda end: end[0])
    corner = _best_corner(posterior)
    if corner is not None and corner[0] > value:
        value, policy = _polish(posterior, *corner)
    agreeing = sum(v >= value - _SAME * max(1, abs(value)) for v, _ in ends)
    boxed = None
    if boxes and solution is not None:
        bound = bound_markov(posterior, policy, max_boxes=boxes)
        upper, boxed = min(upper, bound.upper), bound.upper
        if bound.lower > value:  # it came across a better one
            value, policy = bound.lower, bound.policy
    gains = single_state_gains(posterior, policy)
    certificate = Certificate(
        upper_bound=upper,
        bayes_optimal=adaptive,
        clairvoyant=clairvoyant,
        boxed=boxed,
        stationarity=stationarity(posterior, policy),
        single_state_gain=max(float(gains.max()), 0.0),
        climbs=len(ends),
        agreeing=agreeing,
    )
    return MarkovResult(policy, value, evaluate_markov(posterior, policy).values, certificate)


def value_and_gradient(posterior: Posterior, policy: ArrayLike) -> tuple[float, FloatArray]:
    """J(pi) and dJ/dpi(a|s) [S, A], exact, for a policy that gives every action some weight."""
    pi = check_probabilities(policy, posterior.num_states, posterior.num_actions)
    return _Objective(posterior).value_and_gradient(pi)


def stationarity(posterior: Posterior, policy: ArrayLike) -> float:
    """The first-order gain left at `policy`: 0 at a stationary point of J over all Markov policies."""
    pi = check_probabilities(policy, posterior.num_states, posterior.num_actions)
    gradient = np.zeros(pi.shape)  # relative to pi's own value: dJ/dpi up to a constant in each state
    for weight, visits, advantage, _ in _parts(posterior, pi):
        met = visits > 0
        gradient[met] += weight * visits[met, None] * advantage[met]
    return float(np.maximum(gradient.max(1), 0).sum())


def single_state_gains(posterior: Posterior, policy: ArrayLike) -> FloatArray:
    """[S, A, 64]: what J gains, exactly, when i/64 of the weight of one state is moved to one action, i = 1..64."""
    pi = check_probabilities(policy, posterior.num_states, posterior.num_actions)
    gains = np.zeros((*pi.shape, len(_STEPS)))
    for weight, visits, advantage, back in _parts(posterior, pi):
        # Sherman-Morrison for a change of one row of T: the whole dependence on the step size.
        left = 1 - _STEPS * back[..., None]  # [S, A, 64]: 0 if the deviation would never leave
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = weight * visits[:, None, None] * _STEPS * advantage[..., None] / left
        gain = np.where(left > 1e-12, gain, -np.inf)
        gains += np.where(visits[:, None, None] > 0, gain, 0.0)
    return gains


def _parts(posterior: Posterior, pi: FloatArray) -> list[tuple[float, FloatArray, FloatArray, FloatArray]]:
    """For each hypothesis: weight, visits [S], advantages [S, A], and how much an action raises the visits to its own state."""
    gamma, S = posterior.gamma, posterior.num_states
    parts = []
    for k, mdp in enumerate(posterior.mdps):
        transition, reward, ending = markov_chain(posterior, pi, k)
        keep = np.flatnonzero(ends_surely(transition, ending)) if gamma == 1 else np.arange(S)
        visits_from = np.zeros((S, S))  # [from, to]
        dense = transition[keep][:, keep].toarray()
        visits_from[np.ix_(keep, keep)] = np.linalg.inv(np.eye(len(keep)) - gamma * dense)
        values = np.full(S, -np.inf)
        values[keep] = visits_from[np.ix_(keep, keep)] @ reward[keep]
        live = np.where(mdp.terminal[mdp.next_state], 0.0, mdp.probability)  # [S, A, M]
        with np.errstate(invalid="ignore"):
            following = np.where(live > 0, live * values[mdp.next_state], 0.0).sum(-1)
            advantage = mdp.expected_reward + gamma * following - values[:, None]
        again = (live * visits_from[mdp.next_state, np.arange(S)[:, None, None]]).sum(-1)  # [S, A]
        back = gamma * (again - (pi * again).sum(1, keepdims=True))
        visits = mdp.start @ visits_from
        visits[mdp.terminal] = 0
        advantage[np.isnan(advantage)] = -np.inf
        parts.append((float(posterior.prior[k]), visits, advantage, back))
    return parts


class _Objective:
    """J and its gradient at policies that give every action some weight: same sparsity each time, so it is stored once."""

    def __init__(self, posterior: Posterior) -> None:
        self.posterior = posterior
        S, A = posterior.num_states, posterior.num_actions
        self.parts = []
        for k, mdp in enumerate(posterior.mdps):
            uniform, _, _ = markov_chain(posterior, np.full((S, A), 1 / A), k)
            met = can_reach(uniform.T.tocsr(), np.flatnonzero(mdp.start))  # states that no policy meets may never end
            usable = (mdp.probability > 0) & (met & ~mdp.terminal)[:, None, None] & ~mdp.terminal[mdp.next_state]
            s, a, m = np.nonzero(usable)
            following, p = mdp.next_state[s, a, m], mdp.probability[s, a, m]
            # The matrix I - gamma T by columns; place: where in its data each transition is added.
            places, place = np.unique(np.r_[following * S + s, np.arange(S) * (S + 1)], return_inverse=True)
            first = np.searchsorted(places, np.arange(S + 1) * S)
            matrix = sp.csc_array((np.ones(len(places)), places % S, first), shape=(S, S))
            reward = np.where((met & ~mdp.terminal)[:, None], mdp.expected_reward, 0.0)
            ending = np.where((met & ~mdp.terminal)[:, None], mdp.ending, 0.0)
            self.parts.append((s * A + a, following, p, place, matrix, reward, ending))

    def value_and_gradient(self, pi: FloatArray) -> tuple[float, FloatArray]:
        """J and dJ/dpi [S, A]; minus infinity where an episode may go on for ever."""
        gamma, (S, A) = self.posterior.gamma, pi.shape
        value, gradient = 0.0, np.zeros((S, A))
        for k, (sa, following, p, place, matrix, reward, ending) in enumerate(self.parts):
            weights = np.concatenate([-gamma * pi.reshape(-1)[sa] * p, np.ones(S)])
            matrix.data = np.bincount(place, weights, minlength=len(matrix.data))
            start = self.posterior.start[k]
            try:
                factors = splu(matrix)
            except RuntimeError:  # exactly singular
                return -np.inf, gradient
            v = factors.solve((pi * reward).sum(1))
            visits = factors.solve(start, trans="T")
            if gamma == 1 and abs(visits @ (pi * ending).sum(1) - 1) > 1e-6:
                return -np.inf, gradient  # so long that the digits are gone: of no use as a policy either
            q = reward + gamma * np.bincount(sa, p * v[following], minlength=S * A).reshape(S, A)
            value += self.posterior.prior[k] * float(start @ v)
            gradient += self.posterior.prior[k] * visits[:, None] * q
        return value, gradient

    def climb(self, pi: FloatArray, upper: float) -> FloatArray | None:
        """L-BFGS in the logits from `pi`; on log(-J) where J is negative everywhere, since it can be huge.

        A value above `upper`, which none can have, is one whose digits are gone.
        """
        shape, logarithmic, most = pi.shape, upper < 0, upper + 1e-6 * abs(upper)
        for _ in range(10):
            first, _ = self.value_and_gradient(pi)
            if np.isfinite(first) and first <= most:
                break
            pi = (pi + 1 / shape[1]) / 2  # too sure of itself to be of use in every hypothesis
        else:
            return None
        scale = max(abs(first), 1e-300)

        def loss(flat: FloatArray) -> tuple[float, FloatArray]:
            p = _softmax(flat.reshape(shape))
            value, gradient = self.value_and_gradient(p)
            slope = (p * (gradient - (p * gradient).sum(1, keepdims=True))).reshape(-1)
            if not np.isfinite(value) or value > most:
                return 1e300, np.zeros_like(flat)
            return (float(np.log(-value)), slope / value) if logarithmic else (-value / scale, -slope / scale)

        settings = {"maxiter": 2000, "maxfun": 4000, "ftol": 1e-16, "gtol": 1e-13, "maxcor": 30}
        found = minimize(loss, np.log(pi).reshape(-1), jac=True, method="L-BFGS-B", options=settings)
        return _softmax(found.x.reshape(shape))


def _starts(posterior: Posterior, solution: Solution | None, restarts: int, rng: np.random.Generator) -> list[FloatArray]:
    """Policies to climb from; each gives every action some weight."""
    S, A = posterior.num_states, posterior.num_actions
    uniform = np.full((S, A), 1 / A)
    starts = [uniform]
    for mdp in posterior.mdps:
        graph_of = solve(Posterior([mdp]))
        pi = uniform.copy()
        pi[graph_of.graph.states] = np.eye(A)[graph_of.actions]
        starts.append(0.8 * pi + 0.2 * uniform)
    if solution is not None:
        # What the adaptive policy does in a state, averaged over the beliefs it may have there.
        pi = np.full((S, A), 1e-9)
        np.add.at(pi, (solution.graph.states, solution.actions), 1.0)
        starts.append(0.8 * pi / pi.sum(1, keepdims=True) + 0.2 * uniform)
    return starts + [_softmax(rng.normal(size=(S, A))) for _ in range(restarts)]


def _best_corner(posterior: Posterior) -> tuple[float, FloatArray] | None:
    """The best policy that draws nothing, of all there are; None where they are many."""
    S, A = posterior.num_states, posterior.num_actions
    if A**S > _CORNERS:
        return None
    corners = [np.eye(A)[list(actions)] for actions in product(range(A), repeat=S)]
    values = [evaluate_markov(posterior, pi).mean for pi in corners]
    best = int(np.argmax(values))
    return values[best], corners[best]


def _softmax(logits: FloatArray) -> FloatArray:
    weights: FloatArray = np.exp(logits - logits.max(1, keepdims=True))
    normed: FloatArray = weights / weights.sum(1, keepdims=True)
    return normed


def _snap(posterior: Posterior, pi: FloatArray) -> tuple[float, FloatArray]:
    """Weights near 0 become 0 where that does no harm: a climb in logits comes near to certainty but never arrives."""
    value, best = evaluate_markov(posterior, pi).mean, pi
    for small in (1e-8, 1e-6, 1e-4, 1e-3, 1e-2):
        held = np.where(pi < small, 0.0, pi)
        held /= held.sum(1, keepdims=True)
        snapped = evaluate_markov(posterior, held).mean
        if snapped >= value:
            value, best = snapped, held
    return value, best


def _polish(posterior: Posterior, value: float, pi: FloatArray) -> tuple[float, FloatArray]:
    """Change the state that gains most, again and again, while the exact value rises."""
    S, A = pi.shape
    for _ in range(4 * S):
        gains = single_state_gains(posterior, pi)
        s, a, i = np.unravel_index(int(gains.argmax()), gains.shape)
        if gains[s, a, i] <= 1e-9 * max(1.0, abs(value)):
            break
        changed = pi.copy()
        changed[s] = (1 - _STEPS[i]) * pi[s] + _STEPS[i] * np.eye(A)[a]
        new = evaluate_markov(posterior, changed).mean
        if new <= value:
            break
        value, pi = new, changed
    return value, pi
