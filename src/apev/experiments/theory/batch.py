"""Thousands of episodes of a posterior at once: what learned agents are evaluated in, and what logs are made with.

Each episode takes place in one hypothesis, drawn once. States are shown through a table of features, so that networks can
read them. The batch follows the protocol of `apev.evaluate.rollout`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from apev.bayes.mdp import IntArray, Posterior


class TabularBatch:
    """`len(hypothesis)` episodes side by side, the i-th in hypothesis[i] of the posterior; without automatic resets."""

    def __init__(
        self,
        posterior: Posterior,
        hypothesis: ArrayLike,
        features: ArrayLike,
        horizon: int,
        *,
        seed: int = 0,
        start: ArrayLike | None = None,
    ) -> None:
        self.posterior, self.horizon, self.seed = posterior, horizon, seed
        self.hypothesis = np.asarray(hypothesis, dtype=np.int64)  # [n]
        self.features = np.asarray(features, dtype=np.float32)  # [S, D]
        self.given_start = None if start is None else np.asarray(start, dtype=np.int64)
        self.num_envs = len(self.hypothesis)
        widest = max(m.probability.shape[2] for m in posterior.mdps)

        def table(arrays: list[Any]) -> Any:
            """[K, S, A, M] of all hypotheses, padded to the widest."""
            return np.stack([np.pad(a, ((0, 0), (0, 0), (0, widest - a.shape[2]))) for a in arrays])

        self._next = table([m.next_state for m in posterior.mdps])
        self._reward = table([m.reward for m in posterior.mdps])
        self._cumulative = table([m.probability for m in posterior.mdps]).cumsum(-1)

    def reset(self) -> np.ndarray:
        """Start every episode; each call starts the same ones."""
        self.rng = np.random.default_rng(self.seed)
        self.time = 0
        self.over = np.zeros(self.num_envs, dtype=np.bool_)
        if self.given_start is not None:
            self.state = self.given_start.copy()
        else:
            chance = self.posterior.start[self.hypothesis].cumsum(1)  # [n, S]
            self.state = (self.rng.random((self.num_envs, 1)) >= chance).sum(1).clip(max=chance.shape[1] - 1)
        return self.features[self.state]

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step those that are not over."""
        at = self.hypothesis, self.state, np.asarray(actions)
        outcome = (self.rng.random((self.num_envs, 1)) >= self._cumulative[at]).sum(1)
        outcome = outcome.clip(max=self._next.shape[3] - 1)
        following, reward = self._next[(*at, outcome)], self._reward[(*at, outcome)]
        self.time += 1
        running = ~self.over
        self.state = np.where(running, following, self.state)
        terminated = running & self.posterior.terminal[self.hypothesis, self.state]
        truncated = running & ~terminated & (self.time >= self.horizon)
        self.over |= terminated | truncated
        return self.features[self.state], np.where(running, reward, 0.0), terminated, truncated, {"success": terminated}


def collect(batch: TabularBatch, behaviour: Callable[[TabularBatch], IntArray], contexts: ArrayLike) -> dict[str, Any]:
    """One logged episode in every environment, as the columns of `apev.data.Dataset.from_arrays`.

    `behaviour` sees the batch (its states, hypotheses, clock and generator) and gives an action for each episode.
    """
    obs = batch.reset()
    numbers = np.arange(batch.num_envs)
    log: list[tuple[Any, ...]] = []
    while not batch.over.all():
        running = ~batch.over
        action = behaviour(batch)
        following, reward, terminated, truncated, _ = batch.step(action)
        log.append(tuple(a[running] for a in (numbers, obs, action, reward, following, terminated, truncated)))
        obs = following
    columns = [np.concatenate(parts) for parts in zip(*log, strict=True)]
    order = np.argsort(columns[0], kind="stable")  # episode by episode, in order of time
    episode, obs, action, reward, following, terminated, truncated = (column[order] for column in columns)
    return {
        "observations": obs.astype(np.float32),
        "next_observations": following.astype(np.float32),
        "actions": action.astype(np.int64),
        "rewards": reward.astype(np.float32),
        "terminated": terminated,
        "truncated": truncated,
        "episodes": episode,
        "contexts": np.asarray(contexts, dtype=np.int64)[episode],
        "num_actions": batch.posterior.num_actions,
    }
