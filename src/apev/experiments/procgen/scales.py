"""What is trained on mazes at each scale: agents, their configurations, levels and updates."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from apev.agents import APEVC51Config, C51Config, C51LCBConfig
from apev.experiments.procgen.maze import HORIZON, Mode
from apev.experiments.procgen.pictures import Renderer
from apev.loop import Schedule

Scale = Literal["smoke", "cpu", "paper"]

ENLARGED = 104  # pixels a side of a hard maze's picture, so that its 25 cells are as large as an easy one's 15


@dataclass(frozen=True)
class Recipe:
    """Everything that defines a run but the seed, the number of levels and the mode."""

    renderer: Renderer = "procgen"
    held_out: float = 0.05  # share of the training levels no agent trains on: the filter's scales are measured there
    test_levels: int = 500
    seen_levels: int = 100  # training levels that are walked too
    batch: int = 32  # levels an update, or transitions where they are drawn one by one
    pictures: int | None = 2  # of each level an update shows; None: all
    by_level: bool = True
    schedule: Schedule = field(default_factory=Schedule)
    agents: tuple[str, ...] = ("ensemble", "ape-v")
    ablated: tuple[str, ...] = ("published",)  # trained with the first seed only, for the ablation
    configs: dict[str, C51Config] = field(default_factory=dict)
    curve_levels: int = 40
    horizon: int = HORIZON


_FAST: dict[str, Any] = {
    "lr": 1e-3,
    "backup_depth": 0,
    "augment": True,
    "pool": True,
    "ranking": 3.0,
}
"""What lets an agent learn in minutes what took the paper a million updates; the same for all agents."""
_BELIEF: dict[str, Any] = {"likelihood": "calibrated", "temperature": 1.0, "floor": 0.001}

CONFIGS: dict[str, C51Config] = {
    "ensemble": C51Config(**_FAST, **_BELIEF),
    "conservative": C51LCBConfig(**_FAST),
    "ape-v": replace(APEVC51Config.paper(), **_FAST, target_rate=C51Config.target_rate),
    "best": C51Config(**_FAST, **_BELIEF, views=8),
    "published": C51Config(lr=1e-3, backup_depth=0, **_BELIEF),
}
"""The agents at cpu scale. "ape-v" has the paper's filter: Dirichlet(1), two members, exp(-error^2), errors at the current
belief. "published" has the paper's network and loss: what the others' additions are worth."""

RECIPES: dict[Scale, Recipe] = {
    "smoke": Recipe(
        renderer="simple",
        held_out=0.2,
        test_levels=3,
        seen_levels=2,
        batch=2,
        pictures=4,
        schedule=Schedule(updates=3, log_every=1, eval_every=0, checkpoint_every=2),
        curve_levels=2,
        horizon=20,
        configs=CONFIGS | {"best": replace(CONFIGS["best"], views=2)},
    ),
    "cpu": Recipe(
        schedule=Schedule(updates=2500, log_every=50, eval_every=500, checkpoint_every=200, lr_decay=True),
        configs=CONFIGS,
    ),
    "paper": Recipe(
        batch=256,
        pictures=None,
        by_level=False,
        schedule=Schedule(updates=1_000_000, log_every=100, eval_every=50_000, checkpoint_every=5_000),
        agents=("ensemble", "conservative", "ape-v", "best"),
        ablated=(),
        configs={
            name: replace(config, lr=6.25e-5, backup_depth=1, target_rate=0.005)
            if name == "best"
            else replace(config, lr=6.25e-5, backup_depth=1, target_rate=0.005, augment=False, pool=False, ranking=0.0)
            for name, config in CONFIGS.items()
        },
    ),
}


def recipe_of(scale: Scale, mode: Mode) -> Recipe:
    """The recipe of a scale.

    At cpu scale hard mazes need more. A cell is 2.6 pixels wide: pictures are enlarged until cells are as large as in easy
    ones. Values are uncertain by more steps, so that ranking counts more. And they are learnt more slowly: more updates.
    """
    recipe = RECIPES[scale]
    if scale != "cpu" or mode == "easy":
        return recipe
    configs = {
        name: config if name == "published" else replace(config, enlarged=ENLARGED, ranking=10.0)
        for name, config in recipe.configs.items()
    }
    return replace(recipe, configs=configs, schedule=replace(recipe.schedule, updates=4000, eval_every=1000))
