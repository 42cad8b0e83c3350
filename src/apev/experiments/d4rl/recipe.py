"""Continuous control: the paper's Section 6.3 and Appendix E as typed recipes.

Each algorithm trains on the same log with each seed; the policy is evaluated during training and, with more episodes and every
behaviour of its belief, at its end. What is written is data; `report/d4rl.py` computes tables and figures from those files.

    OUT/TASK/agents/sac-n-s0/     a run folder: curves.jsonl while training, episodes.jsonl and beliefs.json at the end
    OUT/TASK/summary.json         over every run in the folder, whichever process made it
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console

from apev.agents import (
    AnchoredSACConfig,
    APEVSACConfig,
    BCConfig,
    CQLConfig,
    EDACConfig,
    IQLConfig,
    REMConfig,
    SACConfig,
    TD3BCConfig,
)
from apev.agents.registry import find
from apev.api import Extras, configure, train
from apev.cells import Cell, Machines
from apev.cells.cell import log_at
from apev.commands.reproduce import Algorithm
from apev.data import Dataset, Sampler
from apev.data.source import ENVIRONMENTS, d4rl_name, d4rl_robot, without_version
from apev.experiments.d4rl.evaluate import final_evaluation
from apev.files import read_json, write_json, write_lines
from apev.loop import Evaluator, Schedule, check_settings
from apev.policy import Policy
from apev.rollout import GymnasiumBatch, rollout

Scale = Literal["smoke", "cpu", "rows10k", "paper"]
ROBOTS = ("halfcheetah", "hopper", "walker2d")
BATCH = 256
PUBLISHED_BATCH = ("bc", "td3-bc", "iql", "ape-v-td3-bc")
ONE = Machines(jobs=1)
D4RL_ROWS = {"halfcheetah-medium-replay": 202_000, "hopper-medium-replay": 402_000, "walker2d-medium-replay": 302_000}
COMPLETE = 0.9  # share of those rows: readers drop a few, such as the last of an episode that was cut off
ROUGHLY = 5000  # a part of the rows is told to the nearest
HELD_OUT = 0.05  # share of the episodes no agent trains on: the filter's scales are measured there


@dataclass(frozen=True)
class Size:
    """How much is trained and tested."""

    schedule: Schedule
    episodes: int  # at the end, for each behaviour of the belief
    curve_episodes: int  # an evaluation during training
    critics: dict[str, int]  # N of SAC-N, and the largest n of APE-V
    edac_critics: dict[str, int]
    members: int = 9  # K of APE-V, their n spread from 2 to N: for halfcheetah every one
    hidden: tuple[int, ...] = (256, 256, 256)  # BC and IQL have two layers at every scale, as published
    updates: dict[str, int] = field(default_factory=dict)  # of algorithms that have fewer than the schedule
    batch: int = BATCH  # rows an update, of SAC and those built on it
    sac: dict[str, Any] = field(default_factory=dict)  # settings of SAC and those built on it, other than the published
    anchored: bool = False  # whether APE-V's members are SAC-n agents exactly
    fewest: int = 2  # critics of APE-V's first member

    def schedule_of(self, algorithm: str, updates: int | None = None) -> Schedule:
        """The algorithm's own number of updates, unless another is asked for; as many evaluations for each."""
        own = updates or self.updates.get(algorithm, self.schedule.updates)
        every = max(1, self.schedule.eval_every * own // self.schedule.updates)
        return replace(self.schedule, updates=own, eval_every=every)

    def batch_of(self, algorithm: str) -> int:
        """Rows an update: as published for algorithms that are not built on SAC."""
        return BATCH if algorithm in PUBLISHED_BATCH else self.batch


PUBLISHED = {"halfcheetah": 10, "walker2d": 20, "hopper": 500}  # of hopper's, 200 for replays and mixtures
SIZES: dict[Scale, Size] = {
    "smoke": Size(Schedule(40, 10, 20, 20), 2, 1, dict.fromkeys(ROBOTS, 4), dict.fromkeys(ROBOTS, 4)),
    # Halfcheetah's published 10 critics everywhere (hopper's 200 cost twenty times as much), and two layers instead of three.
    # Beliefs near certainty give each of APE-V's actors a K-th of the rows, so K is small where updates are few.
    # A thirtieth of the published updates: values arrive at 1 / (target rate (1 - gamma)) updates, 20,000 as published.
    # An update of EDAC costs about twice as much as SAC-N's, one of CQL three times: they train half as long, and a fifth.
    "cpu": Size(
        Schedule(100_000, 500, 5000, 2500),
        20,
        5,
        dict.fromkeys(ROBOTS, 10),
        dict.fromkeys(ROBOTS, 10),
        members=3,
        hidden=(256, 256),
        updates={"cql": 20_000, "edac": 50_000},
        sac={"lr": 1e-3, "target_rate": 0.02},
    ),
    # D4RL's own rows, but 10,000 of them. What steadies SAC-N there was chosen on SAC-N alone, on hopper-medium and
    # halfcheetah-medium (`benchmarks/d4rl_base.py`, results/d4rl-10k/base), and holds for all that is built on it. What is not
    # built on it is quick, and trains twice as long.
    "rows10k": Size(
        Schedule(5000, 500, 500, 1000),
        10,
        5,
        dict.fromkeys(ROBOTS, 4),
        dict.fromkeys(ROBOTS, 4),
        members=3,
        hidden=(256, 256),
        updates=dict.fromkeys(PUBLISHED_BATCH, 10_000),
        batch=64,
        sac={
            "lr": 1e-3,
            "target_rate": 0.02,
            "layer_norm": True,
            "target_bounds": True,
            "actor_average": 0.005,
            "near_log": 1.0,
        },
        anchored=True,
        fewest=1,
    ),
    "paper": Size(
        Schedule(3_000_000, 1000, 10_000, 10_000), 100, 10, PUBLISHED, {"halfcheetah": 10, "walker2d": 10, "hopper": 50}
    ),
}


def robot_of(task: str) -> str:
    """halfcheetah, hopper or walker2d."""
    return task.partition("-")[0]


def configuration(algorithm: Algorithm, task: str, scale: Scale) -> Any:
    """The settings of an algorithm for a task: published, but for what the scale changes."""
    robot, kind = robot_of(task), task.partition("-")[2]
    size = SIZES[scale]
    critics = size.critics[robot]
    if critics == PUBLISHED["hopper"] and kind in ("medium-replay", "medium-expert"):
        critics = 200
    family: dict[str, Any] = {"hidden": size.hidden} | size.sac
    # The paper did not share weights for half-cheetah.
    apart = scale == "paper" and robot == "halfcheetah"
    apev: dict[str, Any] = {"critics": critics, "members": min(size.members, critics - 1), "shared": not apart} | family
    apev["fewest"] = size.fewest
    printed = replace(APEVSACConfig.paper(), **apev)
    adaptive = APEVSACConfig(**apev)
    if size.anchored:
        adaptive = AnchoredSACConfig(**apev | {"shared": False})
    configs: dict[Algorithm, Any] = {
        "bc": BCConfig(),
        "td3-bc": TD3BCConfig(),
        "sac": SACConfig(critics=2, **family),
        "rem": REMConfig(critics=critics, **family),
        "cql": CQLConfig(
            **family | {"near_log": 0.0}, actor_lr=family.get("lr", CQLConfig.lr) / 3
        ),  # a third of the critics', as published
        "iql": IQLConfig(return_range=1000.0),
        "sac-n": SACConfig(critics=critics, **family),
        "edac": EDACConfig(critics=size.edac_critics[robot], eta=edac_eta(robot, kind), **family),
        "ape-v": adaptive,
        "ape-v-td3-bc": configure(find("ape-v", discrete=False), {}),
        "ape-v-eval-only": replace(adaptive, eval_only=True),
        "ape-v-no-floor": replace(adaptive, target_floor=False, target_bounds=False),
        "ape-v-printed": printed,
    }
    return configs[algorithm]


def edac_eta(robot: str, kind: str) -> float:
    """EDAC's published weights."""
    if kind == "random":
        return 0.0
    return 5.0 if kind == "medium-expert" and robot != "hopper" else 1.0


def locate(task: str, data: Path | None) -> Path:
    """The log of a task: as given, else what `apev collect` made."""
    environment, kind = ENVIRONMENTS[robot_of(task)], task.partition("-")[2]
    if data is not None:
        return data
    made = Path("runs/collect") / f"{environment}-s0" / kind / "data.npz"
    if not made.exists():
        raise FileNotFoundError(
            f"no data for {task}. Fix: --data with D4RL's {task.replace('-', '_')}-v2.hdf5, or make D4RL-style data with "
            f"`apev collect {environment} --kind {kind}`."
        )
    return made


def name_of(dataset: Dataset, path: Path) -> str:
    """What the log calls itself, or its file where that has a name of D4RL's."""
    name: str = dataset.source.get("name", "")
    return name or (d4rl_name(path) if d4rl_robot(d4rl_name(path)) else "")


def data_used(dataset: Dataset, name: str) -> str:
    """D4RL's own data, some of its rows, data made by its recipe, or another log: numbers of different ones do not compare."""
    notes = " ".join(dataset.source.get("notes", []))
    if "not D4RL's own data" in notes:
        return "D4RL-style"
    task = without_version(name)  # D4RL's own has a version: hopper-medium-replay-v2
    if not d4rl_robot(name) or task == name:
        return "another log"
    rows = len(dataset)
    if rows > COMPLETE * D4RL_ROWS.get(task, 2_000_000 if task.endswith("-expert") and "medium" in task else 1_000_000):
        return "D4RL"
    told = round(rows / ROUGHLY) * ROUGHLY or rows  # episodes are kept whole, so that rows are a round number only roughly
    return f"D4RL {name.removeprefix(task)[1:]}, {told:,} rows"


def curve_evaluator(environment: Any, episodes: int, seed: int) -> Evaluator:
    """Returns of the policy as it is deployed, adapting, during training."""
    env = GymnasiumBatch(environment, episodes, seed=1000 * (seed + 1))

    def evaluate(agent: Any, update: int) -> list[dict[str, Any]]:
        returns = rollout(Policy(agent), env).returns
        return [{"seed": seed, "return": float(returns.mean()), "returns": [round(float(r), 3) for r in returns]}]

    return evaluate


def train_one(
    folder: Path,
    dataset: Dataset,
    task: str,
    algorithm: Algorithm,
    scale: Scale,
    seed: int,
    *,
    updates: int | None = None,
    device: str = "cpu",
    compiled: bool = False,
    environment: Any = None,
    console: Console | None = None,
) -> None:
    """Train and evaluate one algorithm with one seed; picks up where an earlier process stopped."""
    size, began = SIZES[scale], time.monotonic()
    config = configuration(algorithm, task, scale)
    schedule = size.schedule_of(algorithm, updates)
    log = {"rows": len(dataset), "reward": round(float(dataset.rewards.mean()), 6)}  # one log is not mistaken for another
    batch = size.batch_of(algorithm)
    about = {"algorithm": algorithm, "task": task, "seed": seed, "batch_size": batch, "log": log}
    if (folder / "episodes.jsonl").exists():
        check_finished(folder, {"agent_config": asdict(config)} | about, schedule, type(config))
        return
    kept, rest = dataset.split(HELD_OUT, seed)
    environment = environment or ENVIRONMENTS[robot_of(task)]
    adaptive = isinstance(config, APEVSACConfig | TD3BCConfig) and config.members > 1
    extras = Extras(
        evaluator=curve_evaluator(environment, size.curve_episodes, seed),
        schedule=schedule,
        facts=about,
        held_out=rest if adaptive else None,
        title=f"{algorithm}, seed {seed}",
    )
    given: dict[str, Any] = {"out": folder, "seed": seed, "device": device, "resume": True, "console": console}
    policy = train(kept, config=config, batch_size=batch, held_out=0.0, compile=compiled, extras=extras, **given)
    held_out = Sampler(rest, device=device) if adaptive else None
    episodes, beliefs = final_evaluation(policy.agent, algorithm, environment, size.episodes, seed, held_out, console)
    write_json(folder / "beliefs.json", beliefs)
    spent = {"seconds_of_last_process": round(time.monotonic() - began), "threads": torch.get_num_threads()}
    write_json(folder / "run.json", {"updates": schedule.updates} | spent)
    write_lines(folder / "episodes.jsonl", episodes)  # its presence says that the run is finished


def train_cell(folder: Path, data: str, **asked: Any) -> None:
    """Train and evaluate one algorithm with one seed, from the log's path."""
    train_one(folder, log_at(data), **asked)


def check_finished(folder: Path, about: dict[str, Any], schedule: Schedule, config_type: type) -> None:
    """A finished run is what is asked for now; one of other settings is not passed off as it."""
    check_settings(folder, about, config_type)
    done = read_json(folder / "run.json")["updates"]
    if done != schedule.updates:
        raise ValueError(
            f"{folder} was finished after {done} updates, {schedule.updates} are asked for. Fix: another --out, or remove it."
        )


def run(
    out: Path,
    task: str,
    algorithms: Sequence[Algorithm],
    scale: Scale,
    *,
    data: Path | None = None,
    seeds: Sequence[int] = (0,),
    updates: int | None = None,
    machines: Machines = ONE,
    compiled: bool = False,
    meta: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Train what is asked for and not there yet, then summarise everything in OUT/TASK."""
    from apev.experiments.d4rl.page import write_scores
    from apev.experiments.d4rl.report import check_same_log, print_scores

    path = locate(task, data)
    dataset = log_at(str(path))
    if dataset.discrete or dataset.pictures is not None:
        raise ValueError(f"{path.name} has discrete actions or pictures. Fix: a log of {task}.")
    name = name_of(dataset, path)
    if d4rl_robot(name) and without_version(name) != task:
        raise ValueError(f"{path} is a log of {name}, not of {task}. Fix: name its own --task, or another --data.")
    folder = out / task
    folder.mkdir(parents=True, exist_ok=True)
    card = path.parent / "card.json"
    about = {
        "task": task,
        "environment": ENVIRONMENTS[robot_of(task)],
        "data": data_used(dataset, name),
        "log": dataset.describe() | {"card": read_json(card) if card.exists() else None},
    }
    check_same_log(about, folder)
    write_json(folder / "task.json", about)
    del dataset
    given = {"data": str(path), "task": task, "scale": scale, "updates": updates, "compiled": compiled}
    cells = []
    for seed, algorithm in product(seeds, algorithms):
        arguments = given | {"algorithm": algorithm, "seed": seed, "device": machines.device}
        cells.append(Cell(f"{algorithm}, seed {seed}", "d4rl", arguments, folder / "agents" / f"{algorithm}-s{seed}"))

    def note(cell: Cell, _: None) -> None:
        assert cell.folder is not None
        provenance = cell.folder / "meta.json"
        if meta is not None and not provenance.exists():
            write_json(provenance, meta | {"scale": scale})

    machines.run_cells(cells, note)
    summary = write_scores(folder)
    print_scores(summary)
    return summary
