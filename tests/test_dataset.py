"""The data set's contract: what is stored, what is derived, which mistakes are refused, and that files round-trip."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apev.data import DataError, Dataset
from apev.data import pictures as pictures_module

N = 8
# the log drawn in dataset.py: an episode that terminates, one that is truncated, one the log cuts off
TERMINATED = np.array([0, 0, 1, 0, 0, 0, 0, 0], dtype=bool)
TRUNCATED = np.array([0, 0, 0, 0, 0, 1, 0, 0], dtype=bool)


def columns(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "observations": np.arange(N * 2, dtype=np.float32).reshape(N, 2),
        "actions": np.arange(N) % 3,
        "rewards": -np.arange(N, dtype=np.float64),
        "terminated": TERMINATED.copy(),
        "truncated": TRUNCATED.copy(),
    }
    return base | changes


def with_value(name: str, row: int, value: Any) -> dict[str, Any]:
    data = columns()
    data[name] = data[name].copy()
    data[name][row] = value
    return data


def same(left: Dataset, right: Dataset) -> None:
    assert list(left.observations) == list(right.observations)
    for key, column in left.observations.items():
        np.testing.assert_array_equal(column, right.observations[key])
        assert column.dtype == right.observations[key].dtype
        np.testing.assert_array_equal(left.next_observations[key], right.next_observations[key])
    for name in ("actions", "rewards", "terminated", "truncated", "episodes", "usable", "group", "pictures"):
        one, other = getattr(left, name), getattr(right, name)
        assert (one is None) == (other is None), name
        if one is not None:
            np.testing.assert_array_equal(one, other, err_msg=name)
            assert one.dtype == other.dtype, name
    for name in ("num_actions", "picture_key", "vector_keys", "shared_pictures", "num_groups", "num_episodes"):
        assert getattr(left, name) == getattr(right, name), name


# --- what is stored and derived -------------------------------------------------------------------------------------


def test_episodes_next_rows_and_usable_rows_follow_the_flags() -> None:
    data = Dataset.from_arrays(**columns())
    assert data.episodes.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert data.usable.tolist() == [True, True, True, True, True, False, True, False]
    np.testing.assert_array_equal(
        data.next_observations["observation"][[0, 1, 3, 4, 6]], data.observations["observation"][[1, 2, 4, 5, 7]]
    )
    np.testing.assert_array_equal(data.next_observations["observation"][2], data.observations["observation"][2])
    assert (len(data), data.num_episodes, data.num_actions, data.vector_dim, data.discrete) == (8, 3, 3, 2, True)
    assert data.episode_returns().tolist() == [-3.0, -12.0, -13.0]
    assert not data.shared_pictures
    assert data.group.tolist() == data.episodes.tolist()
    assert data.num_groups == 3


@pytest.mark.parametrize(
    ("rewards", "ended", "gamma", "lowest"),
    [
        ([-1.0, -2.0, 4.0, -5.0], [0, 1, 0, 1], 0.5, -5.0),
        ([-6.0, -7.0], [0, 1], 0.5, -9.5),
        ([-6.0, -7.0], [0, 0], 0.5, -14.0),  # cut off: -7 for ever
        ([-8.0, 2.0], [0, 0], 0.5, -7.0 / 0.75),  # -8, 2, -8, 2, ...
        ([3.0, 2.0], [0, 0], 0.5, 2.0),  # what is cut off may be worth nothing
        ([-1.0, 0.0], [0, 0], 1.0, -np.inf),
        ([0.0, 0.0], [0, 0], 1.0, 0.0),
    ],
)
def test_the_lowest_return_counts_what_was_cut_off(rewards: list[float], ended: list[int], gamma: float, lowest: float) -> None:
    rows = np.zeros((len(rewards), 1))
    data = Dataset.from_arrays(rows, rows, np.array(rewards), np.array(ended, dtype=bool), np.zeros(len(rewards), dtype=bool))
    assert data.lowest_return(gamma) == pytest.approx(lowest)
    mirrored = Dataset.from_arrays(rows, rows, -data.rewards, data.terminated, data.truncated)
    assert mirrored.highest_return(gamma) == pytest.approx(-lowest)


def test_given_next_observations_make_every_row_usable() -> None:
    following = np.full((N, 2), 7.0)
    data = Dataset.from_arrays(**columns(next_observations=following))
    assert data.usable.all()
    np.testing.assert_array_equal(data.next_observations["observation"], following)


def test_episode_ids_may_be_any_integers_and_may_end_without_a_flag() -> None:
    ids = np.array([9, 9, 9, 4, 4, 4, 7, 5])
    data = Dataset.from_arrays(**columns(episodes=ids))
    assert data.episodes.tolist() == [0, 0, 0, 1, 1, 1, 2, 3]
    assert data.usable.tolist() == [True, True, True, True, True, False, False, False]


def test_dtypes_stay_compact_and_dict_order_is_kept() -> None:
    observations = {
        "z": np.eye(N, dtype=np.uint8),
        "a": np.linspace(0, 1, N),
        "half": np.zeros((N, 1), dtype=np.float16),
        "wide": np.full(N, 60_000, dtype=np.uint16),
    }
    data = Dataset.from_arrays(**columns(observations=observations))
    assert data.vector_keys == ("z", "a", "half", "wide")
    assert [data.observations[key].dtype.name for key in data.vector_keys] == ["uint8", "float32", "float16", "int32"]
    assert data.vector_dim == N + 3
    assert (data.observations["wide"] == 60_000).all()
    assert data.rewards.dtype == np.float32
    assert data.actions.dtype == np.int64


def test_continuous_actions_are_float32_with_no_number() -> None:
    data = Dataset.from_arrays(**columns(actions=np.linspace(-1, 1, N * 2).reshape(N, 2)))
    assert (data.discrete, data.num_actions, data.actions.dtype, data.actions.shape) == (
        False,
        None,
        np.dtype(np.float32),
        (N, 2),
    )
    assert "2 continuous" in repr(data)


def test_columns_of_shape_n_by_1_and_flags_of_0_and_1_are_understood() -> None:
    data = Dataset.from_arrays(
        **columns(
            actions=columns()["actions"][:, None],
            rewards=columns()["rewards"][:, None],
            terminated=TERMINATED.astype(np.float32),
            truncated=TRUNCATED.astype(int).tolist(),
        )
    )
    same(data, Dataset.from_arrays(**columns()))


def test_raw_pictures_are_stored_once_across_both_columns() -> None:
    rng = np.random.default_rng(0)
    table = rng.integers(0, 256, (4, 5, 3, 3), dtype=np.uint8)
    now, after = np.array([2, 2, 0, 1, 1, 2, 0, 0]), np.array([2, 0, 3, 1, 2, 0, 0, 3])
    data = Dataset.from_arrays(
        **columns(
            observations={"image": table[now], "x": np.ones(N)},
            next_observations={"x": np.ones(N), "image": table[after]},
        )
    )
    assert data.pictures is not None
    np.testing.assert_array_equal(data.pictures, table[[2, 0, 1, 3]])  # in order of appearance
    np.testing.assert_array_equal(data.pictures[data.observations["image"]], table[now])
    np.testing.assert_array_equal(data.pictures[data.next_observations["image"]], table[after])
    assert (data.picture_key, data.vector_keys, data.shared_pictures) == ("image", ("x",), False)


def test_grey_pictures_get_a_channel_and_may_be_the_whole_observation() -> None:
    data = Dataset.from_arrays(**columns(observations=np.arange(N * 6, dtype=np.uint8).reshape(N, 2, 3)))
    assert data.pictures is not None
    assert data.pictures.shape == (N, 2, 3, 1)
    assert (data.picture_key, data.vector_dim) == ("observation", 0)


def test_hash_collisions_never_merge_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures_module, "hash_rows", lambda images: np.zeros(len(images), dtype=np.uint64))
    images = np.array([3, 1, 1, 3, 2, 2, 1, 0], dtype=np.uint8).reshape(N, 1, 1, 1)
    data = Dataset.from_arrays(**columns(observations=images))
    assert data.pictures is not None
    assert len(data.pictures) == 4
    np.testing.assert_array_equal(data.pictures[data.observations["observation"]], images)


def test_one_high_bit_makes_another_picture() -> None:
    images = np.zeros((N, 4, 4, 1), dtype=np.uint8)
    images[1, 1, 3], images[1, 3, 3] = 128, 128  # differences that cancel in a linear hash
    images[2, 0, 0] = 1
    data = Dataset.from_arrays(**columns(observations=images))
    assert data.pictures is not None
    assert len(data.pictures) == 3


@pytest.mark.parametrize("raw", [True, False])
def test_a_picture_that_lasts_an_episode_is_the_group(raw: bool) -> None:
    table = np.random.default_rng(1).integers(0, 256, (2, 4, 4, 3), dtype=np.uint8)
    index = np.array([0, 0, 0, 1, 1, 1, 0, 0])
    image: dict[str, Any] = {"observations": {"image": table[index]}}
    if not raw:
        image = {"observations": {"image": index}, "pictures": {"image": table}}
    data = Dataset.from_arrays(**columns(**image))
    assert data.shared_pictures
    assert data.num_groups == 2
    assert data.group.tolist() == index.tolist()
    assert data.group.dtype == np.int64
    assert data.observations["image"].dtype == np.int32


def test_a_picture_that_changes_is_no_group_except_after_termination() -> None:
    table = np.arange(3, dtype=np.uint8).reshape(3, 1, 1, 1)
    index = np.array([0, 0, 0, 1, 1, 1, 0, 0])

    def build(after: np.ndarray) -> Dataset:
        return Dataset.from_arrays(**columns(observations={"i": index}, next_observations={"i": after}, pictures={"i": table}))

    blank = index.copy()
    blank[2] = 2  # row 2 terminates: what follows does not matter
    assert build(blank).shared_pictures
    assert build(blank).next_observations["i"].tolist() == index.tolist()
    blank[5] = 2  # row 5 is truncated: it does
    assert not build(blank).shared_pictures
    assert build(blank).group.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]


def test_episodes_of_one_row_beside_long_ones_are_not_all_that_is_held_out() -> None:
    lengths = np.tile([100, 1], 10)
    last = np.zeros(lengths.sum(), dtype=bool)
    last[lengths.cumsum() - 1] = True
    columns = {"observations": np.zeros((len(last), 1)), "actions": np.zeros((len(last), 1)), "rewards": np.zeros(len(last))}
    data = Dataset.from_arrays(**columns, terminated=np.zeros(len(last), dtype=bool), truncated=last)  # type: ignore[arg-type]
    for seed in range(5):
        kept, held_out = data.split(0.05, seed)
        assert len(held_out) in (50, 100)  # the end of every long episode, or one of them
        assert len(kept) == len(data) - len(held_out)


def test_split_holds_out_whole_contexts() -> None:
    episodes = np.repeat(np.arange(40), 3)
    picture = episodes % 20  # two episodes a picture
    data = Dataset.from_arrays(
        {"image": picture, "row": np.arange(120, dtype=np.float32)},
        np.zeros(120, dtype=int),
        np.ones(120),
        np.tile([False, False, True], 40),
        np.zeros(120, dtype=bool),
        pictures={"image": np.arange(20, dtype=np.uint8).reshape(20, 1, 1, 1)},
        num_actions=4,
    )
    kept, held_out = data.split(0.25, seed=3)
    assert (len(kept), len(held_out), held_out.num_episodes, held_out.num_actions) == (90, 30, 10, 4)
    assert not set(kept.group) & set(held_out.group)
    rows = np.concatenate([part.observations["row"][:, 0] for part in (kept, held_out)])
    assert sorted(rows) == list(range(120))
    assert held_out.episodes.tolist() == np.repeat(np.arange(10), 3).tolist()
    assert kept.pictures is data.pictures
    again = data.split(0.25, seed=3)[1]
    same(held_out, again)
    assert data.split(0.25, seed=4)[1].group.tolist() != held_out.group.tolist()
    with pytest.raises(ValueError, match="between 0 and 1"):
        data.split(1.0, seed=0)


def test_a_log_may_name_its_contexts(tmp_path: Path) -> None:
    data = Dataset.from_arrays(**columns(contexts=[9, 9, 9, -2, -2, -2, 9, 9]))
    assert data.group.tolist() == [1, 1, 1, 0, 0, 0, 1, 1]  # two episodes of one context, and one of another
    assert (data.num_groups, data.num_episodes, data.describe()["group_is"]) == (2, 3, "context")
    kept, held_out = data.split(0.5, seed=0)
    assert len(set(kept.group)) == len(set(held_out.group)) == 1
    data.save(tmp_path / "log.npz")
    same(Dataset.load(tmp_path / "log.npz"), data)


def test_describe_is_json_and_repr_tells_the_layout() -> None:
    data = Dataset.from_arrays(**columns())
    facts = json.loads(json.dumps(data.describe()))
    assert (facts["rows"], facts["usable_rows"], facts["episodes"], facts["terminated"]) == (8, 6, 3, 1)
    assert (facts["returns"]["min"], facts["returns"]["median"], facts["returns"]["max"]) == (-13.0, -12.0, -3.0)
    assert "observation: float32 [2]" in repr(data)


# --- mistakes: (what is passed, column, row, a word of the fix) -----------------------------------------------------

PICTURES = np.zeros((3, 2, 2, 3), dtype=np.uint8)
INDEX = np.zeros(N, dtype=int)
MISTAKES: dict[str, tuple[dict[str, Any], str, int | None, str]] = {
    "nan": (with_value("rewards", 5, np.nan), "rewards", 5, "isfinite"),
    "inf": (with_value("observations", 3, -np.inf), "observations", 3, "isfinite"),
    "nan in a key": (columns(observations={"x": [0.0, np.nan] * 4}), "observations/x", 1, "isfinite"),
    "beyond float32": (with_value("rewards", 2, 1e300), "rewards", 2, "rescale"),
    "short": (columns(actions=np.zeros(6, dtype=int)), "actions", 6, "every column"),
    "one observation too many": (columns(observations=np.zeros((9, 2))), "observations", 8, "T rows, not T + 1"),
    "object": (columns(rewards=np.array([1.0, 2.0, None] + [0.0] * 5, dtype=object)), "rewards", 2, "numbers"),
    "str": (columns(actions=["left"] * N), "actions", None, "integer codes"),
    "complex": (columns(rewards=np.ones(N) * 1j), "rewards", None, "real numbers"),
    "bool actions": (columns(actions=TERMINATED), "actions", None, "astype(np.int64)"),
    "float actions": (columns(actions=np.ones(N)), "actions", None, "astype(np.int64)"),
    "flat continuous": (columns(actions=np.linspace(0, 1, N)), "actions", None, "reshape"),
    "one-hot actions": (columns(actions=np.eye(N, dtype=int)), "actions", None, "argmax"),
    "action range": (columns(num_actions=2), "actions", 2, "num_actions=3"),
    "negative action": (with_value("actions", 4, -1), "actions", 4, "0, 1, 2"),
    "num_actions": (columns(num_actions=0), "num_actions", None, "at least 1"),
    "num_actions, continuous": (columns(actions=np.zeros((N, 2)), num_actions=2), "actions", None, "drop"),
    "empty": ({name: value[:0] for name, value in columns().items()}, "observations", None, "at least one"),
    "missing": (columns(truncated=None), "truncated", None, "pass truncated"),
    "no keys": (columns(observations={}), "observations", None, "at least one"),
    "flag": (columns(terminated=np.array([0, 0, 1, 0, 2, 0, 0, 0])), "terminated", 4, "bool"),
    "both flags": (with_value("truncated", 2, True), "truncated", 2, "truncated &= ~terminated"),
    "termination inside": (columns(episodes=[0] * 6 + [1, 1]), "terminated", 2, "new episode id"),
    "truncation inside": (columns(episodes=[0] * 3 + [1] * 5), "truncated", 5, "new episode id"),
    "episode in two places": (columns(episodes=[5, 5, 5, 1, 1, 1, 5, 5]), "episodes", 6, "sort"),
    "episode ids": (columns(episodes=np.zeros(N)), "episodes", None, "integer"),
    "context ids": (columns(contexts=np.zeros(N)), "contexts", None, "integer"),
    "context changes": (columns(contexts=[4, 4, 4, 4, 7, 7, 4, 4]), "contexts", 4, "context of its episode"),
    "ragged": (columns(observations=[[1, 2]] * 4 + [[1, 2, 3]] + [[1, 2]] * 3), "observations", 4, "same shape"),
    "scalar": (columns(rewards=1.0), "rewards", None, "one entry a row"),
    "matrix reward": (columns(rewards=np.zeros((N, 2))), "rewards", None, "[N]"),
    "no width": (columns(observations=np.zeros((N, 0))), "observations", None, "drop the key"),
    "float picture": (columns(observations=np.zeros((N, 4, 4, 3))), "observations", None, "uint8"),
    "video": (columns(observations=np.zeros((N, 2, 4, 4, 3), dtype=np.uint8)), "observations", None, "reshape"),
    "channels first": (columns(observations=np.zeros((N, 3, 8, 8), dtype=np.uint8)), "observations", None, "moveaxis"),
    "two pictures": (
        columns(observations={"a": PICTURES[INDEX], "b": PICTURES[INDEX]}),
        "observations/b",
        None,
        "stack",
    ),
    "picture index": (
        columns(observations={"i": [0, 1, 2, 3, 0, 0, 0, 0]}, pictures={"i": PICTURES}),
        "observations/i",
        3,
        "count the pictures",
    ),
    "negative picture index": (
        columns(observations={"i": INDEX - 1}, pictures={"i": PICTURES}),
        "observations/i",
        0,
        "from 0",
    ),
    "picture and table": (
        columns(observations={"i": PICTURES[INDEX]}, pictures={"i": PICTURES}),
        "observations/i",
        None,
        "index",
    ),
    "table without column": (columns(pictures={"i": PICTURES}), "pictures/i", None, "observation"),
    "two tables": (columns(pictures={"i": PICTURES, "j": PICTURES}), "pictures", None, "one table"),
    "empty table": (columns(observations={"i": INDEX}, pictures={"i": PICTURES[:0]}), "pictures/i", None, "pictures"),
    "next keys": (columns(next_observations={"other": np.zeros((N, 2))}), "next_observations", None, "same keys"),
    "next shape": (columns(next_observations=np.zeros((N, 3))), "next_observations", None, "same observation"),
    "next nan": (columns(next_observations=np.full((N, 2), np.nan)), "next_observations", 0, "isfinite"),
    "dict of rewards": (columns(rewards={"a": np.zeros(N)}), "rewards", None, "dicts"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_names_column_row_and_fix(name: str) -> None:
    data, column, row, fix = MISTAKES[name]
    with pytest.raises(DataError) as caught:
        Dataset.from_arrays(**data)
    error = caught.value
    assert (error.column, error.row) == (column, row)
    assert fix in error.fix
    assert str(error).startswith(f"{column}: " if row is None else f"{column}, row {row}: ")
    assert f"Fix: {error.fix}" in str(error)


def test_the_message_reads_as_a_sentence() -> None:
    with pytest.raises(DataError) as caught:
        Dataset.from_arrays(**with_value("rewards", 5, np.nan))
    assert str(caught.value) == "rewards, row 5: value is NaN. Fix: drop the row or repair the log (np.isfinite finds them)."


# --- files ----------------------------------------------------------------------------------------------------------


@st.composite
def logs(draw: st.DrawFn) -> dict[str, Any]:
    rows = draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ends = rng.integers(0, 4, rows)  # 0 terminated, 1 truncated
    observations: dict[str, Any] = {}
    if draw(st.booleans()):
        dtype = draw(st.sampled_from([np.uint8, np.int64, np.float32, np.float64, np.bool_]))
        observations["b vector/1.x"] = rng.integers(0, 2, (rows, draw(st.integers(1, 3)))).astype(dtype)
    if draw(st.booleans()) or not observations:
        observations["image"] = rng.integers(0, 2, (rows, 2, draw(st.integers(1, 2)), 3), dtype=np.uint8)
    data: dict[str, Any] = {
        "observations": observations,
        "actions": rng.random((rows, 2)) if draw(st.booleans()) else rng.integers(0, 3, rows),
        "rewards": rng.normal(size=rows),
        "terminated": ends == 0,
        "truncated": ends == 1,
    }
    if draw(st.booleans()):
        data["next_observations"] = {key: value[::-1] for key, value in observations.items()}
    if data["actions"].ndim == 1:
        data["num_actions"] = draw(st.sampled_from([None, 7]))
    return data


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=logs(), compress=st.booleans())
def test_any_log_survives_storage_and_a_file(tmp_path: Path, data: dict[str, Any], compress: bool) -> None:
    dataset = Dataset.from_arrays(**data)
    for key, value in data["observations"].items():
        stored = dataset.observations[key]
        if key == dataset.picture_key:
            assert dataset.pictures is not None
            assert len(np.unique(dataset.pictures.reshape(len(dataset.pictures), -1), axis=0)) == len(dataset.pictures)
            stored = dataset.pictures[stored]
        np.testing.assert_array_equal(stored, value)
    dataset.save(tmp_path / "log.npz", compress=compress)
    same(dataset, Dataset.load(tmp_path / "log.npz"))
    assert [file.name for file in tmp_path.iterdir()] == ["log.npz"]


@pytest.mark.parametrize("separator", ["/", "."])
def test_a_users_own_npz_loads(tmp_path: Path, separator: str) -> None:
    data = columns()
    images = np.random.default_rng(0).integers(0, 256, (N, 4, 4, 3), dtype=np.uint8)
    observations = {"position": data.pop("observations"), "image": images}
    expected = Dataset.from_arrays(observations, **data)
    entries = {f"observations{separator}{key}": value for key, value in observations.items()}
    np.savez(tmp_path / "own.npz", **entries, **data)
    same(Dataset.load(str(tmp_path / "own.npz")), expected)


def test_a_bare_array_and_d4rl_names_load(tmp_path: Path) -> None:
    data = columns(num_actions=5, next_observations=np.ones((N, 2)))
    expected = Dataset.from_arrays(**data)
    data["terminals"], data["timeouts"] = data.pop("terminated"), data.pop("truncated")
    np.savez(tmp_path / "d4rl.npz", **data, infos=np.zeros(3))
    same(Dataset.load(tmp_path / "d4rl.npz"), expected)


FILES: dict[str, tuple[dict[str, Any], str, str]] = {
    "dones": ({"dones": TERMINATED, "terminated": None, "truncated": None}, "dones", "two columns"),
    "done": ({"done": TERMINATED, "terminated": None, "truncated": None}, "done", "terminated=done"),
    "done, no truncation": ({"done": TERMINATED, "truncated": None}, "truncated", "truncated = done & ~terminated"),
    "done, no termination": ({"dones": TERMINATED, "terminated": None}, "terminated", "terminated = dones & ~truncated"),
    "missing": ({"rewards": None}, "rewards", "np.savez"),
    "no truncation": ({"truncated": None}, "truncated", "np.zeros_like(terminated)"),
    "no observations": ({"observations": None}, "observations", "np.savez"),
    "misnamed": ({"next_obs": np.zeros((N, 2))}, "next_obs", "next_observations"),
    "two forms": ({"observations/x": np.zeros(N)}, "observations", "one form"),
    "pickled": ({"rewards": np.array([None] * N, dtype=object)}, "rewards", "pickle"),
    "newer": (
        {"apev_header": np.array('{"format": "apev.dataset", "version": 99, "num_actions": 3}')},
        "apev_header",
        "upgrade",
    ),
    "damaged": ({"apev_header": np.array("{")}, "apev_header", "again"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_names_column_and_fix(tmp_path: Path, name: str) -> None:
    changes, column, fix = FILES[name]
    np.savez(tmp_path / "bad.npz", **{key: value for key, value in columns(**changes).items() if value is not None})
    with pytest.raises(DataError) as caught:
        Dataset.load(tmp_path / "bad.npz")
    assert caught.value.column == column
    assert fix in caught.value.fix


def test_a_column_done_beside_both_flags_is_nobodys_business(tmp_path: Path) -> None:
    np.savez(tmp_path / "log.npz", **columns(done=TERMINATED))
    same(Dataset.load(tmp_path / "log.npz"), Dataset.from_arrays(**columns()))


EMPTY: dict[str, dict[str, Any]] = {
    "numbers": {},
    "continuous": {"actions": np.zeros((0, 2))},
    "no width": {"observations": np.zeros((0, 0)), "actions": np.zeros((0, 0))},
    "flat floats": {"actions": np.zeros(0), "observations": np.zeros(0)},
    "pictures": {"observations": np.zeros((0, 4, 4, 3), dtype=np.uint8)},
    "float pictures": {"observations": np.zeros((0, 4, 4, 3))},
    "ids": {"episodes": np.zeros(0), "contexts": np.zeros((0, 3))},
    "flags": {"terminated": np.zeros((0, 1)), "truncated": np.zeros((0, 2), dtype=int)},
    "next": {"next_observations": np.zeros((0, 5))},
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_log_without_a_row_is_called_empty(tmp_path: Path, name: str) -> None:
    data = {key: value[:0] for key, value in columns().items()} | EMPTY[name]
    with pytest.raises(DataError, match="the data is empty"):
        Dataset.from_arrays(**data)
    np.savez(tmp_path / "log.npz", **data)
    with pytest.raises(DataError, match="the data is empty"):
        Dataset.load(tmp_path / "log.npz")


def test_other_files_are_refused_and_a_missing_one_is_not_a_data_error(tmp_path: Path) -> None:
    data = Dataset.from_arrays(**columns())
    for action in (data.save, Dataset.load):
        with pytest.raises(DataError, match=r"log\.txt: unknown file type '\.txt'\. Fix: .*\.npz"):
            action(tmp_path / "log.txt")
    (tmp_path / "text.npz").write_text("not a zip")
    with pytest.raises(DataError, match="cannot be read"):
        Dataset.load(tmp_path / "text.npz")
    with pytest.raises(FileNotFoundError):
        Dataset.load(tmp_path / "absent.npz")


def test_a_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Dataset.from_arrays(**columns())
    data.save(tmp_path / "log.npz")

    def half(file: Any, **_: Any) -> None:
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", half)
    with pytest.raises(OSError, match="disk full"):
        data.save(tmp_path / "log.npz")
    assert [file.name for file in tmp_path.iterdir()] == ["log.npz"]
    same(Dataset.load(tmp_path / "log.npz"), data)
