"""The mazes of Procgen (Cobbe et al., 2020), level for level: layout, shortest paths and rules, in NumPy alone.

    # # # # # # #      A level is a number. It decides the maze's size (3 to 15 cells a side in easy mode, 3 to 25 in hard),
    # . . . # G #      its passages (a random spanning tree: one way between any two cells) and where the cheese G lies.
    # # # . # . #      The mouse starts in the lower left corner S, sees the whole maze as one 64 x 64 picture, and moves one
    # . . . . . #      cell a step: left, down, up or right. A step into a wall changes nothing but the mouse's gaze.
    # . # # # . #      x to the right, y up, as Procgen counts.
    # S . . # . #      Reward +10 for the cheese, which ends the episode, else 0; cut off after 500 steps.
    # # # # # # #

Layouts equal Procgen's for every level: its generator is followed draw by draw on the same Mersenne twister.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Mode = Literal["easy", "hard"]

WORLD: dict[Mode, int] = {"easy": 15, "hard": 25}  # cells a side of the board that the maze lies in the middle of
ACTIONS = ("left", "down", "up", "right")  # Procgen's actions 1, 3, 5 and 7
MOVES = np.array([[-1, 0], [0, -1], [0, 1], [1, 0]])  # [4, 2]: what each action adds to (x, y)
HORIZON = 500
CHEESE = 10.0  # the reward

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Maze:
    """One level: which cells are open, and how steps connect them. Cells are numbered; the cheese's has the last number."""

    level: int
    mode: Mode
    grid: NDArray[np.bool_]  # [world, world] by (y, x): True where the mouse can be
    goal: tuple[int, int]  # (x, y) of the cheese

    @property
    def size(self) -> int:
        """Cells a side of the maze proper."""
        return int(self.grid.any(0).sum())

    @property
    def margin(self) -> int:
        """Where the maze begins on the board: the mouse starts at (margin, margin)."""
        return (len(self.grid) - self.size) // 2

    @cached_property
    def cells(self) -> IntArray:
        """[C + 1, 2]: the open cells (x, y), row by row from below; the cheese's comes last and is never acted in."""
        y, x = np.nonzero(self.grid)
        every = np.stack([x, y], axis=1)
        at_goal = (every == self.goal).all(1)
        return np.concatenate([every[~at_goal], every[at_goal]])

    @property
    def count(self) -> int:
        """C: cells to act in."""
        return len(self.cells) - 1

    @cached_property
    def numbers(self) -> IntArray:
        """[world, world] by (y, x): the number of each cell, -1 for a wall."""
        numbers = np.full(self.grid.shape, -1)
        numbers[self.cells[:, 1], self.cells[:, 0]] = np.arange(len(self.cells))
        return numbers

    @cached_property
    def following(self) -> IntArray:
        """[C, 4]: the number of the cell each action leads to; the same cell where a wall is in the way."""
        padded = np.pad(self.numbers, 1, constant_values=-1)
        target = self.cells[:-1, None] + MOVES + 1  # [C, 4, 2]
        reached = padded[target[..., 1], target[..., 0]]
        return np.where(reached < 0, np.arange(self.count)[:, None], reached)

    @property
    def start(self) -> int:
        """The number of the cell the mouse starts in."""
        return int(self.numbers[self.margin, self.margin])

    @cached_property
    def distance(self) -> IntArray:
        """[C + 1]: the fewest steps from each cell to the cheese."""
        distance = np.full(len(self.cells), len(self.cells))
        distance[-1] = 0
        while True:
            nearer = np.minimum(distance[:-1], 1 + distance[self.following].min(1))
            if np.array_equal(nearer, distance[:-1]):
                return distance
            distance[:-1] = nearer


def make_maze(level: int, mode: Mode = "easy") -> Maze:
    """Level number `level`, as Procgen lays it out."""
    if mode not in WORLD:
        raise ValueError(f"mode is {mode!r}. Fix: one of {sorted(WORLD)}.")
    if not 0 <= level < 2**31:
        raise ValueError(f"level is {level}. Fix: a number from 0 to 2^31 - 1.")
    world = WORLD[mode]
    twister = np.random.MT19937()
    twister._legacy_seeding(level)  # as std::mt19937(level) does; plain seeding is another one
    draws = iter(twister.random_raw(4 * world * world).tolist())
    next(draws), next(draws)  # where and which the background picture is
    size = 3 + 2 * (next(draws) % ((world - 1) // 2))
    inside = np.zeros((size, size), dtype=bool)
    inside[::2, ::2] = True
    # Kruskal's algorithm in random order: a wall between two parts not yet connected is taken away.
    walls = [(i, j, 1, 0) for i in range(1, size, 2) for j in range(0, size, 2)]
    walls += [(i, j, 0, 1) for i in range(0, size, 2) for j in range(1, size, 2)]
    part = {(i, j): (i, j) for i in range(0, size, 2) for j in range(0, size, 2)}

    def root(cell: tuple[int, int]) -> tuple[int, int]:
        while part[cell] != cell:
            part[cell] = cell = part[part[cell]]
        return cell

    open_cells: dict[tuple[int, int], None] = {}  # in the order in which they were connected: the goal is drawn from them
    while walls:
        i, j, di, dj = walls.pop(next(draws) % len(walls))
        one, other = (i - di, j - dj), (i + di, j + dj)
        a, b = root(one), root(other)
        if a != b:
            part[a] = b
            inside[j, i] = True
            open_cells |= dict.fromkeys((one, (i, j), other))
    candidates = list(open_cells)
    goal = (0, 0)
    while goal == (0, 0):
        goal = candidates[next(draws) % len(candidates)]
    margin = (world - size) // 2
    grid = np.zeros((world, world), dtype=bool)
    grid[margin : margin + size, margin : margin + size] = inside
    return Maze(level, mode, grid, (goal[0] + margin, goal[1] + margin))
