"""Logs to try things on, made on the spot in a second or two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from apev.data.dataset import Dataset


def cartpole(episodes: int = 200, seed: int = 0) -> Dataset:
    """CartPole under a controller that is right seven times in ten and else presses any button."""
    env, rng, rows = gymnasium.make("CartPole-v1"), np.random.default_rng(seed), []
    for episode in range(episodes):
        obs, over = env.reset(seed=1000 * seed + episode)[0], False
        while not over:
            action = int(obs[2] + obs[3] > 0) if rng.random() < 0.7 else int(rng.integers(2))
            after, reward, terminated, truncated, _ = env.step(action)
            rows.append((obs, action, reward, after, terminated, truncated and not terminated))
            obs, over = after, bool(terminated or truncated)
    return _log(rows, "cartpole", "CartPole-v1")


def pendulum(episodes: int = 50, seed: int = 0) -> Dataset:
    """Pendulum under a controller that pumps energy and holds the pole up, with noise in its hand."""
    env, rng, rows = gymnasium.make("Pendulum-v1"), np.random.default_rng(seed), []
    for episode in range(episodes):
        obs, over = env.reset(seed=1000 * seed + episode)[0], False
        while not over:
            cosine, sine, speed = (float(x) for x in obs)
            near = cosine > 0.9
            push = -8.0 * sine - 2.0 * speed if near else 2.0 * np.sign(speed * cosine if abs(speed) < 6 else -speed)
            action = np.clip([push + rng.normal(0, 0.5)], -2, 2).astype(np.float32)
            after, reward, terminated, truncated, _ = env.step(action)
            rows.append((obs, action, reward, after, terminated, truncated and not terminated))
            obs, over = after, bool(terminated or truncated)
    return _log(rows, "pendulum", "Pendulum-v1", action_low=[-2.0], action_high=[2.0])


def _log(rows: list[tuple[Any, ...]], name: str, environment: str, **source: Any) -> Dataset:
    obs, action, reward, after, terminated, truncated = (np.array(column) for column in zip(*rows, strict=True))
    about = {"name": f"example-{name}", "environment": environment} | source
    return Dataset.from_arrays(obs, action, reward, terminated, truncated, next_observations=after, source=about)


EXAMPLES: dict[str, Callable[[], Dataset]] = {"cartpole": cartpole, "pendulum": pendulum}
