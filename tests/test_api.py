"""The front door: one way to train, whoever asks; one table; an algorithm is one file and one entry."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agent_contract import QUIET
from safetensors.torch import load_file

import apev
from apev.agents import APEVConfig, DQNConfig
from apev.agents.agent import Agent
from apev.agents.discrete.dqn import DQN
from apev.agents.registry import ALGORITHMS, Algorithm, Variant, find, register, unregister
from apev.api import Extras, configure
from apev.cli import main
from apev.data import Dataset
from apev.data.examples import cartpole
from apev.experiments.common.charts import policy_colour
from apev.experiments.common.tables import display_name
from apev.loop import Schedule


def digest(folder: Path) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(load_file(folder / "policy/weights.safetensors").items()):
        found.update(name.encode() + tensor.numpy().tobytes())
    return found.hexdigest()


@pytest.fixture(scope="module")
def log() -> Dataset:
    return cartpole(episodes=30)


SETTINGS: dict[str, Any] = {"members": 3, "hidden": (16, 16), "gamma": 0.9}


@pytest.mark.parametrize("algorithm", ["ape-v", "bc"])
def test_python_the_command_line_and_experiments_give_the_same_tensors(log: Dataset, tmp_path: Path, algorithm: str) -> None:
    given: dict[str, Any] = {"updates": 20, "seed": 3, "batch_size": 32, "console": QUIET}
    apev.train(log, algorithm, out=tmp_path / "python", **given, **SETTINGS)
    log.save(tmp_path / "log.npz")
    words = [
        "train",
        "--data",
        str(tmp_path / "log.npz"),
        "--out",
        str(tmp_path / "cli"),
        "--agent",
        algorithm,
        "--updates",
        "20",
    ]
    more = ["--seeds", "3", "--batch-size", "32", "--members", "3", "--gamma", "0.9", "--set", "hidden=16,16"]
    main([*words, *more])
    config = configure(find(algorithm, discrete=True), SETTINGS)
    extras = Extras(schedule=Schedule(20, 20, 0, 500), facts={"agent": algorithm, "seed": 3})
    apev.train(log, config=config, out=tmp_path / "cell", seed=3, batch_size=32, extras=extras, console=QUIET)
    assert digest(tmp_path / "python") == digest(tmp_path / "cli") == digest(tmp_path / "cell")


def test_what_train_returns_is_what_load_loads(log: Dataset, tmp_path: Path) -> None:
    policy = apev.train(log, out=tmp_path / "run", updates=5, console=QUIET, **SETTINGS)
    again = apev.load(tmp_path / "run")
    for name, tensor in policy.agent.policy_state().items():
        assert torch.equal(again.agent.policy_state()[name], tensor)
    assert policy.logged is not None
    assert policy.logged == again.logged
    assert policy.logged["mean"] == pytest.approx(log.episode_returns().mean())
    nowhere = apev.train(log, updates=5, console=QUIET, **SETTINGS)  # without a folder the same policy, and nothing kept
    for name, tensor in policy.agent.policy_state().items():
        assert torch.equal(nowhere.agent.policy_state()[name], tensor)


def test_a_run_is_resumed_from_python_too(log: Dataset, tmp_path: Path) -> None:
    given: dict[str, Any] = {"out": tmp_path / "run", "console": QUIET, **SETTINGS}
    apev.train(log, updates=6, **given)
    with pytest.raises(FileExistsError, match="already holds a run"):
        apev.train(log, updates=9, **given)
    apev.train(log, updates=9, resume=True, **given)
    assert json.loads((tmp_path / "run/policy/policy.json").read_text())["update"] == 9


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        ("dreamer", {}, "no algorithm is called 'dreamer'. Fix: one of ape-v"),
        ("edac", {}, "edac does not learn from discrete actions.*pick one of ape-v, dqn"),
        ("ape-v", {"depth": 3}, "no setting 'depth'. Fix: one of"),
        ("ape-v", {"batch_size": 0}, "batch_size is 0"),
        ("ape-v", {"updates": -1}, "updates is -1"),
    ],
)
def test_mistakes_are_named(log: Dataset, algorithm: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apev.train(log, algorithm, console=QUIET, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"bootstrap": 2.0}, "bootstrap is 2"), ({"eval_env": "MountainCar-v0"}, "does not fit"), ({"floor": 0.5}, "floor 0.5")],
    ids=str,
)
def test_mistakes_are_told_before_kinds_are_looked_for(
    log: Dataset, settings: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(*_: Any, **__: Any) -> None:
        raise AssertionError("kinds were looked for")

    monkeypatch.setattr("apev.api.find_kinds", search)
    with pytest.raises(ValueError, match=message):
        apev.train(log, console=QUIET, **settings)


def test_one_table_with_every_way_to_act_and_the_log(log: Dataset, tmp_path: Path) -> None:
    policy = apev.train(log, out=tmp_path / "a", updates=5, console=QUIET, **SETTINGS)
    found = apev.evaluate(policy, "CartPole-v1", episodes=3, console=QUIET)
    assert [row.name for row in found.rows] == ["adaptive", "average", "member 0", "member 1", "member 2", "the log"]
    assert found["the log"].mean == pytest.approx(log.episode_returns().mean())
    assert found["adaptive"].low <= found["adaptive"].mean <= found["adaptive"].high
    assert "adaptive" in str(found)
    assert all(len(line) <= 60 for line in str(found).splitlines())
    apev.train(log, "bc", out=tmp_path / "b", updates=5, console=QUIET)
    both = apev.evaluate([tmp_path / "a", tmp_path / "b"], episodes=2, adapt=["bayes", "uniform"], console=QUIET)
    assert [row.name for row in both.rows] == ["a: adaptive", "a: average", "b", "the log"]
    assert both.environment == "CartPole-v1"  # which the log named


def test_the_average_of_continuous_members_is_none_of_them() -> None:
    pendulum = Dataset.example("pendulum")
    policy = apev.train(pendulum, updates=30, members=3, hidden=(16,), console=QUIET)
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)

    def acts(adapt: Any) -> np.ndarray:
        behaviour = policy.with_adapt(adapt)
        return np.asarray(behaviour.act(obs))

    members = np.stack([acts(f"member:{k}") for k in range(policy.members)])
    np.testing.assert_allclose(acts("uniform"), members.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(acts([1, 0, 1]), members[[0, 2]].mean(0), rtol=1e-4, atol=1e-5)
    assert not np.allclose(acts("uniform"), members[-1])


# ---------------------------------------------------------------------- a toy algorithm: one file, one entry


@dataclass(frozen=True)
class ToyConfig(DQNConfig):
    """DQN that always takes the first action."""

    members: int = 1
    """One."""


class Toy(DQN):
    """Always the first action."""

    config: ToyConfig

    def act(self, obs: Any, log_belief: Any, *rest: Any) -> torch.Tensor:
        return torch.zeros(len(log_belief), dtype=torch.int64)


@pytest.fixture
def toy() -> Iterator[type[Agent]]:
    register(Algorithm("toy", "Toy algorithm", "#123456", "presses the first button", discrete=Variant(Toy, ToyConfig, "toy")))
    yield Toy
    unregister("toy")


def test_an_algorithm_is_one_file_and_one_entry(
    toy: type[Agent], log: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "presses the first button" in " ".join(capsys.readouterr().out.replace("│", " ").split())
    log.save(tmp_path / "log.npz")
    main(["train", "--data", str(tmp_path / "log.npz"), "--out", str(tmp_path / "run"), "--agent", "toy", "--updates", "3"])
    assert isinstance(apev.load(tmp_path / "run").agent, toy)
    main(["evaluate", str(tmp_path / "run"), "--episodes", "2"])
    assert "CartPole-v1" in capsys.readouterr().out
    assert (display_name("toy"), policy_colour("toy")) == ("Toy algorithm", "#123456")
    with pytest.raises(ValueError, match="there is an algorithm 'toy' already"):
        register(Algorithm("toy", "x", "#000000", "x"))


def test_a_forgotten_algorithm_is_unknown() -> None:
    assert "toy" not in ALGORITHMS
    assert isinstance(APEVConfig(), DQNConfig)
