"""Who walks in the locked room without learning: the oracle that stands in every table, and the log's author."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apev.experiments.locked_doors.images import ImageSet
from apev.experiments.locked_doors.rooms import IntArray, Room, check_door_prior, door_posterior


class OraclePolicy:
    """The Bayes-optimal way out for an agent that knows the chances of the doors but cannot see the photograph.

    Only a push against a door teaches anything, so a plan is an order of doors. With S the doors not yet refuted,
    V(cell, S) = min over d in S of  steps(cell, d) + P(d locked | S) V(cell of d, S without d): solved for all S.
    It minimises the expected number of steps; the horizon must leave room for all four doors.
    """

    def __init__(self, room: Room | None = None, door_prior: Sequence[float] | None = None) -> None:
        self.room = room or Room()
        prior, size, cells = check_door_prior(door_prior), self.room.size, self.room.door_cells
        y, x = np.mgrid[:size, :size]
        steps = self.room.steps_to_leave(x, y)  # [size, size, 4]
        self._value = np.zeros((16, size, size))  # [S, y, x]; bit d of S: door d may still be the one
        self._target = np.zeros((16, size, size), dtype=np.int64)
        for S in range(1, 16):  # S without d is a smaller number, so it is already solved
            doors = [d for d in range(4) if S >> d & 1]
            chance = door_posterior(prior, np.array([not S >> d & 1 for d in range(4)]))
            costs = [steps[..., d] + (1 - chance[d]) * self._value[S & ~(1 << d), cells[d, 1], cells[d, 0]] for d in doors]
            self._value[S] = np.min(costs, axis=0)
            self._target[S] = np.asarray(doors)[np.argmin(np.round(costs, 9), axis=0)]

    def act(self, x: ArrayLike, y: ArrayLike, tried: ArrayLike | None = None, belief: ArrayLike | None = None) -> IntArray:
        """Actions at (x, y) given the doors found locked: `tried` [..., 4] bool, or where `belief` [..., 4] is 0."""
        x, y = np.asarray(x), np.asarray(y)
        target = self._target[self._open(tried, belief), y, x]
        return towards(self.room, x, y, target, np.asarray(0.0))

    def expected_steps(
        self, x: ArrayLike, y: ArrayLike, tried: ArrayLike | None = None, belief: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """How many steps `act` needs on average from (x, y), leaving included."""
        steps: NDArray[np.float64] = self._value[self._open(tried, belief), np.asarray(y), np.asarray(x)]
        return steps

    @staticmethod
    def _open(tried: ArrayLike | None, belief: ArrayLike | None) -> IntArray:
        if belief is not None:
            possible = np.asarray(belief) > 0
        else:
            possible = np.ones(4, dtype=np.bool_) if tried is None else ~np.asarray(tried, dtype=np.bool_)
        doors: IntArray = possible @ np.array([1, 2, 4, 8])
        return doors


def towards(room: Room, x: IntArray, y: IntArray, door: IntArray, luck: NDArray[np.float64]) -> IntArray:
    """The next action of a shortest way out through `door`; uniform `luck` in [0, 1) makes all ways equally likely."""
    cell = room.door_cells[door]
    dx, dy = cell[..., 0] - x, cell[..., 1] - y
    sideways = luck * (np.abs(dx) + np.abs(dy)) < np.abs(dx)
    walk = np.where(sideways, np.where(dx > 0, 1, 3), np.where(dy > 0, 2, 0))
    return np.where((dx == 0) & (dy == 0), door, walk)


def collect(
    images: ImageSet,
    room: Room | None = None,
    episodes_per_image: int = 6,
    seed: int = 0,
    noise: float = 0.1,
    rattle: float = 0.3,
    wander: float = 0.15,
    target: str = "untried",
) -> dict[str, Any]:
    """Logged episodes in front of the *training* images: walk to a random door, try it, and on to another if locked.

    noise:   probability that a step is a random action instead
    rattle:  probability, after each try, that a locked door is tried once more
    wander:  share of the episodes that walk at random all the time; without them the log hardly shows what walls do,
             and a learner never finds out that pushing against one is useless
    target:  after a locked door go to any "random" other door, or to an "untried" one

    About one step in ten tries a door. Columns fit `apev.data.Dataset.from_arrays(**columns)`.
    """
    room = room or Room()
    if episodes_per_image < 1:
        raise ValueError(f"episodes_per_image: need at least 1, not {episodes_per_image}")
    for name, value in (("noise", noise), ("rattle", rattle), ("wander", wander)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name}: a probability from 0 to 1, not {value}")
    if target not in ("random", "untried"):
        raise ValueError(f'target must be "random" or "untried", not {target!r}')
    rng = np.random.default_rng(seed)
    picture = np.repeat(np.arange(len(images.train_labels), dtype=np.int32), episodes_per_image)
    E = len(picture)
    door = images.train_labels[picture]
    x, y = rng.integers(room.size, size=(2, E))
    goal = rng.integers(4, size=E)
    restless = np.where(rng.random(E) < wander, 1.0, noise)  # [E] probability of a random action
    tried = np.zeros((E, 4), dtype=np.bool_)
    live = np.arange(E)  # the episodes still running
    log: list[tuple[NDArray[Any], ...]] = []
    for time in range(1, room.horizon + 1):
        action = towards(room, x[live], y[live], goal[live], rng.random(len(live)))
        action = np.where(rng.random(len(live)) < restless[live], rng.integers(4, size=len(live)), action)
        pushed = room.door_tried(x[live], y[live], action)
        next_x, next_y, exited, _ = room.step(x[live], y[live], action, door[live])
        cut = ~exited if time == room.horizon else np.zeros_like(exited)
        log.append((live, x[live], y[live], action, next_x, next_y, exited, cut))
        x[live], y[live] = next_x, next_y

        locked = (pushed >= 0) & ~exited
        tried[live[locked], pushed[locked]] = True
        gives_up = rng.random(len(live)) >= rattle
        again = live[locked & gives_up & (pushed == goal[live])]  # these need another goal
        barred = tried[again] if target == "untried" else np.eye(4, dtype=np.bool_)[goal[again]]
        goal[again] = np.argmax(np.where(barred, -1.0, rng.random((len(again), 4))), axis=1)
        live = live[~exited]
        if len(live) == 0:
            break

    episodes = np.concatenate([rows[0] for rows in log])
    order = np.argsort(episodes, kind="stable")  # time order inside each episode
    episodes = episodes[order]
    from_x, from_y, actions, to_x, to_y, terminated, truncated = (
        np.concatenate([rows[i] for rows in log])[order] for i in range(1, 8)
    )
    image = picture[episodes]
    return {
        "observations": {"image": image, "position": room.one_hot(from_x, from_y, np.uint8)},
        "next_observations": {"image": image.copy(), "position": room.one_hot(to_x, to_y, np.uint8)},
        "actions": actions.astype(np.int64),
        "rewards": np.where(terminated, 0.0, -1.0).astype(np.float32),
        "terminated": terminated,
        "truncated": truncated,
        "episodes": episodes.astype(np.int64),
        "pictures": {"image": images.train_images},
    }
