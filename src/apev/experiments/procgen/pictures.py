"""What a maze looks like: our own plain drawing, or Procgen's pixels, behind one interface.

renderer = make_renderer("simple", "easy")
renderer.pictures(maze, cells, left)            # [n, 64, 64, 3]: the mouse in each cell, looking left or right
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from apev.experiments.procgen.engine import shared
from apev.experiments.procgen.maze import Maze, Mode

Renderer = Literal["procgen", "simple"]

SIDE = 64  # pixels
WALL, MOUSE, NOSE, CHEESE = (200, 150, 100), (214, 214, 220), (60, 40, 60), (255, 214, 10)
FLOORS = np.array([[38, 100, 160], [74, 56, 30], [150, 80, 20], [120, 165, 90], [110, 110, 120]])  # one of them a level


class Draws(Protocol):
    """Makes the pictures of a maze."""

    def pictures(self, maze: Maze, cells: NDArray[np.int64], left: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """[n, 64, 64, 3]: the mouse in cells [n, 2], looking left or right [n]."""


class SimpleRenderer:
    """Flat colours: walls, passages in one of five colours, a mouse with a dark nose, yellow cheese."""

    def pictures(self, maze: Maze, cells: NDArray[np.int64], left: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """[n, 64, 64, 3]: the mouse in cells [n, 2], looking left or right [n]."""
        world = len(maze.grid)
        shown = np.where(maze.grid[..., None], FLOORS[maze.level % len(FLOORS)], WALL).astype(np.uint8)
        shown[maze.goal[1], maze.goal[0]] = CHEESE
        cell_of = np.arange(SIDE) * world // SIDE  # the cell under each row or column of pixels
        empty = shown[cell_of[::-1, None], cell_of]  # y is up, rows of pixels go down
        pictures = np.repeat(empty[None], len(cells), axis=0)
        edges = np.searchsorted(cell_of, np.arange(world + 1))  # the first pixel of each cell
        for picture, (x, y), looks_left in zip(pictures, cells, left, strict=True):
            rows, first, last = slice(SIDE - edges[y + 1], SIDE - edges[y]), edges[x], edges[x + 1] - 1
            picture[rows, first : last + 1] = MOUSE
            picture[rows, first if looks_left else last] = NOSE
        return pictures


class ProcgenRenderer:
    """The real pixels: Procgen is asked to move the mouse and to draw."""

    def __init__(self, mode: Mode) -> None:
        self._env = shared(mode)

    def pictures(self, maze: Maze, cells: NDArray[np.int64], left: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """[n, 64, 64, 3]: the mouse in cells [n, 2], looking left or right [n]."""
        if maze.mode != self._env.mode:
            raise ValueError(f"a {maze.mode} maze was handed to the {self._env.mode} renderer. Fix: make one for its mode.")
        self._env.load(maze.level)
        each = zip(cells.tolist(), left.tolist(), strict=True)
        return np.stack([self._env.picture_at(x, y, looks_left) for (x, y), looks_left in each])


def make_renderer(name: Renderer, mode: Mode) -> Draws:
    """The renderer of this name."""
    if name == "simple":
        return SimpleRenderer()
    if name == "procgen":
        return ProcgenRenderer(mode)
    raise ValueError(f"renderer is {name!r}. Fix: 'procgen' or 'simple'.")
