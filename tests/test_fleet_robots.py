"""Robots of a hidden kind: that a wired log is what the wired robot does, and that a worn joint is weaker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import apev
from apev.data import DataError, Dataset, recover_environment
from apev.data.scores import episode_scores
from apev.envs.fleet import wired, worn_log
from apev.envs.fleet.wiring import SIGNS
from apev.envs.fleet.worn import JOINTS
from apev.envs.make import make

pytest.importorskip("mujoco", reason="pip install 'apev[mujoco]'")

ROBOTS = ["apev/CheetahWiring-v0", "apev/WornJoint-v0"]


def cheetah(episodes: int, steps: int, given_next: bool = True) -> Dataset:
    """A log of right robots under random actions."""
    env, rng, rows = make("HalfCheetah-v4", max_episode_steps=steps), np.random.default_rng(0), []
    for episode in range(episodes):
        obs, over = env.reset(seed=episode)[0], False
        while not over:
            action = rng.uniform(-1, 1, 6).astype(np.float32)
            after, reward, terminated, truncated, _ = env.step(action)
            rows.append((obs, action, reward, after, terminated, truncated))
            obs, over = after, truncated
    observations, actions, rewards, following, ends, cuts = (np.array(column) for column in zip(*rows, strict=True))
    given = following if given_next else None
    return Dataset.from_arrays(observations, actions, rewards, ends, cuts, next_observations=given)


def state_of(env: Any, observation: np.ndarray) -> None:
    """Put the robot where this was observed; how far it has run is not in it, and does not matter."""
    env.inside.set_state(np.append(0.0, observation[:8]), observation[8:])


@pytest.mark.parametrize("name", ROBOTS)
@pytest.mark.filterwarnings("ignore::UserWarning")  # of spaces that are the known environment's
def test_a_robot_keeps_gymnasiums_rules(name: str) -> None:
    check_env(make(name).unwrapped, skip_render_check=True)


@pytest.mark.parametrize(("episodes", "robots"), [(20, 8), (3, 8)])
def test_a_wired_log_is_what_the_wired_robot_does(episodes: int, robots: int) -> None:
    log, kinds = wired(cheetah(episodes, 60), robots)
    env = make("apev/CheetahWiring-v0").unwrapped
    assert np.bincount(kinds).tolist() == [2, 2, 2, 2]
    for row in range(0, len(log), 11):
        kind = int(kinds[log.group[row]])
        env.reset(options={"kind": kind})
        state_of(env, log.observations["observation"][row])
        after, reward, *_, info = env.step(log.actions[row])
        np.testing.assert_allclose(log.next_observations["observation"][row], after, rtol=1e-3, atol=1e-3)
        assert log.rewards[row] == pytest.approx(reward, abs=1e-3)
        assert info["kind"] == kind


def test_another_wiring_does_something_else() -> None:
    """The comparison above could not fail if signs did not matter."""
    log = cheetah(1, 60)
    env = make("apev/CheetahWiring-v0").unwrapped
    for kind, signs in enumerate(SIGNS):
        env.reset(options={"kind": kind})
        state_of(env, log.observations["observation"][30])
        after = env.step(log.actions[30])[0]
        same = np.allclose(log.next_observations["observation"][30], after, atol=1e-2)
        assert same == (signs > 0).all()


def test_robots_get_whole_episodes_where_there_are_enough() -> None:
    right = cheetah(9, 20)
    log, kinds = wired(right, 4)
    assert log.num_groups == 4
    np.testing.assert_array_equal(log.episodes, right.episodes)
    np.testing.assert_array_equal(log.truncated, right.truncated)
    assert sorted(len(np.unique(log.episodes[log.group == robot])) for robot in range(4)) == [2, 2, 2, 3]
    np.testing.assert_array_equal(log.actions, right.actions * SIGNS[kinds[log.group]])
    np.testing.assert_array_equal(log.rewards, right.rewards)


@pytest.mark.parametrize("given_next", [True, False])
def test_robots_get_equal_pieces_where_episodes_are_few(given_next: bool) -> None:
    right = cheetah(2, 50, given_next)
    log, _ = wired(right, 8)
    assert len(log) == right.usable.sum() == (100 if given_next else 98)
    sizes = np.bincount(log.group)
    assert np.ptp(sizes) <= 1
    ends = np.flatnonzero(log.truncated)
    np.testing.assert_array_equal(ends, np.flatnonzero(np.append(np.diff(log.episodes) != 0, True)))
    assert set(np.cumsum(sizes) - 1) <= set(ends)
    assert log.usable.all()
    inside = ~log.truncated[:-1]
    column = log.observations["observation"]
    np.testing.assert_array_equal(log.next_observations["observation"][:-1][inside], column[1:][inside])


def test_a_wiring_can_be_left_out_and_a_seed_decides_the_rest() -> None:
    right = cheetah(2, 50)
    log, kinds = wired(right, 12, kinds=(0, 1, 2))
    assert np.bincount(kinds, minlength=4).tolist() == [4, 4, 4, 0]
    assert log.source["environment"] == "apev/CheetahWiring-v0"
    assert episode_scores(log) is not None
    again, same = wired(right, 12, kinds=(0, 1, 2))
    assert again.digest == log.digest
    np.testing.assert_array_equal(kinds, same)
    assert (wired(right, 12, seed=1, kinds=(0, 1, 2))[1] != kinds).any()


def test_wired_refuses_what_it_cannot_wire() -> None:
    right = cheetah(1, 10)
    with pytest.raises(DataError, match=r"half-cheetah.*Fix"):
        wired(Dataset.example("cartpole"))
    with pytest.raises(DataError, match=r"10 usable rows.*40 robots"):
        wired(right)
    with pytest.raises(ValueError, match=r"one of kinds is 4.*Fix"):
        wired(right, 4, kinds=(0, 4))
    with pytest.raises(ValueError, match=r"different ones"):
        wired(right, 4, kinds=(1, 1))
    with pytest.raises(ValueError, match=r"2 contexts cannot be of 4 kinds"):
        wired(right, 2)


def test_a_robot_is_rewired_in_the_middle_of_an_episode() -> None:
    env = gymnasium.make("apev/CheetahWiring-v0", kind=0, rewire_at=3, kind_after=3)
    flipped = gymnasium.make("apev/CheetahWiring-v0", kind=0)
    action = np.linspace(-1, 1, 6, dtype=np.float32)
    env.reset(seed=0)
    flipped.reset(seed=0)
    for step in range(6):
        *_, info = result = env.step(action)
        assert info["kind"] == (0 if step < 3 else 3)
        np.testing.assert_array_equal(result[0], flipped.step(action if step < 3 else -action)[0])
    assert env.reset(seed=0)[1]["kind"] == 0
    drawn = gymnasium.make("apev/CheetahWiring-v0", kind=1, rewire_at=1)
    after = set()
    for seed in range(20):
        drawn.reset(seed=seed)
        drawn.step(action)
        after.add(drawn.step(action)[4]["kind"])
    assert after == {0, 2, 3}
    with pytest.raises(ValueError, match=r"kind_after is given.*Fix"):
        gymnasium.make("apev/CheetahWiring-v0", kind_after=1)
    with pytest.raises(ValueError, match=r"rewire_at is 0.*Fix"):
        gymnasium.make("apev/CheetahWiring-v0", rewire_at=0)


@pytest.mark.parametrize("robot", ["HalfCheetah-v4", "Walker2d-v4"])
def test_a_worn_joint_is_a_right_one_that_gets_a_share_of_the_action(robot: str) -> None:
    """Torque is gear times action, and the cost of an action is the same however weak the joint."""
    env, plain = make("apev/WornJoint-v0", robot=robot, joints=6), make(robot)
    rng = np.random.default_rng(0)
    for kind in range(7):
        first, info = env.reset(seed=kind, options={"kind": kind, "share": 0.2})
        np.testing.assert_array_equal(first, plain.reset(seed=kind)[0])
        assert info["share"] == (0.2 if kind else 1.0)
        weak = np.ones(6)
        if kind:
            weak[list(JOINTS[robot].values())[kind - 1]] = 0.2
        for _ in range(5):
            action = rng.uniform(-1, 1, 6)
            ours, theirs = env.step(action), plain.step(weak * action)
            np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-9, atol=1e-9)
            assert ours[4]["kind"] == kind


def test_how_weak_a_joint_is_varies_within_its_kind() -> None:
    env = gymnasium.make("apev/WornJoint-v0")
    infos = [env.reset(seed=seed)[1] for seed in range(100)]
    assert sorted({info["kind"] for info in infos}) == [0, 1, 2, 3]
    shares = np.array([info["share"] for info in infos if info["kind"]])
    assert 0.1 <= shares.min() < 0.15 < 0.25 < shares.max() <= 0.3
    assert {info["share"] for info in infos if not info["kind"]} == {1.0}
    assert env.reset(seed=5)[1] == infos[5]
    assert gymnasium.make("apev/WornJoint-v0", kind=2, share=0.5).reset(seed=5)[1]["share"] == 0.5
    for wrong in ({"robot": "Ant-v4"}, {"joints": 7}, {"joints": 0}, {"kind": 4}):
        with pytest.raises(ValueError, match="Fix"):
            gymnasium.make("apev/WornJoint-v0", **wrong)
    with pytest.raises(ValueError, match=r"share is 2.0. Fix"):
        env.reset(options={"kind": 1, "share": 2})


def test_a_worn_log_is_made_of_its_teachers_actions() -> None:
    still, shared = (lambda seen: np.zeros(6)), (lambda seen: np.full(6, 0.5))
    teachers = [[still, shared], [lambda seen: -np.ones(6), shared], [shared]]
    log, kinds = worn_log(teachers, machines=6, episodes=4, seed=0, noise=0.0, steps=10)
    assert (len(log), log.num_episodes, log.num_groups) == (240, 24, 6)
    assert np.bincount(kinds).tolist() == [2, 2, 2]
    allowed = {0: {0.0, 0.5}, 1: {-1.0, 0.5}, 2: {0.5}}
    for kind in range(3):
        assert set(log.actions[kinds[log.group] == kind].flat) == allowed[kind]
    env = recover_environment(log.source)
    assert env.unwrapped.kinds == ("healthy", "rear thigh", "front thigh")  # type: ignore[attr-defined]
    assert env.spec is not None
    assert env.spec.max_episode_steps == 10
    again, _ = worn_log(teachers, machines=6, episodes=4, seed=0, noise=0.0, steps=10)
    assert again.digest == log.digest
    noisy, _ = worn_log(teachers, machines=6, episodes=4, seed=0, noise=0.3, steps=10)
    assert noisy.actions.min() >= -1
    assert len(np.unique(noisy.actions)) > 100
    with pytest.raises(ValueError, match=r"teachers for 1 kinds.*Fix"):
        worn_log([[still], []])


def test_a_trained_policy_can_be_a_teacher() -> None:
    policy = apev.train(cheetah(1, 20), "bc", updates=2)
    log, _ = worn_log([[policy.act], [policy.act]], machines=2, episodes=1, noise=0.0, steps=3)
    np.testing.assert_allclose(log.actions[0], policy.act(log.observations["observation"][0]), atol=1e-5)


SCRIPT = """
import sys
{before}
import gymnasium
import apev.envs
try:
    {make}("{name}").reset(seed=0)
except ImportError as error:
    print(error)
"""


def run(name: str, folder: Path, before: str = "", make: str = "gymnasium.make") -> subprocess.CompletedProcess[str]:
    code = SCRIPT.format(before=before, make=make, name=name)
    return subprocess.run([sys.executable, "-W", "default", "-c", code], cwd=folder, capture_output=True, text=True, check=True)


@pytest.mark.parametrize("name", ROBOTS)
def test_a_robot_is_made_without_noise(name: str, tmp_path: Path) -> None:
    done = run(name, tmp_path)
    assert (done.stdout, done.stderr) == ("", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("way", ["gymnasium.make", "apev.envs.make.make"])
def test_without_mujoco_the_command_that_installs_it_is_named(way: str, tmp_path: Path) -> None:
    done = run("apev/CheetahWiring-v0", tmp_path, "sys.modules['mujoco'] = None", way)
    assert done.stdout.count("Fix: pip install 'apev[mujoco]'") == 1
