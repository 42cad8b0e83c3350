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
from apev.experiments.locked_doors.recipe import BEST, PRINTED, Entry, Recipe
from apev.loop import Schedule

_CALIBRATED = replace(PRINTED, likelihood="calibrated", temperature=BEST.temperature, floor=BEST.floor)
_MASKED = replace(_CALIBRATED, bootstrap=BEST.bootstrap)

VARIANTS: dict[str, APEVConfig] = {
    "ape-v-printed": PRINTED,
    "+ calibrated likelihood": _CALIBRATED,
    "+ bootstrap masks": _MASKED,
    "+ masks and randomised priors": replace(_MASKED, prior_scale=1.0),
    "+ masks, anchored, surprise under certainty": replace(BEST, wildcards=0, evidence_share=0.0),
    "+ beliefs from evidence": replace(BEST, wildcards=0),
    "ape-v": BEST,
    "ape-v without masks": replace(BEST, bootstrap=1.0),
    "ape-v with beliefs from the Dirichlet": replace(BEST, evidence_share=0.0),
    "ape-v with discount .98": replace(BEST, gamma=0.98),
    "ape-v with randomised priors": replace(BEST, prior_scale=1.0),
}
"""Rows of the ablation, in order."""


def run_ablation(
    out: str | Path,
    images: ImageSet,
    *,
    seeds: Sequence[int] = (0,),
    updates: int = 1200,
    train_images: int | None = 1000,
    device: str = "cpu",
    resume: bool = False,
    meta: dict[str, Any] | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Train every variant and the plain ensemble on the same logs; returns the summary."""
    ensemble = locked_doors.CONFIGS["ensemble"]
    configs: dict[str, DQNConfig] = {"ensemble": ensemble, "ensemble .98": replace(ensemble, gamma=0.98), **VARIANTS}
    recipe = Recipe(
        train_images=train_images,
        schedule=Schedule(updates=updates, eval_every=updates // 4, checkpoint_every=500, lr_decay=True),
        agents=tuple(configs),
        configs=configs,
    )
    policies = {name: Entry(name, "bayes") for name in VARIANTS} | {
        name: locked_doors.POLICIES[name] for name in ("ape-v-eval-only", "random-member-step", "average", "single")
    }
    policies["average with discount .98"] = Entry("ensemble .98", "uniform")
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
