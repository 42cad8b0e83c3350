"""Files: D4RL's HDF5 in all its layouts, mapped folders, and what a data set knows of its origin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest

from apev.data import DataError, Dataset, Sampler
from apev.data.formats import io as files
from apev.data.mapped import is_mapped
from apev.data.source import d4rl_name, d4rl_robot, recover_environment

ROWS, LENGTH, OBS, ACTIONS = 60, 12, 5, 2
SOURCE = {"name": "hopper-medium-v2", "environment": "Hopper-v4", "format": "d4rl"}


def walk(seed: int = 0) -> dict[str, np.ndarray]:
    """Five episodes of 12 steps: the first three are cut by a clock, then the world ends two; states move on by 1."""
    rng = np.random.default_rng(seed)
    step = np.arange(ROWS)
    states = (step + 100 * (step // LENGTH))[:, None] + rng.random(OBS)[None, :]
    last = step % LENGTH == LENGTH - 1
    return {
        "observations": states.astype(np.float32),
        "actions": rng.uniform(-1, 1, (ROWS, ACTIONS)).astype(np.float32),
        "rewards": rng.normal(size=ROWS).astype(np.float32),
        "terminals": last & (step >= 36),
        "timeouts": last & (step < 36),
        "next_observations": (states + 1).astype(np.float32),
    }


def d4rl(path: Path, columns: dict[str, np.ndarray], **options: Any) -> Path:
    """A file as D4RL writes them: compressed columns, infos, and metadata that is not columns."""
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            file.create_dataset(name, data=column, **({"compression": "gzip"} | options))
        file.create_dataset("infos/qpos", data=np.zeros((ROWS, 6)))
        file.create_dataset("infos/action_log_probs", data=np.zeros(ROWS))
        file["metadata/algorithm"] = np.bytes_("SAC")
        file["metadata/policy/fc0/weight"] = np.zeros((3, 3))
        file["metadata/iteration"] = 7
    return path


def without(*names: str) -> dict[str, np.ndarray]:
    return {name: column for name, column in walk().items() if name not in names}


# --- D4RL -----------------------------------------------------------------------------------------------------------


def test_the_v2_layout(tmp_path: Path) -> None:
    columns = walk()
    data = Dataset.load(d4rl(tmp_path / "halfcheetah_medium_replay-v2.hdf5", columns))
    assert (len(data), data.num_episodes, int(data.usable.sum()), data.discrete) == (ROWS, 5, ROWS, False)
    assert (data.actions.dtype, data.actions.shape) == (np.dtype(np.float32), (ROWS, ACTIONS))
    np.testing.assert_array_equal(data.terminated, columns["terminals"])
    np.testing.assert_array_equal(data.truncated, columns["timeouts"])
    np.testing.assert_array_equal(data.next_observations["observation"], columns["next_observations"])
    assert data.source == {"name": "halfcheetah-medium-replay-v2", "environment": "HalfCheetah-v4", "format": "d4rl"}
    batch = Sampler(data, batch_size=64).sample()
    assert (batch.action.shape, batch.obs.vector.shape) == ((64, ACTIONS), (64, OBS))


def test_without_next_observations_the_row_at_a_timeout_is_not_learned_from(tmp_path: Path) -> None:
    columns = walk()
    data = Dataset.load(d4rl(tmp_path / "maze.hdf5", without("next_observations")))
    assert np.flatnonzero(~data.usable).tolist() == [11, 23, 35]  # terminal rows are: no value follows
    going_on = data.usable & ~data.terminated
    after = data.next_observations["observation"]
    np.testing.assert_array_equal(after[going_on], data.observations["observation"][1:][going_on[:-1]])
    np.testing.assert_allclose(after[going_on], columns["next_observations"][going_on], rtol=1e-6)
    assert data.num_episodes == 5


def test_without_timeouts_an_episode_ends_where_the_next_observation_does_not_follow(tmp_path: Path) -> None:
    data = Dataset.load(d4rl(tmp_path / "own.hdf5", without("timeouts")))
    assert np.flatnonzero(data.truncated).tolist() == [11, 23, 35]
    assert data.usable.all()
    assert "no timeouts" in data.source["notes"][0]


def test_without_timeouts_and_next_observations_a_known_time_limit_is_counted_off(tmp_path: Path) -> None:
    bare = without("timeouts", "next_observations")
    data = files.load(d4rl(tmp_path / "own.hdf5", bare), horizon=LENGTH)
    assert np.flatnonzero(data.truncated).tolist() == [11, 23, 35]
    assert np.flatnonzero(~data.usable).tolist() == [11, 23, 35]
    unknown = Dataset.load(tmp_path / "own.hdf5")
    assert not unknown.truncated.any()
    assert unknown.num_episodes == 2
    assert "--horizon" in unknown.source["notes"][0]
    named = Dataset.load(d4rl(tmp_path / "hopper_medium.hdf5", bare))  # D4RL's own MuJoCo data: 1000
    assert "1000 steps" in named.source["notes"][0]


def test_a_row_both_terminal_and_timed_out_is_terminated(tmp_path: Path) -> None:
    columns = walk()
    columns["timeouts"][[47, 59]] = True
    data = Dataset.load(d4rl(tmp_path / "a.hdf5", columns))
    assert data.terminated[[47, 59]].all()
    assert not data.truncated[[47, 59]].any()
    assert data.source["notes"] == ["2 rows are both terminal and timed out: read as terminated"]


def test_other_dtypes_and_shapes_of_old_files(tmp_path: Path) -> None:
    columns = walk()
    old = {name: column.astype(np.float64) for name, column in columns.items()}
    old["rewards"], old["terminals"] = old["rewards"][:, None], columns["terminals"].astype(np.uint8)
    data = Dataset.load(d4rl(tmp_path / "a.h5", old))
    expected = Dataset.load(d4rl(tmp_path / "b.h5", columns))
    for name in ("actions", "rewards", "terminated", "truncated", "episodes"):
        np.testing.assert_array_equal(getattr(data, name), getattr(expected, name))
    assert data.observations["observation"].dtype == np.float32


@pytest.mark.parametrize(
    ("changes", "column", "fix"),
    [
        ({"rewards": None}, "rewards", "add rewards"),
        ({"terminals": None, "timeouts": None, "dones": np.zeros(ROWS)}, "dones", "two columns"),
        ({"next_obs": np.zeros((ROWS, OBS)), "next_observations": None}, "next_obs", "next_observations"),
        ({"rewards": np.full(ROWS, np.nan)}, "rewards", "isfinite"),
        ({"actions": np.zeros(ROWS)}, "actions", "astype"),
    ],
    ids=["missing", "dones", "misnamed", "nan", "flat actions"],
)
def test_a_bad_file_is_told(tmp_path: Path, changes: dict[str, Any], column: str, fix: str) -> None:
    columns = {name: value for name, value in (walk() | changes).items() if value is not None}
    with pytest.raises(DataError) as caught:
        Dataset.load(d4rl(tmp_path / "bad.hdf5", columns))
    assert caught.value.column == column
    assert fix in caught.value.fix


def test_a_file_that_is_not_hdf5_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "text.hdf5").write_text("no")
    with pytest.raises(DataError, match=r"text\.hdf5: cannot be read as HDF5"):
        Dataset.load(tmp_path / "text.hdf5")
    for name in ("absent.hdf5", "absent.apev", "absent/random-v0"):
        with pytest.raises(FileNotFoundError, match="absent"):
            Dataset.load(name if "/" in name else tmp_path / name)


def test_names_of_d4rl() -> None:
    assert d4rl_name(Path("x/walker2d_full_replay-v2.hdf5")) == "walker2d-full-replay-v2"
    assert d4rl_robot("ant-medium-expert-v1") == "ant"
    assert d4rl_robot("antmaze-umaze-v2") is None
    assert d4rl_robot("hopper-mine") is None


# --- our own files --------------------------------------------------------------------------------------------------

NAMES = ["log.npz", "log.hdf5", "log.h5", "log.apev"]


def logs() -> dict[str, Dataset]:
    columns = walk()
    flags = (columns["terminals"], columns["timeouts"])
    table = np.arange(12, dtype=np.uint8).reshape(3, 2, 2, 1)
    both = {"b": columns["observations"], "a/1.x": np.eye(ROWS, 3, dtype=np.uint8), "image": np.arange(ROWS) % 3}
    return {
        "continuous": Dataset.from_arrays(
            columns["observations"],
            columns["actions"],
            columns["rewards"],
            *flags,
            next_observations=columns["next_observations"],
            source=SOURCE,
        ),
        "dict": Dataset.from_arrays(
            both, np.arange(ROWS) % 4, columns["rewards"], *flags, pictures={"image": table}, num_actions=9
        ),
        "contexts": Dataset.from_arrays(
            {"x": columns["observations"]},
            columns["actions"],
            columns["rewards"],
            np.zeros(ROWS, bool),
            np.zeros(ROWS, bool),
            episodes=np.arange(ROWS) // 7,
            contexts=np.arange(ROWS) // 14,
        ),
    }


def same(left: Dataset, right: Dataset) -> None:
    assert list(left.observations) == list(right.observations)
    assert (left.given_next is None) == (right.given_next is None)
    for key, column in left.observations.items():
        np.testing.assert_array_equal(column, right.observations[key])
        assert column.dtype == right.observations[key].dtype
        np.testing.assert_array_equal(left.next_observations[key], right.next_observations[key])
    for name in ("actions", "rewards", "terminated", "truncated", "episodes", "usable", "group"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)
    assert (left.num_actions, left.picture_key, left.num_groups) == (right.num_actions, right.picture_key, right.num_groups)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", list(logs()))
def test_every_format_keeps_every_log(tmp_path: Path, name: str, kind: str) -> None:
    data = logs()[kind]
    data.save(tmp_path / name)
    data.save(tmp_path / name)  # a second time replaces the first
    again = Dataset.load(tmp_path / name)
    same(data, again)
    told = {key: value for key, value in data.source.items() if key != "format"}
    assert {key: value for key, value in again.source.items() if key != "format"} == told
    assert [path.name for path in tmp_path.iterdir()] == [name]
    if kind == "continuous" and name != "log.npz":
        assert again.mapped
        assert all(is_mapped(column) for column in (again.observations["observation"], again.actions))
        assert not is_mapped(again.rewards)


def test_what_we_write_is_what_d4rl_reads(tmp_path: Path) -> None:
    data = logs()["continuous"]
    data.save(tmp_path / "a.hdf5", compress=True)
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert sorted(file) == ["actions", "next_observations", "observations", "rewards", "terminals", "timeouts"]
        np.testing.assert_array_equal(file["timeouts"][:], data.truncated)
        assert file["observations"].compression == "gzip"
    same(data, Dataset.load(tmp_path / "a.hdf5"))


@pytest.mark.parametrize("first", ["log.npz", "log.hdf5", "log.apev"])
@pytest.mark.parametrize("second", ["log2.npz", "log2.hdf5", "log2.apev"])
def test_convert_between_any_two(tmp_path: Path, first: str, second: str) -> None:
    data = logs()["continuous"]
    data.save(tmp_path / first, compress=True)
    files.convert(tmp_path / first, tmp_path / second)
    same(data, Dataset.load(tmp_path / second))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([first, second])


def test_source_survives_a_split_and_defaults_to_nothing() -> None:
    data = logs()["continuous"]
    assert [part.source for part in data.split(0.4, seed=0)] == [SOURCE, SOURCE]
    assert logs()["dict"].source == {}


def test_a_folder_of_someone_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "x.apev").mkdir()
    (tmp_path / "x.apev" / "letter.txt").write_text("dear")
    with pytest.raises(DataError, match="no data set of ours"):
        logs()["continuous"].save(tmp_path / "x.apev")
    assert (tmp_path / "x.apev" / "letter.txt").exists()
    with pytest.raises(DataError, match=r"header\.json"):
        Dataset.load(tmp_path / "x.apev")


def test_a_damaged_folder_is_told(tmp_path: Path) -> None:
    logs()["continuous"].save(tmp_path / "x.apev")
    (tmp_path / "x.apev" / "rewards.npy").write_bytes(b"half")
    with pytest.raises(DataError, match=r"rewards: is not what was written.*checksum"):
        Dataset.load(tmp_path / "x.apev")
    (tmp_path / "x.apev" / "header.json").write_text(json.dumps({"format": "apev.dataset", "version": 99, "num_actions": 1}))
    (tmp_path / "x.apev" / "rewards.npy").unlink()
    with pytest.raises(DataError, match="upgrade apev"):
        Dataset.load(tmp_path / "x.apev")


def test_the_environment_is_recovered_from_an_id_or_a_spec() -> None:
    assert recover_environment({"environment": "CartPole-v1"}).spec.id == "CartPole-v1"  # type: ignore[union-attr]
    spec = json.loads(gymnasium.spec("Pendulum-v1").to_json()) | {"max_episode_steps": 7, "autoreset": False}  # an older field
    env = recover_environment({"environment": "CartPole-v1", "environment_spec": json.dumps(spec)})
    assert env.spec is not None
    assert (env.spec.id, env.spec.max_episode_steps) == ("Pendulum-v1", 7)
    with pytest.raises(ValueError, match=r"does not say its environment.*--env"):
        recover_environment({"name": "x"})
