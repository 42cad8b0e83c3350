"""Logs to try things on, made on the spot in a second or two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np

from apev.data.dataset import Dataset
from apev.envs.fleet.customers import customers_log
from apev.envs.fleet.pendulum import pendulum_log, swing_up


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
            action = np.clip([swing_up(obs) + rng.normal(0, 0.5)], -2, 2).astype(np.float32)
            after, reward, terminated, truncated, _ = env.step(action)
            rows.append((obs, action, reward, after, terminated, truncated and not terminated))
            obs, over = after, bool(terminated or truncated)
    return _log(rows, "pendulum", "Pendulum-v1", action_low=[-2.0], action_high=[2.0])


def customers() -> Dataset:
    """Customers of three hidden segments under random offers: `apev.envs.fleet.customers`."""
    return _named(customers_log()[0], "customers")


def pendulum_fleet() -> Dataset:
    """Twenty pendulums, half of them wired the wrong way round: `apev.envs.fleet.pendulum`."""
    return _named(pendulum_log()[0], "pendulum-fleet")


def _named(log: Dataset, name: str) -> Dataset:
    return replace(log, source={"name": f"example-{name}"} | log.source)


def _log(rows: list[tuple[Any, ...]], name: str, environment: str, **source: Any) -> Dataset:
    obs, action, reward, after, terminated, truncated = (np.array(column) for column in zip(*rows, strict=True))
    about = {"name": f"example-{name}", "environment": environment} | source
    return Dataset.from_arrays(obs, action, reward, terminated, truncated, next_observations=after, source=about)


EXAMPLES: dict[str, Callable[[], Dataset]] = {
    "cartpole": cartpole,
    "pendulum": pendulum,
    "customers": customers,
    "pendulum-fleet": pendulum_fleet,
}
