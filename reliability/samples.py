"""Valid files of every kind we read, small and always the same: what the fuzzer damages.

npz hdf5 folder minari    logs
policy                    what `Policy.save` writes, of several agents
run                       what `apev train` leaves: config.json, metrics.jsonl, checkpoint, policy
results                   what `apev report` reads
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import gymnasium
import h5py
import numpy as np

from apev import agents
from apev.commands.evaluate import Evaluate
from apev.commands.train import Train
from apev.data import Dataset
from apev.policy import Policy

Kind = Literal["npz", "hdf5", "folder", "minari", "policy", "run", "results"]
RESULTS = Path(__file__).resolve().parents[1] / "results"
RUN = {"updates": 12, "batch_size": 16, "checkpoint_every": 6, "held_out": 0.3, "threads": 1}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "ape-v": ("discrete.npz", {"agent": ("ape-v",), "members": 2, "set": ("hidden=8,8",)}),
    "dqn": ("discrete.npz", {"agent": ("dqn",), "members": 2, "set": ("hidden=8,8",)}),
    "sac": ("continuous.npz", {"agent": ("sac",), "set": ("hidden=8,8",)}),
    "ape-v-sac": ("continuous.npz", {"agent": ("ape-v",), "members": 2, "set": ("hidden=8,8", "critics=4")}),
}
AGENTS: dict[str, tuple[Any, Any]] = {
    "ape-v": (agents.APEV, agents.APEVConfig),
    "dqn": (agents.DQN, agents.DQNConfig),
    "c51": (agents.C51, agents.C51Config),
    "discrete-bc": (agents.DiscreteBC, agents.DiscreteBCConfig),
    "ape-v-sac": (agents.APEVSAC, agents.APEVSACConfig),
    "sac": (agents.SAC, agents.SACConfig),
    "iql": (agents.IQL, agents.IQLConfig),
    "bc": (agents.BC, agents.BCConfig),
}
POLICIES = {
    "discrete.npz": ("ape-v", "dqn", "discrete-bc", "c51"),
    "pictures.npz": ("ape-v", "discrete-bc"),
    "continuous.npz": ("ape-v-sac", "sac", "bc", "iql"),
}
SMALL = {"members": 3, "hidden": (8, 8), "features": 4, "critics": 4, "atoms": 5}


@dataclass(frozen=True)
class Sample:
    """One valid file or folder; `facts` is what a user would tell a command with it."""

    name: str
    kind: Kind
    path: Path
    facts: dict[str, Any] = field(default_factory=dict)


def make_all(root: Path) -> list[Sample]:
    """Write them under `root`."""
    root.mkdir(parents=True, exist_ok=True)
    logs = {"discrete": discrete(), "continuous": continuous(), "pictures": pictures(), "plain": continuous(plain=True)}
    return [*_logs(root, logs), *_policies(root), *_runs(root), *_results(root)]


# ---------------------------------------------------------------------- logs


def discrete(rows: int = 40, length: int = 8) -> Dataset:
    """CartPole's shapes."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(rows, 4)).astype(np.float32)
    return Dataset.from_arrays(
        obs,
        rng.integers(0, 2, rows),
        rng.normal(size=rows),
        np.arange(rows) % length == length - 1,
        np.zeros(rows, dtype=bool),
        next_observations=obs + 0.125,
        contexts=np.arange(rows) // length % 3,
        num_actions=2,
        source=_source("CartPole-v1", "cartpole-random-v0") | {"reference": [0.0, 500.0]},
    )


def continuous(rows: int = 40, length: int = 10, plain: bool = False, obs_dim: int = 3, action_dim: int = 1) -> Dataset:
    """Pendulum's shapes; `plain` observations are those of the following row, as D4RL's and Minari's."""
    rng = np.random.default_rng(1)
    obs = rng.normal(size=(rows, obs_dim)).astype(np.float32)
    cut = np.arange(rows) % length == length - 1
    return Dataset.from_arrays(
        obs,
        rng.uniform(-1, 1, (rows, action_dim)).astype(np.float32),
        rng.normal(size=rows),
        np.zeros(rows, dtype=bool),
        cut,
        next_observations=None if plain else obs - 0.25,
        source=_source("Pendulum-v1", "pendulum-random-v0") | {"action_low": [-2.0], "action_high": [2.0]},
    )


def pictures(rows: int = 24, length: int = 6) -> Dataset:
    """A picture an episode, and a hint."""
    rng = np.random.default_rng(2)
    shown = rng.integers(0, 256, (rows // length, 8, 8, 3), dtype=np.uint8).repeat(length, 0)
    return Dataset.from_arrays(
        {"image": shown, "hint": rng.normal(size=(rows, 2)).astype(np.float32)},
        rng.integers(0, 3, rows),
        rng.normal(size=rows),
        np.arange(rows) % length == length - 1,
        np.zeros(rows, dtype=bool),
    )


def _source(env: str, name: str) -> dict[str, Any]:
    return {"name": name, "environment": env, "environment_spec": gymnasium.spec(env).to_json()}


def _logs(root: Path, logs: dict[str, Dataset]) -> Iterator[Sample]:
    for name in ("discrete", "continuous", "pictures"):
        logs[name].save(root / f"{name}.npz")
        yield Sample(f"{name}.npz", "npz", root / f"{name}.npz")
    logs["discrete"].save(root / "packed.npz", compress=True)
    yield Sample("packed.npz", "npz", root / "packed.npz")
    log = logs["discrete"]
    np.savez(
        root / "user.npz",
        observations=log.observations["observation"],
        actions=log.actions,
        rewards=log.rewards,
        terminated=log.terminated,
        truncated=log.truncated,
    )
    yield Sample("user.npz", "npz", root / "user.npz")
    for name, log, compress in (
        ("continuous.hdf5", logs["continuous"], False),
        ("packed.hdf5", logs["continuous"], True),
        ("discrete.hdf5", logs["discrete"], False),
        ("pictures.hdf5", logs["pictures"], False),
    ):
        log.save(root / name, compress=compress)
        yield Sample(name, "hdf5", root / name)
    _d4rl(root / "hopper_medium-v2.hdf5", continuous(plain=True, obs_dim=11, action_dim=3))
    yield Sample("hopper_medium-v2.hdf5", "hdf5", root / "hopper_medium-v2.hdf5")
    for name in ("discrete", "continuous", "pictures"):
        logs[name].save(root / f"{name}.apev")
        yield Sample(f"{name}.apev", "folder", root / f"{name}.apev")
    yield from _minari(root, logs["plain"])


def _d4rl(path: Path, log: Dataset) -> None:
    """As D4RL wrote them: no header of ours, gzip, and groups that mean nothing to us."""
    with h5py.File(path, "w") as file:
        columns = {"observations": log.observations["observation"], "actions": log.actions, "rewards": log.rewards}
        columns |= {"terminals": log.terminated, "timeouts": log.truncated}
        for name, column in columns.items():
            file.create_dataset(name, data=column, compression="gzip")
        file.create_dataset("infos/qpos", data=np.zeros((len(log), 2)))
        file.create_dataset("metadata/algorithm", data="SAC")


def _minari(root: Path, log: Dataset) -> Iterator[Sample]:
    try:
        import minari  # noqa: F401
    except ModuleNotFoundError:
        return
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(root / "minari")
    try:
        log.save("fuzz/pendulum-v0")
    finally:
        if before is None:
            del os.environ["MINARI_DATASETS_PATH"]
        else:
            os.environ["MINARI_DATASETS_PATH"] = before
    folder = root / "minari" / "fuzz" / "pendulum-v0"
    yield Sample("minari", "minari", folder)
    keyed = root / "minari" / "fuzz" / "keyed-v0"
    shutil.copytree(folder, keyed)
    meta = json.loads((keyed / "data" / "metadata.json").read_text())
    box = json.loads(meta["observation_space"])
    del meta["env_spec"]  # no environment shows two keys
    meta["observation_space"] = json.dumps({"type": "Dict", "subspaces": {"a": box, "b": box}})
    (keyed / "data" / "metadata.json").write_text(json.dumps(meta))
    with h5py.File(keyed / "data" / "main_data.hdf5", "a") as file:
        for group in file.values():
            group.move("observations", "kept")
            group["observations/a"] = group["kept"][()]
            group["observations/b"] = group["kept"][()] * 2
            del group["kept"]
    yield Sample("minari-keyed", "minari", keyed)


# ---------------------------------------------------------------------- policies, runs, results


def untrained(name: str, data: Dataset) -> Any:
    """A small agent for a log."""
    kind, config = AGENTS[name]
    known = {key: value for key, value in SMALL.items() if key in config.__dataclass_fields__}
    return kind.for_data(data, config(**known))


def _policies(root: Path) -> Iterator[Sample]:
    for log, names in POLICIES.items():
        data = Dataset.load(root / log)
        for name in names:
            folder = root / "policies" / f"{log.removesuffix('.npz')}-{name}"
            Policy(untrained(name, data)).save(folder)
            yield Sample(folder.name, "policy", folder)


def train_command(data: Path, out: Path, facts: dict[str, Any], **more: Any) -> Train:
    """The training that made a sample, or goes on with it."""
    return Train(data=data, out=out, **(RUN | facts | more))


def _runs(root: Path) -> Iterator[Sample]:
    for name, (log, settings) in RUNS.items():
        folder = root / "runs" / name
        train_command(root / log, folder, settings).run()
        yield Sample(f"run-{name}", "run", folder, {"data": root / log, "settings": settings})
    stopped = root / "runs" / "stopped"
    log, settings = RUNS["ape-v"]
    shutil.copytree(root / "runs" / "ape-v", stopped)
    shutil.rmtree(stopped / "policy")
    yield Sample("run-stopped", "run", stopped, {"data": root / log, "settings": settings})


def _results(root: Path) -> Iterator[Sample]:
    returns = root / "results" / "returns"
    shutil.copytree(root / "runs" / "ape-v", returns)
    Evaluate(runs=(returns,), episodes=2).run()
    for part in ("checkpoints", "policy"):
        shutil.rmtree(returns / part)
    yield Sample("returns", "results", returns)
    for name, place in (("theory", "theory"), ("doors", "locked-doors-demo"), ("mazes", "procgen/easy-200")):
        if (RESULTS / place / "summary.json").is_file():
            folder = root / "results" / name
            shutil.copytree(RESULTS / place, folder, ignore=shutil.ignore_patterns("figures", "*.html", "*.svg"))
            _shorten(folder)
            yield Sample(name, "results", folder)


def _shorten(folder: Path) -> None:
    """Keep few pictures and levels, all policies: a report of thousands of episodes takes seconds."""
    for path in folder.glob("*.jsonl*"):
        opener: Any = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as file:
            lines = [line for line in file if _kept(json.loads(line))]
        data = "".join(lines).encode()
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    replays = folder / "replays.json"
    if replays.is_file():
        whole = json.loads(replays.read_text())
        whole["replays"] = whole["replays"][:1]
        replays.write_text(json.dumps(whole))


def _kept(row: dict[str, Any]) -> bool:
    return int(row.get("level", row.get("picture", 0))) % 100 == 0
