"""Episodes for the page, step by step: the adaptive policy and the best blind one on the same machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from apev.experiments.fleet.rows import FORGETTING, kind_of_members, kinds_now
from apev.experiments.fleet.worlds import World
from apev.files import read_json, read_lines, write_json
from apev.policy import load
from apev.rollout import rollout


def note_traces(world: World, out: Path, agents: Path, seed: int, kinds: np.ndarray) -> None:
    """Write traces of the adaptive policy and of the blind one with the best mean return, unless they are there."""
    returns: dict[str, list[float]] = {}
    for line in read_lines(out / "episodes.jsonl") if (out / "episodes.jsonl").exists() else []:
        if line["policy"] in world.static and (agents / f"{line['policy']}-s{seed}" / "policy").exists():
            returns.setdefault(line["policy"], []).append(line["return"])
    if not returns or not (agents / f"ape-v-s{seed}" / "policy").exists():
        return
    blind = max(returns, key=lambda name: float(np.mean(returns[name])))
    if not (out / "traces.json").exists() or read_json(out / "traces.json").get("blind_policy") != blind:
        write_traces(world, out, agents, seed, blind, kinds)


def write_traces(world: World, out: Path, agents: Path, seed: int, blind: str, kinds: np.ndarray) -> None:
    """An episode a kind, step by step: the adaptive policy and the best blind one, for the page.

    Where machines change, the adaptive one forgets: without that it takes as long to change its mind as to make it up.
    """
    about: dict[str, Any] = {"world": world.name, "environment": world.environment, "seed": seed, "blind_policy": blind}
    ours = agents / f"ape-v-s{seed}"
    about["members"] = kind_of_members(ours, kinds)
    forgetting = None if world.change_at is None else FORGETTING[-1]
    policies = {"adaptive": load(ours, forgetting=forgetting), "blind": load(agents / f"{blind}-s{seed}")}
    for name, policy in policies.items():
        batch, kind = world.batch(1, 20_000 + seed)
        rolled = rollout(policy, batch, trace=True)
        about[name] = []
        for i, length in enumerate(rolled.lengths.tolist()):
            episode = {
                "kind": int(kind[i]),
                "return": float(rolled.returns[i]),
                "observations": steps_of(rolled.observations, i, length + 1),
                "belief": steps_of(rolled.beliefs, i, length + 1),
                "rewards": steps_of(rolled.rewards, i, length),
            }
            if world.change_at is not None:
                episode["change"] = {"step": world.change_at, "kind": kinds_now(batch)[i]}
            if policy.agent.layout.num_actions:
                episode["actions"] = steps_of(rolled.actions, i, length)
            about[name].append(episode)
    write_json(out / "traces.json", about, indent=None)


def steps_of(traced: Sequence[np.ndarray], episode: int, length: int) -> list[Any]:
    """What was traced of one episode, with four digits."""
    steps: list[Any] = np.round(np.stack([np.asarray(step)[episode] for step in traced[:length]]), 4).tolist()
    return steps
