"""A Gymnasium environment whose machine is of a hidden kind, and logs of many machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from rich.console import Console

from apev.data.dataset import Dataset
from apev.envs.fleet.kinds import checked, choose, deal
from apev.envs.make import make
from apev.progress import progress_bar

Teacher = Callable[[np.ndarray], Any]  # what was observed -> an action


class MachineEnv(gymnasium.Env[Any, Any]):
    """A known environment with a machine of a hidden kind in it. Agents never see the kind; `info["kind"]` is for evaluation.

    `reset(options={"kind": 1})` chooses the kind of an episode, `kind` that of all; else each is drawn. Start states are those
    of the known environment under the same seed.
    """

    kinds: tuple[str, ...]  # their names, in order; known before a machine is made

    def __init__(self, inside: str, kind: int | None = None, render_mode: str | None = None) -> None:
        self.inside: Any = make(inside, render_mode=render_mode, disable_env_checker=True).unwrapped
        self.observation_space, self.action_space = self.inside.observation_space, self.inside.action_space
        self.metadata, self.render_mode = self.inside.metadata, render_mode
        self.asked = None if kind is None else checked(kind, len(self.kinds))
        self.kind = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A machine of a new kind, unless one was asked for."""
        super().reset(seed=seed)
        observation, info = self.inside.reset(seed=seed)
        # The generator that drew the start: one of its own from the same seed would repeat those numbers, and tell the kind.
        self.kind = choose(self.asked, len(self.kinds), options, self.inside.np_random)
        return observation, info | {"kind": self.kind}

    def render(self) -> Any:
        """As the known environment draws it."""
        return self.inside.render()

    def close(self) -> None:
        """Close the known environment."""
        self.inside.close()


def roll(
    environment: str,
    teachers: Callable[[int, np.random.Generator], Teacher],
    kinds: Sequence[int],
    *,
    machines: int,
    episodes: int,
    seed: int = 0,
    options: Callable[[int, np.random.Generator], Mapping[str, Any]] | None = None,
    console: Console | None = None,
    **settings: Any,
) -> tuple[Dataset, np.ndarray]:
    """(a log of many machines with the machine as its context, the kind of each machine [machines]).

    teachers: makes who acts in an episode, given the machine's kind and a random generator.
    kinds: those that machines are of, about equally many of each, in random order.
    options: makes what else `reset` gets to know of a machine of this kind, once a machine.
    console: where a progress bar is shown; without one there is none.
    settings: of the environment, as plain values; the log keeps them, so that evaluation finds the same one.
    """
    env, rng = make(environment, **settings), np.random.default_rng(seed)
    dealt = deal(kinds, machines, rng)
    rows = []
    with progress_bar(console or Console(quiet=True)) as progress:
        task = progress.add_task(f"rolling out in {environment}", total=machines * episodes)
        for machine, kind in enumerate(dealt.tolist()):
            known = {"kind": kind} | dict(options(kind, rng) if options is not None else {})
            for _ in range(episodes):
                act, over = teachers(kind, rng), False
                seen, _ = env.reset(seed=int(rng.integers(2**31)), options=known)
                while not over:
                    action = act(seen)
                    after, reward, terminated, truncated, _ = env.step(action)
                    rows.append((seen, action, float(reward), after, terminated, truncated and not terminated, machine))
                    seen, over = after, bool(terminated or truncated)
                progress.advance(task)
    space: Any = env.action_space
    source = {"environment": environment, "action_low": space.low.tolist(), "action_high": space.high.tolist()}
    if settings:
        limit = settings.pop("max_episode_steps", None)
        source["environment_spec"] = {"id": environment, "kwargs": settings, "max_episode_steps": limit}
    observations, actions, rewards, following, *ends, contexts = (np.array(column) for column in zip(*rows, strict=True))
    log = Dataset.from_arrays(
        observations, actions, rewards, *ends, next_observations=following, contexts=contexts, source=source
    )
    return log, dealt
