"""Policies in stable-baselines3's own evaluation adapt, and return what they return in ours."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import apev
from apev.agents import DQN, TD3BC, DQNConfig, TD3BCConfig
from apev.data.batch import Layout
from apev.policy import Policy
from apev.rollout import GymnasiumBatch, rollout
from apev.sb3 import AdaptingModel

CARTPOLE = Layout((("observation", 4),), None, None, 2, True)
PENDULUM = Layout((("observation", 3),), None, None, 0, True, (-2.0,), (2.0,))


def cartpole_policy(adapt: str = "bayes") -> Policy:
    """Members that disagree, and whose belief moves at every step."""
    agent = DQN(CARTPOLE, DQNConfig(members=4, hidden=(16,), floor=0.01), seed=3)
    with torch.no_grad():
        for parameter in agent.net.parameters():
            parameter.mul_(2)
    return Policy(agent, adapt)


def pendulum_policy() -> Policy:
    return Policy(TD3BC(PENDULUM, TD3BCConfig(members=3, hidden=(16,)), seed=1))


def short(name: str, steps: int) -> Any:
    return lambda: gymnasium.wrappers.TimeLimit(gymnasium.make(name).unwrapped, steps)


@pytest.mark.parametrize(
    ("policy", "make"),
    [(cartpole_policy, short("CartPole-v1", 14)), (pendulum_policy, short("Pendulum-v1", 20))],
    ids=["cartpole", "pendulum"],
)
def test_evaluate_policy_gives_the_returns_of_our_own_evaluation(policy: Any, make: Any) -> None:
    pytest.importorskip("stable_baselines3", reason="needs the extra: pip install 'apev[sb3]'")
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

    ours = rollout(policy(), GymnasiumBatch(make, 6, seed=5))
    model, env = apev.as_sb3(policy(), VecMonitor(DummyVecEnv([make] * 6)))
    env.seed(5)
    found: Any = evaluate_policy(model, env, n_eval_episodes=6, return_episode_rewards=True)
    returns, lengths = found
    np.testing.assert_allclose(sorted(returns), sorted(ours.returns), rtol=1e-5)
    assert sorted(lengths) == sorted(ours.lengths)
    frozen = rollout(policy().with_adapt("uniform"), GymnasiumBatch(make, 6, seed=5))
    assert not np.allclose(frozen.returns, ours.returns)  # so the belief counted


def test_the_belief_moves_within_an_episode_and_begins_anew_with_the_next() -> None:
    pytest.importorskip("stable_baselines3", reason="needs the extra: pip install 'apev[sb3]'")
    policy = cartpole_policy()
    model, env = apev.as_sb3(policy, "CartPole-v1")
    obs, start, state, ends = env.reset(), np.ones(1, bool), None, 0
    while ends < 2:
        action, state = model.predict(obs, state, start)
        if start[0]:
            np.testing.assert_allclose(policy.belief, 0.25)
        obs, _, start, infos = env.step(action)
        assert not np.allclose(policy.belief, 0.25)
        ends += int(start[0])
        assert ("episode" in infos[0]) == bool(start[0])  # a Monitor is beneath


def test_steps_without_a_prediction_and_scaled_rewards() -> None:
    pytest.importorskip("stable_baselines3", reason="needs the extra: pip install 'apev[sb3]'")
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    policy = cartpole_policy()
    _, env = apev.as_sb3(policy, lambda: gymnasium.make("CartPole-v1"))
    env.reset()
    env.step(np.array([1]))
    np.testing.assert_allclose(policy.belief, 0.25)
    with pytest.raises(ValueError, match=r"VecNormalize.*Fix"):
        apev.as_sb3(policy, VecNormalize(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")])))


def steps_of(kind: str) -> tuple[Any, Any, list[dict[str, Any]]]:
    """(obs before, obs after a reset, infos) of two environments; the second one ended."""
    rng = np.random.default_rng(0)
    before, after, end = (rng.normal(size=(2, 4)).astype(np.float32) for _ in range(3))
    if kind == "dict":
        return {"x": before}, {"x": after}, [{}, {"terminal_observation": {"x": end[1]}}]
    return before, after, [{}, {"terminal_observation": end[1]}]


@pytest.mark.parametrize("kind", ["array", "dict"])
@pytest.mark.parametrize("cut", [False, True])
def test_an_end_is_observed_with_its_own_observation_and_a_clock_is_no_end(kind: str, cut: bool) -> None:
    layout = CARTPOLE if kind == "array" else Layout((("x", 4),), None, None, 2)
    agent = DQN(layout, DQNConfig(members=3, hidden=(16,)))
    before, after, infos = steps_of(kind)
    infos[1]["TimeLimit.truncated"] = cut
    model, plain = AdaptingModel(Policy(agent)), Policy(agent)
    action, _ = model.predict(before, None, np.ones(2, bool))
    model.observe(action, after, [1.0, -1.0], [False, True], infos)
    plain.act(before)
    first, end = after, infos[1]["terminal_observation"]
    if kind == "dict":
        first, end = first["x"], end["x"]
    led_to = np.stack([first[0], end])
    plain.observe([1.0, -1.0], {"x": led_to} if kind == "dict" else led_to, [False, not cut])
    np.testing.assert_array_equal(model.policy.belief, plain.belief)


def test_an_end_that_does_not_say_how_is_refused() -> None:
    model = AdaptingModel(cartpole_policy())
    obs = np.zeros((2, 4), np.float32)
    action, _ = model.predict(obs, None, np.ones(2, bool))
    with pytest.raises(ValueError, match=r"environment 1 ended.*terminal_observation"):
        model.observe(action, obs, [0.0, 0.0], [False, True], [{}, {}])


def test_predicting_without_observing_warns_once_where_it_matters() -> None:
    obs = np.zeros(4, np.float32)
    policy = cartpole_policy()
    policy.predict(obs)
    policy.predict(obs)
    with pytest.warns(UserWarning, match=r"observe\(\) never.*apev\.as_sb3"):
        policy.predict(obs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            policy.predict(obs)
        frozen, observing = cartpole_policy("uniform"), cartpole_policy()
        for _ in range(5):
            frozen.predict(obs)
            observing.predict(obs)
            observing.observe(1.0, obs, False)


def test_a_missing_package_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.split(".")[0] == "stable_baselines3"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    with pytest.raises(ImportError, match=r"stable_baselines3.*pip install 'apev\[sb3\]'"):
        apev.as_sb3(cartpole_policy(), "CartPole-v1")
