"""`apev tune`: trials on held-out contexts, reports, and a search that is stopped and goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import apev
from apev.cli import main
from apev.data import Dataset
from apev.envs.fleet.customers import customers_log
from apev.loop import Interrupted
from apev.tuning import JOURNAL, REPORT, Tuned, search_space, tune
from apev.valuation import fqe

QUIET = Console(quiet=True)
LOG = customers_log(40, seed=0)[0]


def search(out: Path, trials: int, log: Dataset = LOG, **settings: Any) -> Tuned:
    how: dict[str, Any] = {"algorithms": ["bc", "iql"], "updates": 8, "fqe_updates": 8, "kinds": 1, "console": QUIET}
    return tune(log, trials=trials, out=out, **(how | settings))


def test_a_stopped_search_goes_on_as_if_it_had_not_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = search(tmp_path / "whole", 4)
    assert [trial["algorithm"] for trial in whole.trials[:2]] == ["bc", "iql"]
    search(tmp_path / "parts", 1)

    def ctrl_c(*words: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # in the middle of a trial, when its policy is trained and not valued yet
        patch.setattr("apev.tuning.fqe", ctrl_c)
        with pytest.raises(Interrupted, match=r"1 of 4 trials.*The same command goes on"):
            search(tmp_path / "parts", 4)
    with (tmp_path / "parts" / JOURNAL).open("a") as journal:  # a kill cut a line short
        journal.write('{"op_code": 4, "work')
    parts = search(tmp_path / "parts", 4)
    assert parts.trials == whole.trials
    assert parts.run.name == whole.run.name
    assert isinstance(apev.load(parts.run), apev.Policy)


def test_trials_side_by_side_are_those_of_one_process_stopped_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three at a time, from a log in memory and from a file, in one process and in two."""
    LOG.save(tmp_path / "log.npz")
    how: dict[str, Any] = {"algorithms": ["bc", "iql"], "updates": 8, "fqe_updates": 8, "kinds": 1, "console": QUIET}
    two = tune(tmp_path / "log.npz", trials=4, out=tmp_path / "two", at_once=3, jobs=2, threads=1, **how)
    calls = []

    def second_time(*words: Any, **more: Any) -> Any:
        calls.append(words)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return fqe(*words, **more)

    with monkeypatch.context() as patch:
        patch.setattr("apev.tuning.fqe", second_time)
        with pytest.raises(Interrupted, match="1 of 4 trials"):
            search(tmp_path / "one", 4, at_once=3, jobs=1, threads=1)
    one = search(tmp_path / "one", 4, at_once=3, jobs=1, threads=1)
    assert one.trials == two.trials
    assert [trial["run"] for trial in one.trials] == [f"trial-{number}" for number in range(4)]
    with pytest.raises(ValueError, match="at_once was 3, now 1"):
        search(tmp_path / "one", 5)


def test_the_report_has_every_trial_and_the_journal_is_json(tmp_path: Path) -> None:
    found = search(tmp_path / "t", 2)
    report = json.loads((tmp_path / "t" / REPORT).read_text())
    assert report["best"] == found.best["run"]
    assert len(report["trials"]) == 2
    assert all(trial["value"]["low"] <= trial["value"]["value"] for trial in report["trials"])
    assert found.best["score"] == max(trial["score"] for trial in report["trials"])
    assert "trial-1" in (tmp_path / "t" / "tune.html").read_text()
    for line in (tmp_path / "t" / JOURNAL).read_text().splitlines():
        json.loads(line)
    assert "bc" in "".join(" ".join(row) for row in found.cells())


def test_a_search_goes_on_with_what_it_began_with(tmp_path: Path) -> None:
    search(tmp_path / "t", 1)
    with pytest.raises(ValueError, match="seed was 0, now 1"):
        search(tmp_path / "t", 1, seed=1)
    with pytest.raises(ValueError, match="began otherwise"):
        search(tmp_path / "t", 1, log=customers_log(30, seed=9)[0])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="holds no search"):
        search(tmp_path / "other", 1)


def test_ape_v_is_always_among_what_is_tried() -> None:
    assert "ape-v" in search_space(LOG, None)
    assert "ape-v" in search_space(Dataset.example("pendulum"), None)
    with pytest.raises(ValueError, match="'sac' is no algorithm for discrete actions"):
        search_space(LOG, ["sac"])


def test_the_command_names_the_best_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LOG.save(tmp_path / "log.npz")
    words = ["--data", str(tmp_path / "log.npz"), "--out", str(tmp_path / "t"), "--trials", "1", "--algorithms", "bc"]
    main(["tune", *words, "--updates", "4", "--kinds", "1"])
    told = capsys.readouterr().out
    assert f'apev.load("{tmp_path / "t" / "trial-0"}")' in told
    assert "apev fqe" in told


def test_a_log_of_pictures_is_refused_before_any_trial(tmp_path: Path) -> None:
    ended = np.ones(6, dtype=bool)
    shown = Dataset.from_arrays(np.zeros((6, 8, 8, 3), np.uint8), np.arange(6) % 2, np.ones(6), ended, ~ended)
    with pytest.raises(ValueError, match=r"fitted Q evaluation, which reads vectors.*Fix: "):
        search(tmp_path / "tune", 2, shown)
    assert not (tmp_path / "tune").exists()
