"""Mazes worth watching, chosen as such: where belief and memory find the cheese and the same networks without them do not, and
one where they fail."""

from __future__ import annotations

from typing import Any

import numpy as np

from apev.agents import Agent
from apev.experiments.procgen.world import BatchedMaze
from apev.policy import Policy
from apev.rollout import Rollout, rollout


def pick_replays(best: Agent, env: BatchedMaze, count: int = 4) -> list[dict[str, Any]]:
    """Episodes with belief and memory that change their mind and succeed, the same networks frozen there, and a failure."""
    adaptive = rollout(Policy(best, remember=True), env, trace=True)
    ways = np.stack(env.trail)
    frozen = rollout(Policy(best, "uniform"), env, trace=True)
    frozen_ways = np.stack(env.trail)
    trusted = np.stack([belief.argmax(1) for belief in adaptive.beliefs])  # [T + 1, n]
    alive = np.arange(len(trusted) - 1)[:, None] < adaptive.lengths
    changes = ((trusted[1:] != trusted[:-1]) & alive).sum(0)
    telling = adaptive.success & ~frozen.success & (changes > 0)
    order = np.argsort(np.where(telling, adaptive.lengths + 5 * changes, 10_000), kind="stable")
    chosen = [int(i) for i in order[:count] if telling[i]]
    chosen += [int(i) for i in np.flatnonzero(~adaptive.success)[:1]]
    replays = []
    for i in dict.fromkeys(chosen or [0]):
        replays.append(_replay("ape-v-best", env, adaptive, ways, i))
        replays.append(_replay("eight views, frozen", env, frozen, frozen_ways, i, most=120))
    return replays


def _replay(policy: str, env: BatchedMaze, result: Rollout, ways: np.ndarray, i: int, most: int = 500) -> dict[str, Any]:
    """Episode i as `replays.json` stores it; a long one is cut after `most` steps."""
    maze = env.mazes[env.which[i]]
    steps = min(int(result.lengths[i]), most)
    cells = maze.cells[ways[: steps + 1, i]].tolist()
    if result.success[i] and steps == result.lengths[i]:
        cells[-1] = list(maze.goal)
    beliefs = np.stack([belief[i] for belief in result.beliefs[: steps + 1]])
    return {
        "policy": policy,
        "level": maze.level,
        "success": bool(result.success[i]),
        "length": int(result.lengths[i]),
        "grid": ["".join("." if is_open else "#" for is_open in row) for row in maze.grid],  # rows from below
        "goal": list(maze.goal),
        "cells": cells,
        "belief": np.round(beliefs, 3).tolist(),
        "trusted": beliefs.argmax(1).tolist(),
    }
