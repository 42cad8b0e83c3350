"""Where a data set came from: a small dict of plain values that travels with it through files and splits.

    name              "halfcheetah-medium-v2", "mujoco/hopper/expert-v0", ...: what reference scores are looked up by
    environment       a Gymnasium id to evaluate in
    environment_spec  Gymnasium's own JSON of the environment, where the log kept it (Minari does); it wins over the id
    format            "npz", "d4rl", "apev" or "minari"
    action_low, action_high   the bounds of continuous actions, where the log kept them
    reference         [low, high] returns for normalised scores, where the log kept them
    notes             sentences about what reading had to decide

Every entry is optional.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

# The closest living relatives of D4RL's environments: v5 changed Walker2d's friction and the healthy reward.
ENVIRONMENTS = {"halfcheetah": "HalfCheetah-v4", "hopper": "Hopper-v4", "walker2d": "Walker2d-v4", "ant": "Ant-v4"}
HORIZONS = dict.fromkeys(ENVIRONMENTS, 1000)
KINDS = ("random", "medium", "expert", "medium-replay", "full-replay", "medium-expert")
KNOWN_SPEC = {"id", "entry_point", "reward_threshold", "nondeterministic", "max_episode_steps", "order_enforce"}
KNOWN_SPEC |= {"disable_env_checker", "kwargs", "additional_wrappers", "vector_entry_point"}


def d4rl_name(path: Path) -> str:
    """The data set's name as D4RL writes it, from its file's: halfcheetah_medium-v2.hdf5 is halfcheetah-medium-v2."""
    return path.stem.replace("_", "-").lower()


def without_version(name: str) -> str:
    """hopper-medium of hopper-medium-v2."""
    return re.sub(r"-v\d+$", "", name)


def d4rl_robot(name: str) -> str | None:
    """halfcheetah, hopper, walker2d or ant, if `name` is one of D4RL's MuJoCo data sets."""
    robot, _, kind = without_version(name.lower()).partition("-")
    return robot if robot in ENVIRONMENTS and kind in KINDS else None


def environment_spec(source: Mapping[str, Any]) -> Any:
    """What `gymnasium.make` takes to build the environment of this data: an EnvSpec or an id."""
    text = source.get("environment_spec")
    if text:
        known = {key: value for key, value in json.loads(text).items() if key in KNOWN_SPEC}  # older Gymnasium wrote more
        return gymnasium.envs.registration.EnvSpec.from_json(json.dumps(known))
    if source.get("environment"):
        return source["environment"]
    raise ValueError(f"this data does not say its environment (it knows {sorted(source)}). Fix: name one with --env.")


def action_bounds(source: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """(low, high) of continuous actions: as the log says, else its environment, where one is named and can be made here."""
    if "action_low" in source and "action_high" in source:
        return np.asarray(source["action_low"]), np.asarray(source["action_high"])
    if not (source.get("environment") or source.get("environment_spec")):
        return None
    try:
        env = recover_environment(source)
    except (gymnasium.error.Error, ImportError, ValueError):
        return None
    space = env.action_space
    env.close()
    return (space.low, space.high) if isinstance(space, gymnasium.spaces.Box) else None


def recover_environment(source: Mapping[str, Any], **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """The environment this data was logged in, or is to be evaluated in."""
    from apev.envs.make import make

    return make(environment_spec(source), **kwargs)
