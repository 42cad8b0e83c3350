"""`apev data`: what a log holds, every defect it has, and its other formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from apev.cli import main
from apev.data import Dataset

N = 40


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = 0
    try:
        main(["data", *words])
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, " ".join(err.split())


def columns(**changes: Any) -> dict[str, Any]:
    ends = np.arange(N) % 10 == 9
    base: dict[str, Any] = {
        "observations": np.arange(2.0 * N, dtype=np.float32).reshape(N, 2),
        "actions": np.linspace(-0.5, 0.75, N, dtype=np.float32)[:, None],
        "rewards": np.ones(N, np.float32) * np.repeat([1, 2, 3, 4], 10),
        "terminals": ends & (np.arange(N) < 20),
        "timeouts": ends & (np.arange(N) >= 20),
    }
    return {name: value for name, value in (base | changes).items() if value is not None}


@pytest.fixture
def hopper(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "hopper_medium-v2.hdf5", "w") as file:
        for name, column in columns().items():
            file.create_dataset(name, data=column, compression="gzip")
    return tmp_path / "hopper_medium-v2.hdf5"


@pytest.mark.parametrize(
    ("words", "mentioned"),
    [
        ([], ["info", "verify", "convert", "Minari"]),
        (["info"], ["PATH", "--json", "--horizon", "normalised", "D4RL"]),
        (["verify"], ["PATH", "every defect", "--all-rows", "exit code is 1"]),
        (["convert"], ["SOURCE", "TARGET", "--compress", "--horizon", ".apev", "Minari"]),
    ],
    ids=["data", "info", "verify", "convert"],
)
def test_help(capsys: pytest.CaptureFixture[str], words: list[str], mentioned: list[str]) -> None:
    code, out, _ = call(capsys, *words, "--help")
    plain = " ".join(out.replace("│", " ").split())
    assert code == 0
    assert [word for word in mentioned if word.lower() not in plain.lower()] == []


def test_info_is_a_table_or_json(capsys: pytest.CaptureFixture[str], hopper: Path) -> None:
    code, out, _ = call(capsys, "info", str(hopper))
    assert code == 0
    for word in ("Hopper-v4", "normalised score", "action ranges", "episodes", "2 rows end an episode"):
        assert word in out, word
    code, out, _ = call(capsys, "info", str(hopper), "--json")
    facts = json.loads(out)
    assert (facts["rows"], facts["episodes"], facts["usable_rows"]) == (N, 4, N - 2)
    assert facts["returns"] == {"min": 10.0, "q25": 17.5, "median": 25.0, "q75": 32.5, "max": 40.0}
    assert facts["action_ranges"] == [[-0.5, 0.75]]
    assert facts["lengths"] == {"min": 10, "median": 10.0, "max": 10}
    assert facts["normalised_score"]["mean"] == pytest.approx(100 * (25 + 20.272305) / (3234.3 + 20.272305))
    assert facts["source"]["name"] == "hopper-medium-v2"


def test_verify_of_a_good_log(capsys: pytest.CaptureFixture[str], hopper: Path) -> None:
    code, out, _ = call(capsys, "verify", str(hopper))
    assert code == 0
    assert "note: 2 rows end an episode without a known next observation" in out
    assert out.splitlines()[-1] == f"{hopper}: no defect in 40 rows, 4 episodes"


def test_verify_lists_every_defect_with_all_its_rows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bad = columns()
    bad["observations"][[3, 30], 1] = np.nan
    bad["rewards"] = bad["rewards"].astype(np.float64)
    bad["rewards"][5] = np.inf
    bad["rewards"][6] = 1e300
    bad["terminals"] = bad["terminals"].astype(int)
    bad["terminals"][12] = 7
    bad["actions"][:, 0] = np.nan
    bad["next_obs"] = np.zeros((N, 2))
    np.savez(tmp_path / "bad.npz", **bad)
    code, out, _ = call(capsys, "verify", str(tmp_path / "bad.npz"))
    assert code == 1
    lines = out.splitlines()
    starts = [
        "next_obs: no column of bad.npz may have this name. Fix: call it next_observations.",
        "observations, rows 3, 30: value is NaN. Fix:",
        "actions, rows 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 30 more: value is NaN. Fix:",
        "rewards, row 5: value is infinite. Fix:",
        "rewards, row 6: value is too large for float32. Fix:",
        "terminated, row 12: value is 7, not True or False. Fix:",
    ]
    for start in starts:
        assert any(line.startswith(start) for line in lines), (start, lines)
    assert lines[-1].endswith("bad.npz: 6 defects")
    _, out, _ = call(capsys, "verify", str(tmp_path / "bad.npz"), "--all-rows")
    assert "38, 39: value is NaN" in out


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rewards": None, "actions": None}, ["actions: the column is missing", "rewards: the column is missing"]),
        ({"rewards": np.zeros(N - 1), "actions": np.zeros((N + 2, 1))}, ["rewards, row 39: has 39", "actions, row 40: has 42"]),
        ({"timeouts": np.ones(N, bool)}, ["truncated, rows 9, 19: terminated and truncated are both True"]),
        ({"actions": np.arange(N) - 2}, ["actions, rows 0, 1: action -2 is negative"]),
        ({"episodes": np.zeros(N, int)}, ["terminated, rows 9, 19: is True, but episode 0 goes on"]),
        ({"next_observations": np.zeros((N, 3))}, ["next_observations: shape a row is (3,)"]),
        ({"actions": np.array(["x"] * N)}, ["actions: dtype is <U1"]),
        (
            {"done": np.ones(N), "terminals": None, "timeouts": None, "rewards": None},
            ["done: bad.npz merges", "rewards: the column is missing"],
        ),
        ({"dones": np.ones(N), "timeouts": None, "actions": None}, ["truncated: the column is", "actions: the column is"]),
        ({"actions": np.zeros(0, int), "rewards": np.zeros(0)}, ["actions, row 0: has 0 rows", "rewards, row 0: has 0 rows"]),
        ({name: value[:0] for name, value in columns().items()}, ["observations: the data is empty"]),
        ({name: value[:0] for name, value in columns(actions=np.zeros(N, int)).items()}, ["observations: the data is empty"]),
        ({name: np.array([], "U1") for name in columns()}, ["observations: the data is empty"]),
    ],
    ids=[
        "missing",
        "lengths",
        "both flags",
        "negative",
        "inside",
        "shapes",
        "words",
        "merged and missing",
        "half merged and missing",
        "some empty",
        "empty",
        "empty, discrete",
        "empty words",
    ],
)
def test_each_kind_of_defect(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, changes: dict[str, Any], expected: list[str]
) -> None:
    np.savez(tmp_path / "bad.npz", **columns(**changes))
    code, out, _ = call(capsys, "verify", str(tmp_path / "bad.npz"))
    assert code == 1
    for start in expected:
        assert any(line.startswith(start) for line in out.splitlines()), (start, out)
    assert out.splitlines()[-1].endswith(f"{len(expected)} defects")


def test_verify_notes_a_next_observation_that_does_not_follow(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    after = columns()["observations"] + 2
    after[14] += 1
    np.savez(tmp_path / "log.npz", **columns(next_observations=after))
    code, out, _ = call(capsys, "verify", str(tmp_path / "log.npz"))
    assert code == 0
    assert "1 rows (first 14) inside an episode are not the following row" in out


def test_verify_notes_actions_the_environment_would_not_take(
    capsys: pytest.CaptureFixture[str], hopper: Path, tmp_path: Path
) -> None:
    data = Dataset.load(hopper)
    data.source.update(action_low=[-0.5], action_high=[0.5])
    data.save(tmp_path / "own.npz")
    _, out, _ = call(capsys, "verify", str(tmp_path / "own.npz"))
    assert "rows (first 32) lie outside the environment's bounds, -0.5 to 0.5: they reach from -0.5 to 0.75" in out
    data.source.clear()
    data.source["environment"] = "Hopper-v4"  # which takes -1 to 1; no environment is built to find out
    data.save(tmp_path / "hopper.npz")
    _, out, _ = call(capsys, "verify", str(tmp_path / "hopper.npz"))
    assert "outside" not in out
    data.actions[:] *= 4
    data.save(tmp_path / "hopper.npz")
    _, out, _ = call(capsys, "verify", str(tmp_path / "hopper.npz"))
    assert "bounds, -1 to 1: they reach from -2 to 3" in out
    data.source.update(action_low=[0.0, 0.0], action_high=[1.0, 1.0])
    data.save(tmp_path / "wide.npz")
    _, out, _ = call(capsys, "verify", str(tmp_path / "wide.npz"))
    assert "actions have 1 numbers a row, the environment's 2" in out


def test_an_unreadable_file_is_a_defect_and_a_missing_one_a_mistake(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no")
    assert call(capsys, "verify", str(tmp_path / "text.npz"))[0] == 1
    for words in (["verify"], ["info"]):
        code, _, err = call(capsys, *words, str(tmp_path / "absent.npz"))
        assert code == 2
        assert "absent.npz" in err
    assert call(capsys, "info", "log.csv")[0] == 2


@pytest.mark.parametrize("target", ["log.npz", "log.hdf5", "log.apev"])
def test_convert(capsys: pytest.CaptureFixture[str], hopper: Path, tmp_path: Path, target: str) -> None:
    code, out, err = call(capsys, "convert", str(hopper), str(tmp_path / target))
    assert code == 0, err
    assert out.startswith(f"wrote {tmp_path / target}: Dataset(40 rows (38 usable), 4 episodes")
    data = Dataset.load(tmp_path / target)
    np.testing.assert_array_equal(data.rewards, columns()["rewards"])
    assert data.source["name"] == "hopper-medium-v2"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([hopper.name, target])


def test_convert_with_a_time_limit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with h5py.File(tmp_path / "own.hdf5", "w") as file:
        for name, column in columns(timeouts=None).items():
            file[name] = column
    call(capsys, "convert", str(tmp_path / "own.hdf5"), str(tmp_path / "own.apev"), "--horizon", "10")
    assert np.flatnonzero(Dataset.load(tmp_path / "own.apev").truncated).tolist() == [29, 39]


# ---------------------------------------------------------------------- the kitchen


@pytest.mark.parametrize(
    ("rewards", "mean"),
    [([0, 0, 1, 1, 1, 2, 2, 2, 3, 4], 100.0), ([0, 0, 1, 0, 0, 1, 0, 0, 1, 1], 100.0), ([0] * 10, 0.0)],
    ids=["done so far", "done now", "nothing done"],
)
def test_a_kitchens_score_counts_subtasks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, rewards: list[int], mean: float
) -> None:
    """D4RL's and Minari's logs say at each step how many subtasks are done so far; the sum of that is no score."""
    with h5py.File(tmp_path / "kitchen_mixed-v0.hdf5", "w") as file:
        for name, column in columns(rewards=np.tile(rewards, 4).astype(np.float32)).items():
            file[name] = column
    facts = json.loads(call(capsys, "info", str(tmp_path / "kitchen_mixed-v0.hdf5"), "--json")[1])
    assert facts["normalised_score"]["mean"] == mean
    assert any("number of subtasks done so far" in note for note in facts["notes"]) == (max(rewards) > 1)


# ---------------------------------------------------------------------- what a file says, on a terminal


def test_names_and_notes_of_a_file_neither_steer_the_terminal_nor_crash(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    keys = ["[/a]", "\x1b]0;owned\x07", "x\nlog.npz: no defect", "\u202egnp", ":boom:", "end\\"]
    good = columns(observations=None) | {f"observations/{key}": np.arange(N) for key in keys}
    header = {"format": "apev.dataset", "version": 1, "num_actions": None, "source": {"notes": ["\x1b[2Jall gone"]}}
    np.savez(tmp_path / "log.npz", apev_header=np.array(json.dumps(header)), **good)
    bad = good | {f"observations/{key}": np.full(N, np.nan) for key in keys}
    np.savez(tmp_path / "bad.npz", **bad | {"next_observations/\x1b[31m": np.zeros(N)})
    for words in (["info", "log.npz"], ["verify", "log.npz"], ["verify", "bad.npz"], ["convert", "log.npz", "out.npz"]):
        paths = [str(tmp_path / word) for word in words[1:]]
        code, out, err = call(capsys, words[0], *paths)
        assert code == (words[1] == "bad.npz")
        for character in ("\x1b", "\x07", "\u202e"):
            assert character not in out + err
        assert not any(line.startswith("log.npz: no defect") for line in out.splitlines())
        if words[1] == "log.npz" and words[0] != "verify":
            squeezed = "".join(out.replace("│", "").split())
            for shown in ("[/a]", r"\x1b]0;owned\x07", r"x\nlog.npz:nodefect", r"\u202egnp", ":boom:", "end\\"):
                assert shown in squeezed
    assert r"\x1b[2Jall gone" in call(capsys, "verify", str(tmp_path / "log.npz"))[1]
