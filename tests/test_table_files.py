"""Tables in files: what is guessed of their columns, what is refused, and that names come back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import apev
from apev.cli import main
from apev.data import DataError, Dataset
from apev.data.formats.table import Names, complete
from apev.envs.fleet import customers_frame, customers_log

pandas = pytest.importorskip("pandas", reason="pip install 'apev[tables]'")
pytest.importorskip("pyarrow", reason="pip install 'apev[tables]'")

CUSTOMERS: dict[str, Any] = {
    "episode": "customer",
    "time": "visit",
    "observations": ["visit", "age", "basket"],
    "action": "offer",
    "reward": "reward",
}
TEXT = """episode,step,heat,mode,action,reward,note
a,1,2.5,1,wait,1,x
a,0,1.5,0,None,2,y
b,0,0.5,1,wait,3,z
"""


def write(folder: Path, text: str, name: str = "log.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = 0
    try:
        main(["data", *map(str, words)])
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, " ".join(err.split())


@pytest.mark.parametrize("name", ["log.csv", "log.parquet"])
def test_a_file_is_read_as_the_table_that_was_written(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame, _ = customers_frame(customers=30, seed=2)
    frame = frame.sample(frac=1, random_state=1)
    if name.endswith("csv"):
        frame.to_csv(tmp_path / name, index=False)
    else:
        frame.to_parquet(tmp_path / name)
    log = Dataset.load(tmp_path / name, **CUSTOMERS)
    assert log.digest == customers_log(customers=30, seed=2)[0].digest
    assert capsys.readouterr() == ("", "")  # nothing was guessed
    words = [w for role, value in CUSTOMERS.items() for w in (f"--{role}", *([value] if isinstance(value, str) else value))]
    assert call(capsys, "convert", tmp_path / name, tmp_path / "out.npz", *words)[0] == 0
    again = Dataset.load(tmp_path / "out.npz")
    assert again.digest == log.digest
    assert again.source["action_names"] == ["advice", "bundle", "discount", "nothing"]
    _, out, _ = call(capsys, "info", tmp_path / "out.npz", "--json")
    facts = json.loads(out)
    assert facts["action_counts"].keys() == {"advice", "bundle", "discount", "nothing"}
    assert facts["observation_names"] == ["visit", "age", "basket"]


def test_columns_as_people_name_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty column is not guessed to be seen, a command that is suggested can be pasted, what may be left out is said."""
    rows = ["a,1,2.5,auf,1,anna,", "a,0,1.5,zu,2,,", "b,0,0.5,auf,3,bo,"]
    path = write(tmp_path, "\n".join(["Schicht,t,Temp [°C],Ventil,Ertrag €,operator,comment", *rows]) + "\n", "pumps 2026.csv")
    assert "apev data convert 'pumps 2026.csv' log.npz --episode" in call(capsys, "convert", path, tmp_path / "log.npz")[2]
    words = ["--episode", "Schicht", "--action", "Ventil", "--reward", "Ertrag €"]
    code, _, err = call(capsys, "convert", path, tmp_path / "log.npz", *words)
    assert code == 0
    assert "observations Temp [°C]; not read: operator comment" in err
    assert Dataset.load(tmp_path / "log.npz").source["action_names"] == ["auf", "zu"]
    code, _, err = call(capsys, "convert", path, tmp_path / "log.npz", *words, "--observations", "Temp [°C]", "operator")
    assert code == 2
    assert "operator, row 1: the value is missing. Fix: fill it in, or drop the row" in err
    assert "name --observations without it" in err


def test_an_obviously_named_table_needs_no_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, TEXT)
    code, out, err = call(capsys, "convert", path, tmp_path / "log.npz")
    assert code == 0
    assert "wrote" in out
    assert "episode episode, time step, action action, reward reward, observations heat mode" in err
    assert "not read: note" in err
    log = Dataset.load(tmp_path / "log.npz")
    np.testing.assert_array_equal(log.observations["observation"], [[1.5, 0], [2.5, 1], [0.5, 1]])
    assert log.source["action_names"] == ["None", "wait"]  # a word that pandas takes for a missing value by default
    np.testing.assert_array_equal(log.terminated, [False, True, True])
    for words in (["info", path], ["verify", path]):
        assert call(capsys, *words)[0] == 0


def guess(columns: str, **named: Any) -> dict[str, Any]:
    frame = pandas.DataFrame({name: [0.5] for name in columns.split()})
    return complete(frame, Names.of(named), "log.csv")[0]


def test_what_is_guessed() -> None:
    found = guess("trajectory_id t action_1 action_0 action_10 Reward Speed next_speed return context terminals timeouts")
    assert (found["episode"], found["time"], found["reward"]) == ("trajectory_id", "t", "Reward")
    assert found["action"] == ["action_0", "action_1", "action_10"]
    assert found["observations"] == ["Speed"]  # neither what comes later nor what has another meaning
    assert (found["context"], found["terminated"], found["truncated"]) == ("context", "terminals", "timeouts")
    assert guess("episode episode_id step action reward x")["observations"] == ["x"]
    assert guess("episode step action reward x done", terminated="done")["observations"] == ["x"]
    assert guess("episode step action reward x done terminated truncated")["terminated"] == "terminated"
    assert guess("episode step action reward x timeout over", terminated="over")["truncated"] is None
    assert guess("who step action reward x", episode="who", observations=["step"])["observations"] == ["step"]


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ("episode step action reward x done", r"done: does not say whether .*--terminated done .*--truncated done"),
        ("who when action reward x", r"which is the episode and the time: \['who'.*--episode COLUMN --time COLUMN"),
        ("episode step action reward next_x", r"observations: no column of numbers is left.*--observations"),
    ],
)
def test_what_cannot_be_guessed_is_asked_for(columns: str, match: str) -> None:
    with pytest.raises(DataError, match=match):
        guess(columns)
    with pytest.raises(TypeError, match="a table has no 'rewards'"):
        guess(columns, rewards="x")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (TEXT.replace("a,0,1.5", "a,0,"), r"heat, row 1: the value is missing.*counted from 0, below its header"),
        (TEXT.replace("b,0,0.5,1,wait", "b,0,0.5,1,"), r"action, row 2: the value is missing"),
        (TEXT.replace("a,1,2.5,1,wait,1", "a,1,2.5,1,wait,NaN"), r"reward, row 0: the value is missing"),
        (TEXT.replace("a,1", "a,later"), r"step: is .*no certain order in time"),
        (TEXT.replace("wait", "1.0").replace("None", "0.0"), r"action: .*--continuous"),
        ("", r"log.csv: cannot be read"),
        ("episode,step\n\x00\xff", r"cannot be read|do not say which|missing"),
    ],
)
def test_a_bad_file_is_told_by_row_and_column(text: str, match: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=match):
        Dataset.load(write(tmp_path, text))


def test_dates_amounts_and_other_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dated = TEXT.replace("a,1", "a,2026-01-02T10:00").replace("a,0", "a,2026-01-02").replace("b,0", "b,2026-01-03")
    assert Dataset.load(write(tmp_path, dated)).digest == Dataset.load(write(tmp_path, TEXT, "other.csv")).digest
    whole = write(tmp_path, TEXT.replace("wait", "1.0").replace("None", "0.0"))
    assert call(capsys, "convert", whole, tmp_path / "log.npz", "--action", "action", "--continuous")[0] == 0
    np.testing.assert_array_equal(Dataset.load(tmp_path / "log.npz").actions, [[0], [1], [1]])
    code, _, err = call(capsys, "convert", tmp_path / "log.npz", tmp_path / "again.csv")
    assert code == 2
    assert "tables are read, not written. Fix: write .npz" in err
    code, _, err = call(capsys, "convert", tmp_path / "log.npz", tmp_path / "again.npz", "--episode", "e")
    assert code == 2
    assert "only a .csv or .parquet needs it" in err
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(DataError, match=r"bad.parquet: cannot be read"):
        Dataset.load(tmp_path / "bad.parquet")


MASKED = """episode,step,x,action,reward,may_go,may_stop,may_wait
a,0,1,go,1,1,0,1
a,1,2,wait,0,0,0,1
"""


def test_flags_of_a_table_are_masks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, MASKED)
    assert call(capsys, "convert", path, tmp_path / "log.npz", "--masks", "may_")[0] == 0
    log = Dataset.load(tmp_path / "log.npz")
    assert log.source["action_names"] == ["go", "wait", "stop"]  # the last was never taken
    assert log.action_masks is not None
    np.testing.assert_array_equal(log.action_masks, [[True, True, False], [False, True, False]])
    assert log.vector_dim == 1
    numbered = write(tmp_path, MASKED.replace("may_go", "action_mask_0").replace("may_stop", "action_mask_2"), "numbers.csv")
    numbered.write_text(numbered.read_text().replace("may_wait", "action_mask_1").replace("go", "0").replace("wait", "1"))
    again = Dataset.load(numbered)  # guessed
    assert again.action_masks is not None
    np.testing.assert_array_equal(again.action_masks, log.action_masks)
    with pytest.raises(DataError, match=r"row 1: action 1 was taken, but is forbidden"):
        Dataset.load(write(tmp_path, MASKED.replace("0,0,0,1\n", "0,1,0,0\n")), masks="may_")
    with pytest.raises(DataError, match=r"masks: the action 'wait' has none.*add the column may_wait"):
        Dataset.load(write(tmp_path, MASKED.replace("may_wait", "x2")), masks="may_")
    with pytest.raises(DataError, match=r"masks: no column begins with 'can_'"):
        Dataset.load(path, masks="can_")


def test_names_come_back_in_the_policy(tmp_path: Path) -> None:
    frame, _ = customers_frame(customers=30, seed=2)
    frame.to_csv(tmp_path / "log.csv", index=False)
    log = Dataset.load(tmp_path / "log.csv", **CUSTOMERS)
    quiet = Console(quiet=True)
    policy = apev.train(log, "bc", out=tmp_path / "run", updates=2, hidden=(8,), console=quiet)
    for found in (policy, apev.load(tmp_path / "run"), policy.with_adapt("uniform")):
        assert found.action_names == ("advice", "bundle", "discount", "nothing")
        assert found.observation_names == ("visit", "age", "basket")
        assert found.action_names[found.act(np.zeros(3))] in found.action_names
    stored = json.loads((tmp_path / "run" / "policy" / "policy.json").read_text())
    assert stored["layout"]["action_names"] == ["advice", "bundle", "discount", "nothing"]
    unnamed = apev.train(Dataset.example("cartpole"), "bc", updates=1, hidden=(8,), console=quiet)
    assert unnamed.action_names == ()
