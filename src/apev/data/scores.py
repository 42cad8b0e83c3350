"""Normalised scores, 100 * (return - low) / (high - low): 0 is a random policy, 100 an expert, by D4RL's references.

    normalised("halfcheetah-medium-v2", 6000.0)    # 50.6
    normalised("mujoco/hopper/expert-v0", returns)

D4RL published one pair of references a robot and used it for all of its data. Minari publishes none for `mujoco/*`; the pair
of the same robot makes scores comparable with the literature, though those logs come from Gymnasium's v5 environments.
A Minari data set with references of its own keeps them in `Dataset.source["reference"]`; `of_source` prefers those.

The kitchen's references count subtasks, 0 to 4. Its environments, D4RL's and Gymnasium-Robotics' alike, reward a subtask once,
so a return counts them. The logs of D4RL and Minari were recorded with another setting: there a step's reward is the number of
subtasks done so far, and the sum over an episode means nothing. `episode_scores` tells the two apart by the rewards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from apev.data.source import KINDS

if TYPE_CHECKING:
    from apev.data.dataset import Dataset

ROBOTS = {
    "halfcheetah": (-280.178953, 12135.0),
    "hopper": (-20.272305, 3234.3),
    "walker2d": (1.629008, 4592.3),
    "ant": (-325.6, 3879.7),
}
ADROIT = {
    "pen": (96.262799, 3076.8331017826877),
    "hammer": (-274.856578, 12794.134825156867),
    "relocate": (-6.425911, 4233.877797728884),
    "door": (-56.512833, 2880.5693087298737),
}
MAZES = {
    "maze2d-open": (0.01, 20.66),
    "maze2d-umaze": (23.85, 161.86),
    "maze2d-medium": (13.13, 277.39),
    "maze2d-large": (6.7, 273.99),
    "maze2d-open-dense": (11.17817, 27.166538620695782),
    "maze2d-umaze-dense": (68.537689, 193.66285642381482),
    "maze2d-medium-dense": (44.264742, 297.4552547777125),
    "maze2d-large-dense": (30.569041, 303.4857382709002),
}
SUBTASKS = 7  # of the kitchen; a reference above is of something else
ANTMAZE = ("umaze", "umaze-diverse", "medium-play", "medium-diverse", "large-play", "large-diverse")
REFERENCES: dict[str, tuple[float, float]] = {
    **{f"{robot}-{kind}": pair for robot, pair in ROBOTS.items() for kind in KINDS},
    **{f"{hand}-{kind}": pair for hand, pair in ADROIT.items() for kind in ("human", "cloned", "expert")},
    **MAZES,
    **{f"antmaze-{kind}": (0.0, 1.0) for kind in ANTMAZE},
    **{f"kitchen-{kind}": (0.0, 4.0) for kind in ("complete", "partial", "mixed")},
}


def _find(name: str) -> tuple[float, float] | None:
    plain = re.sub(r"-v\d+$", "", name.strip().lower().replace("_", "-"))
    minari = re.fullmatch(r"mujoco/(\w+)/[\w-]+", plain)
    if minari:
        return ROBOTS.get(minari[1])
    return REFERENCES.get(plain) or ROBOTS.get(plain)  # the second: an environment's id such as HalfCheetah-v4


def reference(name: str) -> tuple[float, float]:
    """(low, high) returns of a D4RL name, a Minari `mujoco/...` name or an environment's id; the version is ignored."""
    pair = _find(name)
    if pair is None:
        raise ValueError(
            f"no reference scores for {name!r}. Fix: one of {', '.join(ROBOTS)} with a D4RL kind (halfcheetah-medium-v2), "
            f"a Minari name (mujoco/hopper/expert-v0), {', '.join(ADROIT)}, maze2d, antmaze or kitchen; else compare returns."
        )
    return pair


def of_source(source: Mapping[str, Any]) -> tuple[float, float] | None:
    """The references of a data set: its own, else those of its name or environment; None where nobody knows."""
    if source.get("reference"):
        low, high = source["reference"]
        return float(low), float(high)
    names = (source.get("name"), source.get("environment"))
    return next((pair for name in names if name for pair in [_find(str(name))] if pair), None)


def normalised(name: str, returns: ArrayLike) -> np.ndarray:
    """Scores of undiscounted returns of any shape; `name` as for `reference`."""
    return normalise(returns, reference(name))


def normalise(returns: ArrayLike, pair: tuple[float, float]) -> np.ndarray:
    """Scores of returns, given (low, high)."""
    low, high = pair
    return 100 * (np.asarray(returns, dtype=np.float64) - low) / (high - low)


def episode_scores(dataset: Dataset) -> np.ndarray | None:
    """The normalised score of every episode of a log; None where nobody knows references."""
    pair = of_source(dataset.source)
    if pair is None:
        return None
    if not counts_up(dataset):
        return normalise(dataset.episode_returns(), pair)
    highest = np.full(dataset.num_episodes, -np.inf)
    np.maximum.at(highest, dataset.episodes, dataset.rewards)
    return normalise(highest, pair)


def counts_up(dataset: Dataset) -> bool:
    """Whether a kitchen's log says at each step how many subtasks are done so far, instead of rewarding each once.

    A count stays once it is above 0; a reward for a subtask is followed by steps without one.
    """
    names = " ".join(str(dataset.source.get(key, "")) for key in ("name", "environment")).lower()
    pair = of_source(dataset.source)
    if "kitchen" not in names or pair is None or pair[1] > SUBTASKS:
        return False
    rewards, inside = dataset.rewards, dataset.episodes[1:] == dataset.episodes[:-1]
    following = rewards[1:][(rewards[:-1] > 0) & inside]  # what comes after each reward
    return bool((following > 0).sum() > len(following) / 2)
