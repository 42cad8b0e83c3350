"""Minari: data sets that Minari wrote load from id, folder or file, keep their environment, and are written back."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from apev.cli import main
from apev.data import DataError, Dataset, Sampler, defects
from apev.data.formats import io as files
from apev.data.formats import minari as minari_files
from apev.data.source import recover_environment

minari = pytest.importorskip("minari")
from minari.data_collector import EpisodeBuffer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def play(env_id: str, episodes: int, limit: int, keyed: bool = False) -> list[Any]:
    """Episodes of random actions as Minari's own buffers; half of them cut after `limit` steps."""
    env = gymnasium.make(env_id)
    env.action_space.seed(0)
    buffers = []
    for number in range(episodes):
        obs, _ = env.reset(seed=number)
        seen, actions, cut = [obs], [], []
        rewards: list[float] = []
        ended: list[bool] = []
        while len(rewards) < limit + 3 * number and not (ended and ended[-1]):
            action = env.action_space.sample()
            obs, reward, terminated, _, _ = env.step(action)
            seen.append(obs)
            actions.append(action)
            rewards.append(float(reward))
            ended.append(terminated)
            cut.append(False)
        cut[-1] = True  # some end in the same step: Minari keeps both flags
        shown = {"x": np.array(seen), "half": np.array(seen)[:, :2]} if keyed else np.array(seen)
        buffers.append(
            EpisodeBuffer(observations=shown, actions=np.array(actions), rewards=rewards, terminations=ended, truncations=cut)
        )
    return buffers


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


@pytest.fixture
def pendulum(root: Path) -> str:
    minari.create_dataset_from_buffers("pendulum/random-v0", play("Pendulum-v1", 4, 20), env="Pendulum-v1")
    return "pendulum/random-v0"


@pytest.fixture
def cartpole(root: Path) -> str:
    buffers = play("CartPole-v1", 6, 12)
    minari.create_dataset_from_buffers(
        "cartpole/random-v0", buffers, env="CartPole-v1", ref_min_score=10.0, ref_max_score=500.0
    )
    return "cartpole/random-v0"


def test_a_box_data_set_loads_by_id_folder_and_file(root: Path, pendulum: str) -> None:
    data = Dataset.load(pendulum)
    original = minari.load_dataset(pendulum)
    episodes = list(original.iterate_episodes())
    assert (len(data), data.num_episodes) == (original.total_steps, 4)
    np.testing.assert_allclose(data.observations["observation"], np.concatenate([e.observations[:-1] for e in episodes]))
    np.testing.assert_allclose(data.next_observations["observation"], np.concatenate([e.observations[1:] for e in episodes]))
    np.testing.assert_allclose(data.actions, np.concatenate([e.actions for e in episodes]))
    np.testing.assert_allclose(data.rewards, np.concatenate([e.rewards for e in episodes]), rtol=1e-6)
    np.testing.assert_array_equal(data.truncated, np.concatenate([e.truncations for e in episodes]))
    assert data.usable.all()
    assert (data.source["name"], data.source["environment"], data.source["format"]) == (pendulum, "Pendulum-v1", "minari")
    assert (data.source["action_low"], data.source["action_high"]) == ([-2.0], [2.0])
    for path in (root / pendulum, root / pendulum / "data", root / pendulum / "data" / "main_data.hdf5"):
        np.testing.assert_array_equal(Dataset.load(path).rewards, data.rewards)
    assert defects.find(files.read(pendulum)) == []
    assert Sampler(data, batch_size=16).sample().action.shape == (16, 1)


def test_the_environment_is_found_without_an_option(pendulum: str, tmp_path: Path) -> None:
    data = Dataset.load(pendulum)
    for name in ("a.npz", "a.hdf5", "a.apev"):
        data.save(tmp_path / name)
        env = recover_environment(Dataset.load(tmp_path / name).source)
        assert env.spec == minari.load_dataset(pendulum).recover_environment().spec


def test_discrete_actions_and_references(cartpole: str) -> None:
    data = Dataset.load(cartpole)
    assert (data.num_actions, data.discrete, data.source["reference"]) == (2, True, [10.0, 500.0])
    both = np.concatenate([e.terminations & e.truncations for e in minari.load_dataset(cartpole).iterate_episodes()])
    assert both.any()
    assert data.terminated[both].all()
    assert not data.truncated[both].any()
    assert "read as terminated" in data.source["notes"][0]


def test_dict_observations(root: Path) -> None:
    env = gymnasium.make("CartPole-v1")
    full = env.observation_space
    assert isinstance(full, gymnasium.spaces.Box)
    space = gymnasium.spaces.Dict({"x": full, "half": gymnasium.spaces.Box(full.low[:2], full.high[:2])})
    minari.create_dataset_from_buffers(
        "keyed-v0", play("CartPole-v1", 2, 9, keyed=True), observation_space=space, action_space=env.action_space
    )
    data = Dataset.load("keyed-v0")
    assert {key: column.shape[1] for key, column in data.observations.items()} == {"x": 4, "half": 2}
    assert "environment" not in data.source


@pytest.mark.parametrize("name", ["pendulum", "cartpole"])
def test_what_we_write_minari_reads(request: pytest.FixtureRequest, name: str) -> None:
    data = Dataset.load(request.getfixturevalue(name))
    data.save("copy/of-v1")
    again = Dataset.load("copy/of-v1")
    for column in ("actions", "rewards", "terminated", "truncated", "episodes"):
        np.testing.assert_array_equal(getattr(again, column), getattr(data, column), err_msg=column)
    np.testing.assert_array_equal(again.next_observations["observation"], data.next_observations["observation"])
    written = minari.load_dataset("copy/of-v1")
    assert written.recover_environment().spec.id == data.source["environment"]
    assert again.source.get("reference") == data.source.get("reference")
    with pytest.raises(ValueError, match="already exists"):
        data.save("copy/of-v1")


def test_rows_without_a_next_observation_are_left_out(root: Path) -> None:
    obs = np.arange(8, dtype=np.float32)[:, None]
    flags = np.zeros(8, bool)
    cut, ended = flags.copy(), flags.copy()
    cut[3], ended[6] = True, True
    data = Dataset.from_arrays(obs, np.zeros((8, 1)), np.arange(8), ended, cut)
    data.save("short-v0")
    again = Dataset.load("short-v0")
    assert again.rewards.tolist() == [0, 1, 2, 4, 5, 6]  # row 3 and the lone row 7 lead nowhere
    assert again.next_observations["observation"][:, 0].tolist() == [1, 2, 3, 5, 6, 6]
    assert np.flatnonzero(again.truncated).tolist() == [2]
    assert np.flatnonzero(again.terminated).tolist() == [5]


def test_what_minari_cannot_hold_is_told(root: Path) -> None:
    flags = np.zeros(3, bool)
    jump = Dataset.from_arrays(np.zeros((3, 1)), np.zeros((3, 1)), np.zeros(3), flags, flags, next_observations=np.ones((3, 1)))
    with pytest.raises(DataError, match="row 0: is not the observation of the following row"):
        jump.save("jump-v0")
    with pytest.raises(DataError, match="lossy"):
        Dataset.from_arrays(np.zeros((3, 4, 4, 3), np.uint8), [0, 1, 0], np.zeros(3), flags, flags).save("p-v0")


def test_a_data_set_that_is_not_here_or_is_damaged(root: Path, pendulum: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="minari download mujoco/hopper/expert-v0"):
        Dataset.load("mujoco/hopper/expert-v0")
    meta = root / pendulum / "data" / "metadata.json"
    facts = json.loads(meta.read_text())
    meta.write_text(json.dumps(facts | {"total_steps": 7}))
    with pytest.raises(DataError, match="again"):
        Dataset.load(pendulum)
    meta.write_text(json.dumps(facts | {"data_format": "arrow"}))
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "apev\[minari\]"'):
        Dataset.load(pendulum)


def test_reading_needs_no_package(pendulum: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    assert Dataset.load(pendulum).num_episodes == 4
    with pytest.raises(ModuleNotFoundError, match="to write Minari data sets"):
        Dataset.load(pendulum).save("other-v0")


def test_ids() -> None:
    assert minari_files.is_name("mujoco/hopper/expert-v0")
    assert minari_files.is_name("door-human-v2")
    for word in ("log.csv", "nowhere", "runs/log"):
        assert not minari_files.is_name(word)


def test_the_collector_writes_what_we_read(root: Path) -> None:
    pytest.importorskip("jax", reason="Minari's DataCollector needs it")
    env = minari.DataCollector(gymnasium.make("Pendulum-v1", max_episode_steps=15))
    for seed in range(3):
        env.reset(seed=seed)
        over = False
        while not over:
            _, _, ended, cut, _ = env.step(env.action_space.sample())
            over = bool(ended or cut)
    env.create_dataset("pendulum/collected-v0")
    data = Dataset.load("pendulum/collected-v0")
    assert (len(data), data.num_episodes) == (45, 3)
    assert data.source["environment"] == "Pendulum-v1"


@pytest.mark.parametrize("form", ["minari", "hdf5", "apev"])
def test_it_verifies_and_trains_with_no_option_beyond_the_path(
    cartpole: str, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = cartpole
    if form != "minari":
        path = str(tmp_path / f"log.{form}")
        main(["data", "convert", cartpole, path])
    main(["data", "verify", path])
    assert "no defect" in capsys.readouterr().out
    small = ["--updates", "20", "--batch-size", "32", "--threads", "1", "--set", "hidden=16,16"]
    main(["train", "--data", path, "--out", str(tmp_path / "run"), *small])
    assert (tmp_path / "run" / "policy" / "policy.json").exists()
