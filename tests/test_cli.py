"""The command line: help that helps, mistakes told in a sentence, and a log of one's own trained and evaluated."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from rich.console import Console

import apev
from apev import progress
from apev.agents import APEVConfig, DQNConfig, find
from apev.cli import main
from apev.commands.train import parse_settings
from apev.data import Dataset
from apev.terminal import quiet_pipes


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr (with the line breaks of the terminal taken out)."""
    capsys.readouterr()
    code = 0
    try:
        main(list(words))
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, " ".join(out.split()), " ".join(err.split())


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of CartPole, pushed at random."""
    rng = np.random.default_rng(0)
    columns: dict[str, list[Any]] = {k: [] for k in ("observations", "actions", "rewards", "terminated", "truncated")}
    following = []
    env = gymnasium.make("CartPole-v1")
    for episode in range(25):
        obs, _ = env.reset(seed=episode)
        over = False
        while not over:
            action = int(rng.integers(2))
            after, reward, ended, cut, _ = env.step(action)
            for column, value in zip(columns.values(), (obs, action, reward, ended, cut), strict=True):
                column.append(value)
            following.append(after)
            obs, over = after, ended or cut
    path = tmp_path_factory.mktemp("data") / "cartpole.npz"
    Dataset.from_arrays(**columns, next_observations=np.array(following)).save(path)  # type: ignore[arg-type]
    return path


def train_words(data: Path, out: Path, *more: str) -> list[str]:
    small = ["--updates", "60", "--batch-size", "64", "--members", "3", "--threads", "1", "--set", "hidden=16,16"]
    return ["train", "--data", str(data), "--out", str(out), *small, *more]


@pytest.fixture(scope="module")
def trained(cartpole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "cartpole"
    main(train_words(cartpole, out, "--eval-env", "CartPole-v1", "--eval-every", "30"))
    return out


# ---------------------------------------------------------------------- help


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "--version") == (0, f"apev {apev.__version__} (torch {torch.__version__})", "")


@pytest.mark.parametrize(
    ("command", "mentioned"),
    [
        ("", ["demo", "train", "evaluate", "report", "reproduce", "--version"]),
        ("demo", ["--out", "--resume", "--device", "--threads"]),
        (
            "train",
            [
                "--data",
                "--out",
                "--agent",
                "--members",
                "--gamma",
                "--updates",
                "--batch-size",
                "--held-out",
                "--eval-env",
                "--eval-every",
                "--checkpoint-every",
                "--set",
                "--seeds",
                "--resume",
                "--device",
                "--threads",
                "ape-v",
                "dqn",
                "lcb",
            ],
        ),
        (
            "evaluate",
            [
                "--env",
                "--episodes",
                "--adapt",
                "--seed",
                "random-member-step",
                "uniform",
                "--remember",
                "--device",
                "--threads",
            ],
        ),
        ("report", ["FOLDER", "apev train"]),
        ("reproduce", ["locked-doors", "locked-doors-ablation"]),
        ("reproduce locked-doors", ["--scale", "smoke", "cpu", "paper", "--out", "--images", "--seeds", "--resume"]),
        ("reproduce locked-doors-ablation", ["--out", "--seeds", "--updates", "--train-images", "--resume"]),
    ],
)
def test_help_mentions_every_option(capsys: pytest.CaptureFixture[str], command: str, mentioned: list[str]) -> None:
    code, out, err = call(capsys, *command.split(), "--help")
    assert code == 0
    missing = [word for word in mentioned if word.lower() not in (out + err).lower()]
    assert missing == []


# ---------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "command|subcommand|required|usage"),
        (["fly"], "fly"),
        (["train", "--data", "nowhere.npz"], "nowhere.npz"),
        (["train", "--data", "log.xyz"], "npz"),
        (["train", "--data", "log.csv"], "no file log.csv"),
        (["train", "--data", "log.npz", "--updates", "many"], "many"),
        (["train", "--colour", "red"], "--colour"),
        (["evaluate", "nowhere", "--env", "CartPole-v1"], "no folder nowhere.*Fix"),
        (["report", "nowhere"], "no folder nowhere.*Fix"),
        (["report", "no[where]"], r"no\[where\]"),
        (["reproduce", "locked-doors", "--scale", "huge"], "huge"),
        (["reproduce", "locked-doors", "--images", "nowhere.npz"], "nowhere.npz"),
        (["reproduce", "locked-doors", "--scale", "smoke", "--device", "cuda"], "torch sees no GPU.*--device cpu"),
        (["reproduce", "locked-doors", "--scale", "smoke", "--device", "toaster"], "toaster"),
        (["reproduce", "locked-doors", "--scale", "smoke", "--threads", "0"], "threads"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_is_told_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    code, out, err = call(capsys, *words)
    assert code == 2
    assert "Traceback" not in err
    assert_mentions(out + err, message)
    assert list(tmp_path.iterdir()) == []  # nothing was begun


def test_a_mistake_with_a_hostile_name_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "report", "no\x1b]0;owned\x07[/a]:boom:")
    assert code == 2
    assert "\x1b" not in out + err
    assert r"no folder no\x1b]0;owned\x07[/a]:boom:" in err


def test_a_bar_shows_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    for terminal in (False, True):
        shown = io.StringIO()
        with progress.progress_bar(Console(file=shown, width=200, force_terminal=terminal, color_system=None)) as bars:
            task = bars.add_task("first \x1b]0;owned\x07[/a]", total=2)
            bars.update(task, advance=1, description="then \x1b]0;owned\x07[/b]")
        assert r"then \x1b]0;owned\x07[/b]" in shown.getvalue()
        assert "\x1b]0" not in shown.getvalue()


@pytest.mark.parametrize("words", [["reproduce", "--list"], ["--help"], ["--version"]], ids=" ".join)
def test_a_reader_that_stops_reading_is_no_error(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # as `| head` does when it has what it wants
    done = subprocess.run([sys.executable, "-m", "apev", *words], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.stderr == b""
    assert done.returncode in (1, 141)


def test_a_pipe_of_our_own_that_breaks_is_an_error() -> None:
    with pytest.raises(BrokenPipeError), quiet_pipes():
        raise BrokenPipeError("a worker died")


def assert_mentions(text: str, pattern: str) -> None:
    """`pattern` is somewhere in the text, however the terminal drew its boxes."""
    assert re.search(pattern, re.sub(r"[│╭╰╮╯─\s]+", " ", text)), text


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--set", "sparkle=1"], "--set sparkle=1: no such field. Fix: one of likelihood"),
        (["--set", "concentration=much"], "--set concentration=much: concentration is a float"),
        (["--set", "wildcards=1.5"], "wildcards is a int"),
        (["--set", "bootstrap=2"], "bootstrap is 2"),
        (["--set", "surprise=nonsense"], "surprise.*nonsense"),
        (["--agent", "dqn", "--set", "likelihood=nonsense"], "likelihood.*nonsense"),
        (["--agent", "dqn", "--set", "floor=0.5"], "floor"),
        (["--members", "0"], "members is 0"),
        (["--held-out", "1.5"], "fraction is 1.5"),
        (["--batch-size", "0"], "batch.size"),
        (["--checkpoint-every", "0"], "checkpoint.every"),
        (["--updates", "-1"], "updates"),
        (["--eval-env", "NoSuchEnv-v0"], "NoSuchEnv"),
        (["--eval-env", "MountainCar-v0"], "MountainCar-v0 does not fit.*width 2.*training data had 4"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_setting_that_cannot_work_is_told_before_training(
    capsys: pytest.CaptureFixture[str], cartpole: Path, tmp_path: Path, more: list[str], message: str
) -> None:
    fixed = ["train", "--data", str(cartpole), "--out", str(tmp_path / "run"), "--threads", "1"]
    if not any(word == "--updates" for word in more):
        fixed += ["--updates", "2"]
    code, _, err = call(capsys, *fixed, *more)
    assert code == 2
    assert_mentions(err, message)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_bad_log_is_told_with_column_row_and_fix(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    columns: dict[str, Any] = {"actions": [0, 1], "rewards": [0.0, np.nan], "terminated": [0, 1], "truncated": [0, 0]}
    np.savez(tmp_path / "bad.npz", observations=np.zeros((2, 3)), **columns)
    code, _, err = call(capsys, "train", "--data", str(tmp_path / "bad.npz"), "--out", str(tmp_path / "run"))
    assert code == 2
    assert_mentions(err, "rewards, row 1: value is NaN. Fix:")


def test_an_agent_for_other_actions_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = np.array([False, True])
    Dataset.from_arrays(np.zeros((2, 3)), np.full((2, 1), 0.5), [0.0, 0.0], flags, ~flags & False).save(tmp_path / "log.npz")
    log, run = str(tmp_path / "log.npz"), str(tmp_path / "run")
    code, _, err = call(capsys, "train", "--data", log, "--out", run, "--agent", "dqn")
    assert code == 2
    assert_mentions(
        err, "dqn does not learn from continuous actions.*Fix: pick one of ape-v, sac, sac-n, edac, td3-bc, rem, cql, iql, bc"
    )


# ---------------------------------------------------------------------- parsing


def test_settings_take_the_type_of_their_field() -> None:
    parsed = parse_settings(APEVConfig, ("concentration=0.5", "wildcards=4", "hidden=64,32", "surprise=paper", "lr=3e-4"))
    assert parsed == {"concentration": 0.5, "wildcards": 4, "hidden": (64, 32), "surprise": "paper", "lr": 3e-4}
    assert parse_settings(DQNConfig, ("hidden=64",)) == {"hidden": (64,)}
    with pytest.raises(ValueError, match="no such field"):
        parse_settings(DQNConfig, ("concentration=0.5",))


# ---------------------------------------------------------------------- a log of one's own


def test_train_leaves_a_run_folder_and_a_policy(trained: Path, cartpole: Path) -> None:
    assert {p.name for p in trained.iterdir()} >= {"config.json", "metrics.jsonl", "curves.jsonl", "checkpoints", "policy"}
    config = json.loads((trained / "config.json").read_text())
    assert (config["agent"], config["data_digest"], config["seed"]) == ("ape-v", Dataset.load(cartpole).digest, 0)
    assert config["agent_config"]["hidden"] == [16, 16]
    curves = [json.loads(line) for line in (trained / "curves.jsonl").read_text().splitlines()]
    assert [line["update"] for line in curves] == [30, 60]
    assert all(line["return"] > 0 for line in curves)
    policy = apev.load(trained)
    assert policy.members == 3
    assert policy.act(np.zeros(4, dtype=np.float32)) in (0, 1)
    assert policy.agent.filter.scale is not None
    assert not bool((policy.agent.filter.scale == 1).any())  # measured on the held-out episodes


def test_train_does_not_overwrite_and_resumes(
    capsys: pytest.CaptureFixture[str], cartpole: Path, trained: Path, tmp_path: Path
) -> None:
    code, _, err = call(capsys, *train_words(cartpole, trained))
    assert code == 2
    assert_mentions(err, "already holds a run.*--resume")
    code, out, _ = call(capsys, *train_words(cartpole, trained, "--eval-env", "CartPole-v1", "--eval-every", "30", "--resume"))
    assert code == 0
    assert "apev.load(" in out


@pytest.mark.parametrize("agent", ["dqn", "lcb", "rem", "cql", "bc"])
def test_every_agent_trains(capsys: pytest.CaptureFixture[str], cartpole: Path, tmp_path: Path, agent: str) -> None:
    code, _, err = call(capsys, *train_words(cartpole, tmp_path / agent, "--agent", agent, "--held-out", "0"))
    assert code == 0, err
    stored = json.loads((tmp_path / agent / "policy/policy.json").read_text())["agent"]
    assert stored == find(agent, discrete=True).stored


def test_evaluate_keeps_one_record_an_episode_for_each_behaviour(capsys: pytest.CaptureFixture[str], trained: Path) -> None:
    words = ["bayes", "uniform", "member:1", "commit", "random-member", "random-member-step"]
    code, out, err = call(
        capsys, "evaluate", str(trained), "--env", "CartPole-v1", "--episodes", "4", "--threads", "1", "--adapt", *words
    )
    assert code == 0, err
    records = [json.loads(line) for line in (trained / "episodes.jsonl").read_text().splitlines()]
    assert len(records) == 4 * len(words) + 1  # and what the log returned
    assert records.pop()["policy"] == "the log"
    assert {record["policy"] for record in records} == {
        "adaptive",
        "average",
        "member 1",
        "adaptive, committed",
        "random-member",
        "random-member-step",
    }
    for record in records:
        assert record["return"] == record["length"] > 0  # CartPole pays 1 a step
        assert set(record) >= {"policy", "seed", "episode", "return", "success", "length", "members_correct", "stalled"}
    assert "random-member-step" in out
    code, again, err = call(capsys, "report", str(trained))
    assert code == 0, err
    assert all(name in again for name in ("adaptive", "average", "member 1", "the log"))
    assert (trained / "report.html").exists()


def test_evaluate_knows_the_environment_of_the_log(capsys: pytest.CaptureFixture[str], tmp_path: Path, trained: Path) -> None:
    flags = np.array([False, True])
    log = Dataset.from_arrays(np.zeros((2, 4)), [0, 1], [0.0, 1.0], flags, flags & False, source={"environment": "CartPole-v1"})
    log.save(tmp_path / "log.npz")
    run = str(tmp_path / "run")
    code, _, _ = call(capsys, "train", "--data", str(tmp_path / "log.npz"), "--out", run, "--updates", "1", "--threads", "1")
    assert code == 0
    code, out, _ = call(capsys, "evaluate", run, "--episodes", "2", "--threads", "1")
    assert code == 0
    assert "CartPole-v1" in out
    code, _, err = call(capsys, "evaluate", str(trained), "--episodes", "2", "--threads", "1")
    assert code == 2
    assert_mentions(err, "does not say its environment.*--env")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--adapt", "maybe"], "'maybe': use one of bayes"),
        (["--adapt", "member:7"], "'member:7' names no member"),
        (["--env", "NoSuchEnv-v0"], "NoSuchEnv"),
        (["--env", "MountainCar-v0"], "width 2.*training data had 4"),
        (["--episodes", "0"], "episodes|num_envs"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_evaluate_names_the_mistake(capsys: pytest.CaptureFixture[str], trained: Path, more: list[str], message: str) -> None:
    code, _, err = call(capsys, "evaluate", str(trained), "--env", "CartPole-v1", "--threads", "1", *more)
    assert code == 2
    assert "Traceback" not in err
    assert_mentions(err, message)


@pytest.mark.parametrize(
    ("agent", "more", "kind"),
    [
        ("ape-v", ["--base", "sac-n", "--set", "critics=4", "shared=false"], "ape-v-sac"),
        ("ape-v", ["--set", "lr=1e-3"], "td3-bc"),
        ("td3-bc", ["--set", "critics=3"], "td3-bc"),
        ("sac", ["--set", "critics=3"], "sac"),
        ("sac-n", ["--set", "lr=1e-3"], "sac"),
        ("edac", ["--set", "critics=3"], "edac"),
        ("rem", ["--set", "critics=3"], "rem"),
        ("cql", ["--set", "samples=2"], "cql"),
        ("iql", ["--set", "return_range=1000"], "iql"),
        ("bc", ["--set", "lr=1e-3"], "bc"),
    ],
)
def test_a_log_of_continuous_actions_trains_and_evaluates(tmp_path: Path, agent: str, more: list[str], kind: str) -> None:
    rng, rows = np.random.default_rng(0), 60
    ends = np.arange(rows) % 20 == 19
    log = {
        "observations": rng.normal(size=(rows, 3)).astype(np.float32),
        "next_observations": rng.normal(size=(rows, 3)).astype(np.float32),
        "actions": rng.uniform(-2, 2, size=(rows, 1)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "terminated": np.zeros(rows, dtype=bool),
        "truncated": ends,
    }
    np.savez(tmp_path / "log.npz", **log)
    small = ["--updates", "3", "--out", str(tmp_path / "run"), *more, "hidden=8,8"]
    main(["train", "--data", str(tmp_path / "log.npz"), "--agent", agent, *small])
    stored = json.loads((tmp_path / "run/policy/policy.json").read_text())
    assert stored["agent"] == kind
    assert agent != "sac-n" or stored["config"]["critics"] == 10
    assert json.loads((tmp_path / "run/config.json").read_text())["batch_size"] == 256
    main(["evaluate", str(tmp_path / "run"), "--env", "Pendulum-v1", "--episodes", "2"])
    rows = 2 + apev.load(tmp_path / "run").members if agent == "ape-v" else 1  # one member: there is no belief to freeze
    assert len((tmp_path / "run/episodes.jsonl").read_text().splitlines()) == 2 * rows + 1


def test_few_updates_of_continuous_actions_are_called_a_first_look(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apev.api.FIRST_LOOK", 2)
    rows = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    ends = np.arange(20) % 5 == 4
    log = {"observations": rows, "actions": rows[:, :1], "rewards": rows[:, 1], "terminated": ends, "truncated": ~ends & False}
    np.savez(tmp_path / "log.npz", **log)
    fixed = ["train", "--data", str(tmp_path / "log.npz"), "--agent", "bc", "--threads", "1", "--set", "hidden=8"]
    code, _, err = call(capsys, *fixed, "--out", str(tmp_path / "a"))
    assert code == 0
    assert_mentions(err, "2 updates are a first look.*--updates")
    _, _, err = call(capsys, *fixed, "--out", str(tmp_path / "b"), "--updates", "2")
    assert "first look" not in err
