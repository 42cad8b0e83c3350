"""Roll-outs: the returns that happened, finished episodes left alone, and the same whoever steps the rooms."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from apev.agents import DQN, DQNConfig
from apev.data import Layout
from apev.envs import BatchedLockedDoors, LockedDoorsEnv, Room, load_images
from apev.policy import Policy
from apev.rollout import STALL_WINDOW, GymnasiumBatch, Rollout, rollout

CARTPOLE = Layout(vectors=(("observation", 4),), picture=None, picture_shape=None, num_actions=2, bare=True)
COUNTER = Layout(vectors=(("observation", 1),), picture=None, picture_shape=None, num_actions=2, bare=True)
DOORS = Layout(vectors=(("position", 18),), picture="image", picture_shape=(3, 32, 32), num_actions=4)


def policy_for(layout: Layout, adapt: Any = "bayes", seed: int = 0, **settings: Any) -> Policy:
    fixed: dict[str, Any] = {"members": 3, "hidden": (16,), "likelihood": "paper"}
    return Policy(DQN(layout, DQNConfig(**(fixed | settings)), seed=seed), adapt)


class Counter(gymnasium.Env[Any, Any]):
    """Counts its steps: episode i ends after `ends[i]` of them, by itself or by the clock; shows the count modulo `cycle`."""

    observation_space = spaces.Box(0, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int, terminates: bool, cycle: int = 1000, success: bool | None = None) -> None:
        self.length, self.terminates, self.cycle, self.success = length, terminates, cycle, success
        self.taken: list[int] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.taken = []
        return self._seen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert len(self.taken) < self.length, "an episode that is over was stepped"
        self.taken.append(int(action))
        over = len(self.taken) == self.length
        info = {} if self.success is None else {"success": over and self.success}
        return self._seen(), float(len(self.taken)), over and self.terminates, over and not self.terminates, info

    def _seen(self) -> np.ndarray:
        return np.array([len(self.taken) % self.cycle], dtype=np.float32)


def counters(*specs: dict[str, Any]) -> GymnasiumBatch:
    remaining = list(specs)
    return GymnasiumBatch(lambda: Counter(**remaining.pop(0)), len(specs))


# ---------------------------------------------------------------------- what happened


def test_cartpole_returns_are_those_of_stepping_it_by_hand() -> None:
    policy = policy_for(CARTPOLE, seed=1)
    result = rollout(policy, GymnasiumBatch("CartPole-v1", 6, seed=10))
    for i in range(6):
        env = gymnasium.make("CartPole-v1")
        obs, _ = env.reset(seed=10 + i)
        policy.reset()
        total, length, ended, cut = 0.0, 0, False, False
        while not (ended or cut):
            after, reward, ended, cut, _ = env.step(policy.act(obs))
            policy.observe(reward, after, ended)
            obs, total, length = after, total + float(reward), length + 1
        assert (result.returns[i], result.lengths[i], result.terminated[i]) == (total, length, ended)


def test_a_batch_starts_the_same_episodes_at_every_reset() -> None:
    env = GymnasiumBatch("CartPole-v1", 3, seed=5)
    first = env.reset()
    env.step(np.zeros(3, dtype=int))
    np.testing.assert_array_equal(env.reset(), first)
    assert len(np.unique(first[:, 0])) == 3


def test_returns_lengths_and_ends_are_each_episodes_own() -> None:
    env = counters({"length": 2, "terminates": True}, {"length": 5, "terminates": False}, {"length": 1, "terminates": True})
    result = rollout(policy_for(COUNTER), env)
    assert result.returns.tolist() == [1 + 2, 1 + 2 + 3 + 4 + 5, 1]
    assert result.lengths.tolist() == [2, 5, 1]
    assert result.terminated.tolist() == [True, False, True]
    assert not result.knows_success  # the environment did not say a word about it


def test_the_environment_says_what_success_is() -> None:
    env = counters(
        {"length": 2, "terminates": True, "success": False},
        {"length": 3, "terminates": False, "success": True},
    )
    result = rollout(policy_for(COUNTER), env)
    assert result.success.tolist() == [False, True]
    assert result.terminated.tolist() == [True, False]


def test_a_finished_environment_is_frozen() -> None:
    """It is not stepped again (Counter would object), pays nothing, shows its last observation, and its belief rests."""
    env = counters({"length": 2, "terminates": True}, {"length": 6, "terminates": True})
    result = rollout(policy_for(COUNTER), env, trace=True)
    assert len(result.beliefs) == 7
    assert len(result.actions) == 6
    for t in range(2, 7):
        np.testing.assert_array_equal(result.beliefs[t][0], result.beliefs[2][0])
        np.testing.assert_array_equal(result.observations[t][0], [2.0])
    assert not np.array_equal(result.beliefs[3][1], result.beliefs[2][1])
    _, reward, ended, _, _ = env.step(np.zeros(2, dtype=int))
    assert reward.tolist() == [0, 0]
    assert ended.tolist() == [True, True]


def test_traces_start_before_the_first_step() -> None:
    result = rollout(policy_for(COUNTER), counters({"length": 3, "terminates": True}), trace=True)
    np.testing.assert_allclose(result.beliefs[0], np.full((1, 3), 1 / 3))
    assert [float(obs[0, 0]) for obs in result.observations] == [0, 1, 2, 3]
    untraced = rollout(policy_for(COUNTER), counters({"length": 3, "terminates": True}))
    assert (untraced.beliefs, untraced.observations, untraced.actions) == ([], [], [])


@pytest.mark.parametrize(
    ("spec", "stalled"),
    [
        ({"length": 30, "terminates": False, "cycle": 1}, True),
        ({"length": 30, "terminates": False, "cycle": 2}, True),
        ({"length": 30, "terminates": False, "cycle": 3}, False),
        ({"length": 30, "terminates": True, "cycle": 1}, False),
        ({"length": 30, "terminates": False, "cycle": 1, "success": True}, False),
        ({"length": STALL_WINDOW - 1, "terminates": False, "cycle": 1}, False),
        ({"length": STALL_WINDOW, "terminates": False, "cycle": 1}, True),
    ],
    ids=["stands", "to and fro", "moves", "terminated", "succeeded", "too short", "just long enough"],
)
def test_an_episode_is_stalled_when_it_failed_and_got_stuck(spec: dict[str, Any], stalled: bool) -> None:
    """Beside an episode that goes on for longer, which must not matter."""
    env = counters({"success": None, **spec}, {"length": 47, "terminates": False, "success": spec.get("success")})
    result = rollout(policy_for(COUNTER), env)
    assert result.stalled.tolist() == [stalled, False]


def test_an_empty_rollout_has_separate_columns() -> None:
    empty = Rollout.empty(3)
    empty.success[0] = True
    assert empty.terminated.sum() == empty.stalled.sum() == 0
    assert empty.returns.shape == empty.lengths.shape == (3,)


# ---------------------------------------------------------------------- Locked Doors, batched or not


@pytest.mark.parametrize("adapt", ["bayes", "uniform", "member:1"])
def test_batched_rooms_and_gymnasium_rooms_give_the_same_rollouts(adapt: Any) -> None:
    images, n = load_images(), 5
    rng = np.random.default_rng(0)
    pictures, positions = rng.integers(len(images.test_labels), size=n), rng.integers(9, size=(n, 2))

    class Batched(BatchedLockedDoors):
        def reset(self, *_: Any) -> Any:
            return super().reset(pictures, positions)

    class Chosen(LockedDoorsEnv):
        number = 0

        def reset(self, **_: Any) -> Any:
            return super().reset(options={"picture": int(pictures[self.number]), "position": tuple(positions[self.number])})

    created: list[Chosen] = []

    def make() -> Chosen:
        created.append(Chosen(images))
        created[-1].number = len(created) - 1
        return created[-1]

    policy = policy_for(DOORS, adapt, seed=3, features=4)
    batched = rollout(policy, Batched(images.test_images, images.test_labels, n), trace=True)
    single = rollout(policy, GymnasiumBatch(make, n), trace=True)
    for name in ("returns", "lengths", "terminated", "success", "stalled"):
        np.testing.assert_array_equal(getattr(batched, name), getattr(single, name), err_msg=name)
    np.testing.assert_array_equal(batched.actions, single.actions)
    np.testing.assert_allclose(batched.beliefs, single.beliefs, atol=1e-5)
    for one, other in zip(batched.observations, single.observations, strict=True):
        np.testing.assert_array_equal(one["position"], other["position"])
        np.testing.assert_array_equal(images.test_images[one["image"]], other["image"])


def test_a_table_of_pictures_is_encoded_once_for_the_whole_rollout() -> None:
    images = load_images()
    policy = policy_for(DOORS, features=4)
    agent = policy.agent
    assert isinstance(agent, DQN)
    assert agent.net.encoder is not None
    counts: list[int] = []
    agent.net.encoder.register_forward_pre_hook(lambda _, args: counts.append(len(args[0])))
    env = BatchedLockedDoors(images.test_images[:7], images.test_labels[:7], 20, Room(horizon=6))
    rollout(policy, env)
    assert counts == [7]


def test_rollouts_do_not_touch_the_global_random_numbers() -> None:
    state = torch.get_rng_state()
    rollout(policy_for(COUNTER, "random-member-step"), counters({"length": 3, "terminates": True}))
    # Building the agent is part of it: seeds are its own.
    assert torch.equal(torch.get_rng_state(), state)


def test_no_environments_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match=r"num_envs|episodes"):
        GymnasiumBatch("CartPole-v1", 0)
