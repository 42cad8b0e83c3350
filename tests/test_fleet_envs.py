"""Environments with a hidden kind: what the kind does, what is exact about them, and that nothing gives it away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import apev
from apev.data import Dataset
from apev.envs.fleet import customers_log, exact_values, pendulum_log
from apev.envs.fleet.customers import BUYS, NEW, OFFERS, VISITS, counted, plan, posterior
from apev.envs.fleet.pendulum import swing_up
from apev.envs.make import make


def returns(env: Any, act: Any, episodes: int) -> np.ndarray:
    """Of episodes 0, 1, ...; `act` gets the observation, the reward before it and the kind."""
    found = np.zeros(episodes)
    for episode in range(episodes):
        obs, info = env.reset(seed=episode)
        reward, over = None, False
        while not over:
            obs, reward, terminated, truncated, info = env.step(act(obs, reward, info["kind"]))
            found[episode] += reward
            over = terminated or truncated
    return found


@pytest.mark.parametrize("name", ["apev/Customers-v0", "apev/PendulumFleet-v0"])
@pytest.mark.filterwarnings("ignore::UserWarning")  # of spaces that are the known environment's
def test_an_environment_keeps_gymnasiums_rules(name: str) -> None:
    check_env(make(name).unwrapped, skip_render_check=True)


@pytest.mark.parametrize(("name", "kinds"), [("apev/Customers-v0", 3), ("apev/PendulumFleet-v0", 2)])
def test_a_kind_is_drawn_from_the_seed_unless_one_is_asked_for(name: str, kinds: int) -> None:
    env = gymnasium.make(name)
    starts = [env.reset(seed=seed) for seed in range(300)]
    drawn = np.bincount([info["kind"] for _, info in starts], minlength=kinds)
    assert (abs(drawn - 300 / kinds) < 40).all()
    again = env.reset(seed=7)
    assert again[1]["kind"] == starts[7][1]["kind"]
    np.testing.assert_array_equal(again[0], starts[7][0])
    for kind in range(kinds):
        obs, info = env.reset(seed=7, options={"kind": kind})
        assert info["kind"] == kind
        np.testing.assert_array_equal(obs, starts[7][0])  # what is seen first does not tell
        fixed = gymnasium.make(name, kind=kind)
        assert {fixed.reset(seed=seed)[1]["kind"] for seed in range(5)} == {kind}
        assert fixed.step(fixed.action_space.sample())[4]["kind"] == kind
    for wrong in (kinds, -1, 0.5, True):
        with pytest.raises(ValueError, match=r"kind is .*Fix"):
            env.reset(options={"kind": wrong})


def test_no_start_tells_the_kind() -> None:
    """A kind drawn by a generator of its own from the same seed would repeat the numbers that made the start."""
    env = gymnasium.make("apev/PendulumFleet-v0")
    starts = [env.reset(seed=seed) for seed in range(2000)]
    seen, kinds = np.array([obs for obs, _ in starts]), np.array([info["kind"] for _, info in starts])
    for column in seen.T:
        assert abs(np.corrcoef(column, kinds)[0, 1]) < 0.07


def test_the_torque_of_a_pendulum_has_its_machines_sign() -> None:
    plain = gymnasium.make("Pendulum-v1")
    for kind, sign in ((0, 1), (1, -1)):
        env = gymnasium.make("apev/PendulumFleet-v0", kind=kind)
        np.testing.assert_array_equal(env.reset(seed=3)[0], plain.reset(seed=3)[0])
        for push in np.linspace(-2, 2, 200):
            action = np.array([push], dtype=np.float32)
            ours, theirs = env.step(action), plain.step(sign * action)
            np.testing.assert_array_equal(ours[0], theirs[0])
            assert ours[1:4] == theirs[1:4]
        assert ours[3]  # the clock's end


def test_who_knows_the_sign_swings_up_and_who_mistakes_it_does_not() -> None:
    env = gymnasium.make("apev/PendulumFleet-v0")
    right = returns(env, lambda obs, _, kind: np.clip([(1 - 2 * kind) * swing_up(obs)], -2, 2), 20)
    wrong = returns(env, lambda obs, _, kind: np.clip([(2 * kind - 1) * swing_up(obs)], -2, 2), 20)
    assert right.mean() > -250
    assert wrong.mean() < -1500


def test_a_log_of_pendulums_has_both_kinds_and_overlapping_teachers() -> None:
    log, kinds = pendulum_log()
    assert (len(log), log.num_episodes, log.num_groups) == (20_000, 100, 20)
    assert np.bincount(kinds).tolist() == [10, 10]
    np.testing.assert_array_equal(log.group, np.arange(20_000) // 1000)
    assert len(np.unique(kinds[np.array([0, 2, 4, 6, 8])])) == 2  # not dealt in turn
    returned = log.episode_returns()
    assert returned.mean() > -600
    assert (returned < -500).sum() > 10  # the clumsy ones
    # The same state was pushed both ways on machines of both kinds.
    up = log.observations["observation"][:, 0] < 0.9
    for kind in (0, 1):
        rows = up & np.isin(log.group, np.flatnonzero(kinds == kind))
        agrees = np.sign(log.actions[rows, 0]) == np.sign(log.observations["observation"][rows, 2])
        assert 0.05 < agrees.mean() < 0.95
    other, _ = pendulum_log(seed=1)
    assert pendulum_log()[0].digest == log.digest != other.digest


def test_rows_of_a_log_are_steps_of_the_machine() -> None:
    log, kinds = pendulum_log(machines=4, episodes=1)
    env = gymnasium.make("apev/PendulumFleet-v0").unwrapped
    for row in range(0, len(log), 7):
        env.reset(options={"kind": int(kinds[log.group[row]])})
        cosine, sine, speed = log.observations["observation"][row]
        env.inside.state = np.array([np.arctan2(sine, cosine), speed])  # type: ignore[attr-defined]
        after, reward, *_ = env.step(log.actions[row])
        np.testing.assert_allclose(log.next_observations["observation"][row], after, atol=1e-4)
        assert log.rewards[row] == pytest.approx(reward, abs=1e-3)


def test_exact_values_of_customers_are_what_policies_earn() -> None:
    env, values = gymnasium.make("apev/Customers-v0"), exact_values()
    assert values.knows == pytest.approx(27.2)
    assert values.blind == pytest.approx(11.2)
    assert values.adaptive == pytest.approx(22.105, abs=1e-3)
    counts = NEW

    def adaptive(obs: np.ndarray, reward: float | None, _: int) -> int:
        nonlocal counts
        counts = NEW if reward is None else counted(counts, plan(counts)[1], reward > 0)
        return plan(counts)[1]

    policies = {
        values.knows: lambda obs, reward, kind: int(BUYS[kind].argmax()),
        values.adaptive: adaptive,
        values.blind: lambda obs, reward, kind: 1,
    }
    for value, act in policies.items():
        earned = returns(env, act, 1500)
        assert abs(earned.mean() - value) < 4 * earned.std() / 1500**0.5


def test_the_plan_of_the_last_visit_is_the_one_worked_out_by_hand() -> None:
    counts = NEW
    for _ in range(VISITS - 1):
        counts = counted(counts, OFFERS.index("nothing"), False)  # which tells nothing
    counts = (*counts[:-1], counts[-1] - 1)
    belief = np.array([0.85, 0.10, 0.10]) / 1.05
    counts = counted(counts, OFFERS.index("advice"), True)
    np.testing.assert_allclose(posterior(counts), belief)
    value, offer = plan(counts)
    assert offer == OFFERS.index("advice")
    assert value == pytest.approx(4 * (0.85 * 0.85 + 2 * 0.10 * 0.10) / 1.05)


def test_a_customer_is_seen_without_what_they_bought() -> None:
    env = gymnasium.make("apev/Customers-v0", kind=2)
    (first, info), rewards = env.reset(seed=0), []
    np.testing.assert_allclose(info["oracle_belief"], 1 / 3)
    for visit in range(1, VISITS + 1):
        obs, reward, terminated, truncated, info = env.step(OFFERS.index("discount"))
        np.testing.assert_array_equal(obs, [visit, *first[1:]])
        rewards.append(reward)
        assert (terminated, truncated) == (visit == VISITS, False)
    assert set(rewards) <= {0.0, 3.0, 4.0, 5.0}
    assert info["oracle_belief"].argmax() == 2


def test_a_log_of_customers_is_of_random_offers_and_hides_the_segment() -> None:
    log, segments = customers_log()
    assert (len(log), log.num_episodes, log.num_actions) == (8000, 1000, 4)
    assert sorted(np.bincount(segments)) == [333, 333, 334]
    assert abs(np.bincount(log.actions) - 2000).max() < 150
    bought = [[log.rewards[(segments[log.episodes] == k) & (log.actions == a)].mean() for a in range(4)] for k in range(3)]
    np.testing.assert_allclose(bought, 4 * BUYS, atol=0.25)
    for column in log.observations["observation"].T[1:]:  # age and basket
        means = [column[segments[log.episodes] == k].mean() for k in range(3)]
        assert np.ptp(means) < 0.5
    assert customers_log()[0].digest == log.digest != customers_log(seed=1)[0].digest


@pytest.mark.parametrize("name", ["customers", "pendulum-fleet"])
def test_an_example_is_evaluated_where_it_was_logged(name: str, tmp_path: Path) -> None:
    log = Dataset.example(name)
    assert log.source["name"] == f"example-{name}"
    apev.train(log, "bc", updates=2, out=tmp_path / "run")
    table = apev.evaluate(tmp_path / "run", episodes=2)
    assert table.environment == log.source["environment"]
    assert np.isfinite(table["policy"].mean)


def test_the_pendulums_example_controller_swings_up() -> None:
    assert Dataset.example("pendulum").episode_returns().mean() > -300
