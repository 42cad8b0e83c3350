"""The best Markov policy: exact gradients, a search that cannot beat it, and what its certificate proves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from apev.bayes import Posterior, TabularMDP, best_markov, bound_markov, evaluate_markov, random_posterior, solve
from apev.bayes.markov import single_state_gains, stationarity, value_and_gradient
from apev.experiments.theory.chain import chain

FAST = settings(max_examples=15, deadline=None)
FEW = settings(max_examples=6, deadline=None)
seeds = st.integers(0, 10_000)
kinds = st.sampled_from(["certain", "eliminating", "noisy"])


def two_doors(n: int = 3) -> Posterior:
    """A corridor with a door at each end, one of them locked, and a road to a third exit that takes 3n steps."""
    S = 2 * n + 1 + 3 * n
    k = np.arange(2 * n + 1)
    follow = np.zeros((S, 3), dtype=np.int64)
    follow[: 2 * n + 1] = np.stack([np.maximum(k - 1, 0), np.minimum(k + 1, 2 * n), k], axis=1)
    follow[n, 2] = 2 * n + 1
    for i in range(2 * n + 1, S):
        follow[i] = [i - 1 if i > 2 * n + 1 else n, min(i + 1, S - 1), i]
    return Posterior([TabularMDP.deterministic(follow, start=n, terminal=[goal, S - 1]) for goal in (2 * n, 0)])


def autograd(posterior: Posterior, pi: np.ndarray) -> tuple[float, np.ndarray]:
    """J and dJ/dpi by torch, through a dense linear solve in float64."""
    p = torch.from_numpy(pi).requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for weight, mdp in zip(posterior.prior, posterior.mdps, strict=True):
        live = ~mdp.terminal
        transition = torch.from_numpy(mdp.transition * live * live[:, None, None])
        reward = torch.from_numpy(mdp.expected_reward * live[:, None])
        chain_ = torch.einsum("sa,sat->st", p, transition)
        v = torch.linalg.solve(torch.eye(len(pi)) - posterior.gamma * chain_, (p * reward).sum(1))
        total = total + weight * torch.from_numpy(mdp.start) @ v
    (gradient,) = torch.autograd.grad(total, p)
    return float(total.detach()), gradient.numpy()


@FAST
@given(seeds, kinds)
def test_value_and_gradient_equal_automatic_differentiation(seed: int, kind: Any) -> None:
    rng = np.random.default_rng(seed)
    posterior = random_posterior(rng, kind=kind)
    pi = rng.dirichlet(np.ones(2), size=4)
    value, gradient = value_and_gradient(posterior, pi)
    expected, by_torch = autograd(posterior, pi)
    assert value == pytest.approx(expected, abs=1e-10)
    assert value == pytest.approx(evaluate_markov(posterior, pi).mean, abs=1e-10)
    # Only differences between actions matter: in states never visited under some policy both are 0.
    np.testing.assert_allclose(
        gradient - gradient.mean(1, keepdims=True), by_torch - by_torch.mean(1, keepdims=True), atol=1e-8
    )


@FAST
@given(seeds, kinds)
def test_single_state_gains_are_exact_for_every_step_size(seed: int, kind: Any) -> None:
    rng = np.random.default_rng(seed)
    posterior = random_posterior(rng, kind=kind)
    pi = rng.dirichlet(np.ones(2), size=4)
    gains = single_state_gains(posterior, pi)
    before = evaluate_markov(posterior, pi).mean
    for _ in range(5):
        s, a, i = rng.integers([4, 2, 64])
        changed = pi.copy()
        changed[s] = (1 - (i + 1) / 64) * pi[s] + (i + 1) / 64 * np.eye(2)[a]
        assert gains[s, a, i] == pytest.approx(evaluate_markov(posterior, changed).mean - before, abs=1e-9)


@FEW
@given(seeds, kinds)
@example(209, "certain")  # every climb ends at 5.8, a policy that draws nothing has 7.2
def test_no_random_markov_policy_beats_it(seed: int, kind: Any) -> None:
    rng = np.random.default_rng(seed)
    posterior = random_posterior(rng, kind=kind, states=3, hypotheses=2)
    result = best_markov(posterior, restarts=4, max_nodes=1000)
    assert kind == "noisy" or result.certificate.bayes_optimal is not None  # there beliefs may never repeat
    assert result.value == pytest.approx(evaluate_markov(posterior, result.policy).mean, abs=1e-12)
    assert result.value <= result.certificate.upper_bound + 1e-9
    assert result.certificate.single_state_gain < 1e-6
    for _ in range(300):
        pi = rng.dirichlet(np.full(2, rng.choice([0.1, 1.0])), size=3)
        assert evaluate_markov(posterior, pi).mean <= result.value + 1e-9
        near = 0.9 * result.policy + 0.1 * pi
        assert evaluate_markov(posterior, near).mean <= result.value + 1e-9


def test_every_deterministic_policy_is_worse_than_the_best_stochastic_one_where_doors_may_be_locked() -> None:
    posterior = chain(2)
    result = best_markov(posterior, restarts=2)
    for bits in range(32):
        pi = np.eye(2)[[bits >> i & 1 for i in range(5)]]
        assert evaluate_markov(posterior, pi).mean == -np.inf
    assert np.isfinite(result.value)


def test_a_certain_way_out_is_found_to_the_last_digit() -> None:
    """To and fro between the doors costs more than 3n + 1 steps down the road: the best Markov policy takes the road."""
    posterior = two_doors(4)
    result = best_markov(posterior, restarts=2)
    assert result.value == -12.0
    assert solve(posterior).value == -8.0
    assert stationarity(posterior, result.policy) == 0
    np.testing.assert_allclose(result.values, [-12, -12])
    assert result.certificate.bayes_optimal == -8.0
    assert result.certificate.clairvoyant == -4.0


def test_climbing_stops_at_a_policy_that_attains_the_bound() -> None:
    mdp = TabularMDP.deterministic([[1, 0], [2, 0], [2, 2]], terminal=[2])
    result = best_markov(Posterior([mdp, mdp]))
    assert result.value == -2
    assert result.certificate.upper_bound == pytest.approx(-2)
    assert result.certificate.climbs == 1


def test_branch_and_bound_closes_in_on_the_best_value() -> None:
    """Chain of n = 1: one state to decide, best -3. Bayes-optimal alone would only prove -2."""
    result = best_markov(chain(1), restarts=1, boxes=300)
    assert result.value == pytest.approx(-3)
    assert -3 <= result.certificate.upper_bound <= -2.97
    assert result.certificate.bayes_optimal == -2
    assert result.certificate.boxed == result.certificate.upper_bound
    bound = bound_markov(chain(2), tolerance=0.3, max_boxes=400)  # without being told a good policy
    assert bound.lower <= -11.656854 <= bound.upper + 1e-6
    assert bound.upper < -8  # twice what the adaptive value proves
    assert bound.gap == bound.upper - bound.lower


@FEW
@given(seeds)
def test_branch_and_bound_never_undercuts_a_policy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    posterior = random_posterior(rng, kind="eliminating", states=3, hypotheses=2)
    bound = bound_markov(posterior, max_boxes=60)
    best = best_markov(posterior, restarts=2).value
    assert bound.lower <= best + 1e-9
    assert best <= bound.upper + 1e-9
    assert bound.upper <= solve(posterior).value + 1e-6


def test_a_world_that_no_random_walk_leaves_is_named() -> None:
    trap = [[1, 2], [1, 1], [2, 2]]
    posterior = Posterior([TabularMDP.deterministic(trap, terminal=[2])])
    with pytest.raises(ValueError, match=r"minus infinity. Fix"):
        best_markov(posterior)


def test_a_solution_with_a_horizon_bounds_nothing() -> None:
    with pytest.raises(ValueError, match=r"the solution has a horizon.*Fix: solve.posterior."):
        best_markov(chain(2), solution=solve(chain(2), horizon=3))
