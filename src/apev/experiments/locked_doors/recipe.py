"""Locked Doors, end to end: the paper's Section 6.1 and Appendix C as one typed recipe.

For each seed the log is collected, the agents are trained on it, and every policy walks the same test episodes. What is
written is data (episodes, curves, replays); the table, the figures and the page are computed from those files.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from apev.agents import Agent
from apev.agents.discrete.base import QAgent
from apev.api import Extras, train
from apev.data import Dataset, Sampler
from apev.envs import ImageSet, Room, collect
from apev.experiments.common.charts import write_figures
from apev.experiments.common.seeds import gather, keep_seed, missing, note_cost, open_folder
from apev.experiments.common.tables import print_table, summarise
from apev.experiments.locked_doors.episodes import TestEpisodes, oracle_rollout
from apev.experiments.locked_doors.failures import failures
from apev.experiments.locked_doors.filmstrip import write_filmstrip
from apev.experiments.locked_doors.page import write_report
from apev.experiments.locked_doors.paths import paths
from apev.experiments.locked_doors.replays import pick_replays
from apev.experiments.locked_doors.scales import POLICIES, Entry, Recipe
from apev.files import read_lines, write_json
from apev.loop import Evaluator
from apev.policy import Policy
from apev.rollout import Rollout, rollout

# ---------------------------------------------------------------------- one seed


def limited(images: ImageSet, recipe: Recipe) -> ImageSet:
    """As many images of each split as the recipe asks for, the same number of each class."""

    def first(labels: np.ndarray, count: int | None) -> np.ndarray:
        if count is None or count >= len(labels):
            return np.arange(len(labels))
        each = [np.flatnonzero(labels == c)[: -(-count // 4)] for c in range(4)]
        return np.sort(np.concatenate(each))[:count]

    train_rows, test_rows = first(images.train_labels, recipe.train_images), first(images.test_labels, recipe.test_images)
    return replace(
        images,
        train_images=images.train_images[train_rows],
        train_labels=images.train_labels[train_rows],
        test_images=images.test_images[test_rows],
        test_labels=images.test_labels[test_rows],
    )


@torch.no_grad()
def member_doors(agent: QAgent, pictures: np.ndarray, room: Room) -> np.ndarray:
    """[K, P]: the door each member would expect to be open, were it trusted alone."""
    table = torch.as_tensor(pictures, device=agent.device).permute(0, 3, 1, 2)
    parts = [agent.encode(part) for part in table.split(512)]
    features = torch.cat([part for part in parts if part is not None], dim=1)  # [K, P, F]
    count = len(pictures)
    certain = torch.eye(agent.members, device=agent.device)[:, None].expand(-1, count, -1)
    values = []
    for door, (x, y) in enumerate(room.door_cells):
        vector = torch.as_tensor(room.one_hot(np.full(count, x), np.full(count, y)), device=agent.device)
        values.append(agent.net(features, vector, certain)[..., door])
    return torch.stack(values, -1).argmax(-1).cpu().numpy()


def records(
    policy: str, seed: int, episodes: TestEpisodes, result: Rollout, doors: np.ndarray | None, seeing: int
) -> Iterator[dict[str, Any]]:
    """One line an episode; the episodes are those just walked."""
    for i, picture in enumerate(episodes.picture):
        label = int(episodes.labels[picture])
        yield {
            "policy": policy,
            "seed": seed,
            "episode": i,
            "return": float(result.returns[i]),
            "success": bool(result.success[i]),
            "length": int(result.lengths[i]),
            "members_correct": None if doors is None else int((doors[:seeing, picture] == label).sum()),
            "members": seeing,
            "label": label,
            "picture": int(picture),
            "stalled": bool(result.stalled[i]),
            "start": episodes.positions[i].tolist(),
            "tries": episodes.tries(i),
        }


def curve_evaluator(
    name: str, policies: dict[str, Entry], images: ImageSet, recipe: Recipe, seed: int, room: Room
) -> Evaluator:
    """During training: the success of each policy that this agent carries, on some of the test images."""
    rows = np.random.default_rng(0).permutation(len(images.test_labels))[: recipe.eval_images]
    episodes = TestEpisodes(images.test_images[rows], images.test_labels[rows], 1, seed, room)
    shown = [
        policy
        for policy, entry in policies.items()
        if entry.agent == name and not str(entry.adapt).startswith("random") and not entry.filter
    ]

    def evaluate(agent: Agent, update: int) -> list[dict[str, Any]]:
        lines = []
        for policy in shown:
            entry = policies[policy]
            result = rollout(Policy(agent, entry.adapt), episodes, deterministic=entry.greedy)
            line = {"policy": policy, "seed": seed, "success": float(result.success.mean()), "episodes": len(rows)}
            lines.append(line)
        return lines

    return evaluate


# ---------------------------------------------------------------------- the whole


def run(
    out: str | Path,
    images: ImageSet,
    recipe: Recipe,
    *,
    seeds: Sequence[int] = (0,),
    device: str = "cpu",
    resume: bool = False,
    meta: dict[str, Any] | None = None,
    title: str = "Locked Doors",
    console: Console | None = None,
    policies: dict[str, Entry] | None = None,
    only_seed: int | None = None,
) -> dict[str, Any]:
    """Train, evaluate and report; returns the summary. Finished parts are not done again when resumed.

    `only_seed` does the work of one seed and no report, so that several processes can share the seeds of one folder.
    """
    out, console, began = Path(out), console or Console(stderr=True), time.monotonic()
    images, room = begin(out, images, recipe, resume), Room()
    for seed in missing(out, seeds if only_seed is None else [only_seed]):
        run_seed(out, images, recipe, policies or POLICIES, seed, room, device, resume, console)
    if only_seed is not None:
        return {}
    episodes, replays, cost = gather(out, seeds)
    shown = {"size": room.size, "doors": room.door_cells.tolist(), "actions": ["up", "right", "down", "left"]}
    write_json(out / "replays.json", {"room": shown, "classes": list(images.classes), "replays": replays}, indent=None)
    summary = {
        "kind": "locked-doors",
        "title": title,
        "policies": summarise(episodes),
        "paths": paths(episodes, room),
        "failures": failures(episodes),
        "members": recipe.config("ape-v").members,
        "meta": {
            "train_images": len(images.train_labels),
            "test_images": len(images.test_labels),
            "updates": recipe.schedule.updates,
            "images": images.source,
            "device": device,
        }
        | cost
        | (meta or {}),
    }
    write_json(out / "summary.json", summary)
    write_figures(out)
    write_filmstrip(out)
    page = write_report(out)
    print_table(summary)
    console.print(
        f"{time.monotonic() - began:.0f} s. Open [bold]{page}[/bold] in a browser to watch the agent change its mind."
    )
    return summary


def begin(out: Path, images: ImageSet, recipe: Recipe, resume: bool) -> ImageSet:
    """Make the folder or go on with it, with other agents too; returns the images that the recipe asks for."""
    images = limited(images, recipe)
    asked = asdict(recipe) | {"images": images.source, "train": len(images.train_labels)}
    open_folder(out, asked, resume, may_change="agents")
    return images


def agent_folder(out: Path, name: str, seed: int) -> Path:
    """The run folder of an agent."""
    return out / "agents" / f"{name}-{seed}"


def logs(images: ImageSet, room: Room, recipe: Recipe, seed: int) -> tuple[Dataset, Dataset]:
    """A seed's log: what agents train on, and what is held out."""
    columns = collect(images, room, recipe.episodes_per_image, seed=seed)
    return Dataset.from_arrays(**columns, num_actions=4).split(recipe.held_out, seed)


def train_agent(
    out: Path,
    log: tuple[Dataset, Dataset],
    images: ImageSet,
    recipe: Recipe,
    policies: dict[str, Entry],
    name: str,
    seed: int,
    room: Room,
    device: str,
    resume: bool,
    console: Console | None,
) -> Policy:
    """Train one agent of a seed, unless it is there."""
    folder, began = agent_folder(out, name, seed), time.monotonic()
    if (folder / "policy" / "policy.json").exists():
        return Policy.load(folder, device=device)

    def sampler(log: Dataset, config: Any) -> Sampler:
        groups, rows = recipe.batch_groups, recipe.per_group
        return Sampler(log, batch_groups=groups, per_group=rows, device=device, seed=seed)

    extras = Extras(
        sampler=sampler,
        evaluator=curve_evaluator(name, policies, images, recipe, seed, room),
        schedule=recipe.schedule,
        facts={"agent": name, "seed": seed},
        held_out=log[1],
        title=f"seed {seed}: {name}",
    )
    given: dict[str, Any] = {"out": folder, "seed": seed, "device": device, "resume": resume, "console": console}
    trained = train(log[0], config=recipe.config(name), extras=extras, **given)
    note_cost(out, seed, name, began)
    return trained


def run_seed(
    out: Path,
    images: ImageSet,
    recipe: Recipe,
    policies: dict[str, Entry],
    seed: int,
    room: Room,
    device: str,
    resume: bool,
    console: Console,
) -> None:
    """Collect, train and evaluate one seed; its result is one file, written when all of it is there."""
    log = logs(images, room, recipe, seed)
    agents: dict[str, QAgent] = {}
    curves: list[dict[str, Any]] = []
    for name in recipe.agents:
        trained = train_agent(out, log, images, recipe, policies, name, seed, room, device, resume, console)
        agents[name] = trained.agent  # type: ignore[assignment]
        curves += read_lines(agent_folder(out, name, seed) / "curves.jsonl")

    began = time.monotonic()
    episodes = TestEpisodes(images.test_images, images.test_labels, recipe.starts, seed, room)
    oracle = oracle_rollout(episodes)
    lines = list(records("oracle", seed, episodes, oracle, None, 0))
    doors = {name: member_doors(agent, images.test_images, room) for name, agent in agents.items()}
    for policy, entry in policies.items():
        if entry.agent not in agents:
            continue
        agent = agents[entry.agent]
        deployed = Policy(agent, entry.adapt, seed=seed)
        deployed.filter = entry.filter or deployed.filter
        result = rollout(deployed, episodes, deterministic=entry.greedy)
        lines += records(policy, seed, episodes, result, doors[entry.agent], agent.config.members)
    replays = pick_replays(agents, doors, episodes) if seed == 0 else []
    keep_seed(out, seed, began, {"episodes": lines, "curves": curves, "replays": replays})
