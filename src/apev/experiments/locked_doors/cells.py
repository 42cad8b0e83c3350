"""The trainings of Locked Doors as cells, and the evaluation of each seed when they are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rich.console import Console

from apev.cells import Cell
from apev.data import Dataset
from apev.envs import ImageSet, Room, load_images
from apev.experiments.common.seeds import missing
from apev.experiments.locked_doors.ablation import ablation_recipe
from apev.experiments.locked_doors.recipe import agent_folder, limited, logs, run_seed, train_agent
from apev.experiments.locked_doors.scales import POLICIES, RECIPES, Entry, Recipe, Scale


@dataclass(frozen=True)
class Asked:
    """What a command asks for, as plain data."""

    scale: Scale | None = None  # None: the ablation
    agents: tuple[str, ...] = ()  # some of them; none: the scale's, or all of the ablation's
    updates: int = 0  # of the ablation
    train_images: int = 0

    def recipe(self) -> tuple[Recipe, dict[str, Entry]]:
        """The recipe, and the rows of its table."""
        if self.scale is None:
            return ablation_recipe(self.updates, self.train_images, self.agents)
        recipe = RECIPES[self.scale]
        return replace(recipe, agents=self.agents) if self.agents else recipe, POLICIES


def trainings(out: Path, asked: Asked, images: str | None, seeds: Sequence[int], device: str) -> list[Cell]:
    """A cell for every agent of every seed that is not there yet."""
    found = []
    for seed in missing(out, seeds):
        for agent in asked.recipe()[0].agents:
            folder = agent_folder(out, agent, seed)
            if not (folder / "policy" / "policy.json").exists():
                given = _plain(asked, images, seed, device) | {"agent": agent, "out": str(out)}
                found.append(Cell(f"seed {seed}: {agent}", "locked-doors", given, folder))
    return found


def evaluations(out: Path, asked: Asked, images: str | None, seeds: Sequence[int], device: str) -> list[Cell]:
    """A cell for every seed that is not there yet; its agents are."""
    given = {seed: _plain(asked, images, seed, device) for seed in missing(out, seeds)}
    return [Cell(f"seed {seed}: evaluation", "locked-doors seed", plain, out) for seed, plain in given.items()]


def _plain(asked: Asked, images: str | None, seed: int, device: str) -> dict[str, Any]:
    return {"asked": vars(asked) | {"agents": list(asked.agents)}, "images": images, "seed": seed, "device": device}


@lru_cache(maxsize=1)
def _pictures(images: str | None, asked: Asked) -> ImageSet:
    return limited(load_images(images), asked.recipe()[0])


@lru_cache(maxsize=1)
def _log(images: str | None, asked: Asked, seed: int) -> tuple[Dataset, Dataset]:
    return logs(_pictures(images, asked), Room(), asked.recipe()[0], seed)


def train_cell(folder: Path, out: str, asked: dict[str, Any], images: str | None, seed: int, device: str, agent: str) -> None:
    """Train one agent."""
    known = Asked(**asked | {"agents": tuple(asked["agents"])})
    recipe, policies = known.recipe()
    pictures, log = _pictures(images, known), _log(images, known, seed)
    train_agent(Path(out), log, pictures, recipe, policies, agent, seed, Room(), device, True, None)


def seed_cell(folder: Path, asked: dict[str, Any], images: str | None, seed: int, device: str) -> None:
    """Evaluate the agents of a seed."""
    known = Asked(**asked | {"agents": tuple(asked["agents"])})
    recipe, policies = known.recipe()
    run_seed(folder, _pictures(images, known), recipe, policies, seed, Room(), device, True, Console(stderr=True))
