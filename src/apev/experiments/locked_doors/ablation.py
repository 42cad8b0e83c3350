"""What each idea does: APE-V as printed, then with the ideas added one by one, then the full recipe with one taken away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from apev.agents import APEVConfig, DQNConfig
from apev.envs import ImageSet
from apev.experiments.locked_doors import recipe as locked_doors
from apev.experiments.locked_doors.scales import (
    BEST,
    CONFIGS,
    PAPER_GAMMA,
    POLICIES,
    PRINTED,
    TRAINED_OUT,
    Entry,
    Recipe,
)
from apev.loop import Schedule

_PRINTED = replace(PRINTED, gamma=PAPER_GAMMA)
_CALIBRATED = replace(_PRINTED, likelihood="calibrated", temperature=BEST.temperature, floor=BEST.floor)
_OURS = replace(BEST, gamma=PAPER_GAMMA, wildcards=0, bootstrap=1.0)
_MASKED = replace(_OURS, bootstrap=BEST.bootstrap)

VARIANTS: dict[str, APEVConfig] = {
    "ape-v-printed": _PRINTED,
    "+ calibrated likelihood": _CALIBRATED,
    "+ own targets": replace(_CALIBRATED, targets="own"),
    "+ anchored, surprise under certainty": replace(_OURS, evidence_share=0.0),
    "+ beliefs from evidence": _OURS,
    "+ masks": _MASKED,
    "+ wildcards": replace(_MASKED, wildcards=BEST.wildcards),
    "+ beliefs from evidence, 10 members": replace(_OURS, members=10),
    "+ masks, 10 members": replace(_MASKED, members=10),
    "wildcards without masks": replace(_OURS, wildcards=BEST.wildcards),
    "wildcards of little weight": TRAINED_OUT,
}
"""Rows of the ablation, in order. Each + stands on the row above it, but for those with 10 members."""

_ENSEMBLE = replace(CONFIGS["ensemble"], gamma=PAPER_GAMMA)
ENSEMBLES: dict[str, DQNConfig] = {
    "ensemble": _ENSEMBLE,
    "ensemble with masks": replace(_ENSEMBLE, bootstrap=BEST.bootstrap),
    "ensemble, 10 members": replace(_ENSEMBLE, members=10),
}
"""Plain ensembles that were not trained to adapt: what the variants have to beat."""


def ablation_recipe(updates: int, train_images: int | None, agents: Sequence[str] = ()) -> tuple[Recipe, dict[str, Entry]]:
    """The variants and the plain ensembles, or some of them, and the rows of their table."""
    configs: dict[str, DQNConfig] = {**ENSEMBLES, **VARIANTS}
    if unknown := sorted(set(agents) - set(configs)):
        raise ValueError(f"no variant is called {', '.join(unknown)}. Fix: one of {', '.join(map(repr, configs))}.")
    recipe = Recipe(
        train_images=train_images,
        schedule=Schedule(updates=updates, eval_every=updates // 4, checkpoint_every=500),
        agents=tuple(agents) or tuple(configs),
        configs=configs,
    )
    plain = ("ape-v-eval-only", "ape-v-eval-only-committed", "random-member-step", "average", "single")
    policies = {name: Entry(name, "bayes") for name in VARIANTS} | {name: POLICIES[name] for name in plain}
    for name in ENSEMBLES:
        if name != "ensemble":
            policies[name.replace("ensemble", "eval only")] = Entry(name, "bayes")
            policies[f"{name.replace('ensemble', 'eval only')}, committed"] = Entry(name, "commit")
            policies[name.replace("ensemble", "average")] = Entry(name, "uniform")
    for name in VARIANTS:
        policies[f"{name}, committed"] = Entry(name, "commit")
    for name in ("+ beliefs from evidence", "+ masks"):
        policies[f"{name}, belief frozen"] = Entry(name, "uniform")
    return recipe, policies


def run_ablation(
    out: str | Path,
    images: ImageSet,
    *,
    seeds: Sequence[int] = (0,),
    updates: int = 16_000,
    train_images: int | None = 3000,
    agents: Sequence[str] = (),
    device: str = "cpu",
    resume: bool = False,
    meta: dict[str, Any] | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Train the variants and the plain ensembles, or some of them, on the same logs; returns the summary."""
    recipe, policies = ablation_recipe(updates, train_images, agents)
    return locked_doors.run(
        out,
        images,
        recipe,
        seeds=seeds,
        device=device,
        resume=resume,
        meta=(meta or {}) | {"scale": "ablation"},
        title="Locked Doors: what each idea does",
        console=console,
        policies=policies,
    )
