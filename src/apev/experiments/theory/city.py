"""City navigation (the paper, Figure 1): a short side street that may be blocked, and a wide road around it.

      = = = = = = = = =        A wide road (=) leads from home (H) around the block to the destination (D). The side street (.)
      =               =        runs straight there; on some days it is blocked (x) a few cells in, and nobody can see that from
      =               =        outside. Actions 0 up, 1 right, 2 down, 3 left; a step costs 1; driving into a building or a
      =               =        blockade changes nothing but the clock.
      H . . x . . . . D

A pessimist takes the wide road every day. An optimist takes the side street every day, and on some stands before the blockade
until the day is over. Turning back needs a memory: the place before the blockade looks the same on every day, and only what
happened there tells the days apart.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from apev.bayes.mdp import BoolArray, IntArray, Posterior, TabularMDP
from apev.experiments.theory.batch import TabularBatch, collect

MOVES = np.array([[0, -1], [1, 0], [0, 1], [-1, 0]])  # [4, 2]: what each action adds to (x, y)
OPEN, BLOCKED = 0, 1  # the two hypotheses


@dataclass(frozen=True)
class City:
    """The map and the rules."""

    width: int = 7  # cells from home to destination, both counted
    height: int = 5  # cells the wide road goes up, home counted
    depth: int = 2  # the blockade stands behind so many cells of the side street
    open_share: float = 0.6  # on what share of the days the side street is open
    horizon: int = 40  # steps until the day is over

    def __post_init__(self) -> None:
        if self.width < 4 or self.height < 3:
            raise ValueError(f"a city of {self.width} x {self.height}. Fix: width from 4, height from 3.")
        if not 1 <= self.depth <= self.width - 3:
            raise ValueError(
                f"depth is {self.depth}. Fix: from 1 to {self.width - 3}, so that the blockade lies in the street."
            )
        if not 0 < self.open_share < 1:
            raise ValueError(f"open_share is {self.open_share}. Fix: between 0 and 1.")

    @cached_property
    def road(self) -> BoolArray:
        """[height, width]: where one can drive."""
        road = np.zeros((self.height, self.width), dtype=np.bool_)
        road[[0, -1]] = road[:, [0, -1]] = True
        return road

    @cached_property
    def cells(self) -> IntArray:
        """[S, 2]: (x, y) of every road cell; a state is a row of this table."""
        y, x = np.nonzero(self.road)
        return np.stack([x, y], axis=1)

    def state(self, x: int, y: int) -> int:
        """The number of a road cell."""
        return int(np.flatnonzero((self.cells == (x, y)).all(1))[0])

    @property
    def home(self) -> int:
        """Where the day starts."""
        return self.state(0, self.height - 1)

    @property
    def destination(self) -> int:
        """Where it should end."""
        return self.state(self.width - 1, self.height - 1)

    @property
    def barrier(self) -> int:
        """The cell that cannot be entered from home's side, nor left towards it, on a blocked day."""
        return self.state(self.depth + 1, self.height - 1)

    @cached_property
    def side_street(self) -> BoolArray:
        """[S]: the cells of the side street, its two ends on the wide road not counted."""
        x, y = self.cells.T
        inside: BoolArray = (y == self.height - 1) & (x > 0) & (x < self.width - 1)
        return inside

    def moves(self, blocked: bool) -> IntArray:
        """[S, 4]: the cell each action leads to."""
        number = {(int(x), int(y)): s for s, (x, y) in enumerate(self.cells)}
        table = np.array(
            [[number.get((int(x + dx), int(y + dy)), s) for dx, dy in MOVES] for s, (x, y) in enumerate(self.cells)]
        )
        if blocked:
            for s, a in ((self.state(self.depth, self.height - 1), 1), (self.barrier, 3)):
                table[s, a] = s
        return table

    @cached_property
    def posterior(self) -> Posterior:
        """The two explanations that the logged drives leave open for a new day."""
        worlds = [
            TabularMDP.deterministic(self.moves(blocked), -1.0, start=self.home, terminal=[self.destination])
            for blocked in (False, True)
        ]
        return Posterior(worlds, [self.open_share, 1 - self.open_share], ("side street open", "side street blocked"))

    @cached_property
    def features(self) -> np.ndarray:
        """[S, S]: the cell as one-hot, what a navigation system knows."""
        return np.eye(len(self.cells), dtype=np.float32)

    def distances(self, blocked: bool, wide_only: bool = False) -> np.ndarray:
        """[S]: the fewest steps to the destination; infinite where there is no way."""
        moves, S = self.moves(blocked), len(self.cells)
        before: list[set[int]] = [set() for _ in range(S)]
        for s, a in np.ndindex(S, 4):
            if not (wide_only and self.side_street[moves[s, a]] and not self.side_street[s]):
                before[moves[s, a]].add(s)
        steps = np.full(S, np.inf)
        steps[self.destination] = 0
        queue = deque([self.destination])
        while queue:
            s = queue.popleft()
            for p in before[s]:
                if steps[p] == np.inf:
                    steps[p] = steps[s] + 1
                    queue.append(p)
        return steps


class Drivers:
    """Who made the log: people who mostly keep to the wide road, and turn back when they find the side street blocked."""

    def __init__(
        self, city: City, episodes: int, side_share: float, noise: float, tourists: float, rng: np.random.Generator
    ) -> None:
        self.noise = np.where(rng.random(episodes) < tourists, 0.6, noise)  # [n] probability of a random action
        self.moves = np.stack([city.moves(False), city.moves(True)])  # [2, S, 4]
        # What a driver plans by: OPEN takes the side street, BLOCKED keeps to the wide road.
        self.plans = np.stack([city.distances(False), city.distances(True, wide_only=True)])  # [2, S]
        self.plan = np.where(rng.random(episodes) < side_share, OPEN, BLOCKED)
        self.previous: tuple[IntArray, IntArray] | None = None

    def __call__(self, batch: TabularBatch) -> IntArray:
        """One action for every episode."""
        rng, state = batch.rng, batch.state
        if self.previous is not None:
            before, action = self.previous
            refused = (before == state) & (self.moves[OPEN, before, action] != before)  # only a blockade does that
            self.plan = np.where(refused & (rng.random(len(state)) < 0.7), BLOCKED, self.plan)
        follow = self.moves[self.plan, state]  # [n, 4] where each action should lead
        cost = np.where(follow == state[:, None], np.inf, self.plans[self.plan[:, None], follow])
        best = np.argmin(cost + 0.5 * rng.random(cost.shape), axis=1)
        action = np.where(rng.random(len(state)) < self.noise, rng.integers(4, size=len(state)), best)
        self.previous = (state.copy(), action)
        return action


def collect_drives(
    city: City,
    days: int = 200,
    drives: int = 8,
    side_share: float = 0.1,
    noise: float = 0.1,
    tourists: float = 0.2,
    seed: int = 0,
) -> dict[str, Any]:
    """Logged drives as columns for `apev.data.Dataset.from_arrays`; a context is a day.

    days:        how many; each is open or blocked from morning to evening
    drives:      a day; half of them start at home, the rest anywhere on the wide road
    side_share:  share of the drivers who try the side street: few, so the log says little about it
    noise:       probability that a step is a random action instead
    tourists:    share of the drivers for whom it is .6: without them the log hardly shows what buildings do
    """
    rng = np.random.default_rng(seed)
    day = np.repeat(np.arange(days), drives)
    blocked = (rng.random(days) >= city.open_share).astype(np.int64)[day]
    wide = np.setdiff1d(np.flatnonzero(~city.side_street), city.destination)
    anywhere = rng.choice(wide, size=len(day))
    start = np.where(rng.random(len(day)) < 0.5, city.home, anywhere)
    batch = TabularBatch(city.posterior, blocked, city.features, city.horizon, seed=seed + 1, start=start)
    return collect(batch, Drivers(city, len(day), side_share, noise, tourists, rng), day)
