"""`apev collect`: D4RL-style data by D4RL's recipe.

random          roll-outs of an untrained policy
medium          roll-outs of a policy about a third of the way to an expert
medium-replay   all that agent saw until it was that good
expert          roll-outs of the agent at the end of its training
medium-expert   half and half
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro
from rich.console import Console

import apev
from apev.agents import SACConfig
from apev.data import Dataset
from apev.data.scores import normalise, of_source
from apev.files import read_json, write_json, write_lines
from apev.machine import Machine

Kind = Literal["random", "medium", "medium-replay", "medium-expert", "expert"]


@dataclass(frozen=True, kw_only=True)
class Collect(Machine):
    """Make a log by D4RL's recipe in a Gymnasium environment: SAC learns online, and its attempts or roll-outs are kept."""

    env: tyro.conf.Positional[str] = "Pendulum-v1"
    """A Gymnasium id with Box observations and actions. HalfCheetah-v4, Hopper-v4 and Walker2d-v4 are D4RL's robots.
    `apev collect maze` logs Procgen's mazes instead."""
    kind: Kind = "medium-replay"
    """random, medium, expert: roll-outs of an untrained, a half-good, a trained policy; medium-replay: all that an agent saw
    until it was half-good; medium-expert: half of each."""
    out: Path | None = None
    """Folder: the teacher goes to OUT/teacher, the log to OUT/KIND/data.npz with card.json. Default: runs/collect/ENV-sSEED."""
    steps: int | None = None
    """Rows of a log of roll-outs: 1,000,000 for D4RL's robots, 20,000 elsewhere unless given."""
    train_steps: int | None = None
    """How long SAC may learn online: 1,000,000 for D4RL's robots, 20,000 elsewhere unless given."""
    medium_return: float | None = None
    """The return of a medium policy. Unless given: a third of the way from D4RL's random to its expert reference; elsewhere a
    third of the way from the untrained to the best policy, which takes the whole training to know."""
    seed: int = 0
    """Decides every random number."""
    resume: bool = False
    """Go on with an interrupted training; one that is finished serves further kinds."""

    def run(self) -> None:
        """Train the teacher, then write the log and its card."""
        from apev.collect.online import OnlineConfig, OnlineSAC
        from apev.collect.record import record
        from apev.experiments.common.provenance import provenance

        self.use()
        out = self.out or Path("runs/collect") / f"{self.env.replace('/', '-')}-s{self.seed}"
        folder = out / self.kind
        if (folder / "data.npz").exists():
            raise FileExistsError(f"{folder} already holds a log. Fix: name another --out.")
        source: dict[str, Any] = {"environment": self.env}
        reference = of_source(source)
        robot = reference is not None
        train_steps = self.train_steps or (1_000_000 if robot else 20_000)
        rows = self.steps or (1_000_000 if robot else 20_000)
        if min(train_steps, rows) < 100:
            raise ValueError(f"--train-steps {train_steps}, --steps {rows}. Fix: at least 100.")
        low_high = reference or (0.0, 0.0)
        target = self.medium_return
        if target is None and reference is not None:
            target = low_high[0] + (low_high[1] - low_high[0]) / 3
        config = OnlineConfig(
            steps=train_steps,
            random_steps=5000 if train_steps >= 100_000 else train_steps // 20,
            eval_every=5000 if train_steps >= 100_000 else max(train_steps // 20, 1),
            checkpoint_every=10_000 if train_steps >= 100_000 else max(train_steps // 10, 1),
        )
        begun = out / "teacher" / "config.json"
        if self.resume and begun.exists():  # more steps do not change how it began
            config = replace(config, **{**read_json(begun)["online"], "steps": train_steps})
        teacher = OnlineSAC(self.env, out / "teacher", config, SACConfig(critics=2, hidden=(256, 256)), self.seed)
        if self.kind == "random":
            curve = [teacher.evaluate()]
        else:
            to_the_end = self.kind in ("expert", "medium-expert")
            curve = teacher.run(None if to_the_end else target, resume=self.resume)
        medium = 0 if self.kind == "random" else medium_step(curve, target)
        if self.kind != "random" and by_luck(curve):
            before, best = curve[0]["return"], best_of(curve)["return"]
            told = f"[yellow]the agent hardly learned:[/yellow] {before:,.0f} untrained, {best:,.0f} at its best."
            Console(stderr=True).print(f"{told} With more --train-steps, in another --out, there is more to learn from.")

        def rolled(step: int, count: int, part: int) -> dict[str, np.ndarray]:
            policy = apev.load(out / "teacher" / "policies" / f"{step:07d}")
            return record(policy, self.env, count, self.seed + 1000 * part)

        last = curve[-1]["update"]
        if self.kind == "medium-replay":
            columns = teacher.replay.rows(medium)
            columns["truncated"][-1] |= not columns["terminated"][-1]
        elif self.kind == "medium-expert":
            halves = [rolled(medium, rows // 2, 1), rolled(last, rows - rows // 2, 2)]
            columns = {name: np.concatenate([half[name] for half in halves]) for name in halves[0]}
        else:
            columns = rolled({"random": 0, "medium": medium, "expert": last}[self.kind], rows, 0)
        name = f"{self.env.rsplit('/')[-1].rsplit('-v', 1)[0].lower()}-{self.kind}"
        bounds = {"action_low": list(teacher.layout.action_low), "action_high": list(teacher.layout.action_high)}
        source |= {"name": name, "notes": ["made by D4RL's recipe with apev collect; not D4RL's own data"]} | bounds
        dataset = Dataset.from_arrays(**columns, source=source)  # type: ignore[arg-type]
        folder.mkdir(parents=True, exist_ok=True)
        card = {
            "name": name,
            "what": "D4RL-style: made by D4RL's recipe, not D4RL's own data",
            "environment": self.env,
            "kind": self.kind,
            "seed": self.seed,
            **{key: dataset.describe()[key] for key in ("rows", "episodes", "terminated", "truncated", "returns")},
            "mean_return": float(dataset.episode_returns().mean()),
            "sha256": digest(dataset),
            "teacher": {
                "algorithm": "SAC",
                "steps": medium if self.kind in ("medium", "medium-replay") else last,
                "medium_return": next(line["return"] for line in curve if line["update"] == medium),
                "medium_target": target,
                "last_return": curve[-1]["return"],
            },
            "versions": versions(),
            "made_by": {key: provenance()[key] for key in ("command", "commit")},
        }
        if reference is not None:
            card["mean_score"] = float(normalise(card["mean_return"], reference))
        write_lines(folder / "curve.jsonl", curve)
        write_json(folder / "card.json", card)
        dataset.save(folder / "data.npz")
        Console(stderr=True).print(repr(dataset))
        print(f"{folder / 'data.npz'}  (apev train --data {folder / 'data.npz'})")


def medium_step(curve: list[dict[str, Any]], target: float | None) -> int:
    """The step of the medium policy: the first evaluations to reach the target; without one, a third of the way up."""
    from apev.collect.online import reached

    if target is None:
        returns = [line["return"] for line in curve]
        if max(returns[1:]) <= returns[0]:
            raise ValueError(
                f"in {curve[-1]['update']:,} steps the agent did not improve on the untrained one's {returns[0]:,.0f}. "
                "Fix: --resume with more --train-steps."
            )
        goal = returns[0] + (max(returns) - returns[0]) / 3
        return int(next(line["update"] for line in curve[1:] if line["return"] >= goal))
    found = [line["update"] for i, line in enumerate(curve) if reached(curve[: i + 1], target)]
    if not found:
        best = best_of(curve)["return"]
        raise ValueError(
            f"in {curve[-1]['update']:,} steps the agent reached {best:,.0f}, not {target:,.0f}. "
            "Fix: --resume with more --train-steps, or a lower --medium-return."
        )
    return int(found[0])


def best_of(curve: list[dict[str, Any]]) -> dict[str, Any]:
    """The evaluation of the highest return."""
    return max(curve, key=lambda line: line["return"])


def by_luck(curve: list[dict[str, Any]]) -> bool:
    """Whether the best evaluation is within two standard errors of the untrained policy's."""
    untrained, best = (np.array(line["returns"]) for line in (curve[0], best_of(curve)))
    error = np.sqrt(untrained.var() / len(untrained) + best.var() / len(best))
    return bool(best.mean() - untrained.mean() < 2 * error)


def digest(dataset: Dataset) -> str:
    """Of every number in the log: whether two logs are the same."""
    numbers = hashlib.sha256()
    for column in (*dataset.observations.values(), dataset.actions, dataset.rewards, dataset.terminated, dataset.truncated):
        numbers.update(np.ascontiguousarray(column).data)
    return numbers.hexdigest()


def versions() -> dict[str, str]:
    """Of the packages the data depends on."""
    found = {}
    for package in ("torch", "numpy", "gymnasium", "mujoco"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found | {"apev": apev.__version__}
