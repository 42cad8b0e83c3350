"""Walking robots that are healthy, or have one weak joint.

    kind      0        1 ... 6
    joint     healthy  one of JOINTS, thighs first

A weak joint's motor has a share of its gear, between LOW and HIGH: robots of a kind are alike, and not the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console

from apev.data.dataset import Dataset
from apev.envs.fleet.machines import MachineEnv, Teacher, roll

ENVIRONMENT = "apev/WornJoint-v0"
# {robot: {joint: its actuator}}; thighs first, because whoever loses one of them must walk otherwise.
JOINTS = {
    "HalfCheetah-v4": {"rear thigh": 0, "front thigh": 3, "rear shin": 1, "front shin": 4, "rear foot": 2, "front foot": 5},
    "Walker2d-v4": {"right thigh": 0, "left thigh": 3, "right leg": 1, "left leg": 4, "right foot": 2, "left foot": 5},
}
LOW, HIGH = 0.1, 0.3  # of the gear of a weak joint


class WornJointEnv(MachineEnv):
    """HalfCheetah-v4 or Walker2d-v4, healthy or with a weak joint; `info["share"]` is what is left of the joint's gear.

    joints: how many of the robot's joints may be weak, in the order of JOINTS: there are as many kinds, and healthy.
    share: what is left of a weak joint's gear; None draws it for each episode. `reset(options={"share": 0.2})` chooses it.
    """

    def __init__(
        self,
        kind: int | None = None,
        robot: str = "HalfCheetah-v4",
        joints: int = 3,
        share: float | None = None,
        render_mode: str | None = None,
    ) -> None:
        if robot not in JOINTS:
            raise ValueError(f"robot is {robot!r}. Fix: one of {', '.join(JOINTS)}.")
        if not 1 <= joints <= len(JOINTS[robot]):
            raise ValueError(f"joints is {joints}. Fix: from 1 to {len(JOINTS[robot])}.")
        self.kinds = ("healthy", *list(JOINTS[robot])[:joints])
        super().__init__(robot, kind, render_mode)
        self.actuators = list(JOINTS[robot].values())
        self.asked_share, self.share = share, 1.0
        self.gear = self.inside.model.actuator_gear.copy()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A robot of a new kind, unless one was asked for."""
        observation, info = super().reset(seed=seed, options=options)
        drawn = float(self.inside.np_random.uniform(LOW, HIGH))
        asked = (options or {}).get("share", self.asked_share)
        share = drawn if asked is None else float(asked)
        if not 0 <= share <= 1:
            raise ValueError(f"share is {share}. Fix: what is left of a weak joint's gear, from 0 to 1.")
        self.share = share if self.kind else 1.0
        self.inside.model.actuator_gear[:] = self.gear
        if self.kind:
            self.inside.model.actuator_gear[self.actuators[self.kind - 1]] *= share
        return observation, info | {"share": self.share}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step of the robot."""
        observation, reward, terminated, truncated, info = self.inside.step(action)
        return observation, float(reward), terminated, truncated, info | {"kind": self.kind, "share": self.share}


def worn_log(
    teachers: Sequence[Sequence[Teacher]],
    machines: int = 40,
    episodes: int = 5,
    seed: int = 0,
    *,
    robot: str = "HalfCheetah-v4",
    noise: float = 0.1,
    steps: int = 1000,
    console: Console | None = None,
) -> tuple[Dataset, np.ndarray]:
    """(a log of many robots with the robot as its context, the kind of each robot [machines]).

    teachers: for each kind, those who may act, one an episode at random: observation [D] -> action [A], such as `policy.act`.
        Where kinds share some of them, the log does not confound what a robot is with who controlled it.
    noise: standard deviation of what is added to their actions.
    steps: the time limit of an episode.
    console: where a progress bar is shown; without one there is none.

    A robot's weak joint is as weak in each of its episodes.
    """
    if len(teachers) < 2 or not all(teachers):
        raise ValueError(f"there are teachers for {sum(map(bool, teachers))} kinds. Fix: at least one for each of 2 or more.")

    def teacher(kind: int, rng: np.random.Generator) -> Teacher:
        act = teachers[kind][int(rng.integers(len(teachers[kind])))]
        return lambda seen: np.clip(act(seen) + rng.normal(0, noise, 6), -1, 1).astype(np.float32)

    return roll(
        ENVIRONMENT,
        teacher,
        range(len(teachers)),
        machines=machines,
        episodes=episodes,
        seed=seed,
        options=lambda kind, rng: {"share": float(rng.uniform(LOW, HIGH))},
        robot=robot,
        console=console,
        joints=len(teachers) - 1,
        max_episode_steps=steps,
    )
