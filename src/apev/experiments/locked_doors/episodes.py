"""The rooms every policy of a table is tested in, the oracle included."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from apev.envs import BatchedLockedDoors, OraclePolicy, Room
from apev.rollout import Rollout


class TestEpisodes:
    """The test episodes of a seed: every test image `starts` times, each from a random cell. Every `reset` starts the same."""

    __test__ = False  # not a test case of pytest

    def __init__(self, images: np.ndarray, labels: np.ndarray, starts: int, seed: int, room: Room) -> None:
        picture = np.tile(np.arange(len(labels)), starts)
        positions = np.random.default_rng([seed, 1]).integers(room.size, size=(len(picture), 2))
        self._begin(images, labels, picture, positions, room)

    def first(self, count: int) -> Self:
        """The first `count` of these episodes."""
        some = object.__new__(type(self))
        some._begin(self.pictures, self.labels, self.picture[:count], self.positions[:count], self.room)
        return some

    def _begin(self, images: np.ndarray, labels: np.ndarray, picture: np.ndarray, positions: np.ndarray, room: Room) -> None:
        self.picture, self.positions = picture, positions
        self.env = BatchedLockedDoors(images, labels, len(picture), room)
        self.num_envs, self.pictures, self.room, self.labels = len(picture), images, room, labels

    def reset(self) -> dict[str, np.ndarray]:
        """All rooms anew."""
        self.tried_at = np.zeros((self.num_envs, 4), dtype=np.int64)  # the step that first pushed each door; 0: none did
        return self.env.reset(self.picture, self.positions)

    def step(self, actions: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step in every room."""
        env = self.env
        pushed = self.room.door_tried(env.x, env.y, actions)[:, None] == np.arange(4)
        now = ~(env.terminated | env.truncated)[:, None] & pushed & (self.tried_at == 0)
        self.tried_at[now] = env.time + 1
        return env.step(actions)

    def tries(self, i: int) -> list[list[int]]:
        """[door, step] of every door that was pushed in room i, in that order."""
        doors = np.flatnonzero(self.tried_at[i])
        return [[int(door), int(self.tried_at[i, door])] for door in doors[self.tried_at[i, doors].argsort()]]


def oracle_rollout(episodes: TestEpisodes) -> Rollout:
    """The Bayes-optimal policy for known door likelihoods, in the same episodes."""
    oracle = OraclePolicy(episodes.room)
    env = episodes.env
    episodes.reset()
    n = episodes.num_envs
    result = Rollout.empty(n)
    for _ in range(episodes.room.horizon):
        _, reward, ended, _, info = episodes.step(oracle.act(env.x, env.y, tried=env.tried))
        result.returns += reward
        result.lengths += info["active"]
        result.terminated[:] = result.success[:] = ended
    return result
