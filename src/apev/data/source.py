"""Where a data set came from: a small dict of plain values that travels with it through files and splits.

    name              "halfcheetah-medium-v2", "mujoco/hopper/expert-v0", ...: what reference scores are looked up by
    environment       a Gymnasium id to evaluate in
    environment_spec  Gymnasium's own JSON of the environment, where the log kept it (Minari does); of it, the id and plain
                      settings count
    format            "npz", "d4rl", "apev" or "minari"
    action_low, action_high   the bounds of continuous actions, where the log kept them
    reference         [low, high] returns for normalised scores, where the log kept them
    action_names, observation_names   what discrete actions 0, 1, ... and the entries of the observation are called, where the
                      log was a table
    notes             sentences about what reading had to decide

Every entry is optional.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from apev.files import AGAIN, FileError, parse_json

# The closest living relatives of D4RL's environments: v5 changed Walker2d's friction and the healthy reward.
ENVIRONMENTS = {"halfcheetah": "HalfCheetah-v4", "hopper": "Hopper-v4", "walker2d": "Walker2d-v4", "ant": "Ant-v4"}
HORIZONS = dict.fromkeys(ENVIRONMENTS, 1000)
KINDS = ("random", "medium", "expert", "medium-replay", "full-replay", "medium-expert")
NAME_ONE = "name an environment with --env"
MOST_STEPS = 10_000_000  # of a time limit that a file may set
PLAIN_WORD = re.compile(r"[\w.+-]*")  # a setting that is a word names no file and no module


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


@dataclass(frozen=True)
class Named:
    """An environment that a file names: an id, and settings that are plain values."""

    id: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()  # what else the file asked for, in words

    def told(self) -> str | None:
        """What was ignored, as a sentence; None if nothing was."""
        if not self.ignored:
            return None
        return f"the file asks for more than the environment {self.id}, which is ignored: {', '.join(self.ignored)}"


def named_environment(source: Mapping[str, Any]) -> Named:
    """The environment that this data names. Its id and plain settings count; code, wrappers and modules are ignored.

    A file is only data: whoever made it must not choose what runs here.
    """
    text = source.get("environment_spec")
    if not text:
        if source.get("environment"):
            return Named(str(source["environment"]))
        raise ValueError(f"this data does not say its environment (it knows {sorted(source)}). Fix: name one with --env.")
    spec = text if isinstance(text, dict) else parse_json(text, "environment_spec", fix=NAME_ONE)
    if not isinstance(spec.get("id"), str):
        raise FileError("environment_spec", "has no id", NAME_ONE)
    known = _registered(spec["id"])
    taken, ignored = _plain_settings(spec.get("kwargs") or {}, known)
    limit = spec.get("max_episode_steps")
    if isinstance(limit, int) and not isinstance(limit, bool) and 0 < limit <= MOST_STEPS:
        if known is not None and limit != known.max_episode_steps:
            taken["max_episode_steps"] = limit
    elif limit is not None:
        ignored.append(f"max_episode_steps {limit!r}")
    ours = None if known is None else known.entry_point
    for name in ("entry_point", "vector_entry_point"):
        if isinstance(spec.get(name), str) and (known is None or spec[name] not in (ours, known.vector_entry_point)):
            ignored.append(f"{name} {spec[name]!r}")
    if spec.get("additional_wrappers"):
        ignored.append("additional_wrappers")
    return Named(spec["id"], taken, tuple(ignored))


def _registered(name: str) -> Any:
    """The spec of an id that is registered in this process already, with Gymnasium or by us; None for any other."""
    if name.startswith("apev/"):
        import apev.envs  # noqa: F401 (registers them)
    return gymnasium.registry.get(name)


def _plain_settings(kwargs: Any, known: Any) -> tuple[dict[str, Any], list[str]]:
    """(keyword arguments that are plain values and that the registered spec knows, the others in words)."""
    if not isinstance(kwargs, dict):
        return {}, [f"kwargs {kwargs!r:.80}"]
    names = {} if known is None else known.kwargs
    taken, ignored = {}, []
    for name, value in kwargs.items():
        plain = isinstance(value, bool | int | float) or (isinstance(value, str) and PLAIN_WORD.fullmatch(value) is not None)
        if plain and name in names:
            taken[name] = value
        else:
            ignored.append(f"{name}={value!r:.80}")
    return taken, ignored


def recover_environment(source: Mapping[str, Any], **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """The environment this data was logged in, or is to be evaluated in; only one that is registered here is built."""
    from apev.envs.make import make

    named = named_environment(source)
    if _registered(named.id) is None:
        raise ValueError(
            f"the data names the environment {named.id!r}, which is not registered here. Fix: import the package that "
            "registers it, or name an environment with --env."
        )
    return make(named.id, **(named.kwargs | kwargs))


def action_bounds(source: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """(low, high) of continuous actions, where the log says them or is of a robot whose bounds are known; builds nothing."""
    if "action_low" in source and "action_high" in source:
        return np.asarray(source["action_low"]), np.asarray(source["action_high"])
    robots = {*ENVIRONMENTS.values(), *(name.replace("-v4", "-v5") for name in ENVIRONMENTS.values())}
    return (np.asarray(-1.0), np.asarray(1.0)) if source.get("environment") in robots else None


def checked(source: Any, file: str) -> dict[str, Any]:
    """What a file says of its origin, with every entry of the kind it must have."""
    if not isinstance(source, dict):
        raise FileError(file, f"its source is a {type(source).__name__}, not a dict", AGAIN)
    for key, value in source.items():
        if key in ("name", "environment", "format") and not isinstance(value, str):
            raise FileError(file, f"its source says {key} {value!r:.80}, which is no text", AGAIN)
        if key == "environment_spec" and not isinstance(value, str | dict | None):
            raise FileError(file, "its environment_spec is neither text nor a dict", AGAIN)
        if key == "notes" and not (isinstance(value, list) and all(isinstance(note, str) for note in value)):
            raise FileError(file, "its notes are not a list of sentences", AGAIN)
        if key in ("action_names", "observation_names") and not _words(value):
            raise FileError(file, f"its source says {key} {value!r:.80}, which are no different names", AGAIN)
        if key in ("action_low", "action_high", "reference") and not _numbers(value):
            raise FileError(file, f"its source says {key} {value!r:.80}, which are no finite numbers", AGAIN)
    low, high = (np.asarray(source.get(f"action_{end}", default)) for end, default in (("low", -1.0), ("high", 1.0)))
    bounded = "action_low" in source and "action_high" in source
    if bounded and (low.shape != high.shape or not bool((low < high).all())):
        raise FileError(file, "its bounds of actions are not low < high, one pair a dimension", AGAIN)
    if "reference" in source and len(np.ravel(source["reference"])) != 2:
        raise FileError(file, "its reference is not a pair of returns, low and high", AGAIN)
    return dict(source)


def _words(value: Any) -> bool:
    """Whether this is a list of texts, no two of them alike."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value) and len(set(value)) == len(value) > 0


def _numbers(value: Any) -> bool:
    """Whether this is a finite number or a list of them."""
    items = value if isinstance(value, list) else [value]
    whole = all(isinstance(item, int | float) and not isinstance(item, bool) for item in items)
    return whole and bool(items) and bool(np.isfinite(np.asarray(items, dtype=np.float64)).all())
