"""Tabular worlds, the posterior, the exact belief, and the epistemic POMDP as arrays and as an environment."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from apev.bayes import (
    EpistemicEnv,
    EpistemicPOMDP,
    Posterior,
    TabularMDP,
    belief_update,
    evaluate_markov,
    random_posterior,
    relative_belief,
    solve,
)
from apev.bayes.evaluate import chain_values, mix
from apev.experiments.theory.chain import chain, chain_env

FAST = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 10_000)
kinds = st.sampled_from(["certain", "eliminating", "noisy"])


def two_step() -> TabularMDP:
    """0 -> 1 -> end (2), or astray; the second action stays."""
    transition = np.zeros((3, 2, 3))
    transition[0, 0] = [0, 0.75, 0.25]
    transition[1, 0] = [0, 0, 1]
    transition[:2, 1, :2] = np.eye(2)
    return TabularMDP.from_dense(transition, [[-1, -2], [-1, -2], [0, 0]], terminal=[2])


# ---------------------------------------------------------------------- worlds


def test_dense_sparse_and_listed_worlds_are_the_same() -> None:
    rng = np.random.default_rng(0)
    dense = rng.dirichlet(np.full(4, 0.3), size=(4, 3)) * (rng.random((4, 3, 4)) < 0.7)
    dense /= dense.sum(-1, keepdims=True)
    reward = rng.normal(size=(4, 3))
    one = TabularMDP.from_dense(dense, reward, terminal=[3], gamma=0.9)
    other = TabularMDP.from_sparse(sp.csr_array(dense.reshape(12, 4)), reward, terminal=[3], gamma=0.9)
    for mdp in (one, other):
        np.testing.assert_allclose(mdp.transition, dense)
        np.testing.assert_allclose(mdp.expected_reward[:3], reward[:3])
        np.testing.assert_allclose(mdp.ending[:3], dense[:3, :, 3])
    moves = rng.integers(4, size=(4, 2))
    np.testing.assert_array_equal(TabularMDP.deterministic(moves).transition, np.eye(4)[moves])


def test_a_reward_may_depend_on_the_next_state() -> None:
    reward = np.zeros((2, 1, 2))
    reward[0, 0] = [1.0, 5.0]
    mdp = TabularMDP.from_dense([[[0.25, 0.75]], [[0.0, 1.0]]], reward, terminal=[1])
    assert mdp.expected_reward[0, 0] == pytest.approx(0.25 * 1 + 0.75 * 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gamma": 1.5}, "gamma is 1.5. Fix"),
        ({"start": 7}, "start is state 7. Fix"),
        ({"start": [0.5, 0.4, 0.0]}, "start sums to 0.9"),
        ({"start": 2, "terminal": [2]}, "start in a terminal state. Fix"),
        ({"terminal": [5]}, r"terminal names states \[5\]. Fix"),
        ({"transition": np.full((3, 2, 3), 0.3)}, "state 0, action 0.*not a distribution. Fix"),
        ({"transition": np.full((3, 2, 3), -1.0)}, "negative probability. Fix"),
        ({"transition": np.ones((3, 2))}, r"transition has shape \(3, 2\). Fix"),
        ({"reward": np.full((3, 2), np.nan)}, "not a number. Fix"),
    ],
)
def test_a_world_that_is_none_is_named(change: dict[str, Any], message: str) -> None:
    given = {"transition": np.full((3, 2, 3), 1 / 3), "reward": np.zeros((3, 2)), **change}
    with pytest.raises(ValueError, match=message):
        TabularMDP.from_dense(**given)


def test_a_posterior_that_is_none_is_named() -> None:
    small, large = TabularMDP.deterministic([[0]]), TabularMDP.deterministic([[0], [1]])
    for mdps, prior, message in [
        ([], None, "no worlds. Fix"),
        ([small, large], None, "differ in .states, actions, gamma.*Fix"),
        ([small, small], [1.0], "does not weigh 2 worlds. Fix"),
        ([small, small], [0.0, 0.0], "does not weigh"),
        ([small, small], [-1.0, 2.0], "does not weigh"),
    ]:
        with pytest.raises(ValueError, match=message):
            Posterior(mdps, prior)
    with pytest.raises(ValueError, match=r"3 names for 1 worlds. Fix"):
        Posterior([small], names=["a", "b", "c"])
    np.testing.assert_allclose(Posterior([small, small], [3, 1]).prior, [0.75, 0.25])


# ---------------------------------------------------------------------- the belief


def test_bayes_rule_by_hand() -> None:
    """Two coins that land in state 1 with 3/4 and 1/4; a reward that only one of them pays; an end that only one has."""
    worlds = [TabularMDP.from_dense([[[1 - p, p]], [[0.0, 1.0]]], [[0.0], [0.0]], gamma=0.9) for p in (0.75, 0.25)]
    posterior = Posterior(worlds, [0.5, 0.5])
    b = belief_update(posterior, posterior.prior, 0, 0, 0.0, 1)
    np.testing.assert_allclose(b, [0.75, 0.25])
    np.testing.assert_allclose(belief_update(posterior, b, 0, 0, 0.0, 0), [0.75 * 0.25 / 0.375, 0.25 * 0.75 / 0.375])
    np.testing.assert_allclose(relative_belief(posterior, b), [1.5, 0.5])
    np.testing.assert_allclose(relative_belief(posterior, posterior.prior), 1)

    paid = Posterior([TabularMDP.deterministic([[0]], [[r]], gamma=0.9) for r in (1.0, 2.0, 1.0)], [1, 1, 2])
    np.testing.assert_allclose(belief_update(paid, paid.prior, 0, 0, 1.0, 0), [1 / 3, 0, 2 / 3])
    with pytest.raises(ValueError, match=r"no hypothesis that is still believed in allows action 0 in state 0.*Fix"):
        belief_update(paid, paid.prior, 0, 0, 3.0, 0)

    ends = chain(1)
    np.testing.assert_allclose(belief_update(ends, ends.prior, 1, 1, -1.0, 2, terminated=True), [1, 0])
    np.testing.assert_allclose(belief_update(ends, ends.prior, 1, 1, -1.0, 2, terminated=False), [0, 1])


def test_the_first_state_is_evidence() -> None:
    worlds = [TabularMDP.deterministic([[0], [1]], start=s, gamma=0.5) for s in ([0.8, 0.2], [0.2, 0.8])]
    np.testing.assert_allclose(Posterior(worlds, [0.25, 0.75]).start_belief(0), [0.2 / 0.35, 0.15 / 0.35])
    with pytest.raises(ValueError, match=r"no hypothesis starts in state 1. Fix"):
        Posterior([TabularMDP.deterministic([[0], [1]], gamma=0.5)]).start_belief(1)


@FAST
@given(seeds, kinds)
def test_beliefs_stay_on_the_simplex_and_the_order_of_evidence_does_not_matter(seed: int, kind: Any) -> None:
    rng = np.random.default_rng(seed)
    posterior = random_posterior(rng, kind=kind)
    env = EpistemicEnv(posterior, horizon=12)
    state, info = env.reset(seed=seed)
    seen = []
    over = False
    while not over:
        action = int(rng.integers(2))
        following, reward, terminated, truncated, info = env.step(action)
        seen.append((int(state), action, reward, int(following), terminated))
        belief = info["oracle_belief"]
        assert belief.sum() == pytest.approx(1)
        assert (belief >= 0).all()
        assert belief[info["hypothesis"]] > 0  # the truth is never ruled out
        state, over = following, terminated or truncated
    again = posterior.prior
    for i in rng.permutation(len(seen)):
        again = belief_update(posterior, again, *seen[i])
    np.testing.assert_allclose(again, belief, atol=1e-12)


@FAST
@given(seeds, kinds)
def test_a_belief_is_its_own_expectation(seed: int, kind: Any) -> None:
    """Before looking, the mean of what one will believe is what one believes."""
    rng = np.random.default_rng(seed)
    posterior = random_posterior(rng, kind=kind)
    belief, s, a = rng.dirichlet(np.ones(3)), 0, int(rng.integers(2))
    seen = {
        (float(np.round(m.reward[s, a, i], 9)), int(m.next_state[s, a, i]))
        for m in posterior.mdps
        for i in range(m.reward.shape[2])
    }
    mean = np.zeros(3)
    for reward, following in seen:
        chance = belief @ posterior.likelihood(s, a, reward, following, terminated=False)
        if chance > 0:
            mean += chance * belief_update(posterior, belief, s, a, reward, following)
    np.testing.assert_allclose(mean, belief, atol=1e-12)


# ---------------------------------------------------------------------- the epistemic POMDP


@FAST
@given(seeds, kinds)
def test_the_return_in_the_pomdp_is_the_bayesian_objective(seed: int, kind: Any) -> None:
    rng = np.random.default_rng(seed)
    posterior = random_posterior(rng, kind=kind, gamma=0.9)
    pomdp = EpistemicPOMDP.of(posterior)
    pi = rng.dirichlet(np.ones(2), size=4)
    lifted = pi[pomdp.observation]  # the policy sees s, never the hypothesis
    values = chain_values(mix(pomdp.transition, lifted), (lifted * pomdp.reward).sum(1), pomdp.start * 0, pomdp.gamma)
    assert pomdp.start @ values == pytest.approx(evaluate_markov(posterior, pi).mean, abs=1e-9)


def test_the_pomdp_never_changes_its_hypothesis() -> None:
    pomdp = EpistemicPOMDP.of(chain(2))
    assert pomdp.start.tolist() == [0, 0, 0.5, 0, 0, 0, 0, 0.5, 0, 0]
    edges = pomdp.transition.tocoo()
    np.testing.assert_array_equal(pomdp.hypothesis[edges.row // 2], pomdp.hypothesis[edges.col])
    assert np.flatnonzero(pomdp.terminal).tolist() == [4, 5]
    np.testing.assert_allclose(pomdp.transition.sum(1)[~np.repeat(pomdp.terminal, 2)], 1)


def test_gymnasium_accepts_the_environment_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(chain_env(3, horizon=20), skip_render_check=True)
        check_env(EpistemicEnv(random_posterior(np.random.default_rng(0)), horizon=5), skip_render_check=True)


def test_an_episode_of_the_chain() -> None:
    env = chain_env(2)
    state, info = env.reset(seed=0, options={"hypothesis": 1})
    assert (int(state), info["hypothesis"]) == (2, 1)
    for action, expected, belief, over in [(1, 3, [0.5, 0.5], False), (1, 4, [0.0, 1.0], False), (0, 3, [0.0, 1.0], False)]:
        state, reward, terminated, truncated, info = env.step(action)
        assert (int(state), reward, terminated, truncated) == (expected, -1.0, over, False)
        np.testing.assert_allclose(info["oracle_belief"], belief)
    for _ in range(3):
        _, _, terminated, _, _ = env.step(0)
    assert terminated
    with pytest.raises(RuntimeError, match=r"Fix: call reset"):
        env.step(0)


def test_hypotheses_come_as_often_as_their_weight_and_horizons_cut() -> None:
    env = EpistemicEnv(chain(3, prior=[0.8, 0.2]), horizon=1)
    drawn = [env.reset(seed=0)[1]["hypothesis"]] + [env.reset()[1]["hypothesis"] for _ in range(999)]
    assert np.mean(drawn) == pytest.approx(0.2, abs=0.05)
    assert env.step(0)[2:4] == (False, True)
    for options, message in [({"door": 1}, "not known"), ({"hypothesis": 2}, "hypothesis 2"), ({"state": 99}, "state 99")]:
        with pytest.raises(ValueError, match=f"{message}.*Fix"):
            env.reset(options=options)
    _, info = env.reset(options={"state": 6, "hypothesis": 1})  # at the right end, and not over: the goal is left
    np.testing.assert_allclose(info["oracle_belief"], [0, 1])
    with pytest.raises(ValueError, match=r"horizon is 0. Fix"):
        EpistemicEnv(chain(2), horizon=0)
    env.reset()
    with pytest.raises(ValueError, match=r"action 5. Fix"):
        env.step(5)


def test_a_hand_computed_world() -> None:
    """From 0: three quarters go on to 1 and pay another step. V = -1 - 3/4."""
    assert solve(Posterior([two_step()])).value == pytest.approx(-1.75, abs=1e-12)
