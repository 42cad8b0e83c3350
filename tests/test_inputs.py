"""What a running environment sends: whatever is not a finite number is refused, and a refused step changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from apev.agents import APEV, DQN, APEVConfig, DQNConfig
from apev.agents.continuous.apev import APEVSAC, APEVSACConfig
from apev.data.batch import Layout
from apev.policy import Policy

K = 3
VECTOR = Layout((("observation", 2),), None, None, 4, bare=True)
BOX = Layout((("observation", 2),), None, None, 0, bare=True, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
NAN, FAR = float("nan"), 3e38


def deployed(continuous: bool = False, envs: int = K) -> Policy:
    agent = (
        APEVSAC(BOX, APEVSACConfig(critics=4, hidden=(8,))) if continuous else APEV(VECTOR, APEVConfig(members=K, hidden=(8,)))
    )
    policy = Policy(agent)
    policy.reset(num_envs=envs)
    policy.act(np.ones((envs, 2), np.float32))
    return policy


def step(envs: int = K, **changed: Any) -> dict[str, Any]:
    sound = {"reward": np.ones(envs), "next_obs": np.zeros((envs, 2), np.float32), "terminated": np.zeros(envs, bool)}
    return sound | changed


def one(value: float, shape: tuple[int, ...] = (K, 2)) -> np.ndarray:
    array = np.zeros(shape, np.float32)
    array[1] = value
    return array


REFUSED: dict[str, dict[str, Any]] = {
    "next_obs NaN": {"next_obs": one(NAN)},
    "next_obs far": {"next_obs": one(FAR)},
    "next_obs infinite": {"next_obs": one(np.inf)},
    "reward NaN": {"reward": one(NAN, (K,))},
    "reward far": {"reward": one(FAR, (K,))},
    "reward of one column": {"reward": np.ones((K, 1))},
    "reward of words": {"reward": np.array(["a"] * K)},
    "terminated NaN": {"terminated": one(NAN, (K,))},
    "terminated a half": {"terminated": one(0.5, (K,))},
    "terminated of one column": {"terminated": np.zeros((K, 1), bool)},
    "active too short": {"active": np.ones(K - 1, bool)},
    "active NaN": {"active": one(NAN, (K,))},
}


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_step_leaves_the_belief_as_it_was(name: str, continuous: bool) -> None:
    policy = deployed(continuous)
    before = policy.belief.copy()
    with pytest.raises(ValueError, match=name.split()[0]):
        policy.observe(**step(**REFUSED[name]))
    np.testing.assert_array_equal(policy.belief, before)
    policy.observe(**step())  # the step can still be told rightly
    assert np.isfinite(policy.belief).all()


@pytest.mark.parametrize(
    ("continuous", "action"),
    [
        (True, one(NAN)),
        (True, one(FAR)),
        (True, np.zeros((K, 3))),
        (False, [0, NAN, 1]),
        (False, [0, 4, 1]),
        (False, [0, 0.5, 1]),
    ],
)
def test_an_executed_action_is_checked_too(continuous: bool, action: Any) -> None:
    policy = deployed(continuous)
    before = policy.belief.copy()
    with pytest.raises(ValueError, match="action"):
        policy.observe(**step(action=action))
    np.testing.assert_array_equal(policy.belief, before)


@pytest.mark.parametrize("value", [NAN, np.inf, FAR])
def test_act_refuses_a_broken_reading(value: float) -> None:
    policy = deployed()
    with pytest.raises(ValueError, match="the observation holds"):
        policy.act(one(value))


def test_observations_of_nobody_are_refused() -> None:
    policy = deployed()
    with pytest.raises(ValueError, match="no environment at all"):
        policy.act(np.zeros((0, 2), np.float32))
    with pytest.raises(ValueError, match="no environment at all"):
        policy.observe(**step(next_obs=np.zeros((0, 2), np.float32)))


def test_rows_that_are_not_active_may_hold_anything() -> None:
    told, quiet = deployed(), deployed()
    active = np.array([True, False, True])
    broken = step(reward=one(NAN, (K,)), next_obs=one(NAN), terminated=one(NAN, (K,)), action=[0, NAN, 1], active=active)
    told.observe(**broken)
    quiet.observe(**step(reward=one(0, (K,)), action=[0, 0, 1], active=active))
    np.testing.assert_array_equal(told.belief, quiet.belief)
    np.testing.assert_allclose(told.belief[1], 1 / K)


def test_a_step_counts_once() -> None:
    policy = deployed()
    policy.observe(**step())
    once = policy.belief.copy()
    with pytest.raises(RuntimeError, match="counted already"):
        policy.observe(**step())
    np.testing.assert_array_equal(policy.belief, once)


def test_a_step_of_an_episode_that_is_over_does_not_count() -> None:
    policy = deployed()
    policy.reset(np.array([False, True, False]))
    policy.observe(**step(reward=np.full(K, 5.0)))
    np.testing.assert_allclose(policy.belief[1], 1 / K)
    assert abs(policy.belief[0] - 1 / K).max() > 1e-3


@pytest.mark.parametrize("keep", [False, True])
def test_a_mask_has_one_entry_an_environment(keep: bool) -> None:
    policy = deployed()
    for mask in (np.ones(K - 1, bool), np.ones((K, 1), bool), [NAN] * K):
        with pytest.raises(ValueError, match="mask"):
            policy.reset(mask, keep_belief=keep)


def test_there_is_at_least_one_environment() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        deployed().reset(num_envs=0)


def test_a_single_environment_takes_plain_numbers() -> None:
    policy = Policy(DQN(VECTOR, DQNConfig(members=2, hidden=(8,))))
    policy.reset()
    policy.act(np.zeros(2))
    policy.observe(np.float32(1.0), np.zeros(2), np.bool_(False), action=torch.tensor(1))
    assert policy.belief.shape == (2,)
    policy.act(np.zeros(2))
    policy.observe(1, np.zeros(2), 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_array_that_is_used_again_does_not_change_what_was_seen(dtype: Any) -> None:
    """Some environments return one array and change it in place."""
    beliefs = []
    for reused in (True, False):
        policy = Policy(DQN(VECTOR, DQNConfig(members=K, hidden=(8,)), seed=1))
        obs = np.ones(2, dtype)
        policy.act(obs)
        obs[:] = -2 if reused else 1
        policy.observe(1.0, np.full(2, -2, dtype), False)
        beliefs.append(policy.belief)
    np.testing.assert_array_equal(beliefs[0], beliefs[1])


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), np.array(0.5), [0.5], torch.tensor(0.5)])
def test_the_only_environments_step_counts_however_it_is_told(value: Any) -> None:
    told, plain = deployed(envs=1), deployed(envs=1)
    told.observe(value, np.ones((1, 2)), np.array([False]), active=[True])  # as one of many environments would be
    plain.observe(0.5, np.ones((1, 2)), False)
    np.testing.assert_array_equal(told.belief, plain.belief)
    assert abs(plain.belief - 1 / K).max() > 1e-4


@pytest.mark.parametrize("value", [NAN, np.inf, FAR, np.float32(NAN), 10**30, "much"])
def test_a_single_number_is_checked_too(value: Any) -> None:
    policy = deployed(envs=1)
    with pytest.raises(ValueError, match="reward"):
        policy.observe(value, np.ones((1, 2)), False)
    with pytest.raises(ValueError, match="terminated"):
        policy.observe(0.5, np.ones((1, 2)), value)
    np.testing.assert_allclose(policy.belief, 1 / K)


def test_one_member_is_not_asked_how_wrong_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy(DQN(VECTOR, DQNConfig(members=1, hidden=(8,))))
    monkeypatch.setattr(policy.agent, "td_errors", None)
    policy.act(np.zeros(2))
    policy.observe(1.0, np.zeros(2), False)
    np.testing.assert_array_equal(policy.belief, [1.0])
    policy.act(np.zeros(2))
    with pytest.raises(ValueError, match="reward holds a number that is NaN"):
        policy.observe(NAN, np.zeros(2), False)


def test_a_filter_is_kept_until_its_scale_or_settings_change() -> None:
    agent = DQN(VECTOR, DQNConfig(members=2, hidden=(8,)))
    first = agent.filter
    assert agent.filter is first
    agent.scale.fill_(2.0)
    assert agent.filter is not first
    agent.follow(forgetting=0.5)
    assert agent.filter.forgetting == 0.5
    agent.scale.zero_()
    with pytest.raises(ValueError, match="every scale must be positive"):
        _ = agent.filter
