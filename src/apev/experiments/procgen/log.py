"""The log of the paper's Section 6.2: every open cell of every training level, and all four steps from it.

Each cell is pictured once, and transitions are pairs of picture numbers: 1000 hard levels take 1.6 GB. The mouse looks left in
a random half of the cells and right in the others, and a step shows the cell it leads to in that cell's own picture. So both
gazes are seen in training, in every kind of place, without storing each cell twice; what a gaze changes is a few pixels and
nothing about the way.

Rewards are Procgen's: 10 for the step that reaches the cheese, which ends the episode, else 0. Every row is an episode
of its own (the mouse was put there), the level is its context.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from apev.data.dataset import Dataset
from apev.experiments.procgen.maze import CHEESE, Maze, Mode, make_maze
from apev.experiments.procgen.pictures import SIDE, Renderer, make_renderer

TEST_LEVELS = 1_000_000  # unseen levels are counted from here; training levels from 0


def make_mazes(first: int, count: int, mode: Mode) -> list[Maze]:
    """Levels `first` to `first + count - 1`."""
    return [make_maze(level, mode) for level in range(first, first + count)]


def log_mazes(mazes: list[Maze], renderer: Renderer, *, seed: int = 0, track: Iterable[Maze] | None = None) -> Dataset:
    """Every cell and every step of these mazes. `track`: the same mazes, wrapped by a progress bar."""
    counts = np.array([maze.count for maze in mazes])
    first = counts.cumsum() - counts
    total = int(counts.sum())
    pictures = np.empty((total, SIDE, SIDE, 3), dtype=np.uint8)
    following = np.empty((total, 4), dtype=np.int64)
    gaze = np.random.default_rng(seed).random(total) < 0.5
    draw = make_renderer(renderer, mazes[0].mode)
    for at, maze in zip(first, mazes if track is None else track, strict=True):
        rows = slice(at, at + maze.count)
        pictures[rows] = draw.pictures(maze, maze.cells[:-1], gaze[rows])
        found = maze.following == maze.count
        following[rows] = np.where(found, -1, at + maze.following)
    now, after = np.repeat(np.arange(total), 4), following.flatten()
    found = after < 0
    return Dataset.from_arrays(
        {"observation": now},
        np.tile(np.arange(4), total),
        np.where(found, CHEESE, 0.0).astype(np.float32),
        found,
        ~found,
        next_observations={"observation": np.where(found, now, after)},  # nothing is seen after the end
        pictures={"observation": pictures},
        contexts=np.repeat(np.repeat(np.arange(len(mazes)), counts), 4),
        num_actions=4,
        source={"name": f"maze-{mazes[0].mode}-{len(mazes)}", "environment": "apev/Maze-v0", "renderer": renderer},
    )
