"""Machines as stick figures: where the joints are, from what a policy observes.

An observation of a robot has no place in the world: where it is follows from its speed. Angles turn as MuJoCo's do, about the
axis that points away from who looks: x' = x cos + z sin, z' = -x sin + z cos.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from apev.envs.fleet.customers import ENVIRONMENT as CUSTOMERS
from apev.envs.fleet.customers import OFFERS, SEGMENTS
from apev.envs.fleet.pendulum import ENVIRONMENT as PENDULUM
from apev.envs.fleet.pendulum import PendulumFleetEnv
from apev.envs.fleet.wiring import ENVIRONMENT as WIRING
from apev.envs.fleet.wiring import KINDS as WIRINGS
from apev.envs.fleet.worn import ENVIRONMENT as WORN
from apev.envs.fleet.worn import JOINTS

# half_cheetah.xml: each leg from its hip, joint by joint, to the end of its foot; metres in the frame of the part before.
HEIGHT = 0.7
TORSO = ((-0.5, 0.0), (0.5, 0.0), (0.715, 0.197))  # tail, neck, nose
REAR = ((-0.5, 0.0), (0.16, -0.25), (-0.28, -0.14), (0.055, -0.188))
FRONT = ((0.5, 0.0), (-0.14, -0.24), (0.13, -0.18), (0.085, -0.128))
STEP = 0.05  # seconds, of half-cheetahs and pendulums alike
SPEED = 8  # column of a half-cheetah's forward speed


@dataclass(frozen=True)
class Body:
    """What is drawn of a machine."""

    bones: tuple[tuple[int, int], ...]  # from which point to which
    width: float  # of a bone, in metres
    points: Callable[[np.ndarray], np.ndarray]  # observations [T, D] -> [T, P, 2]: to the right and up, the body in the middle
    way: Callable[[np.ndarray], np.ndarray]  # observations [T, D] -> [T]: metres from the start
    box: tuple[float, float, float, float]  # left, bottom, right, top of what is shown
    wrong: tuple[tuple[int, ...], ...]  # bones of each kind that are not as they should be
    wrong_is: str = "parts that are wired the wrong way round"
    trail: int | None = None  # a point that leaves one
    ground: bool = True


def turned(point: tuple[float, float], angle: np.ndarray) -> np.ndarray:
    """[T, 2]: a point, turned by each angle [T]."""
    x, z = point
    cosine, sine = np.cos(angle), np.sin(angle)
    return np.stack([x * cosine + z * sine, z * cosine - x * sine], axis=-1)


def cheetah(observations: np.ndarray) -> np.ndarray:
    """[T, 9, 2]: tail, neck, nose, then knee, ankle and toe of the rear leg and of the front one."""
    pitch = observations[:, 1]
    middle = np.stack([np.zeros(len(observations)), HEIGHT + observations[:, 0]], axis=-1)
    points = [middle + turned(point, pitch) for point in TORSO]
    for leg, first in ((REAR, 2), (FRONT, 5)):
        at, angle = middle + turned(leg[0], pitch), pitch
        for joint, part in enumerate(leg[1:]):
            angle = angle + observations[:, first + joint]
            at = at + turned(part, angle)
            points.append(at)
    return np.stack(points, axis=1)


def cheetah_way(observations: np.ndarray) -> np.ndarray:
    """[T]: speed, added up."""
    speed = observations[:, SPEED]
    return np.append(0.0, np.cumsum((speed[1:] + speed[:-1]) / 2 * STEP))


def pendulum(observations: np.ndarray) -> np.ndarray:
    """[T, 2, 2]: the pivot and the end of the pole, which stands upright at the angle 0."""
    ends = np.stack([-observations[:, 1], observations[:, 0]], axis=-1)
    return np.stack([np.zeros_like(ends), ends], axis=1)


_LEGS = ((0, 3), (3, 4), (4, 5)), ((1, 6), (6, 7), (7, 8))
_CHEETAH = Body(
    bones=((0, 1), (1, 2), *_LEGS[0], *_LEGS[1]),
    width=0.092,
    points=cheetah,
    way=cheetah_way,
    box=(-1.3, -0.22, 1.3, 1.4),
    wrong=((), (2, 3, 4), (5, 6, 7), (2, 3, 4, 5, 6, 7)),
)
_JOINTS = JOINTS["HalfCheetah-v4"]  # {joint: its actuator}, which are in the order of the legs' bones
BODIES = {
    WIRING: _CHEETAH,
    WORN: replace(_CHEETAH, wrong=((), *((2 + actuator,) for actuator in _JOINTS.values())), wrong_is="weak parts"),
    PENDULUM: Body(
        bones=((0, 1),),
        width=0.13,
        points=pendulum,
        way=lambda observations: np.zeros(len(observations)),
        box=(-2.1, -1.25, 2.1, 1.25),
        wrong=((), (0,)),
        trail=1,
        ground=False,
    ),
}
NAMES = {  # of kinds
    WIRING: WIRINGS,
    WORN: ("healthy", *(f"weak {joint}" for joint in _JOINTS)),
    PENDULUM: tuple(f"wired {name}" for name in PendulumFleetEnv.kinds),
    CUSTOMERS: tuple(f"wants {offer}" for offer in OFFERS[:SEGMENTS]),
}
