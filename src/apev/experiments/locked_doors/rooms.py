"""Locked Doors (the paper, Section 6.1): one of four doors opens, and a photograph says which.

          door 0: airplane          x to the right, y down; the doors are in the middle of the walls.
         +-------[ ]-------+        Actions 0 up, 1 right, 2 down, 3 left; door d leaves in direction d.
         |                 |        The photograph's class is the number of the unlocked door.
 door 3 [ ]       o       [ ] door 1
  truck  |                 |  automobile
         +-------[ ]-------+        Reward -1 a step, 0 for the step that leaves through the unlocked door.
            door 2: ship            A wall or a locked door: the agent stays where it is (a "bump").

A policy that only trusts its reading of the photograph pushes against the wrong door until time is up. One that
learns from the first bump tries another door.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from apev.experiments.locked_doors.images import ImageSet, load_images

MOVES = np.array([[0, -1], [1, 0], [0, 1], [-1, 0]])  # [4, 2]: what each action adds to (x, y)
ACTIONS = ("up", "right", "down", "left")

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Room:
    """The geometry and the rules, for one agent or for thousands at once."""

    size: int = 9  # cells a side
    horizon: int = 50  # steps until an episode is cut off

    def __post_init__(self) -> None:
        if self.size < 3:
            raise ValueError(f"size: a room needs at least 3 cells a side, not {self.size}")
        if self.horizon < 1:
            raise ValueError(f"horizon: an episode needs at least 1 step, not {self.horizon}")

    @property
    def door_cells(self) -> IntArray:
        """[4, 2]: the cell (x, y) in front of each door."""
        middle, last = self.size // 2, self.size - 1
        return np.array([[middle, 0], [last, middle], [middle, last], [0, middle]])

    def door_tried(self, x: ArrayLike, y: ArrayLike, action: ArrayLike) -> IntArray:
        """The door that `action` pushes against in cell (x, y), or -1."""
        action = np.asarray(action)
        cell = self.door_cells[action]
        return np.where((cell[..., 0] == x) & (cell[..., 1] == y), action, -1)

    def step(
        self, x: ArrayLike, y: ArrayLike, action: ArrayLike, door: ArrayLike
    ) -> tuple[IntArray, IntArray, BoolArray, BoolArray]:
        """(x, y, exited, bumped) after `action` where `door` is unlocked. Who leaves stays in the door's cell."""
        x, y, action = np.asarray(x), np.asarray(y), np.asarray(action)
        next_x = np.clip(x + MOVES[action, 0], 0, self.size - 1)
        next_y = np.clip(y + MOVES[action, 1], 0, self.size - 1)
        exited = self.door_tried(x, y, action) == door
        bumped = (next_x == x) & (next_y == y) & ~exited
        return next_x, next_y, exited, bumped

    def steps_to_leave(self, x: ArrayLike, y: ArrayLike) -> IntArray:
        """[..., 4]: the fewest steps from (x, y) out through each door, were it unlocked."""
        cells = self.door_cells
        return np.abs(np.asarray(x)[..., None] - cells[:, 0]) + np.abs(np.asarray(y)[..., None] - cells[:, 1]) + 1

    def one_hot(self, x: ArrayLike, y: ArrayLike, dtype: Any = np.float32) -> NDArray[Any]:
        """[..., 2 * size]: one-hot x, then one-hot y."""
        rows = np.eye(self.size, dtype=dtype)
        return np.concatenate([rows[np.asarray(x)], rows[np.asarray(y)]], axis=-1)


def check_door_prior(prior: Sequence[float] | NDArray[Any] | None) -> NDArray[np.float64]:
    """Four probabilities; None is uniform."""
    if prior is None:
        return np.full(4, 0.25)
    p = np.asarray(prior, dtype=np.float64)
    if p.shape != (4,) or not np.all(np.isfinite(p)) or p.min() < 0 or p.sum() <= 0:
        raise ValueError(f"door_prior: need four probabilities, one a door, got {prior!r}")
    normed: NDArray[np.float64] = p / p.sum()
    return normed


def door_posterior(prior: NDArray[np.float64], refuted: BoolArray) -> NDArray[np.float64]:
    """[..., 4]: `prior` after the doors in `refuted` [..., 4] were found locked; even if it excludes the rest."""
    left = np.where(refuted, 0.0, prior)
    left = np.where(left.sum(-1, keepdims=True) > 0, left, ~refuted)
    normed: NDArray[np.float64] = left / np.maximum(left.sum(-1, keepdims=True), 1e-300)
    return normed


class LockedDoorsEnv(gymnasium.Env[Any, Any]):
    """One room as a Gymnasium environment. `info["oracle_belief"]` is the exact posterior over the doors.

    `reset(options={"picture": i, "position": (x, y)})` chooses the photograph or the start; otherwise both are random.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 6}  # noqa: RUF012 (Gymnasium's own type)

    def __init__(
        self,
        images: ImageSet | str | Path | None = None,
        split: str = "test",
        size: int = 9,
        horizon: int = 50,
        render_mode: str | None = None,
        door_prior: Sequence[float] | None = None,
        render_size: int = 480,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f'render_mode must be "rgb_array" or None, not {render_mode!r}')
        image_set = images if isinstance(images, ImageSet) else load_images(images)
        self.pictures, self.labels = image_set.split(split)
        self.classes = image_set.classes
        self.room = Room(size, horizon)
        self.render_mode, self.render_size = render_mode, render_size
        self.action_space = spaces.Discrete(4)
        self.observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 255, (32, 32, 3), np.uint8),
                "position": spaces.Box(0.0, 1.0, (2 * size,), np.float32),
            }
        )
        self._prior = check_door_prior(door_prior)
        self._over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """A new photograph and a new start."""
        super().reset(seed=seed)
        options = options or {}
        if unknown := set(options) - {"picture", "position"}:
            raise ValueError(f'options: {sorted(unknown)} is not known; there are "picture" and "position"')
        drawn = self.np_random.integers([len(self.labels), self.room.size, self.room.size])
        self.picture = int(options.get("picture", drawn[0]))
        self.x, self.y = (int(v) for v in options.get("position", drawn[1:]))
        if not 0 <= self.picture < len(self.labels):
            raise ValueError(f"options: picture {self.picture} is not one of the {len(self.labels)}")
        if not (0 <= self.x < self.room.size and 0 <= self.y < self.room.size):
            raise ValueError(f"options: position {(self.x, self.y)} is outside a room of {self.room.size} cells a side")
        self.door = int(self.labels[self.picture])
        self.tried = np.zeros(4, dtype=np.bool_)
        self.trail = [(self.x, self.y)]
        self._over = self._success = self._bumped = False
        return self._observation(), self._info()

    def step(self, action: int) -> tuple[dict[str, NDArray[Any]], float, bool, bool, dict[str, Any]]:
        """One step: up, right, down or left."""
        if self._over:
            raise RuntimeError("the episode is over, or has not begun: call reset() before step()")
        if not self.action_space.contains(action):
            raise ValueError(f"action must be 0 (up), 1 (right), 2 (down) or 3 (left), not {action!r}")
        door = int(self.room.door_tried(self.x, self.y, action))
        x, y, exited, bumped = self.room.step(self.x, self.y, action, self.door)
        self.x, self.y, self._success, self._bumped = int(x), int(y), bool(exited), bool(bumped)
        if door >= 0 and not self._success:
            self.tried[door] = True
        self.trail.append((self.x, self.y))
        truncated = not self._success and len(self.trail) > self.room.horizon
        self._over = self._success or truncated
        return self._observation(), 0.0 if self._success else -1.0, self._success, truncated, self._info()

    def render(self) -> NDArray[np.uint8] | None:
        """The room seen from above, and the photograph beside it."""
        if self.render_mode is None:
            gymnasium.logger.warn('render() shows nothing: make the environment with render_mode="rgb_array"')
            return None
        from apev.experiments.locked_doors.render import render_room  # only here: acting needs no drawing

        return render_room(
            self.room,
            self.x,
            self.y,
            self.pictures[self.picture],
            trail=self.trail,
            tried=self.tried,
            door=self.door if self._success else None,
            class_names=self.classes,
            size_px=self.render_size,
        )

    def _observation(self) -> dict[str, NDArray[Any]]:
        return {"image": self.pictures[self.picture].copy(), "position": self.room.one_hot(self.x, self.y)}

    def _info(self) -> dict[str, Any]:
        refuted = np.arange(4) != self.door if self._success else self.tried
        return {
            "label": self.door,
            "picture": self.picture,
            "success": self._success,
            "bumped": self._bumped,
            "oracle_belief": door_posterior(self._prior, refuted),
        }


class BatchedLockedDoors:
    """Thousands of rooms in step. Photographs are shown as rows of the table `pictures`, so each is stored once.

    A room that is over stays as it is, with reward 0, until the next `reset`; `info["active"]` is False there.
    """

    num_actions: ClassVar[int] = 4

    def __init__(
        self,
        images: NDArray[np.uint8],
        labels: ArrayLike,
        num_envs: int,
        room: Room | None = None,
        seed: int = 0,
        door_prior: Sequence[float] | None = None,
    ) -> None:
        self.pictures = images  # [P, 32, 32, 3] uint8
        self.labels = np.asarray(labels, dtype=np.int64)  # [P]
        if self.labels.shape != (len(images),) or not len(images) or self.labels.min() < 0 or self.labels.max() > 3:
            raise ValueError(f"labels: need a door 0..3 for each of the {len(images)} images")
        if num_envs < 1:
            raise ValueError(f"num_envs: need at least 1 room, not {num_envs}")
        self.num_envs = num_envs
        self.room = room or Room()
        self._rng = np.random.default_rng(seed)
        self._prior = check_door_prior(door_prior)
        self._started = False

    def reset(self, picture: ArrayLike | None = None, positions: ArrayLike | None = None) -> dict[str, NDArray[Any]]:
        """All rooms anew: `picture` [B] and `positions` [B, 2] choose photographs and starts; random where None."""
        B, size = self.num_envs, self.room.size
        self.picture = self._chosen("picture", picture, (B,), len(self.labels))
        self.x, self.y = self._chosen("positions", positions, (B, 2), size).T.copy()
        self.door = self.labels[self.picture]
        self.time = 0
        self.tried = np.zeros((B, 4), dtype=np.bool_)
        self.terminated = np.zeros(B, dtype=np.bool_)
        self.truncated = np.zeros(B, dtype=np.bool_)
        self._started = True
        return self._observation()

    def step(
        self, actions: ArrayLike
    ) -> tuple[dict[str, NDArray[Any]], NDArray[np.float32], BoolArray, BoolArray, dict[str, NDArray[Any]]]:
        """One step in every room: (obs, reward, terminated, truncated, info)."""
        if not self._started:
            raise RuntimeError("call reset() before step()")
        actions = self._chosen("actions", actions, (self.num_envs,), 4)
        active = ~(self.terminated | self.truncated)
        tried = self.room.door_tried(self.x, self.y, actions)
        x, y, exited, bumped = self.room.step(self.x, self.y, actions, self.door)
        self.x, self.y = np.where(active, x, self.x), np.where(active, y, self.y)
        exited, bumped = exited & active, bumped & active
        self.tried |= (tried[:, None] == np.arange(4)) & (active & ~exited)[:, None]
        self.time += 1
        self.terminated = self.terminated | exited
        if self.time >= self.room.horizon:
            self.truncated = ~self.terminated
        reward = np.where(active & ~exited, -1.0, 0.0).astype(np.float32)
        refuted = np.where(self.terminated[:, None], np.arange(4) != self.door[:, None], self.tried)
        info: dict[str, NDArray[Any]] = {
            "active": active,
            "label": self.door,
            "picture": self.picture,
            "success": self.terminated.copy(),
            "bumped": bumped,
            "oracle_belief": door_posterior(self._prior, refuted),
        }
        return self._observation(), reward, self.terminated.copy(), self.truncated.copy(), info

    def _observation(self) -> dict[str, NDArray[Any]]:
        return {"image": self.picture.copy(), "position": self.room.one_hot(self.x, self.y)}

    def _chosen(self, name: str, given: ArrayLike | None, shape: tuple[int, ...], below: int) -> IntArray:
        if given is None:
            return self._rng.integers(below, size=shape)
        values = np.asarray(given)
        if values.shape != shape or not np.issubdtype(values.dtype, np.integer):
            raise ValueError(f"{name}: need whole numbers of shape {shape}, got {values.dtype} {values.shape}")
        if values.min() < 0 or values.max() >= below:
            raise ValueError(f"{name}: need numbers from 0 to {below - 1}, got {values.min()} to {values.max()}")
        return values.astype(np.int64)
