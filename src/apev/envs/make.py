"""Gymnasium environments, made without noise and with errors that say what to install."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import gymnasium


def make(spec: Any, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """`gymnasium.make` for an id or an EnvSpec."""
    if str(getattr(spec, "id", spec)).startswith("apev/"):
        import apev.envs  # noqa: F401 (registers them)
    try:
        with quiet():
            return gymnasium.make(spec, **kwargs)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        if "Fix: " in str(error):  # an environment of ours that has another inside said it
            raise
        if "mujoco" in str(error).lower() or "imageio" in str(error):
            raise ModuleNotFoundError(f"{spec} needs MuJoCo ({error}). Fix: pip install 'apev[mujoco]'.") from error
        raise ModuleNotFoundError(f"{spec} cannot be made here ({error}). Fix: install that, or name another --env.") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Without two warnings that nobody can act on.

    D4RL's closest relatives are the environments of version 4: Gymnasium warns that newer ones exist, MuJoCo that it will one
    day drop a word of HalfCheetah's model (to the terminal, and to a file it leaves in the working directory).
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is out of date.*")
        if find_spec("mujoco") is None:
            yield
            return
        import mujoco

        before = mujoco.get_mju_user_warning()
        mujoco.set_mju_user_warning(lambda text: None if "settotalmass" in text else print(text, file=sys.stderr))
        try:
            yield
        finally:
            mujoco.set_mju_user_warning(before)
