"""Mazes to act in: one as a Gymnasium environment, or hundreds in step, drawn by us or by the real Procgen.

Observations are pictures alone. The mouse's gaze is part of the picture, and so of the observation: a step left or right turns
it, even against a wall; a step up or down leaves it as it was. It begins looking left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from apev.experiments.procgen.maze import CHEESE, HORIZON, Maze, Mode, make_maze
from apev.experiments.procgen.pictures import SIDE, Renderer, make_renderer

LEFT, RIGHT = 0, 3  # the actions that turn the mouse


class MazeEnv(gymnasium.Env[Any, Any]):
    """One maze. Each episode is a random one of `num_levels` levels from `start_level` on; 0: of all there are.

    `reset(options={"level": i})` chooses the level. Actions: 0 left, 1 down, 2 up, 3 right.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012 (Gymnasium's own type)

    def __init__(
        self,
        mode: Mode = "easy",
        num_levels: int = 0,
        start_level: int = 0,
        renderer: Renderer = "simple",
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f'render_mode must be "rgb_array" or None, not {render_mode!r}')
        self.mode, self.render_mode = mode, render_mode
        self.levels = (start_level, start_level + num_levels if num_levels else 2**31)
        self._draw = make_renderer(renderer, mode)
        self.action_space = spaces.Discrete(4)
        self.observation_space = spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
        self._over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """A new level, from its start."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(*self.levels))
        self.maze = make_maze(int((options or {}).get("level", drawn)), self.mode)
        self.cell, self.left, self.time, self._over = self.maze.start, True, 0, False
        return self._picture(), self._info()

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """One step: left, down, up or right."""
        if self._over:
            raise RuntimeError("the episode is over, or has not begun: call reset() before step()")
        if not self.action_space.contains(action):
            raise ValueError(f"action must be 0 (left), 1 (down), 2 (up) or 3 (right), not {action!r}")
        self.cell = int(self.maze.following[self.cell, action])
        self.left = action == LEFT if action in (LEFT, RIGHT) else self.left
        self.time += 1
        found = self.cell == self.maze.count
        cut = not found and self.time >= HORIZON
        self._over = found or cut
        return self._picture(), CHEESE if found else 0.0, found, cut, self._info() | {"success": found}

    def render(self) -> NDArray[np.uint8] | None:
        """The observation."""
        return self._picture() if self.render_mode else None

    def _picture(self) -> NDArray[np.uint8]:
        picture: NDArray[np.uint8] = self._draw.pictures(self.maze, self.maze.cells[[self.cell]], np.array([self.left]))[0]
        return picture

    def _info(self) -> dict[str, Any]:
        x, y = self.maze.cells[self.cell]
        return {"level": self.maze.level, "position": (int(x), int(y)), "distance": int(self.maze.distance[self.cell])}


class BatchedMaze:
    """Many mazes in step, one environment each. Observations are rows of the table `pictures`, so each is drawn once.

    Picture `first[m] + 2 * cell + left` shows maze m with the mouse in a cell. A maze that is over stays as it is, with reward
    0, until the next `reset`, which starts the same levels again. `trail` keeps the cells of every step.
    """

    num_actions: ClassVar[int] = 4

    def __init__(
        self, mazes: Sequence[Maze], renderer: Renderer = "simple", *, horizon: int = HORIZON, copies: int = 1
    ) -> None:
        if not mazes:
            raise ValueError("mazes: need at least one")
        self.mazes, self.horizon = list(mazes), horizon
        self.which = np.tile(np.arange(len(mazes)), copies)  # [B] the maze of each environment
        self.num_envs = len(self.which)
        counts = np.array([maze.count for maze in mazes])
        self.first = 2 * (counts.cumsum() - counts)  # [M] the first picture of each maze
        draw = make_renderer(renderer, mazes[0].mode)
        both = np.array([False, True])
        self.pictures = np.concatenate(
            [draw.pictures(m, np.repeat(m.cells[:-1], 2, axis=0), np.tile(both, m.count)) for m in mazes]
        )  # [P, 64, 64, 3]
        width = max(counts)
        self._following = np.zeros((len(mazes), width, 4), dtype=np.int64)
        for i, maze in enumerate(mazes):
            self._following[i, : maze.count] = np.where(maze.following == maze.count, -1, maze.following)  # -1: the cheese
        self._start = np.array([maze.start for maze in mazes])
        self._started = False

    def reset(self) -> NDArray[np.int64]:
        """All mazes from their start."""
        self.cell = self._start[self.which]
        self.left = np.ones(self.num_envs, dtype=bool)
        self.terminated = np.zeros(self.num_envs, dtype=bool)
        self.truncated = np.zeros(self.num_envs, dtype=bool)
        self.trail = [self.cell.copy()]
        self._started = True
        return self._observation()

    def step(
        self, actions: ArrayLike
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One step in every maze: (obs, reward, terminated, truncated, info)."""
        if not self._started:
            raise RuntimeError("call reset() before step()")
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,) or not np.issubdtype(actions.dtype, np.integer):
            raise ValueError(f"actions: need whole numbers of shape {(self.num_envs,)}, got {actions.dtype} {actions.shape}")
        if actions.min() < 0 or actions.max() > RIGHT:
            raise ValueError(f"actions: need numbers from 0 to 3, got {actions.min()} to {actions.max()}")
        active = ~(self.terminated | self.truncated)
        reached = self._following[self.which, self.cell, actions]
        found = active & (reached < 0)
        self.left = np.where(active & ((actions == LEFT) | (actions == RIGHT)), actions == LEFT, self.left)
        self.cell = np.where(active & ~found, reached, self.cell)  # who found the cheese is shown where it came from
        self.terminated |= found
        self.trail.append(self.cell.copy())
        if len(self.trail) > self.horizon:
            self.truncated = ~self.terminated
        reward = np.where(found, np.float32(CHEESE), np.float32(0))
        info = {"active": active, "success": self.terminated.copy()}
        return self._observation(), reward, self.terminated.copy(), self.truncated.copy(), info

    def _observation(self) -> NDArray[np.int64]:
        shown: NDArray[np.int64] = self.first[self.which] + 2 * self.cell + self.left
        return shown
