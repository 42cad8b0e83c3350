"""Trackers: the scalars of metrics.jsonl arrive, a resumed run goes on there, and a failing tracker harms nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from safetensors.torch import load_file

import apev
from apev.api import Extras
from apev.cli import main
from apev.data import Dataset
from apev.loop import Schedule
from apev.trackers import known_as, tracker_of

FAST: dict[str, Any] = {"members": 1, "hidden": (8,), "batch_size": 16}


def log(rows: int = 60) -> Dataset:
    rng = np.random.default_rng(0)
    ends = np.arange(rows) % 10 == 9
    obs = rng.normal(size=(rows, 3)).astype(np.float32)
    return Dataset.from_arrays(obs, rng.integers(3, size=rows), rng.normal(size=rows), ends, np.zeros(rows, bool))


class Stop(Exception):  # noqa: N818 (a kill, for a test)
    """Training is killed here."""


def train(folder: Path, track: Any, **more: Any) -> Console:
    console = Console(file=StringIO(), width=200)
    apev.train(log(), "dqn", out=folder, updates=200, checkpoint_every=100, track=track, console=console, **FAST, **more)
    return console


def said(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def written(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


class Notebook:
    """A tracker of our own."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.calls: list[Any] = []
        self.fails_at = fails_at

    def start(self, folder: Path, about: Mapping[str, Any], update: int) -> None:
        self.calls.append(("start", folder.name, about["agent"], update))

    def scalars(self, update: int, values: Mapping[str, float]) -> None:
        if update == self.fails_at:
            raise ConnectionError("the [network] is gone")
        self.calls.append((update, dict(values)))

    def finish(self) -> None:
        self.calls.append("finish")


def test_a_tracker_is_told_every_line_and_changes_nothing(tmp_path: Path) -> None:
    mine = Notebook()
    train(tmp_path / "tracked", mine)
    train(tmp_path / "alone", None)
    lines = written(tmp_path / "tracked")
    assert mine.calls[0] == ("start", "tracked", "dqn", 0)
    assert mine.calls[1:-1] == [(line.pop("update"), line) for line in [dict(line) for line in lines]]
    assert mine.calls[-1] == "finish"
    assert lines == written(tmp_path / "alone")
    name = "policy/weights.safetensors"
    a, b = load_file(tmp_path / "tracked" / name), load_file(tmp_path / "alone" / name)
    assert all(a[key].equal(b[key]) for key in a)


def test_evaluations_are_tracked_too(tmp_path: Path) -> None:
    mine = Notebook()
    data = Dataset.example("cartpole")
    apev.train(
        data, "bc", updates=2, hidden=(8,), eval_env="CartPole-v1", eval_every=2, track=mine, console=Console(quiet=True)
    )
    update, values = mine.calls[-2]
    assert update == 2
    assert values["evaluation/adaptive/return"] > 1
    assert "evaluation/adaptive/seed" not in values


def test_a_tracker_that_fails_is_told_of_once_and_training_goes_on(tmp_path: Path) -> None:
    mine = Notebook(fails_at=100)
    console = train(tmp_path / "run", mine)
    assert said(console).count("Notebook failed (ConnectionError: the [network] is gone)") == 1
    assert [call[0] for call in mine.calls] == ["start", 50]
    assert [line["update"] for line in written(tmp_path / "run")] == [50, 100, 150, 200]
    assert (tmp_path / "run" / "policy" / "policy.json").exists()


@pytest.mark.parametrize("track", ["mlflow", 3])
def test_what_is_no_tracker_is_refused_before_training(track: Any, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=r"tracker.*Fix: .*"):
        train(tmp_path / "run", track)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard" if name == "tensorboard" else name, None)
    with pytest.raises(ModuleNotFoundError, match=rf"Fix: pip install 'apev\[{name}\]'"):
        tracker_of(name)


def test_an_id_is_drawn_once_and_a_forged_one_is_not_used(tmp_path: Path) -> None:
    first = known_as(tmp_path)
    assert known_as(tmp_path) == first
    (tmp_path / "tracking.json").write_text('{"id": "../../else"}')
    assert len(known_as(tmp_path)) == 8


def killed_and_resumed(folder: Path, name: str) -> list[dict[str, Any]]:
    """A run that dies after update 150, beyond its checkpoint at 100, and goes on to 200; returns its metrics."""

    def dies(agent: Any, update: int) -> list[dict[str, Any]]:
        if update == 150:
            raise Stop
        return []

    schedule = Schedule(updates=200, log_every=25, eval_every=75, checkpoint_every=100)
    with pytest.raises(Stop):
        train(folder, name, extras=Extras(evaluator=dies, schedule=schedule))
    console = train(folder, name, resume=True, extras=Extras(schedule=schedule))
    assert "failed" not in said(console)
    lines = written(folder)
    assert [line["update"] for line in lines] == list(range(25, 201, 25))
    return lines


def test_tensorboard_holds_the_metrics_of_a_run_that_was_killed_and_resumed(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install 'apev[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    lines = killed_and_resumed(tmp_path / "run", "tensorboard")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == lines[0].keys() - {"update"}
    for name in events.Tags()["scalars"]:
        found = events.Scalars(name)
        assert [event.step for event in found] == [line["update"] for line in lines]  # none twice, none lost
        np.testing.assert_allclose([event.value for event in found], [line[name] for line in lines], rtol=1e-6)


def records(path: Path) -> Iterator[bytes]:
    """The records of an offline run: LevelDB's log format, blocks of 32 KiB behind a header of seven bytes."""
    data, place, parts = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while place + 7 <= len(data):
        room = 32768 - place % 32768
        if room < 7:  # the rest of a block is empty
            place += room
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]  # after a checksum
        parts += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def test_wandb_keeps_an_offline_run_of_one_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="pip install 'apev[wandb]'")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    lines = killed_and_resumed(tmp_path / "run", "wandb")
    ours = known_as(tmp_path / "run")
    found: dict[int, dict[str, Any]] = {}
    for path in sorted((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")):
        assert path.stem == f"run-{ours}"
        for data in records(path):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            if "update" in values:
                found[values["update"]] = values
    assert sorted(found) == [line["update"] for line in lines]
    for line in lines:
        assert {name: found[line["update"]][name] for name in line} == line


def test_trackio_has_one_run_with_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio", reason="pip install 'apev[trackio]'")
    lines = killed_and_resumed(tmp_path / "run", "trackio")
    runs = trackio.Api().runs("apev")
    assert [run.name for run in runs] == [f"run-{known_as(tmp_path / 'run')}"]
    by_step = {point["step"]: point for point in trackio.sqlite_storage.SQLiteStorage.get_logs("apev", runs[0].name)}
    assert sorted(by_step) == [line["update"] for line in lines]
    for line in lines:
        assert {name: by_step[line["update"]][name] for name in line.keys() - {"update"}} == pytest.approx(
            {name: value for name, value in line.items() if name != "update"}
        )


def test_the_command_line_offers_trackers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard", reason="pip install 'apev[tensorboard]'")
    log().save(tmp_path / "log.npz")
    words = ["--data", str(tmp_path / "log.npz"), "--out", str(tmp_path / "run"), "--agent", "bc", "--updates", "2"]
    main(["train", *words, "--log", "tensorboard"])
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))
