"""Adapting policies where stable-baselines3 expects its own: in `evaluate_policy`, and in its vectorised environments.

    model, env = apev.as_sb3(policy, "CartPole-v1")
    evaluate_policy(model, env, n_eval_episodes=20)

`predict` is not told what an action led to. So the environments tell it: every step in them is observed by the policy.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from apev.envs.make import make as make_env
from apev.policy import Policy, PolicyState

UNOBSERVED = 2  # predictions whose outcome was not told, after which another is suspicious


class AdaptingModel:
    """A policy with the `predict` of stable-baselines3; it adapts if `observe` hears of every step."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.unobserved, self.warned = 0, False  # predictions in a row that nobody told the outcome of

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[Any, Any]:
        """The action, and the state to hand back next time."""
        policy = self.policy
        if state is not None:
            policy.state = state
        if episode_start is not None and np.any(episode_start):
            start = np.atleast_1d(episode_start)
            if len(start) != len(policy.state.log_belief) and start.all():
                policy.state = PolicyState(policy.start_belief(len(start)))
            else:
                policy.reset(start)
        self.warn_unobserved()
        action = policy.act(observation, deterministic)
        return action, policy.state

    def warn_unobserved(self) -> None:
        """Say once that a policy that could adapt is never told what its actions led to."""
        policy = self.policy
        self.unobserved = self.unobserved + 1 if policy.waits else 0
        if self.unobserved < UNOBSERVED or self.warned or not (policy.adapts and policy.members > 1):
            return
        self.warned = True
        warnings.warn(
            "predict() was called again and again, and observe() never: the belief stays where it is. "
            "Fix: policy.observe(reward, next_obs, terminated) after each step, or apev.as_sb3(policy, env).",
            stacklevel=4,
        )

    def observe(self, actions: Any, obs: Any, rewards: Any, dones: Any, infos: Sequence[Mapping[str, Any]]) -> None:
        """Take in a step of environments that begin anew by themselves.

        obs: those of the new episode where one ended; infos then hold `terminal_observation`, and say whether only the clock
        ended it (`TimeLimit.truncated`). A step that no prediction led to is nobody's.
        """
        if not self.policy.waits:
            return
        over = np.atleast_1d(np.asarray(dones, dtype=bool))
        cut = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos])
        self.policy.observe(rewards, with_ends(obs, over, infos), over & ~cut, action=actions)


def with_ends(obs: Any, over: np.ndarray, infos: Sequence[Mapping[str, Any]]) -> Any:
    """What the steps led to: the observations, and the last ones of episodes that are over."""
    if not over.any():
        return obs
    ends = [info.get("terminal_observation") for info in infos]
    if isinstance(obs, Mapping):
        return {key: _replaced(part, over, [(end or {}).get(key) for end in ends]) for key, part in obs.items()}
    return _replaced(obs, over, ends)


def _replaced(part: np.ndarray, over: np.ndarray, ends: Sequence[Any]) -> np.ndarray:
    after = np.array(part)
    for row in np.flatnonzero(over).tolist():
        if ends[row] is None:
            raise ValueError(f"environment {row} ended and does not say how. Fix: infos with 'terminal_observation'.")
        after[row] = ends[row]
    return after


def as_sb3(policy: Policy, env: Any) -> tuple[AdaptingModel, Any]:
    """A model and environments for stable-baselines3, between which the policy adapts.

    env: a Gymnasium id, environment, or function that makes one; or environments of stable-baselines3 (a `VecEnv`), with
    observations and rewards as they are.
    """
    try:
        from stable_baselines3.common.monitor import Monitor
        from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper, VecNormalize, is_vecenv_wrapped
    except ImportError as error:
        raise ImportError(f"as_sb3 needs {error.name}. Fix: pip install 'apev[sb3]'.") from error
    if not isinstance(env, VecEnv):
        single = make_env(env) if isinstance(env, str) else env if isinstance(env, gymnasium.Env) else env()
        env = DummyVecEnv([lambda: Monitor(single)])
    if is_vecenv_wrapped(env, VecNormalize):
        raise ValueError("rewards that VecNormalize scales are no evidence. Fix: hand over the environments beneath it.")
    model = AdaptingModel(policy)

    class Observed(VecEnvWrapper):
        """Environments whose every step the policy observes."""

        def reset(self) -> Any:
            """Begin anew."""
            return self.venv.reset()

        def step_async(self, actions: np.ndarray) -> None:
            """Keep what is executed."""
            self.executed = actions
            self.venv.step_async(actions)

        def step_wait(self) -> Any:
            """Step, and let the policy see what came of it."""
            obs, rewards, dones, infos = self.venv.step_wait()
            model.observe(self.executed, obs, rewards, dones, infos)
            return obs, rewards, dones, infos

    return model, Observed(env)
