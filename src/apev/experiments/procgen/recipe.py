"""Procgen mazes, end to end: the paper's Section 6.2 and Appendix D as one typed recipe.

For each seed two agents are trained on the same levels, a C51 ensemble and APE-V, and with the first seed an ensemble with the
published network and loss. Every policy of the table is one of them, deployed in its own way, and walks the same levels, seen
in training and unseen. Our recipe is the ensemble's networks with eight views, a belief over them and memory.

At cpu scale targets are the returns that the log proves (`backup_depth=0`): no target asks a network. The conservative ensemble
then has no training of its own, since it would train bit for bit like the plain one (a test shows it). It is those networks,
acting on mean minus standard deviation.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from apev.agents import Agent, C51Config
from apev.agents.registry import agent_of
from apev.api import Extras, train
from apev.behaviour import Adapt
from apev.data import Dataset
from apev.data.prioritised import PrioritisedSampler
from apev.data.returns import logged_returns
from apev.experiments.common.seeds import gather, keep_seed, missing, note_cost, open_folder, part_of_seed
from apev.experiments.procgen.episodes import records, walk_untaught
from apev.experiments.procgen.log import TEST_LEVELS, log_mazes, make_mazes
from apev.experiments.procgen.maze import Maze, Mode
from apev.experiments.procgen.pictures import make_renderer
from apev.experiments.procgen.replays import pick_replays
from apev.experiments.procgen.report import print_mazes, summarise_mazes, write_mazes
from apev.experiments.procgen.scales import CONFIGS, Recipe
from apev.experiments.procgen.world import BatchedMaze
from apev.files import read_lines, write_json
from apev.loop import Evaluator
from apev.policy import Policy
from apev.progress import progress_bar
from apev.rollout import rollout

CHUNK = 100  # mazes walked at a time: their pictures, both gazes, fill at most 350 MB
CURVE_LEVELS = 2_000_000  # learning curves and choices of settings use levels from here on, never the test's


@dataclass(frozen=True)
class Entry:
    """A row of the table: which agent, what its belief does, and whether actions are greedy or drawn."""

    agent: str
    adapt: Adapt
    greedy: bool = True
    remember: bool = False  # values of steps already taken come from what they led to
    changes: dict[str, Any] = field(default_factory=dict)  # of the agent's configuration, at deployment


DRAWN = {"softness": 0.3}
"""In steps: how sharply rows that draw their actions do so. Of .05 and .3, tried on other levels, .3 was the better one."""

POLICIES: dict[str, Entry] = {
    "ape-v": Entry("ape-v", "bayes"),
    "ape-v-best": Entry("best", "bayes", remember=True),
    "single": Entry("ensemble", "member:0"),
    "conservative": Entry("conservative", "uniform"),
    "average": Entry("ensemble", "uniform"),
    # What each idea brings: all but the rows that say otherwise ask the ensemble's networks.
    "published network and loss, average": Entry("published", "uniform"),
    "average, adapting": Entry("ensemble", "bayes"),
    "average, adapting, categorical likelihood": Entry("ensemble", "bayes", changes={"judged_by": "categorical"}),
    "average, adapting, printed likelihood": Entry("ensemble", "bayes", changes={"likelihood": "paper", "floor": 0.0}),
    "ape-v, frozen": Entry("ape-v", "uniform"),
    "single, drawn": Entry("ensemble", "member:0", greedy=False, changes=DRAWN),
    "conservative, drawn": Entry("conservative", "uniform", greedy=False, changes=DRAWN),
    "average, drawn": Entry("ensemble", "uniform", greedy=False, changes=DRAWN),
    "average, adapting, drawn": Entry("ensemble", "bayes", greedy=False, changes=DRAWN),
    "ape-v, drawn": Entry("ape-v", "bayes", greedy=False, changes=DRAWN),
    "eight views, frozen": Entry("best", "uniform"),
    "eight views, adapting": Entry("best", "bayes"),
    "eight views, random member a step": Entry("best", "random-member-step"),
    "eight views, frozen, drawn": Entry("best", "uniform", greedy=False, changes=DRAWN),
    "eight views, adapting, drawn": Entry("best", "bayes", greedy=False, changes=DRAWN),
    "memory, single": Entry("ensemble", "member:0", remember=True),
    "memory, average": Entry("ensemble", "uniform", remember=True),
    "memory, eight views, frozen": Entry("best", "uniform", remember=True),
    "memory, published network and loss, average": Entry("published", "uniform", remember=True),
    "memory, untrained networks": Entry("untrained", "uniform", remember=True),
}
"""The table's five, then the ablation's."""


def build_agent(config: C51Config, **given: Any) -> Agent:
    """The agent of this configuration, from a data set or a layout."""
    kind = agent_of(config)
    if "dataset" in given:
        return kind.for_data(given["dataset"], config, seed=given["seed"])
    return kind(given["layout"], config)


def make_sampler(dataset: Dataset, recipe: Recipe, config: C51Config, device: str, seed: int) -> PrioritisedSampler:
    """Levels, or transitions, by priority. Whole levels where targets look at what follows, else some pictures of each."""
    returns = logged_returns(dataset, config.gamma, config.reward_shift) if config.backup_depth == 0 else None
    return PrioritisedSampler(
        dataset,
        recipe.batch,
        by_context=recipe.by_level,
        pictures=None if returns is None else recipe.pictures,
        returns=returns,
        device=device,
        seed=seed,
    )


def deployed(trained: Agent, config: C51Config, changes: dict[str, Any]) -> Agent:
    """A trained agent's networks under another configuration of its deployment."""
    agent = build_agent(replace(config, **changes), layout=trained.layout)
    state = trained.policy_state()
    members = agent.members
    scale = state["scale"]
    agent.load_policy_state(state | {"scale": scale[:members] if members <= len(scale) else scale.mean().expand(members)})
    agent.to_device(trained.device)
    return agent


# ---------------------------------------------------------------------- one seed


def begin(out: Path, recipe: Recipe, mode: Mode, levels: int, resume: bool) -> None:
    """Make the folder or go on with it; a missing Procgen is named before any work."""
    make_renderer(recipe.renderer, mode)
    open_folder(out, asdict(recipe) | {"mode": mode, "levels": levels}, resume)


def trained_with(recipe: Recipe, seed: int) -> tuple[str, ...]:
    """The agents that are trained with a seed."""
    return recipe.agents + (recipe.ablated if seed == 0 else ())


def agent_folder(out: Path, name: str, seed: int) -> Path:
    """The run folder of an agent."""
    return out / "agents" / f"{name}-{seed}"


def logs(mazes: list[Maze], recipe: Recipe, seed: int, console: Console) -> tuple[Dataset, Dataset]:
    """A seed's log: what agents train on, and what is held out."""
    with progress_bar(console) as progress:
        track = progress.track(mazes, description="drawing levels")
        dataset = log_mazes(mazes, recipe.renderer, seed=seed, track=track)
    return dataset.split(recipe.held_out, seed)


def train_agent(
    out: Path,
    log: tuple[Dataset, Dataset],
    recipe: Recipe,
    mode: Mode,
    levels: int,
    name: str,
    seed: int,
    device: str,
    resume: bool,
    console: Console,
) -> Agent:
    """Train one agent of a seed, unless it is there."""
    folder, began = agent_folder(out, name, seed), time.monotonic()
    if not (folder / "policy" / "policy.json").exists():
        extras = Extras(
            sampler=lambda log, config: make_sampler(log, recipe, config, device, seed),
            evaluator=curve_evaluator(name, recipe, mode, seed),
            schedule=recipe.schedule,
            facts={"agent": name, "seed": seed, "mode": mode, "levels": levels},
            held_out=log[1],
            title=f"{mode} {levels}, seed {seed}: {name}",
        )
        given: dict[str, Any] = {"out": folder, "seed": seed, "device": device, "resume": resume, "console": console}
        train(log[0], config=recipe.configs.get(name, CONFIGS[name]), extras=extras, **given)
        note_cost(out, seed, name, began)
    return Policy.load(folder, device=device).agent


def run_seed(
    out: Path, recipe: Recipe, mode: Mode, levels: int, seed: int, device: str, resume: bool, console: Console
) -> None:
    """Log, train and walk; the result of a seed is one file, written when all of it is there."""
    mazes = make_mazes(0, levels, mode)
    log = logs(mazes, recipe, seed, console)
    curves: list[dict[str, Any]] = []
    agents: dict[str, Agent] = {}
    for name in trained_with(recipe, seed):
        agents[name] = train_agent(out, log, recipe, mode, levels, name, seed, device, resume, console)
        curves += read_lines(agent_folder(out, name, seed) / "curves.jsonl")
    began, dataset = time.monotonic(), log[0]
    for name in ("conservative", "best"):  # the ensemble's networks, deployed otherwise
        if name not in agents:
            agents[name] = deployed(agents["ensemble"], recipe.configs.get(name, CONFIGS[name]), {})
    agents["untrained"] = build_agent(agents["ensemble"].config, dataset=dataset, seed=seed)
    agents["untrained"].to_device(device)
    seen = [mazes[i] for i in np.unique(dataset.group)][: recipe.seen_levels]  # held-out levels are not training levels
    del dataset, log
    lines: list[dict[str, Any]] = []
    replays: list[dict[str, Any]] = []
    shown = {"test": make_mazes(TEST_LEVELS, recipe.test_levels, mode), "train": seen}
    with progress_bar(console) as progress:
        task = progress.add_task(f"{mode} {levels}, seed {seed}: walking", total=sum(len(part) for part in shown.values()))
        for split, part in shown.items():
            for policy in ("random-walk", "dfs"):
                lines += walk_untaught(policy, part, seed, split, recipe.horizon)
            for at in range(0, len(part), CHUNK):
                some = part[at : at + CHUNK]
                found = part_of_seed(out, seed, f"{split}-{at}", partial(walk_part, agents, some, recipe, split, seed, at == 0))
                lines += found["episodes"]
                replays += found["replays"]
                progress.advance(task, len(some))
    keep_seed(out, seed, began, {"episodes": lines, "curves": curves, "replays": replays})


def known_tests(mode: Mode, levels: int, tests: int) -> float:
    """The share of test levels whose walls and cheese are those of a training level: the smallest mazes are few."""
    seen = {(maze.grid.tobytes(), maze.goal) for maze in make_mazes(0, levels, mode)}
    return float(np.mean([(maze.grid.tobytes(), maze.goal) in seen for maze in make_mazes(TEST_LEVELS, tests, mode)]))


def walk_part(
    agents: dict[str, Agent], mazes: list[Maze], recipe: Recipe, split: str, seed: int, first: bool
) -> dict[str, Any]:
    """The episodes of every policy in these mazes; the first test levels of the first seed are shown in the report, too."""
    env = BatchedMaze(mazes, recipe.renderer, horizon=recipe.horizon)
    lines = list(walk(agents, env, split, seed, ablations=split == "test"))
    return {"episodes": lines, "replays": pick_replays(agents["best"], env) if first and split == "test" and seed == 0 else []}


def walk(agents: dict[str, Agent], env: BatchedMaze, split: str, seed: int, ablations: bool) -> Iterator[dict[str, Any]]:
    """Every policy of the table in these mazes; those of the ablation where asked for."""
    seen: dict[str, Policy] = {}  # pictures are encoded once for all policies of an agent
    for number, (name, entry) in enumerate(POLICIES.items()):
        if entry.agent not in agents or (number >= 5 and not ablations):
            continue
        agent = agents[entry.agent]
        policy = Policy(deployed(agent, agent.config, entry.changes), entry.adapt, seed=seed, remember=entry.remember)
        if entry.agent in seen:
            policy.share_encodings(seen[entry.agent])
        seen[entry.agent] = policy
        result = rollout(policy, env, deterministic=entry.greedy)
        yield from records(name, split, seed, env, result.success, result.lengths)


def curve_evaluator(name: str, recipe: Recipe, mode: Mode, seed: int) -> Evaluator:
    """During training: success on some unseen levels, adapting and frozen. Views are left out, they take time."""
    mazes = make_mazes(CURVE_LEVELS, recipe.curve_levels, mode)
    env = BatchedMaze(mazes, recipe.renderer, horizon=recipe.horizon)

    def evaluate(agent: Agent, update: int) -> list[dict[str, Any]]:
        changes = {"views": 1} if agent.config.views > 1 else {}
        policy = Policy(deployed(agent, agent.config, changes))
        lines = []
        for adapt in ("uniform", "bayes"):
            policy = policy.with_adapt(adapt)
            success = float(rollout(policy, env).success.mean())
            lines.append({"policy": name, "adapt": adapt == "bayes", "seed": seed, "success": success, "episodes": len(mazes)})
        return lines

    return evaluate


# ---------------------------------------------------------------------- the whole


def run(
    out: str | Path,
    recipe: Recipe,
    *,
    mode: Mode,
    levels: int,
    seeds: Sequence[int] = (0,),
    only_seed: int | None = None,
    device: str = "cpu",
    resume: bool = False,
    meta: dict[str, Any] | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Train, walk and report; returns the summary. Finished parts are not done again when resumed.

    `only_seed` does the work of one seed and no report.
    """
    out, console = Path(out), console or Console(stderr=True)
    begin(out, recipe, mode, levels, resume)
    for seed in missing(out, seeds if only_seed is None else [only_seed]):
        run_seed(out, recipe, mode, levels, seed, device, resume, console)
    if only_seed is not None:
        return {}
    episodes, replays, cost = gather(out, seeds)
    write_json(out / "replays.json", {"replays": replays}, indent=None)
    summary = {
        "kind": "procgen",
        "title": f"Procgen mazes, {mode}, {levels} training levels",
        "mazes": {"mode": mode, "levels": levels, "known_tests": known_tests(mode, levels, recipe.test_levels)},
        "policies": summarise_mazes(episodes),
        "meta": {
            "renderer": recipe.renderer,
            "device": device,
        }
        | cost
        | (meta or {}),
    }
    write_json(out / "summary.json", summary)
    print_mazes(summary)
    console.print(f"Open [bold]{write_mazes(out)}[/bold] in a browser.")
    return summary
