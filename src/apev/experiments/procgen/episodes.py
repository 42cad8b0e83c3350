"""Episodes in mazes: what is recorded of each, when one ends in a loop, and two ways of walking that learn nothing.

A *loop*: the last 100 steps of a failed episode repeat with a period of at most 50. *Confined*: they stay within 8 cells, which
a policy that draws its actions can do without repeating itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apev.experiments.procgen.maze import HORIZON, Maze
from apev.experiments.procgen.world import BatchedMaze

WINDOW, LONGEST, FEW = 100, 50, 8
OPPOSITE = (3, 2, 1, 0)  # of left, down, up, right


def ends_in_loop(trail: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[n]: whether the last steps of each column of cells [T, n] repeat themselves."""
    last = trail[-WINDOW:]
    if len(last) < WINDOW:
        return np.zeros(trail.shape[1], dtype=bool)
    repeats: NDArray[np.bool_] = np.any([(last[period:] == last[:-period]).all(0) for period in range(1, LONGEST + 1)], axis=0)
    return repeats


def is_confined(trail: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[n]: whether the last steps of each column of cells [T, n] stay within a few cells."""
    last = np.sort(trail[-WINDOW:], axis=0)
    distinct = 1 + (np.diff(last, axis=0) != 0).sum(0)
    near: NDArray[np.bool_] = (distinct <= FEW) & (len(trail) >= WINDOW)
    return near


def records(
    policy: str, split: str, seed: int, env: BatchedMaze, success: NDArray[np.bool_], lengths: NDArray[np.int64]
) -> Iterator[dict[str, Any]]:
    """One line an episode, of episodes that have just been walked in `env`."""
    trail = np.stack(env.trail)
    loop, confined = ends_in_loop(trail), is_confined(trail)
    for i, which in enumerate(env.which):
        maze = env.mazes[which]
        failed = not success[i]
        yield {
            "policy": policy,
            "split": split,
            "seed": seed,
            "level": maze.level,
            "success": bool(success[i]),
            "length": int(lengths[i]),
            "size": maze.size,
            "distance": int(maze.distance[maze.start]),
            "loop": bool(failed and loop[i]),
            "confined": bool(failed and confined[i]),
        }


class Walker:
    """Depth-first search: sees the walls around it and remembers where it has been, but not where the cheese is."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.seen: set[int] = set()
        self.way: list[int] = []  # actions from the start to here

    def act(self, cell: int, around: NDArray[np.int64]) -> int:
        """The next step: to a cell where it has not been, else back; around: [4] where each action leads."""
        self.seen.add(cell)
        fresh = [action for action in range(4) if int(around[action]) not in self.seen]
        if fresh:
            self.way.append(int(self.rng.choice(fresh)))
            return self.way[-1]
        return OPPOSITE[self.way.pop()]


def walk_untaught(policy: str, mazes: list[Maze], seed: int, split: str, horizon: int = HORIZON) -> Iterator[dict[str, Any]]:
    """Records of the policies that have learned nothing: "random-walk" and "dfs"."""
    for maze in mazes:
        rng = np.random.default_rng([seed, maze.level])
        walker = Walker(rng) if policy == "dfs" else None
        cell, length, found = maze.start, 0, False
        trail = [cell]
        while not found and length < horizon:
            action = walker.act(cell, maze.following[cell]) if walker else int(rng.integers(4))
            cell, length = int(maze.following[cell, action]), length + 1
            trail.append(cell)
            found = cell == maze.count
        column = np.array(trail)[:, None]
        yield {
            "policy": policy,
            "split": split,
            "seed": seed,
            "level": maze.level,
            "success": found,
            "length": length,
            "size": maze.size,
            "distance": int(maze.distance[maze.start]),
            "loop": bool(not found and ends_in_loop(column)[0]),
            "confined": bool(not found and is_confined(column)[0]),
        }
