"""A fleet of pendulums: in half of them the motor is wired the wrong way round.

    kind 0   torque = action
    kind 1   torque = -action

Whoever takes one for the other pushes down what swings up: no single controller serves both. One push tells them apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from apev.data.dataset import Dataset
from apev.envs.fleet.machines import MachineEnv, Teacher, roll

ENVIRONMENT = "apev/PendulumFleet-v0"
NOISE = 0.5  # in the teacher's hand


class PendulumFleetEnv(MachineEnv):
    """Gymnasium's Pendulum-v1 with a hidden sign of the torque."""

    kinds = ("right", "wrong")

    def __init__(self, kind: int | None = None, render_mode: str | None = None) -> None:
        super().__init__("Pendulum-v1", kind, render_mode)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step of the pendulum with the torque that arrives."""
        sign = -1.0 if self.kind else 1.0
        observation, reward, terminated, truncated, info = self.inside.step(sign * np.asarray(action))
        return observation, float(reward), terminated, truncated, info | {"kind": self.kind}


def swing_up(observation: np.ndarray) -> float:
    """The torque that gives a pendulum the energy it lacks for standing up, and holds the pole once it is there."""
    cosine, sine, speed = (float(x) for x in observation)
    if cosine > 0.9:
        return -8.0 * sine - 2.0 * speed
    lacks = 5.0 * (1.0 - cosine) - speed**2 / 6.0  # energy upright minus energy now, of Pendulum-v1's mass and length
    return 2.0 if lacks * speed >= 0 else -2.0


def pendulum_log(machines: int = 20, episodes: int = 5, seed: int = 0, clumsy: float = 0.3) -> tuple[Dataset, np.ndarray]:
    """(a log with the machine as its context, the kind of each machine [machines]).

    Teachers know their machine, and their hands shake. In a share of the episodes, `clumsy`, every other push is random:
    machines of both kinds were pushed both ways.
    """

    def teacher(kind: int, rng: np.random.Generator) -> Teacher:
        sign, slips = -1.0 if kind else 1.0, 0.5 if rng.random() < clumsy else 0.0

        def act(observation: np.ndarray) -> np.ndarray:
            push = rng.uniform(-2, 2) if rng.random() < slips else sign * swing_up(observation) + rng.normal(0, NOISE)
            return np.clip([push], -2, 2).astype(np.float32)

        return act

    return roll(ENVIRONMENT, teacher, (0, 1), machines=machines, episodes=episodes, seed=seed)
