"""How pessimistic should the LCB ensemble of Locked Doors be? Its beta, tried on photographs that no table tests on.

    python benchmarks/lcb_beta.py --images cifar10_vehicles.npz --betas .03 .1 .3 1 --updates 4000

The paper does not give beta. Each one is trained like the agents of `--scale small` (3,000 photographs, discount .98), but for
fewer updates, and walks rooms with training photographs that are not among the 3,000. What is found best is the `beta` of that
scale. The last line is JSON; --out keeps it. The trainings stay in --runs, so that one that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from apev.agents import LCBConfig
from apev.envs import ImageSet, load_images
from apev.experiments.common.provenance import keep_answer
from apev.experiments.locked_doors.recipe import limited, run
from apev.experiments.locked_doors.scales import PAPER_GAMMA, RECIPES, Entry, Recipe
from apev.machine import Machine


def main() -> None:
    """Train and try each beta."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--images", default=None, help="more training photographs than are trained on; the small set we ship if none"
    )
    parser.add_argument("--betas", nargs="+", type=float, default=[0.03, 0.1, 0.3, 1.0])
    parser.add_argument("--updates", type=int, default=4000)
    parser.add_argument("--tested", type=int, default=2000, help="photographs that each is tried on")
    parser.add_argument("--train-images", type=int, default=RECIPES["small"].train_images)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs/lcb-beta"))
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    Machine(threads=1).use()
    schedule = replace(RECIPES["small"].schedule, updates=asked.updates, eval_every=asked.updates)
    recipe = replace(RECIPES["small"], train_images=asked.train_images, schedule=schedule, agents=("lcb",))
    images = unseen(load_images(asked.images), recipe, asked.tested)
    found = {}
    for beta in asked.betas:
        this = replace(recipe, configs={"lcb": LCBConfig(gamma=PAPER_GAMMA, beta=beta)})
        folder, quiet = asked.runs / f"{beta:g}", Console(stderr=True)
        done = run(folder, images, this, seeds=[asked.seed], resume=folder.exists(), console=quiet, policies=POLICIES)
        found[f"{beta:g}"] = {key: done["policies"]["lcb"][key] for key in ("success", "ci95", "stalled", "mean_length")}
    answer = {"benchmark": "lcb_beta", "updates": asked.updates, "seed": asked.seed, "photographs": len(images.test_labels)}
    answer |= {"success_by_beta": found, "best": max(found, key=lambda beta: found[beta]["success"])}
    keep_answer(asked.out, answer)
    print(json.dumps(answer))


POLICIES = {"lcb": Entry("lcb", "uniform")}


def unseen(images: ImageSet, recipe: Recipe, count: int) -> ImageSet:
    """The same images to train on, and others of the training split to test on."""
    first = limited(images, recipe)
    used = {picture.tobytes() for picture in first.train_images}
    rest = np.array([row for row, picture in enumerate(images.train_images) if picture.tobytes() not in used])
    rows = np.random.default_rng(0).permutation(rest)[:count]
    return replace(first, test_images=images.train_images[rows], test_labels=images.train_labels[rows])


if __name__ == "__main__":
    main()
