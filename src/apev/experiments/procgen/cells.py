"""The trainings on mazes as cells, and the walks of each seed when they are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rich.console import Console

from apev.cells import Cell
from apev.data import Dataset
from apev.experiments.common.seeds import missing
from apev.experiments.procgen.log import make_mazes
from apev.experiments.procgen.maze import Mode
from apev.experiments.procgen.pictures import Renderer
from apev.experiments.procgen.recipe import agent_folder, logs, run_seed, train_agent, trained_with
from apev.experiments.procgen.scales import CONFIGS, Recipe, Scale, recipe_of


@dataclass(frozen=True)
class Asked:
    """What a command asks for, as plain data."""

    scale: Scale
    mode: Mode
    levels: int
    renderer: Renderer | None = None  # instead of the scale's
    backup_depth: int | None = None

    def recipe(self) -> Recipe:
        """The scale's, with what is asked for instead."""
        recipe = recipe_of(self.scale, self.mode)
        if self.renderer is not None:
            recipe = replace(recipe, renderer=self.renderer)
        if self.backup_depth is None:
            return recipe
        configs = CONFIGS | recipe.configs
        deep = {name: replace(config, backup_depth=self.backup_depth) for name, config in configs.items()}
        agents = tuple(dict.fromkeys((*recipe.agents, "conservative")))  # its targets now differ from the ensemble's
        return replace(recipe, configs=deep, agents=agents)


def trainings(out: Path, asked: Asked, seeds: Sequence[int], device: str) -> list[Cell]:
    """A cell for every agent of every seed that is not there yet."""
    found = []
    for seed in missing(out, seeds):
        for agent in trained_with(asked.recipe(), seed):
            folder = agent_folder(out, agent, seed)
            if not (folder / "policy" / "policy.json").exists():
                given = {"asked": vars(asked), "seed": seed, "device": device, "agent": agent, "out": str(out)}
                found.append(Cell(f"seed {seed}: {agent}", "procgen", given, folder))
    return found


def walks(out: Path, asked: Asked, seeds: Sequence[int], device: str) -> list[Cell]:
    """A cell for every seed that is not there yet; its agents are."""
    given = {seed: {"asked": vars(asked), "seed": seed, "device": device} for seed in missing(out, seeds)}
    return [Cell(f"seed {seed}: walking", "procgen seed", plain, out) for seed, plain in given.items()]


@lru_cache(maxsize=1)
def _log(asked: Asked, seed: int) -> tuple[Dataset, Dataset]:
    return logs(make_mazes(0, asked.levels, asked.mode), asked.recipe(), seed, Console(stderr=True))


def train_cell(folder: Path, out: str, asked: dict[str, Any], seed: int, device: str, agent: str) -> None:
    """Train one agent."""
    known, console = Asked(**asked), Console(stderr=True)
    log = _log(known, seed)
    train_agent(Path(out), log, known.recipe(), known.mode, known.levels, agent, seed, device, True, console)


def seed_cell(folder: Path, asked: dict[str, Any], seed: int, device: str) -> None:
    """Walk with the agents of a seed."""
    known = Asked(**asked)
    run_seed(folder, known.recipe(), known.mode, known.levels, seed, device, True, Console(stderr=True))
