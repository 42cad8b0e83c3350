"""Teachers of robots with a weak joint, and the log of what they did.

    OUT/teachers/kind-0/        an online SAC (`collect/online.py`) that learned on robots of one kind, each worn in its own way
    OUT/logs/s0.npz             every teacher on every robot
    OUT/logs/s0.kinds.json      the kind of each robot, which no agent sees

Any teacher may act on any robot: what a robot is and who controlled it are not confounded. Both steps go on where they were
interrupted, and are not repeated.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console

from apev.agents import SACConfig
from apev.collect.online import OnlineConfig, OnlineSAC
from apev.data import Dataset
from apev.envs.fleet.machines import Teacher
from apev.envs.fleet.worn import ENVIRONMENT, worn_log
from apev.files import read_json, read_lines, write_json
from apev.policy import load

JOINTS = 2  # that may be weak: there are as many kinds, and healthy
STEPS = 60_000  # that a teacher learns for
EVERY = 5000  # steps from one evaluation of a teacher to the next
ROBOTS, EPISODES = 40, 3


def teach(out: Path, steps: int = STEPS, console: Console | None = None, limit: int | None = None) -> bool:
    """Train the teachers that are missing in `out`, one a kind; whether any was. `limit`: steps of an episode, else 1,000."""
    console = console or Console(stderr=True, highlight=False)
    taught = False
    for kind in range(JOINTS + 1):
        folder = teacher_folder(out, kind)
        if best_policy(folder, steps) is not None:
            continue
        console.print(f"[bold]teacher of kind {kind}[/bold]")
        config = OnlineConfig(
            steps=steps,
            random_steps=min(5000, steps // 10),
            eval_every=min(EVERY, steps),
            eval_episodes=3,
            checkpoint_every=EVERY,
        )
        settings = {"kind": kind, "joints": JOINTS} | ({} if limit is None else {"max_episode_steps": limit})
        teacher = OnlineSAC(ENVIRONMENT, folder, config, SACConfig(critics=2, hidden=(256, 256)), kind, settings)
        teacher.run(resume=True)
        taught = True
    return taught


def teacher_folder(out: Path, kind: int) -> Path:
    """Where the teacher of a kind is."""
    return out / "teachers" / f"kind-{kind}"


def best_policy(folder: Path, steps: int = 1) -> Path | None:
    """The policy of a teacher's best evaluation; None unless it has learned for so many steps."""
    curve = read_lines(folder / "curve.jsonl") if (folder / "curve.jsonl").exists() else []
    if not curve or int(curve[-1]["update"]) <= steps - min(EVERY, steps):
        return None
    best = max(curve, key=lambda line: float(line["return"]))
    return folder / "policies" / f"{int(best['update']):07d}"


def taught_log(
    out: Path, seed: int, *, robots: int = ROBOTS, steps: int = 1000, console: Console | None = None
) -> tuple[Dataset, np.ndarray]:
    """(the log of many robots, the kind of each), made by the teachers in `out` unless it is there.

    steps: the time limit of an episode.
    """
    path = out / "logs" / f"s{seed}.npz"
    labels = path.with_suffix(".kinds.json")
    if not labels.exists():
        found = [best_policy(teacher_folder(out, kind)) for kind in range(JOINTS + 1)]
        teachers = [acting(folder) for folder in found if folder is not None]
        if len(teachers) <= JOINTS:
            raise FileNotFoundError(
                f"{out} holds {len(teachers)} teachers of {JOINTS + 1}. Fix: apev reproduce fleet --world worn-joint."
            )
        log, kinds = worn_log(
            [teachers] * (JOINTS + 1), robots, EPISODES, seed, steps=steps, console=console or Console(stderr=True)
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        log.save(path)
        write_json(labels, {"kinds": kinds.tolist()})
    return Dataset.load(path), np.array(read_json(labels)["kinds"], dtype=np.int64)


def acting(folder: Path) -> Teacher:
    """Who acts as the policy in this folder does."""
    policy = load(folder)

    def act(seen: np.ndarray) -> np.ndarray:
        return np.asarray(policy.act(seen))

    return act
