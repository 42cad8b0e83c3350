"""Theorem 4.1: the adaptive value, the best Markov value in closed form, and what the paper's proof says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

from apev.bayes import best_markov, evaluate_belief, evaluate_markov, solve
from apev.bayes.markov import value_and_gradient
from apev.experiments.theory.chain import (
    LEFT,
    RIGHT,
    adaptive_value,
    chain,
    chain_env,
    markov_policy,
    markov_value,
    paper_bound,
)


def passage(n: int, p: np.ndarray, start: int, goal: int) -> float:
    """Mean steps from `start` to `goal` of a walk on -n..n that goes right with p and turns round at the ends."""
    S = 2 * n + 1
    transition = np.zeros((S, S))
    for i in range(S):
        right = 1.0 if i == 0 else 0.0 if i == S - 1 else p[i]
        if right:
            transition[i, i + 1] = right
        if right < 1:
            transition[i, i - 1] = 1 - right
    keep = [i for i in range(S) if i != goal + n]
    times = np.linalg.solve(np.eye(S - 1) - transition[np.ix_(keep, keep)], np.ones(S - 1))
    return float(times[keep.index(start + n)])


@pytest.mark.parametrize("n", range(1, 65))
def test_the_adaptive_value_is_minus_two_n(n: int) -> None:
    solution = solve(chain(n))
    assert solution.value == pytest.approx(-2 * n, abs=1e-9)
    assert adaptive_value(n) == -2 * n
    assert sorted(evaluate_belief(chain(n), solution.policy).values) == pytest.approx([-3 * n, -n], abs=1e-9)


@pytest.mark.parametrize("n", range(1, 65))
def test_the_closed_form_is_the_value_of_its_policy_and_stationary(n: int) -> None:
    posterior = chain(n)
    assert evaluate_markov(posterior, markov_policy(n)).mean == pytest.approx(markov_value(n), rel=1e-11)
    # Stationary in the logits: convex there, hence the best of all.
    pi = 0.999999999 * markov_policy(n) + 0.5e-9
    _, gradient = value_and_gradient(posterior, pi)
    slope = (pi * (gradient - (pi * gradient).sum(1, keepdims=True)))[1:-1]
    assert np.abs(slope).max() < 1e-5 * n**2


@pytest.mark.parametrize("n", [2, 3, 5, 8, 16])
def test_the_climb_arrives_at_the_closed_form(n: int) -> None:
    result = best_markov(chain(n), restarts=2)
    assert result.value == pytest.approx(markov_value(n), rel=1e-9)
    assert result.value <= markov_value(n) + 1e-9 * n**2
    np.testing.assert_allclose(result.policy[1:-1], markov_policy(n)[1:-1], atol=2e-3)
    assert result.value < paper_bound(n) < adaptive_value(n) / 2 + 1


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(0, 10_000), st.sampled_from([0.05, 0.5, 2.0]))
def test_no_random_policy_beats_the_closed_form(n: int, seed: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    posterior = chain(n)
    for _ in range(10):
        logits = np.log(markov_policy(n)[:, RIGHT].clip(1e-9, 1 - 1e-9)) - np.log(markov_policy(n)[:, LEFT].clip(1e-9, 1))
        right = 1 / (1 + np.exp(-(logits * rng.choice([0, 1]) + spread * rng.normal(size=2 * n + 1))))
        pi = np.stack([1 - right, right], axis=1)
        assert evaluate_markov(posterior, pi).mean <= markov_value(n) * (1 - 1e-12)


def test_the_constant_is_two_over_log_two_and_the_fair_coin_gets_three() -> None:
    assert [round(markov_value(n), 3) for n in (1, 2, 3)] == [-3.0, -11.657, -26.084]
    assert markov_value(2) == pytest.approx(-2 * (math.sqrt(2) + 1) / (math.sqrt(2) - 1))
    assert markov_value(10_000) / 10_000**2 == pytest.approx(-2 / math.log(2), rel=1e-7)
    for n in (1, 4, 9):
        coin = np.full((2 * n + 1, 2), 0.5)
        coin[0], coin[-1] = [0, 1], [1, 0]
        assert evaluate_markov(chain(n), coin).mean == pytest.approx(-3 * n**2)
        assert -3 * n**2 <= markov_value(n) <= -(n**2) <= paper_bound(n)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(0, 10_000), st.sampled_from([0.3, 1.0, 3.0]))
def test_the_steps_of_the_proof_as_corrected(n: int, seed: int, spread: float) -> None:
    p = 1 / (1 + np.exp(-spread * np.random.default_rng(seed).normal(size=2 * n + 1)))
    odds = p / (1 - p)
    out, back = passage(n, p, 0, n), passage(n, p, n, 0)
    pairs = [(j, k) for j in range(n) for k in range(j + 1, n)]
    products = [np.prod(odds[n + j + 1 : n + k + 1]) for j, k in pairs]
    assert back == pytest.approx(n + 2 * sum(products), rel=1e-6)
    assert out >= (n + 2 * sum(1 / x for x in products)) * (1 - 1e-9)
    assert out + back >= 2 * n**2 * (1 - 1e-9)
    total = out + passage(n, p, 0, -n)
    assert total >= min(out + back, passage(n, p, 0, -n) + passage(n, p, -n, 0)) * (1 - 1e-9)


def test_the_bound_holds_for_the_smaller_round_trip_only() -> None:
    """Conductances 10, 10 | 1, 100 outwards: T(n) + T(-n) is less than the round trip to the right."""
    c = np.array([10.0, 10.0, 1.0, 100.0])
    p = np.r_[1, c[1:] / (c[1:] + c[:-1]), 0]
    total = passage(2, p, 0, 2) + passage(2, p, 0, -2)
    assert total < passage(2, p, 0, 2) + passage(2, p, 2, 0)
    assert total > passage(2, p, 0, -2) + passage(2, p, -2, 0)


def test_a_lopsided_prior_goes_to_the_likelier_end_first() -> None:
    posterior = chain(5, prior=[0.2, 0.8])
    solution = solve(posterior)
    assert solution.act(5, posterior.prior) == LEFT
    assert solution.value == pytest.approx(-(0.8 * 5 + 0.2 * 15))


def test_the_chain_is_an_environment_and_refuses_nonsense() -> None:
    env = chain_env(4, horizon=100)
    assert env.observation_space == Discrete(9)
    assert env.posterior.names == ("goal right", "goal left")
    for broken in (chain, adaptive_value, markov_value, markov_policy, paper_bound):
        with pytest.raises(ValueError, match=r"n is 0. Fix"):
            broken(0)
