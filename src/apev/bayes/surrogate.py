"""The surrogate belief against the true one, when every member is an exact value function.

The paper replaces the likelihood of a transition by a surprise of the values, log p_k = -delta_k^2, and argues that the two
are aligned. Here nothing is learned, so that whatever is lost is lost by the surrogate itself:

    alone     Q*_k, the optimum of hypothesis k       delta_k = Q_k(s, a) - r - gamma max_a' Q_k(s', a')
    printed   Q_k^pi(s, b, a), the Bayes-optimal pi   delta_k = Q_k(s, b, a) - r - gamma Q_k(s', b, a'),  a' ~ pi(s', b)
    updated   the same                                delta_k = Q_k(s, b, a) - r - gamma Q_k(s', b', a'), a' ~ pi(s', b')

`printed` is the paper's surrogate equation; `updated` has the belief of Proposition 5.3 on the right, which a real agent
does not have before the update. Both need finitely many beliefs, hence no noisy worlds.

What can be said without measuring: in a world of certain moves the true hypothesis has delta = 0 for `alone` and `updated`,
so that it is never ranked below another, only tied: with hypotheses that expect the same r + gamma V(s') from other
transitions. Where moves are random, delta is the distance from a *mean*: the truth pays for its own noise, and a false
hypothesis that foresees a likely mean with an impossible transition is preferred.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from scipy.stats import spearmanr

from apev.bayes.epistemic import belief_update
from apev.bayes.graph import build_graph
from apev.bayes.mdp import FloatArray, Posterior
from apev.bayes.propositions import same_belief
from apev.bayes.random_worlds import Dispute, Kind, random_posterior
from apev.bayes.solver import optimise

Members = Literal["alone", "printed", "updated"]
Errors = Callable[[FloatArray, int, int, float, int, FloatArray], FloatArray]  # b, s, a, r, s', b' -> [K] TD errors

_EPISODES = 4  # in each random problem
_EQUAL = 1e-9  # TD errors, and likelihoods, closer than this count as tied


@dataclass(frozen=True)
class SurrogateReport:
    """How the squared TD error ranks hypotheses against the true likelihood, over steps that tell them apart."""

    kind: str
    about: str
    members: str
    steps: int  # in which likelihoods differed between hypotheses still possible
    pairs_right: float  # of two hypotheses of unequal likelihood, how often the likelier has the smaller error (tie: 1/2)
    pairs_tied: float  # how often the errors are equal: the evidence is invisible in the values
    top_right: float  # how often the smallest error belongs to a hypothesis of greatest likelihood (ties shared)
    rank_correlation: float  # Spearman's, of -delta^2 and likelihood, mean over steps where both vary
    truth_error: float  # mean |delta| of the true hypothesis in these steps: what it wrongly pays
    step_distance: float  # total variation between b' of exact Bayes and of exp(-delta^2), as printed, from the same b
    step_distance_calibrated: float  # the same with exp(-delta^2 / (2 sigma^2)), sigma the truth's error over all steps
    belief_exact: float  # mean weight of the truth at the end of an episode under exact Bayes
    belief_surrogate: float  # the same when exp(-delta^2) was the likelihood all along
    belief_calibrated: float  # the same with sigma


def measure_surrogate(
    kind: Kind = "certain",
    about: Dispute = "both",
    members: Members = "alone",
    problems: int = 40,
    steps: int = 15,
    seed: int = 0,
) -> SurrogateReport:
    """Walk at random in random worlds, each with a hypothesis drawn from its prior as the truth."""
    if members not in get_args(Members):
        raise ValueError(f"members {members!r}. Fix: one of {get_args(Members)}.")
    if members != "alone" and kind == "noisy":
        raise ValueError("in noisy worlds beliefs never repeat, so that Q(s, b, a) is no table. Fix: members='alone'.")
    rng = np.random.default_rng(seed)
    walks = []
    for _ in range(problems):
        posterior = random_posterior(rng, states=5, hypotheses=4, kind=kind, about=about)
        errors = _alone(posterior) if members == "alone" else _adaptive(posterior, members == "updated")
        for _ in range(_EPISODES):
            truth = int(rng.choice(len(posterior), p=posterior.prior))
            walks.append(_walk(posterior, errors, truth, steps, rng))
    likelihood, squared = (np.concatenate([getattr(w, name) for w in walks]) for name in ("likelihood", "squared"))
    before, after = (np.concatenate([getattr(w, name) for w in walks]) for name in ("before", "after"))
    paid = np.concatenate([w.squared[:, w.truth] for w in walks])
    # One sigma for all, from the true hypotheses' errors: what a held-out set would give.
    scale = max(2 * float(paid.mean()), _EQUAL)
    informative = np.nanmax(likelihood, 1) - np.nanmin(likelihood, 1) > _EQUAL

    def apart(scale: float) -> float:
        weights = before * np.exp(-(squared - squared.min(1, keepdims=True)) / scale)
        return float(np.abs(weights / weights.sum(1, keepdims=True) - after)[informative].sum(1).mean() / 2)

    def at_end(scale: float) -> float:
        return float(np.mean([_softmax(np.log(w.before[0]) - w.squared.sum(0) / scale)[w.truth] for w in walks]))

    return SurrogateReport(
        kind,
        about,
        members,
        *_rankings(likelihood[informative], squared[informative]),
        truth_error=float(np.sqrt(paid[informative]).mean()),
        step_distance=apart(1.0),
        step_distance_calibrated=apart(scale),
        belief_exact=float(np.mean([w.after[-1, w.truth] for w in walks])),
        belief_surrogate=at_end(1.0),
        belief_calibrated=at_end(scale),
    )


def _rankings(likelihood: FloatArray, squared: FloatArray) -> tuple[int, float, float, float, float]:
    """Steps, pairs_right, pairs_tied, top_right, rank_correlation; a NaN marks a hypothesis that was out already."""
    right = tied = pairs = 0.0
    tops, correlations = [], []
    for all_p, all_d in zip(likelihood, squared, strict=True):
        p, d = all_p[~np.isnan(all_p)], all_d[~np.isnan(all_p)]
        i, j = np.nonzero(p[:, None] > p + _EQUAL)  # i is likelier than j
        same = np.abs(d[i] - d[j]) <= _EQUAL
        right += ((d[i] < d[j]) & ~same).sum() + same.sum() / 2
        tied += same.sum()
        pairs += len(i)
        smallest = d <= d.min() + _EQUAL
        tops.append((p[smallest] >= p.max() - _EQUAL).mean())
        if np.ptp(d) > _EQUAL:
            correlations.append(spearmanr(-np.round(d, 9), np.round(p, 9)).statistic)
    return len(likelihood), float(right / pairs), float(tied / pairs), float(np.mean(tops)), float(np.mean(correlations))


@dataclass(frozen=True, eq=False)
class _Walk:
    """One episode in hypothesis `truth`."""

    truth: int
    likelihood: FloatArray  # [steps, K]; NaN where a hypothesis was out already
    squared: FloatArray  # [steps, K] squared TD errors
    before: FloatArray  # [steps, K] exact beliefs
    after: FloatArray  # [steps, K]


def _walk(posterior: Posterior, errors: Errors, truth: int, steps: int, rng: np.random.Generator) -> _Walk:
    """Random actions from the start."""
    mdp = posterior.mdps[truth]
    s, belief = 0, posterior.start_belief(0)
    rows = []
    for _ in range(steps):
        a = int(rng.integers(posterior.num_actions))
        m = int(rng.choice(mdp.probability.shape[2], p=mdp.probability[s, a]))
        following, r = int(mdp.next_state[s, a, m]), float(mdp.reward[s, a, m])
        after = belief_update(posterior, belief, s, a, r, following)
        likelihood = np.where(belief > 0, posterior.likelihood(s, a, r, following, terminated=False), np.nan)
        rows.append((likelihood, errors(belief, s, a, r, following, after) ** 2, belief, after))
        s, belief = following, after
    return _Walk(truth, *(np.stack(column) for column in zip(*rows, strict=True)))


def _softmax(log: FloatArray) -> FloatArray:
    weights: FloatArray = np.exp(log - log.max())
    normed: FloatArray = weights / weights.sum()
    return normed


def _alone(posterior: Posterior) -> Errors:
    """TD errors of each hypothesis' own optimal values."""
    gamma, tables = posterior.gamma, []
    for mdp in posterior.mdps:
        # Everywhere: a state this hypothesis never reaches may follow in another one.
        graph = build_graph(Posterior([mdp]), everywhere=True)
        v = np.zeros(posterior.num_states)
        v[graph.states] = optimise(graph)[0]
        tables.append(mdp.expected_reward + gamma * (mdp.probability * v[mdp.next_state]).sum(-1))
    q = np.stack(tables)  # [K, S, A]

    def errors(_: FloatArray, s: int, a: int, r: float, following: int, __: FloatArray) -> FloatArray:
        found: FloatArray = q[:, s, a] - r - gamma * q[:, following].max(1)
        return found

    return errors


def _adaptive(posterior: Posterior, updated: bool) -> Errors:
    """TD errors of the Bayes-optimal policy's values in each hypothesis, at the exact belief."""
    gamma, graph = posterior.gamma, build_graph(posterior, everywhere=True)
    actions = optimise(graph)[1]
    outcomes, node_of = graph.outcomes, same_belief(graph)
    N, A = graph.reward.shape
    # [N, O] where each outcome leads. What no hypothesis still believed in can explain leaves the belief as it is: only so
    # has a hypothesis that is out a value at all.
    target = node_of[graph.belief_of[:, None], outcomes.next_state]
    target[np.repeat(np.arange(N * A), np.diff(graph.first)) // A, graph.outcome] = graph.target
    state_of = np.repeat(np.arange(posterior.num_states), np.diff(outcomes.first))  # [O]
    n, o = np.nonzero(graph.states[:, None] == state_of)
    q = np.empty((len(posterior), N, A))
    for k, mdp in enumerate(posterior.mdps):
        transition = np.zeros((N, A, N))
        np.add.at(transition, (n, outcomes.action[o], target[n, o]), outcomes.likelihood[o, k])
        reward = mdp.expected_reward[graph.states]
        chosen = np.arange(N), actions
        v = np.linalg.solve(np.eye(N) - gamma * transition[chosen], reward[chosen])
        q[k] = reward + gamma * transition @ v

    def errors(b: FloatArray, s: int, a: int, r: float, following: int, after: FloatArray) -> FloatArray:
        here = graph.find(s, b)
        there = graph.find(following, after) if updated else int(node_of[graph.belief_of[here], following])
        delta: FloatArray = q[:, here, a] - r - gamma * q[:, there, actions[there]]
        return delta

    return errors
