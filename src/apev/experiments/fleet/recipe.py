"""What adapting to hidden kinds is worth: every policy in one table, from logs without labels.

    OUT/WORLD/agents/ape-v-s0/    a run folder for every trained agent
    OUT/WORLD/episodes.jsonl      one line an episode of every policy
    OUT/WORLD/worlds.jsonl        which kinds were found, one line a seed
    OUT/WORLD/traces.json         an episode a kind of the adaptive policy and of the best blind one, step by step
    OUT/WORLD/summary.json        computed from these
    OUT/WORLD/report.html         the page

A policy's row says what ran: "adaptive" is APE-V with nothing but the log's path and a number of updates; its belief follows
next states and rewards ("model"), members' TD errors ("td"), or both. "knows the kind" is the same agent with labels in
training, certain of the right member at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from scipy.optimize import linear_sum_assignment

from apev import belief as beliefs
from apev.api import train
from apev.experiments.fleet.worlds import World
from apev.files import append_line, read_json, read_lines, write_json
from apev.policy import Policy, load
from apev.rollout import GymnasiumBatch, Rollout, rollout
from apev.worlds.files import load as load_kinds

MEMORY = ("bc-stacked", "iql-stacked", "bc-gru", "iql-gru")
LIFE = (1, 2, 5)  # episodes of a machine's life with the belief kept
SURE = 0.95


@dataclass(frozen=True)
class Cell:
    """One training."""

    name: str  # of the run folder, with its seed
    algorithm: str
    updates: int
    settings: dict[str, Any]
    labelled: bool = False  # kinds are given, not found


def cells(world: World) -> Iterator[Cell]:
    """Every training of a seed, the most telling ones first."""
    yield Cell("ape-v", "ape-v", world.updates, {})
    yield Cell("ape-v-labelled", "ape-v", world.updates, {}, labelled=True)
    for name in world.static:
        yield Cell(name, name, world.static_updates, {})
    for name in MEMORY:
        yield Cell(name, name, world.updates, {})
    base = {"base": "sac-n"} if "sac-n" in world.static else {}
    yield Cell("ape-v-printed", "ape-v", world.printed_updates, dict(world.printed) | base)


def run(
    world: World,
    out: Path,
    *,
    data: Path | None,
    seeds: Sequence[int],
    only: Sequence[str] = (),
    device: str = "cpu",
    console: Console | None = None,
) -> None:
    """Train what is missing in `out`, roll out what has not been, write episodes and traces."""
    if world.needs_data and data is None:
        raise ValueError(f"{world.name} is made from {world.needs_data}. Fix: name it with --data.")
    console = console or Console(stderr=True, highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "episodes.jsonl"
    done = {(line["policy"], line["seed"]) for line in read_lines(path)} if path.exists() else set()
    for seed in seeds:
        log, kinds = world.log(data, seed)
        for cell in cells(world):
            if only and cell.name not in only:
                continue
            folder = out / "agents" / f"{cell.name}-s{seed}"
            if not (folder / "policy" / "policy.json").exists():
                console.print(f"[bold]{world.name}, seed {seed}: {cell.name}[/bold]")
                given = kinds if cell.labelled else None
                train(
                    log, cell.algorithm, out=folder, updates=cell.updates, seed=seed, device=device, resume=True,
                    kinds=None if given is None else given.tolist(), console=console, **cell.settings,
                )  # fmt: skip
            for name, behave in policies(cell, folder, kinds, log.group, world).items():
                if (name, seed) in done:
                    continue
                for line in episodes_of(world, behave, seed):
                    append_line(path, {"policy": name, "seed": seed} | line)
                done.add((name, seed))
        note_worlds(world, out, seed, (log, kinds))
        if seed == seeds[0]:
            note_traces(world, out, seed, kinds)


Behave = Callable[[GymnasiumBatch, np.ndarray], Rollout]


def policies(cell: Cell, folder: Path, kinds: np.ndarray, group: np.ndarray, world: World) -> dict[str, Behave]:
    """{row of the table: how to roll it out} of one trained agent."""

    def plain(adapt: str = "bayes", evidence: str | None = None) -> Behave:
        def roll(batch: GymnasiumBatch, kind: np.ndarray) -> Rollout:
            policy = with_evidence(load(folder), evidence).with_adapt(adapt)
            return rollout(policy, batch, trace=policy.adapts and policy.members > 1)

        return roll

    def knowing(batch: GymnasiumBatch, kind: np.ndarray) -> Rollout:
        """Certain of the right member from the start."""
        policy = load(folder)
        member = right_member(folder, kinds)[kind]
        policy.reset(num_envs=batch.num_envs)
        policy.state.log_belief = beliefs.one_hot(torch.from_numpy(member), policy.members)
        return rollout(frozen(policy), batch, keep_belief=True)

    if cell.name == "ape-v":
        rows: dict[str, Behave] = {"adaptive": plain(), "adaptive, committed": plain("commit"), "average": plain("uniform")}
        if load(folder).agent.worlds is not None:
            rows |= {"adaptive, td": plain(evidence="td"), "adaptive, both": plain(evidence="both")}
        rows |= {"random member": plain("random-member"), "random member a step": plain("random-member-step")}
        return rows | {f"member {k}": plain(f"member:{k}") for k in range(load(folder).members)}
    if cell.name == "ape-v-labelled":
        rows = {"labels given": plain()}
        return rows if world.tested else rows | {"knows the kind": knowing}
    if cell.name == "ape-v-printed":
        return {"as printed": plain()}
    return {cell.name: plain()}


def with_evidence(policy: Policy, evidence: str | None) -> Policy:
    """The same policy with another kind of evidence."""
    if evidence is not None:
        policy.agent.config = replace(policy.agent.config, evidence=evidence)
    return policy


def frozen(policy: Policy) -> Policy:
    """A policy whose belief stays where it is, for as many environments as it runs in."""
    policy.behaviour = replace(policy.behaviour, word="member")
    return policy


def right_member(folder: Path, kinds: np.ndarray) -> np.ndarray:
    """[true kinds]: the member that stands for each, by the contexts they share."""
    found = load_kinds(folder)
    shared = np.zeros((int(kinds.max()) + 1, found.count), dtype=np.int64)
    for context, kind in zip(found.contexts, found.kind, strict=True):
        if kind >= 0:
            shared[kinds[context], kind] += 1
    return np.asarray(shared.argmax(1))


def episodes_of(world: World, behave: Behave, seed: int) -> Iterator[dict[str, Any]]:
    """One line an episode."""
    batch, kind = world.batch(world.episodes, 10_000 + seed)
    rolled = behave(batch, kind)
    for i in range(batch.num_envs):
        line: dict[str, Any] = {
            "kind": int(kind[i]),
            "episode": i,
            "return": float(rolled.returns[i]),
            "length": int(rolled.lengths[i]),
        }
        if rolled.beliefs:
            trace = np.stack(rolled.beliefs)[: rolled.lengths[i] + 1, i]  # [T + 1, K]
            line |= {"sure_of": int(trace[-1].argmax()), "certainty": round(float(trace[-1].max()), 4)}
            sure = np.flatnonzero(trace[:, trace[-1].argmax()] >= SURE)
            line["steps_to_95"] = int(sure[0]) if len(sure) else None
        yield line


def note_worlds(world: World, out: Path, seed: int, log: tuple[Any, np.ndarray]) -> None:
    """How the kinds that were found agree with the true ones."""
    folder, path = out / "agents" / f"ape-v-s{seed}", out / "worlds.jsonl"
    if not (folder / "kinds.safetensors").exists():
        return
    if path.exists() and any(line["seed"] == seed for line in read_lines(path)):
        return
    found, kinds = load_kinds(folder), log[1]
    size = max(found.count, int(kinds.max()) + 1)
    shared = np.zeros((size, size))
    for context, kind in zip(found.contexts, found.kind, strict=True):
        if kind >= 0:
            shared[kinds[context], kind] += 1
    pairs = linear_sum_assignment(-shared)
    right = float(shared[pairs].sum() / len(found.contexts))
    line = {"seed": seed, "true": len(np.unique(kinds)), "agreement": right / world.best_agreement(log), "right": right}
    append_line(path, line | found.as_json())


def note_traces(world: World, out: Path, seed: int, kinds: np.ndarray) -> None:
    """Write traces of the adaptive policy and of the blind one with the best mean return, unless they are there."""
    returns: dict[str, list[float]] = {}
    for line in read_lines(out / "episodes.jsonl") if (out / "episodes.jsonl").exists() else []:
        if line["policy"] in world.static and (out / "agents" / f"{line['policy']}-s{seed}" / "policy").exists():
            returns.setdefault(line["policy"], []).append(line["return"])
    if not returns or not (out / "agents" / f"ape-v-s{seed}" / "policy").exists():
        return
    blind = max(returns, key=lambda name: float(np.mean(returns[name])))
    if not (out / "traces.json").exists() or read_json(out / "traces.json").get("blind_policy") != blind:
        write_traces(world, out, seed, blind, kinds)


def write_traces(world: World, out: Path, seed: int, blind: str, kinds: np.ndarray) -> None:
    """An episode a kind, step by step: the adaptive policy and the best blind one, for the page."""
    about = {"world": world.name, "environment": world.environment, "seed": seed, "blind_policy": blind}
    told: dict[str, Any] = {}
    for name, run_name in (("adaptive", "ape-v"), ("blind", blind)):
        batch, kind = world.batch(1, 20_000 + seed)
        policy = load(out / "agents" / f"{run_name}-s{seed}")
        rolled = rollout(policy, batch, trace=True)
        told[name] = []
        for i, length in enumerate(rolled.lengths.tolist()):
            episode = {
                "kind": int(kind[i]),
                "return": float(rolled.returns[i]),
                "observations": steps_of(rolled.observations, i, length + 1),
                "belief": steps_of(rolled.beliefs, i, length + 1),
                "rewards": steps_of(rolled.rewards, i, length),
            }
            if policy.agent.layout.num_actions:
                episode["actions"] = steps_of(rolled.actions, i, length)
            told[name].append(episode)
    write_json(
        out / "traces.json", about | {"members": kind_of_members(out / "agents" / f"ape-v-s{seed}", kinds)} | told, indent=None
    )


def steps_of(traced: Sequence[np.ndarray], episode: int, length: int) -> list[Any]:
    """What was traced of one episode, with four digits."""
    steps: list[Any] = np.round(np.stack([np.asarray(step)[episode] for step in traced[:length]]), 4).tolist()
    return steps


def kind_of_members(folder: Path, kinds: np.ndarray) -> list[int]:
    """The true kind that most contexts of each member are of; empty where members are no kinds."""
    if not (folder / "kinds.safetensors").exists():
        return []
    found = load_kinds(folder)
    own = [kinds[found.contexts[found.kind == member]] for member in range(found.count)]
    return [int(np.bincount(each).argmax()) if len(each) else -1 for each in own]
