"""Vectorised roll-outs: one protocol for static and adaptive policies, one record an episode.

Environments are stepped side by side; one that has ended stays frozen until all have. A batched environment offers
`num_envs`, `reset() -> obs` and `step(actions) -> obs, reward, terminated, truncated, info` over arrays, and may offer
`pictures` ([P, H, W, C]): then its picture observations are indices into that table and each is encoded once. It may offer
`action_masks` ([n, A], what is allowed now; None: everything): a policy whose log had masks obeys them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch

from apev.data.batch import Observations
from apev.envs.make import make as make_env
from apev.policy import Policy

STALL_WINDOW = 10  # an episode that moved between at most two observations over its last ten steps is stuck


class BatchedEnv(Protocol):
    """Many environments stepped at once, without automatic resets."""

    num_envs: int

    def reset(self) -> Any:
        """Start an episode in each."""

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step those that are not over."""


@dataclass
class Rollout:
    """What happened in n episodes."""

    returns: np.ndarray  # [n]
    lengths: np.ndarray  # [n]
    terminated: np.ndarray  # [n] ended by the world, not by the clock
    success: np.ndarray  # [n] as the environment says
    stalled: np.ndarray  # [n] failed, and stuck between at most two observations at the end
    knows_success: bool = False  # the environment says in its info what success is
    beliefs: list[np.ndarray] = field(default_factory=list)  # step by step [n, K], when traced
    observations: list[Any] = field(default_factory=list)
    actions: list[np.ndarray] = field(default_factory=list)
    rewards: list[np.ndarray] = field(default_factory=list)  # 0 in episodes that are over

    @classmethod
    def empty(cls, n: int) -> Rollout:
        """Nothing has happened yet in n episodes."""
        ended, success, stalled = np.zeros((3, n), dtype=bool)
        return cls(np.zeros(n), np.zeros(n, dtype=np.int64), ended, success, stalled)


def rollout(
    policy: Policy,
    env: BatchedEnv,
    *,
    trace: bool = False,
    deterministic: bool = True,
    keep_belief: bool = False,
    watch: Callable[[int, int], None] | None = None,
) -> Rollout:
    """One episode in every environment; actions are greedy, or drawn from the policy.

    keep_belief: begin with what the policy believed at the end of its last episodes.
    watch: told after each step how many steps there were and how many episodes are over.
    """
    n = env.num_envs
    table = picture_table(env, policy.agent.device)

    def read(obs: Any) -> Observations:
        return policy.agent.layout.read(obs, table, policy.agent.device)

    raw = env.reset()
    obs = read(raw)
    policy.reset(num_envs=n, keep_belief=keep_belief)
    active = np.ones(n, dtype=bool)
    recent = np.zeros((STALL_WINDOW, n))
    result = Rollout.empty(n)
    returns, lengths, terminated, success = result.returns, result.lengths, result.terminated, result.success
    if trace:
        result.beliefs.append(policy.belief)
        result.observations.append(raw)
    steps = 0
    while active.any():
        action = policy.act(obs, deterministic, mask=masks_of(env, policy, active))
        raw, reward, ended, cut, info = env.step(action)
        following = read(raw)
        policy.observe(reward, following, ended, active=active, mask=masks_of(env, policy, active & ~np.asarray(ended)))
        returns[active] += np.asarray(reward)[active]
        lengths[active] += 1
        recent[steps % STALL_WINDOW, active] = fingerprint(following, table is not None)[active]
        newly = active & (np.asarray(ended) | np.asarray(cut))
        terminated |= newly & np.asarray(ended)
        if "success" in info:
            result.knows_success = True
            success |= newly & np.asarray(info["success"], dtype=bool)
        active &= ~newly
        obs = following
        steps += 1
        if watch is not None:
            watch(steps, n - int(active.sum()))
        if trace:
            result.beliefs.append(policy.belief)
            result.observations.append(raw)
            result.actions.append(action)
            result.rewards.append(np.where(active | newly, reward, 0.0))
    distinct = 1 + (np.diff(np.sort(recent, axis=0), axis=0) != 0).sum(axis=0)
    result.stalled |= ~success & ~terminated & (lengths >= STALL_WINDOW) & (distinct <= 2)
    return result


def masks_of(env: Any, policy: Policy, active: np.ndarray) -> np.ndarray | None:
    """Which actions may be taken now, [n, A], where the environment says so and the policy has learned with masks.

    Episodes that are not `active` allow all: an environment may forbid everything where it has ended.
    """
    given = getattr(env, "action_masks", None) if policy.agent.layout.masked and not policy.remember else None
    return None if given is None else np.asarray(given, dtype=bool) | ~active[:, None]


def check_fit(policy: Policy, env: GymnasiumBatch, name: str) -> None:
    """An environment of other observations or actions than the policy's is refused before anything happens in it."""
    layout, space = policy.agent.layout, env.envs[0].action_space
    fix = "Fix: name the environment that the log is from, --env."
    try:
        layout.read(env.reset())
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{name} does not fit this policy: {error.args[0]} {fix}") from error
    if isinstance(space, gymnasium.spaces.Discrete):
        fits = layout.num_actions == space.n
    else:
        fits = isinstance(space, gymnasium.spaces.Box) and space.shape == (layout.action_dim,)
    if not fits:
        own = f"{layout.num_actions} discrete actions" if layout.num_actions else f"{layout.action_dim} continuous actions"
        raise ValueError(f"{name} does not fit this policy: its actions are {space}, the policy has {own}. {fix}")


def picture_table(env: Any, device: torch.device) -> torch.Tensor | None:
    """The environment's pictures as [P, C, H, W] on the device, if it has a table."""
    pictures = getattr(env, "pictures", None)
    if pictures is None:
        return None
    return torch.as_tensor(np.ascontiguousarray(pictures), device=device).permute(0, 3, 1, 2)


def fingerprint(obs: Observations, shared: bool = False) -> np.ndarray:
    """One number an observation, different for different vectors, or pictures where there is no vector: [B].

    `shared`: pictures are rows of a table that stays the same, so that the row's number will do.
    """
    if obs.vector.shape[1] == 0:
        assert obs.pictures is not None
        assert obs.picture is not None
        if shared:
            return obs.picture.cpu().numpy().astype(np.float64)
        flat = obs.pictures[obs.picture].flatten(1).double()
    else:
        flat = obs.vector.double()
    weights = torch.sin(torch.arange(1, flat.shape[1] + 1, device=flat.device, dtype=torch.float64) * 12.9898) * 43758.5453
    return (flat @ weights).cpu().numpy()


class GymnasiumBatch:
    """Single Gymnasium environments, stepped one after another as a batch."""

    def __init__(self, make: Any, num_envs: int, seed: int = 0) -> None:
        """`make`: an id, an EnvSpec, or a function that makes an environment."""
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}. Fix: at least 1 (--episodes).")
        create = make if callable(make) else lambda: make_env(make)
        self.envs = [create() for _ in range(num_envs)]
        self.num_envs, self.seed = num_envs, seed
        self._last: list[tuple[Any, float, bool, bool, dict[str, Any]]] = []

    def reset(self) -> Any:
        """Start an episode in each; every call starts the same ones."""
        first = [env.reset(seed=self.seed + i) for i, env in enumerate(self.envs)]
        self._last = [(obs, 0.0, False, False, info) for obs, info in first]
        return self._stack()

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step those that are not over."""
        for i, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            obs, _, ended, cut, info = self._last[i]
            if ended or cut:
                self._last[i] = (obs, 0.0, ended, cut, info)
            else:
                new, reward, ended, cut, info = env.step(action)
                self._last[i] = (new, float(reward), bool(ended), bool(cut), info)
        rewards, ended_all, cut_all = (np.array([last[j] for last in self._last]) for j in (1, 2, 3))
        info = {}
        if all("success" in last[4] for last in self._last):
            info["success"] = np.array([last[4]["success"] for last in self._last])
        return self._stack(), rewards, ended_all, cut_all, info

    @property
    def action_masks(self) -> np.ndarray | None:
        """[n, A]: `info["action_mask"]` of each, as Gymnasium's environments have it; None where one does not say."""
        infos = [last[4] for last in self._last]
        return np.stack([info["action_mask"] for info in infos]) if all("action_mask" in info for info in infos) else None

    def _stack(self) -> Any:
        observations = [last[0] for last in self._last]
        if isinstance(observations[0], dict):
            return {key: np.stack([o[key] for o in observations]) for key in observations[0]}
        return np.stack(observations)
