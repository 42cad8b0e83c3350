"""The exact solver and the exact evaluation: hand-computed values, brute force, simulation, and what they refuse."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apev.bayes import (
    EpistemicEnv,
    Posterior,
    TabularMDP,
    belief_update,
    build_graph,
    evaluate_belief,
    evaluate_history,
    evaluate_markov,
    optimal_values,
    random_posterior,
    solve,
)
from apev.bayes.propositions import search_histories
from apev.experiments.theory.chain import chain

FAST = settings(max_examples=20, deadline=None)
seeds = st.integers(0, 10_000)


def blocked_street(share: float = 0.5) -> Posterior:
    """0 home, 1 a lane, 2 before the possible block, 3 goal. Road: 0 -> 4 -> 5 -> 6 -> 3. Actions: on, back, road."""
    worlds = []
    for open_ in (True, False):
        follow = np.array([[1, 0, 4], [2, 0, 1], [3 if open_ else 2, 1, 2], [3, 3, 3], [5, 0, 4], [6, 4, 5], [3, 5, 6]])
        worlds.append(TabularMDP.deterministic(follow, terminal=[3]))
    return Posterior(worlds, [share, 1 - share], ["open", "blocked"])


def slippery(goals: tuple[int, ...], gamma: float = 1.0, size: int = 6) -> Posterior:
    """A line on which one move in four slips back; the goal is in one of `goals`."""
    k = np.arange(size)
    left, right = np.maximum(k - 1, 0), np.minimum(k + 1, size - 1)
    transition = np.zeros((size, 2, size))
    for action, (to, slip) in enumerate([(left, right), (right, left)]):
        transition[k, action, to] += 0.75
        transition[k, action, slip] += 0.25
    return Posterior(
        [TabularMDP.from_dense(transition, np.full((size, 2), -1.0), start=2, terminal=[g], gamma=gamma) for g in goals]
    )


def plain_value_iteration(posterior: Posterior, sweeps: int) -> float:
    graph = build_graph(posterior)
    v = np.zeros(len(graph))
    for _ in range(sweeps):
        v = (graph.reward + posterior.gamma * (graph.matrix @ v).reshape(graph.reward.shape)).max(1)
    return float(graph.root_weight @ v[graph.root])


# ---------------------------------------------------------------------- hand-computed values


def test_a_street_that_may_be_blocked() -> None:
    """Open: 3 steps. Blocked: 3 steps to find out, 2 back, 4 round. Road at once: 4."""
    for share in (0.9, 0.5, 0.1):
        posterior = blocked_street(share)
        solution = solve(posterior)
        street = share * -3 + (1 - share) * -9
        assert solution.value == pytest.approx(max(street, -4.0), abs=1e-12)
        assert solution.act(0, posterior.prior) == (0 if street > -4 else 2)
    posterior = blocked_street(0.9)
    solution = solve(posterior)
    values = evaluate_belief(posterior, solution.policy)
    np.testing.assert_allclose(values.values, [-3, -9])
    blocked = belief_update(posterior, posterior.prior, 2, 0, -1.0, 2)
    np.testing.assert_allclose(blocked, [0, 1])
    assert solution.act(2, blocked) == 1
    assert solution.value_at(2, blocked) == pytest.approx(-6)
    np.testing.assert_allclose(optimal_values(posterior), [-3, -4])


def test_looking_is_worth_its_price_only_if_it_is_cheap() -> None:
    """A treasure (+1) in one of two boxes, a wrong one costs 1; a look costs `price` and tells which."""
    for price in (0.3, 0.7, 1.2):
        worlds = []
        for right in (0, 1):
            follow = np.array([[3, 3, 1 + right], [3, 3, 1], [3, 3, 2], [3, 3, 3]])  # the look leads to state 1 or 2
            reward = np.full((4, 3), -1.0)
            reward[:, right] = 1.0
            reward[:, 2] = -price
            worlds.append(TabularMDP.deterministic(follow, reward, terminal=[3], gamma=0.99999999))
        assert solve(Posterior(worlds)).value == pytest.approx(max(1 - price, 0.0), abs=1e-6)


def test_chance_makes_loops_and_the_value_is_still_exact() -> None:
    """A step that succeeds with 1/4 takes 4 tries."""
    mdp = TabularMDP.from_dense([[[0.75, 0.25]], [[0.0, 1.0]]], [[-1.0], [0.0]], terminal=[1])
    assert solve(Posterior([mdp])).value == pytest.approx(-4, abs=1e-12)
    for gamma in (1.0, 0.9):
        posterior = slippery((0, 5), gamma)
        assert solve(posterior).value == pytest.approx(plain_value_iteration(posterior, 4000), abs=1e-9)


def test_where_no_policy_is_sure_to_end_the_value_is_minus_infinity() -> None:
    trap = [[1, 2], [1, 1], [2, 2]]  # 0 goes to the trap 1 or to the end 2
    both = Posterior([TabularMDP.deterministic(trap, terminal=[2])])
    assert solve(both).value == -1
    assert evaluate_markov(both, [0, 0, 0]).mean == -np.inf
    either = Posterior([TabularMDP.deterministic(np.flip(trap, 1) if i else trap, terminal=[2]) for i in (0, 1)])
    assert solve(either).value == -np.inf
    # A trap that chance may lead into, beside a slow road that is safe.
    transition = np.zeros((4, 2, 4))
    transition[0, 0] = [0, 0.9, 0.1, 0]
    transition[0, 1] = [0.5, 0, 0, 0.5]
    transition[1, :, 1] = transition[2, :, 2] = transition[3, :, 2] = 1
    careful = Posterior([TabularMDP.from_dense(transition, np.full((4, 2), -1.0), terminal=[2])])
    assert solve(careful).value == pytest.approx(-3)


def test_backward_induction_by_hand() -> None:
    """Three steps on the chain of n = 2: no way to the far end, so that every step is paid unless the near goal is hit."""
    posterior = chain(2)
    assert solve(posterior, horizon=1).value == -1
    assert solve(posterior, horizon=2).value == -2
    solution = solve(posterior, horizon=3)
    assert solution.value == pytest.approx(0.5 * -2 + 0.5 * -3)
    assert evaluate_belief(posterior, solution.policy, horizon=3).mean == pytest.approx(solution.value)
    assert solve(posterior, horizon=6).value == pytest.approx(solve(posterior).value)
    assert solve(posterior, horizon=50).value == pytest.approx(-4)
    with pytest.raises(ValueError, match=r"time 7 is outside the horizon. Fix"):
        solution.act(2, posterior.prior, time=7)


# ---------------------------------------------------------------------- properties


@FAST
@given(seeds, st.sampled_from(["certain", "eliminating", "noisy"]), st.integers(1, 3))
def test_backward_induction_equals_the_search_of_all_histories(seed: int, kind: Any, horizon: int) -> None:
    posterior = random_posterior(np.random.default_rng(seed), states=3, kind=kind)
    assert solve(posterior, horizon).value == pytest.approx(search_histories(posterior, horizon), abs=1e-10)


@FAST
@given(seeds, st.sampled_from(["certain", "eliminating"]))
def test_no_policy_beats_the_solution_and_its_own_evaluation_agrees(seed: int, kind: Any) -> None:
    rng = np.random.default_rng(seed)
    posterior = random_posterior(rng, kind=kind)
    solution = solve(posterior)
    assert solution.value == pytest.approx(plain_value_iteration(posterior, 400), abs=1e-9)
    assert evaluate_belief(posterior, solution.policy).mean == pytest.approx(solution.value, abs=1e-9)
    assert solution.value <= posterior.prior @ optimal_values(posterior) + 1e-9  # who knows the truth does no worse
    for _ in range(10):
        pi = rng.dirichlet(np.full(2, 0.3), size=4)
        assert evaluate_markov(posterior, pi).mean <= solution.value + 1e-9
        weights = rng.normal(size=(4, 2, 3))

        def smooth(states: Any, beliefs: Any, time: int, w: Any = weights) -> Any:
            logits = np.exp(np.einsum("nak,nk->na", 3 * w[states], beliefs))
            return logits / logits.sum(1, keepdims=True)

        assert evaluate_belief(posterior, smooth).mean <= solution.value + 1e-9


@FAST
@given(seeds, st.integers(1, 4))
def test_three_evaluations_of_one_markov_policy_agree(seed: int, horizon: int) -> None:
    rng = np.random.default_rng(seed)
    posterior = random_posterior(rng, states=3)
    pi = rng.dirichlet(np.ones(2), size=3)
    one = evaluate_markov(posterior, pi, horizon)
    belief = evaluate_belief(posterior, lambda states, beliefs, time: pi[states], horizon)
    history = evaluate_history(posterior, lambda h: pi[int(h[-1])], horizon)
    np.testing.assert_allclose(belief.values, one.values, atol=1e-10)
    np.testing.assert_allclose(history.values, one.values, atol=1e-10)
    assert one.mean == pytest.approx(posterior.prior @ one.values)


def test_evaluation_equals_simulation() -> None:
    posterior = slippery((0, 5))
    solution = solve(posterior)
    pi = np.tile([0.4, 0.6], (6, 1))
    env = EpistemicEnv(posterior)
    rng = np.random.default_rng(1)
    returns: dict[str, list[float]] = {"adaptive": [], "markov": []}
    env.reset(seed=2)
    for name, episodes in returns.items():
        for _ in range(1500):
            state, info = env.reset()
            total, over = 0.0, False
            while not over:
                adaptive = name == "adaptive"
                action = solution.act(int(state), info["oracle_belief"]) if adaptive else int(rng.random() < pi[state, 1])
                state, reward, over, _, info = env.step(action)
                total += reward
            episodes.append(total)
    for name, exact in [("adaptive", solution.value), ("markov", evaluate_markov(posterior, pi).mean)]:
        error = np.std(returns[name]) / np.sqrt(1500)
        assert np.mean(returns[name]) == pytest.approx(exact, abs=4 * error)


def test_a_history_policy_can_do_what_a_belief_policy_does() -> None:
    posterior = chain(3)

    def there_and_back(history: tuple[float, ...]) -> int:
        return 0 if 6 in history[::3] else 1

    np.testing.assert_allclose(evaluate_history(posterior, there_and_back, horizon=9).values, [-3, -9])
    assert evaluate_history(posterior, there_and_back, horizon=9).mean == solve(posterior).value


def test_very_long_episodes_keep_their_digits() -> None:
    """Up with p, back to 0 otherwise: (p^-n - 1) / (1 - p) steps. At p = 0.05, n = 16 an ordinary solve knows no digit."""
    n, p = 16, 0.05
    transition = np.zeros((n + 1, 1, n + 1))
    transition[np.arange(n), 0, np.arange(1, n + 1)] = p
    transition[:n, 0, 0] += 1 - p
    mdp = TabularMDP.from_dense(transition, np.full((n + 1, 1), -1.0), terminal=[n])
    expected = -(p**-n - 1) / (1 - p)
    assert evaluate_markov(Posterior([mdp]), np.ones((n + 1, 1))).mean == pytest.approx(expected, rel=1e-12)


def test_different_starts_and_rewards_are_evidence_to_the_solver() -> None:
    """Each start favours one world (4 : 1); the first reward settles it."""
    worlds = []
    for right, start in ((0, [0.8, 0.2]), (1, [0.2, 0.8])):
        reward = np.zeros((2, 2))
        reward[:, right] = 1.0
        worlds.append(TabularMDP.deterministic([[0, 0], [1, 1]], reward, start=start, gamma=0.5))
    solution = solve(Posterior(worlds))
    assert solution.value == pytest.approx(0.8 + 1.0)  # right at once in 4 of 5, always afterwards
    assert solution.graph.root_weight.tolist() == [0.5, 0.5]


# ---------------------------------------------------------------------- size, and what is refused


def test_a_thousand_states_and_eight_hypotheses_take_seconds() -> None:
    side = 32
    cell = np.arange(side * side)
    y, x = np.divmod(cell, side)
    steps = [(y > 0, -side), (x < side - 1, 1), (y < side - 1, side), (x > 0, -1)]
    moves = np.stack([np.where(free, cell + step, cell) for free, step in steps], axis=1)
    *goals, start = np.random.default_rng(0).choice(side * side, 9, replace=False).tolist()
    posterior = Posterior([TabularMDP.deterministic(moves, start=start, terminal=[g]) for g in goals])
    begin = time.perf_counter()
    solution = solve(posterior)
    assert time.perf_counter() - begin < 30  # about one on an idle core
    assert len(solution.graph.beliefs) == 255
    assert solution.num_nodes > 250_000
    # Someone who must visit goals in the best order: checked against all orders.
    places = np.array([[p % side, p // side] for p in [start, *goals]])
    far = np.abs(places[:, None] - places).sum(-1)
    best: dict[tuple[int, int], int] = {(1 << i, i): far[0, i + 1] * 8 for i in range(8)}
    for size in range(2, 9):
        following: dict[tuple[int, int], int] = {}
        for (seen, last), cost in best.items():
            for i in range(8):
                if not seen >> i & 1:
                    key = (seen | 1 << i, i)
                    total = cost + far[last + 1, i + 1] * (9 - size)
                    following[key] = min(following.get(key, 10**9), total)
        best = following
    assert solution.value == pytest.approx(-min(best.values()) / 8, abs=1e-9)


def test_noisy_evidence_for_ever_is_refused_and_a_horizon_helps() -> None:
    posterior = random_posterior(np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"more than 5,000 .state, belief. pairs.*Fix: a finite horizon"):
        solve(posterior, max_nodes=5000)
    with pytest.raises(ValueError, match=r"Fix: a smaller horizon"):
        solve(posterior, horizon=12, max_nodes=5000)
    assert solve(posterior, horizon=3).num_nodes < 5000


def test_mistakes_are_named() -> None:
    free = Posterior([TabularMDP.deterministic([[0, 1], [1, 1]], 0.0, terminal=[1])])
    with pytest.raises(ValueError, match=r"hypothesis M1, state 0, action 0: gamma is 1 and the step costs nothing.*Fix"):
        solve(free)
    with pytest.raises(ValueError, match=r"horizon is 0. Fix"):
        solve(free, horizon=0)
    solution = solve(chain(2))
    with pytest.raises(KeyError, match=r"cannot be reached from the start.*Fix"):
        solution.act(2, [0.3, 0.7])
    with pytest.raises(ValueError, match=r"is not one over 2 hypotheses. Fix"):
        solution.act(2, [0.3, 0.3, 0.4])
    with pytest.raises(ValueError, match=r"not \[5, 2\] probabilities. Fix"):
        evaluate_markov(chain(2), np.ones((5, 2)))
    with pytest.raises(ValueError, match=r"its value is not defined. Fix"):
        evaluate_markov(free, [0, 0])
