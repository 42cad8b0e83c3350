"""Episodes worth watching: an agent that changes its mind, and fixed policies in front of the same photograph."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from apev.experiments.locked_doors.episodes import TestEpisodes
from apev.policy import Policy
from apev.rollout import Rollout, rollout

if TYPE_CHECKING:
    from apev.agents.discrete.base import QAgent

_WATCHED = 600  # episodes looked through for good ones


def pick_replays(
    agents: dict[str, QAgent], doors: dict[str, np.ndarray], episodes: TestEpisodes, count: int = 6
) -> list[dict[str, Any]]:
    """The most telling episodes of the adaptive agent, each followed by what a fixed policy does there."""
    if "ape-v" not in agents:
        return []
    watched = episodes.first(_WATCHED)
    adaptive = rollout(Policy(agents["ape-v"]), watched, trace=True, deterministic=False)
    bumps = door_bumps(adaptive, episodes)
    believed = believed_doors(adaptive, doors["ape-v"], episodes)  # [steps, n]
    steps = np.arange(len(believed) - 1)[:, None]
    changes = ((believed[1:] != believed[:-1]) & (steps + 1 < adaptive.lengths)).sum(
        0
    )  # leaving settles every doubt: not counted
    deeds = door_tries(adaptive, episodes)  # [steps, n]
    faithful = ((deeds == believed[:-1]) & (deeds >= 0) & (believed[1:] != believed[:-1])).any(0)
    # Best first: tries the door it believes in, finds it locked and thinks again; one change of mind, out soon.
    score = 10 + 5 * faithful - 2 * np.abs(changes - 1) - np.abs(bumps - 1) - adaptive.lengths / 25
    score = np.where(adaptive.success & (bumps > 0) & (changes > 0), score, -100.0)
    chosen = [int(i) for i in np.argsort(-score)[: count - 1] if score[i] > -100]
    chosen += [int(i) for i in np.flatnonzero(~adaptive.success)[:1]] + [int(np.argmax(adaptive.success & (bumps == 0)))]
    replays = []
    fixed = None
    if "ensemble" in agents:
        fixed = rollout(Policy(agents["ensemble"], "uniform"), watched, trace=True, deterministic=False)
    for i in dict.fromkeys(chosen):
        replays.append(replay("ape-v", adaptive, i, doors["ape-v"], episodes))
        if fixed is not None and len(replays) < 8:
            replays.append(replay("average", fixed, i, doors["ensemble"], episodes))
    return replays


def door_tries(result: Rollout, episodes: TestEpisodes) -> np.ndarray:
    """[steps, n]: the locked door pushed at each step of each traced episode, or -1."""
    n = len(result.lengths)
    pushed = []
    for t, actions in enumerate(result.actions):
        x, y = positions(result, t, episodes.room.size)
        door = episodes.room.door_tried(x, y, actions)
        pushed.append(np.where((door != episodes.labels[episodes.picture[:n]]) & (t < result.lengths), door, -1))
    return np.stack(pushed)


def door_bumps(result: Rollout, episodes: TestEpisodes) -> np.ndarray:
    """How many different locked doors each traced episode tried: [n]."""
    bumps: np.ndarray = (door_tries(result, episodes)[:, :, None] == np.arange(4)).any(0).sum(1)
    return bumps


def believed_doors(result: Rollout, doors: np.ndarray, episodes: TestEpisodes) -> np.ndarray:
    """[steps + 1, n]: the door most of the belief points at; it stays as it was once an episode is over."""
    n = len(result.lengths)
    points_at = np.eye(4)[doors[:, episodes.picture[:n]]]  # [K, n, 4]
    return np.stack([np.einsum("nk,knd->nd", belief, points_at).argmax(1) for belief in result.beliefs])


def positions(result: Rollout, t: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Cells (x, y) of all traced episodes at step t."""
    hot = result.observations[t]["position"]
    return hot[:, :size].argmax(1), hot[:, size:].argmax(1)


def replay(policy: str, result: Rollout, i: int, doors: np.ndarray, episodes: TestEpisodes) -> dict[str, Any]:
    """Episode i as `replays.json` stores it."""
    picture, size = int(episodes.picture[i]), episodes.room.size
    believed = doors[:, picture]  # [K]
    steps = []
    for t in range(int(result.lengths[i]) + 1):
        x, y = (int(v[i]) for v in positions(result, t, size))
        weights = result.beliefs[t][i]
        by_door = np.bincount(believed, weights=weights, minlength=4)
        event, action = "start", None
        if t:
            before = tuple(int(v[i]) for v in positions(result, t - 1, size))
            action = int(result.actions[t - 1][i])
            left = t == result.lengths[i] and result.success[i]
            event = "exit" if left else "bump" if before == (x, y) else "move"
        steps.append(
            {
                "x": x,
                "y": y,
                "action": action,
                "event": event,
                "belief": [round(float(w), 4) for w in weights],
                "doors": [round(float(w), 4) for w in by_door],
                "believed_door": int(by_door.argmax()),
            }
        )
    buffer = io.BytesIO()
    Image.fromarray(episodes.pictures[picture]).save(buffer, format="PNG")
    return {
        "policy": policy,
        "picture": base64.b64encode(buffer.getvalue()).decode(),
        "label": int(episodes.labels[picture]),
        "success": bool(result.success[i]),
        "member_doors": believed.tolist(),
        "steps": steps,
    }
