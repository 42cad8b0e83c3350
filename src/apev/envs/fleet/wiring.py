"""Half-cheetahs whose legs may be wired the wrong way round: four kinds.

    kind      0      1      2      3
    rear      right  wrong  right  wrong      actuators 0, 1, 2
    front     right  right  wrong  wrong      actuators 3, 4, 5

A robot of a kind does under the action S a what a right one does under a, where S flips the signs of the wrong legs. The cost
of an action is the sum of its squares, which S leaves alone. So a log of right robots is, with other actions, an exact log of
wrong ones: `wired`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from apev.data.dataset import Dataset
from apev.data.scores import reference
from apev.data.validate import DataError
from apev.envs.fleet.kinds import checked, deal
from apev.envs.fleet.machines import MachineEnv

ENVIRONMENT = "apev/CheetahWiring-v0"
INSIDE = "HalfCheetah-v4"
KINDS = ("right", "rear wrong", "front wrong", "both wrong")
SIGNS = np.array([[rear] * 3 + [front] * 3 for front in (1.0, -1.0) for rear in (1.0, -1.0)], dtype=np.float32)  # [kind, 6]


class CheetahWiringEnv(MachineEnv):
    """HalfCheetah-v4 with hidden wiring.

    rewire_at: the step of each episode from which on the robot is of another kind; None: it stays as it is.
    kind_after: that kind; None draws one of the others.
    """

    kinds = KINDS

    def __init__(
        self,
        kind: int | None = None,
        rewire_at: int | None = None,
        kind_after: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(INSIDE, kind, render_mode)
        if rewire_at is not None and rewire_at < 1:
            raise ValueError(f"rewire_at is {rewire_at}. Fix: the number of a step from 1 on, or None.")
        if kind_after is not None and rewire_at is None:
            raise ValueError("kind_after is given, but not when. Fix: rewire_at, the step at which the wiring changes.")
        self.rewire_at, self.asked_after = rewire_at, None if kind_after is None else checked(kind_after, len(KINDS))
        self.steps, self.kind_after = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A robot of a new kind, unless one was asked for."""
        observation, info = super().reset(seed=seed, options=options)
        another = (self.kind + 1 + int(self.inside.np_random.integers(len(KINDS) - 1))) % len(KINDS)
        self.steps, self.kind_after = 0, another if self.asked_after is None else self.asked_after
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step of the robot with the signs that arrive."""
        if self.steps == self.rewire_at:
            self.kind = self.kind_after
        self.steps += 1
        observation, reward, terminated, truncated, info = self.inside.step(SIGNS[self.kind] * np.asarray(action))
        return observation, float(reward), terminated, truncated, info | {"kind": self.kind}


def wired(log: Dataset, robots: int = 40, seed: int = 0, kinds: Sequence[int] = (0, 1, 2, 3)) -> tuple[Dataset, np.ndarray]:
    """(the log of many robots with the robot as its context, the kind of each robot [robots]), of any half-cheetah's log.

    Robots get whole episodes that follow each other, where there is one for each; else equal pieces of the log, and an episode
    that is cut there is truncated. About equally many robots are of each of `kinds`, in random order; a kind that is left out
    is in nobody's log.
    """
    if log.discrete or log.actions.shape[1] != SIGNS.shape[1]:
        raise DataError("actions", "are not those of a half-cheetah's six motors", "pass a log of HalfCheetah")
    if not kinds or len(set(kinds)) < len(kinds):
        raise ValueError(f"kinds are {tuple(kinds)}. Fix: different ones, at least one.")
    known = [checked(kind, len(KINDS), "one of kinds") for kind in kinds]
    dealt = deal(known, robots, np.random.default_rng(seed))
    rows = np.flatnonzero(log.usable)  # a row whose next observation nobody knows cannot end a piece
    if len(rows) < robots:
        raise DataError("rewards", f"{len(rows)} usable rows are not one for each of {robots} robots", "pass a longer log")
    robot = _pieces(log.episodes[rows], robots)
    last = np.append((np.diff(robot) != 0) | (np.diff(log.episodes[rows]) != 0), True)
    episodes = np.cumsum(np.append(0, last[:-1]))
    made = Dataset.from_arrays(
        {key: column[rows] for key, column in log.observations.items()},
        log.actions[rows] * SIGNS[dealt[robot]],
        log.rewards[rows],
        log.terminated[rows],
        last & ~log.terminated[rows],
        next_observations={key: column[rows] for key, column in log.next_observations.items()},
        episodes=episodes,
        contexts=robot,
        source={
            "name": f"{log.source.get('name', 'halfcheetah')}-wired",
            "environment": ENVIRONMENT,
            "reference": list(reference(INSIDE)),  # of random and expert actions, whose signs change nothing
            "action_low": [-1.0] * 6,
            "action_high": [1.0] * 6,
        },
    )
    return made, dealt


def _pieces(episodes: np.ndarray, robots: int) -> np.ndarray:
    """int64 [N]: the robot of each row, given its episode."""
    numbers, index = np.unique(episodes, return_inverse=True)
    units = index if len(numbers) >= robots else np.arange(len(episodes))
    return np.asarray(units * robots // (int(units[-1]) + 1), dtype=np.int64)
