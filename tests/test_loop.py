"""The loop: what it writes, and that an interrupted run ends exactly like one that was not."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agent_contract import QUIET, build, puzzle, sampler_of
from by_hand import linear
from safetensors.torch import load_file

import apev
from apev.agents import APEV
from apev.agents.agent import Agent
from apev.cli import main
from apev.data import Dataset, Sampler
from apev.files import read_tensors
from apev.loop import Interrupted, Schedule, TrainingError, alone_in, check_settings
from apev.loop import run as train

EVERY = Schedule(updates=12, log_every=2, eval_every=3, checkpoint_every=4)


def make(seed: int = 0, **settings: Any) -> APEV:
    agent = build("ape-v", {"members": 2, "hidden": (8,)} | settings, puzzle("dict"), seed)
    assert isinstance(agent, APEV)
    return agent


def evaluator(agent: Agent, update: int) -> list[dict[str, Any]]:
    assert isinstance(agent, APEV)
    return [{"policy": "ape-v", "success": float(linear(agent.net.heads.layers[0]).bias.detach().mean())}]


def run(folder: Path, schedule: Schedule = EVERY, agent: APEV | None = None, **options: Any) -> APEV:
    agent = agent or make()
    train(agent, sampler_of(puzzle("dict")), folder, schedule, evaluator=evaluator, console=QUIET, **options)
    return agent


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_same_run(one: Path, other: Path) -> None:
    """Every tensor of the last checkpoint and of the policy is equal to the bit, and so are the metrics."""
    for name in ("checkpoints/latest.safetensors", "policy/weights.safetensors"):
        a, b = load_file(one / name), load_file(other / name)
        assert a.keys() == b.keys()
        for key in a:
            assert torch.equal(a[key], b[key]), f"{name}: {key}"
    for name in ("metrics.jsonl", "curves.jsonl"):
        if (one / name).exists():
            assert (one / name).read_text() == (other / name).read_text()


SIGNALS = [signal.SIGINT, signal.SIGTERM]


def test_what_a_killed_process_left_half_written_is_cleared(tmp_path: Path) -> None:
    run(tmp_path / "run", Schedule(2, 1, 0, 1))
    (tmp_path / "run/checkpoints/.latest.safetensors.abc.partial").write_bytes(b"half")
    run(tmp_path / "run", Schedule(3, 1, 0, 1), resume=True)
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["latest.safetensors"]


class Stop(Exception):  # noqa: N818
    """Stands for a crash."""


def crash_at(update: int, agent: APEV) -> APEV:
    """The agent, broken: its update number `update` never happens."""
    learn, count = agent.update, 0

    def update_(batch: Any) -> Any:
        nonlocal count
        count += 1
        if count == update:
            raise Stop
        return learn(batch)

    agent.update = update_  # type: ignore[method-assign]
    return agent


# ---------------------------------------------------------------------- what a run writes


def test_a_run_writes_what_the_module_promises(tmp_path: Path) -> None:
    agent = run(tmp_path / "run", config={"seed": 7})
    folder = tmp_path / "run"
    assert {p.name for p in folder.iterdir()} == {"config.json", "metrics.jsonl", "curves.jsonl", "checkpoints", "policy"}
    assert [line["update"] for line in lines(folder / "metrics.jsonl")] == [2, 4, 6, 8, 10, 12]
    assert [line["update"] for line in lines(folder / "curves.jsonl")] == [3, 6, 9, 12]
    config = json.loads((folder / "config.json").read_text())
    assert config["seed"] == 7
    assert config["schedule"]["updates"] == 12
    assert config["agent_config"]["members"] == 2
    assert [p.name for p in (folder / "checkpoints").iterdir()] == ["latest.safetensors"]
    for name, value in agent.policy_state().items():
        assert torch.equal(apev.load(folder).agent.policy_state()[name], value)


def test_metrics_are_means_over_the_updates_since_the_last_line(tmp_path: Path) -> None:
    agent, sampler = make(), sampler_of(puzzle("dict"))
    losses = [float(agent.update(sampler.sample())["loss"]) for _ in range(7)]
    run(tmp_path / "run", Schedule(7, 3, 0, 3))
    logged = {line["update"]: line["loss"] for line in lines(tmp_path / "run/metrics.jsonl")}
    expected = {3: np.mean(losses[:3]), 6: np.mean(losses[3:6]), 7: losses[6]}
    assert logged == pytest.approx(expected, rel=1e-5)


def test_held_out_contexts_calibrate_the_deployed_policy(tmp_path: Path) -> None:
    kept, rest = puzzle("dict").split(0.25, 0)
    agent = build("dqn", {"members": 2}, kept)
    train(agent, sampler_of(kept), tmp_path / "run", Schedule(4, 2, 0, 2), held_out=Sampler(rest), console=QUIET)
    errors = torch.cat([agent.td_errors(step, torch.zeros(len(step.action), 2)) for step in Sampler(rest).iterate(100)])
    expected = errors.square().mean(0).sqrt()
    torch.testing.assert_close(apev.load(tmp_path / "run").agent.filter.scale, expected)


def test_no_evaluation_in_between_means_one_at_the_end(tmp_path: Path) -> None:
    """As `Schedule.eval_every` says: 0 evaluates only at the end."""
    run(tmp_path / "run", Schedule(4, 2, 0, 2))
    assert [line["update"] for line in lines(tmp_path / "run/curves.jsonl")] == [4]


# ---------------------------------------------------------------------- going on


@pytest.mark.parametrize("crash", [1, 3, 5, 6, 11, 12])
def test_a_crash_at_any_update_leaves_no_trace_after_a_resume(tmp_path: Path, crash: int) -> None:
    run(tmp_path / "whole")
    with pytest.raises(Stop):
        run(tmp_path / "cut", agent=crash_at(crash, make()))
    run(tmp_path / "cut", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_two_crashes_in_a_row(tmp_path: Path) -> None:
    run(tmp_path / "whole")
    with pytest.raises(Stop):
        run(tmp_path / "cut", agent=crash_at(6, make()))
    with pytest.raises(Stop):
        run(tmp_path / "cut", agent=crash_at(7, make()), resume=True)
    run(tmp_path / "cut", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_resuming_does_not_depend_on_the_new_agents_own_start(tmp_path: Path) -> None:
    run(tmp_path / "whole")
    with pytest.raises(Stop):
        run(tmp_path / "cut", agent=crash_at(7, make()))
    other = make()
    other.generator.manual_seed(99)
    for parameter in other.parameters():
        parameter.data.fill_(0.5)
    run(tmp_path / "cut", agent=other, resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    run(tmp_path / "run")
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    run(tmp_path / "run", resume=True)
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before


def test_a_finished_run_may_be_made_longer(tmp_path: Path) -> None:
    run(tmp_path / "whole", Schedule(11, 3, 0, 3))
    run(tmp_path / "cut", Schedule(7, 3, 0, 3))
    run(tmp_path / "cut", Schedule(11, 3, 0, 3), resume=True)
    a, b = (load_file(tmp_path / name / "policy/weights.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(a[key], b[key]) for key in a)
    # Update 9 closes a line that the first run had already closed at its end, 7: it is the mean of two updates, not three.
    losses = {line["update"]: line["loss"] for line in lines(tmp_path / "cut/metrics.jsonl")}
    whole = {line["update"]: line["loss"] for line in lines(tmp_path / "whole/metrics.jsonl")}
    assert losses[7] + 2 * losses[9] == pytest.approx(3 * whole[9], rel=1e-5)


def test_a_metrics_line_cut_short_by_the_kill_is_written_again(tmp_path: Path) -> None:
    run(tmp_path / "whole")
    with pytest.raises(Stop):
        run(tmp_path / "cut", agent=crash_at(8, make()))
    for name, half in (("metrics.jsonl", '{"update": 8, "lo'), ("curves.jsonl", '{"upd')):
        with (tmp_path / "cut" / name).open("a") as file:
            file.write(half)
    run(tmp_path / "cut", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_half_written_checkpoint_does_not_harm_the_last_whole_one(tmp_path: Path) -> None:
    run(tmp_path / "whole")
    with pytest.raises(Stop):
        run(tmp_path / "cut", agent=crash_at(7, make()))
    (tmp_path / "cut/checkpoints/latest.tmp").write_bytes(b"half")
    run(tmp_path / "cut", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("every", [5, 7])
def test_checkpoints_are_as_frequent_as_asked_whatever_the_logging(tmp_path: Path, every: int) -> None:
    """A checkpoint may wait for the next line of metrics, but not for a common multiple of both."""
    with pytest.raises(Stop):
        run(tmp_path / "run", Schedule(40, 4, 0, every), agent=crash_at(every + 5, make()))
    assert (tmp_path / "run/checkpoints/latest.safetensors").exists()


# ---------------------------------------------------------------------- refusals


def test_a_folder_in_which_another_process_trains_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with pytest.raises(Stop):
        run(tmp_path / "run", agent=crash_at(7, make()))
    before = (tmp_path / "run/metrics.jsonl").read_text()
    with alone_in(tmp_path / "run"), pytest.raises(FileExistsError, match=r"another process trains.*Fix"):
        run(tmp_path / "run", resume=True)
    assert (tmp_path / "run/metrics.jsonl").read_text() == before
    run(tmp_path / "run", resume=True)


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    run(tmp_path / "run")
    before = (tmp_path / "run/checkpoints/latest.safetensors").read_bytes()
    with pytest.raises(FileExistsError, match=r"already holds a run.*--resume.*another folder"):
        run(tmp_path / "run")
    assert (tmp_path / "run/checkpoints/latest.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    "other",
    [
        lambda: make(members=3),
        lambda: make(hidden=(9,)),
        lambda: make(gamma=0.5),
        lambda: make(lr=0.1),
        lambda: make(surprise="paper"),
        lambda: build("dqn", {"members": 2, "hidden": (8,)}, puzzle("dict")),
        lambda: build("ape-v", {"members": 2, "hidden": (8,)}, puzzle("picture")),
    ],
    ids=["members", "hidden", "gamma", "lr", "surprise", "agent", "data"],
)
def test_resuming_with_other_settings_is_refused(tmp_path: Path, other: Any) -> None:
    with pytest.raises(Stop):
        run(tmp_path / "run", agent=crash_at(7, make()))
    asked = (tmp_path / "run/config.json").read_text()
    with pytest.raises(ValueError, match=r"other settings.*Fix"):
        run(tmp_path / "run", agent=other(), resume=True)
    assert (tmp_path / "run/config.json").read_text() == asked


def test_a_difference_is_told_by_name_and_a_setting_the_run_did_not_know_is_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"agent_config": {"lr": 0.1}, "log": {"rows": 1, "reward": 2}}')
    check_settings(tmp_path, {"agent_config": {"lr": 0.1}, "log": {"rows": 1, "reward": 2}, "title": "new"})
    with pytest.raises(ValueError, match=r"\(log rows was 1, now 3\)"):
        check_settings(tmp_path, {"agent_config": {"lr": 0.1}, "log": {"rows": 3, "reward": 2}})
    with pytest.raises(ValueError, match=r"\(floor was None, now True\)"):
        check_settings(tmp_path, {"agent_config": {"lr": 0.1, "floor": True}, "log": {"rows": 1, "reward": 2}})


@pytest.mark.parametrize("bad", [{"updates": -1}, {"log_every": 0}, {"checkpoint_every": 0}, {"eval_every": -1}])
def test_an_impossible_schedule_is_refused(tmp_path: Path, bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        run(tmp_path / "run", Schedule(**({"updates": 4} | bad)))


# ---------------------------------------------------------------------- signals, in a process of its own


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Walks on a line of five cells; the right end pays."""
    rng = np.random.default_rng(0)
    rows: list[tuple[Any, ...]] = []
    for _ in range(40):
        x = int(rng.integers(4))
        for step in range(12):
            action = int(rng.integers(2))
            after = max(0, x + 2 * action - 1)
            rows.append((np.eye(5)[x], action, float(after == 4), after == 4, step == 11 and after != 4))
            x = after
            if x == 4:
                break
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    path = tmp_path_factory.mktemp("data") / "line.npz"
    Dataset.from_arrays(*columns).save(path)
    return path


def words(log: Path, out: Path, *more: str) -> list[str]:
    fixed = ["--agent", "ape-v", "--members", "2", "--updates", "400", "--batch-size", "64", "--checkpoint-every", "50"]
    return [
        "train",
        "--data",
        str(log),
        "--out",
        str(out),
        "--threads",
        "1",
        *fixed,
        "--set",
        "hidden=16",
        "wildcards=2",
        *more,
    ]


@pytest.fixture(scope="module")
def whole(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    main(words(log, out))
    return out


def start_and_wait(arguments: list[str], metrics: Path, count: int) -> subprocess.Popen[str]:
    """A real `apev` process that has logged at least `count` lines."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "apev.cli", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= count):
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < deadline, "no progress in a minute"
        time.sleep(0.002)
    return process


def test_kill_nine_at_a_random_step_then_resume_equals_a_run_never_interrupted(log: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start_and_wait(words(log, out), out / "metrics.jsonl", random.randint(1, 4))
    time.sleep(random.random() * 0.03)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (out / "policy").exists()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "apev.cli", *words(log, out, "--resume")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert_same_run(whole, out)


def test_ctrl_c_leaves_a_run_that_can_be_resumed(log: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start_and_wait(words(log, out), out / "metrics.jsonl", 2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume goes on from here" in " ".join(errors.split())
    assert "Traceback" not in errors
    assert (out / "checkpoints/latest.safetensors").exists()
    main(words(log, out, "--resume"))
    assert_same_run(whole, out)


def signalled(update: int, number: int) -> APEV:
    """An agent in whose update number `update` the process is told to stop."""
    agent = make()
    learn, count = agent.update, 0

    def update_(batch: Any) -> Any:
        nonlocal count
        count += 1
        if count == update:
            signal.raise_signal(number)
        return learn(batch)

    agent.update = update_  # type: ignore[method-assign]
    return agent


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("update", [1, 4, 5, 12])
def test_a_signal_saves_before_it_stops(tmp_path: Path, capfd: pytest.CaptureFixture[str], number: int, update: int) -> None:
    handlers = [signal.getsignal(known) for known in SIGNALS]
    with pytest.raises(Interrupted, match=f"stopped at update {update} of 12.*--resume"):
        run(tmp_path / "cut", agent=signalled(update, number))
    assert [signal.getsignal(known) for known in SIGNALS] == handlers
    assert f"{signal.Signals(number).name}: saving and stopping" in capfd.readouterr().err  # at once
    run(tmp_path / "cut", resume=True)
    run(tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_an_evaluation_is_not_waited_for(tmp_path: Path) -> None:
    def slow(agent: Agent, update: int) -> list[dict[str, Any]]:
        if update == 6:
            signal.raise_signal(signal.SIGTERM)
            raise AssertionError("the evaluation went on")
        return evaluator(agent, update)

    agent = make()
    with pytest.raises(Interrupted, match="stopped at update 6 of 12"):
        train(agent, sampler_of(puzzle("dict")), tmp_path / "cut", EVERY, evaluator=slow, console=QUIET)
    assert [line["update"] for line in lines(tmp_path / "cut/curves.jsonl")] == [3]
    run(tmp_path / "cut", resume=True)
    run(tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_stopped_run_can_be_loaded(tmp_path: Path) -> None:
    kept, rest = puzzle("dict").split(0.25, 0)
    agent = signalled(5, signal.SIGTERM)
    with pytest.raises(Interrupted):
        train(agent, sampler_of(kept), tmp_path / "run", EVERY, held_out=Sampler(rest), console=QUIET)
    with pytest.warns(UserWarning, match="was stopped: this is its policy at update 5"):
        policy = apev.load(tmp_path / "run")
    for name, value in agent.policy_state().items():
        if name != "scale":
            assert torch.equal(policy.agent.policy_state()[name], value)
    agent.calibrate(Sampler(rest).iterate(100))
    torch.testing.assert_close(policy.agent.scale, agent.scale)  # its belief is calibrated, as if it had finished


@pytest.mark.parametrize("where", ["loss", "weights"])
def test_a_network_that_breaks_stops_the_run(tmp_path: Path, where: str) -> None:
    agent = make()
    learn, count = agent.update, 0

    def update(batch: Any) -> Any:
        nonlocal count
        count += 1
        metrics = learn(batch)
        if count == 7:
            with torch.no_grad():
                agent.net.heads.layers[0].get_parameter("weight")[1, 0, 0] = float("nan")
            if where == "loss":
                metrics = metrics | {"loss": torch.tensor(float("nan"))}
        return metrics

    agent.update = update  # type: ignore[method-assign]
    told = {"loss": r"at update 7 the loss of net, member 1 .*last good state.*Fix: a smaller", "weights": "at update 8"}
    with pytest.raises(TrainingError, match=told[where]):
        run(tmp_path / "run", agent=agent)
    _, about = read_tensors(tmp_path / "run/checkpoints/latest.safetensors")
    assert about["update"] == "4"
    run(tmp_path / "run", resume=True)  # it goes on from the last good checkpoint
    run(tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "run")
