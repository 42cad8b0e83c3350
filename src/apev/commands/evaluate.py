"""`apev evaluate`: what trained policies are worth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from apev.agents.agent import Evidence
from apev.behaviour import WORDS
from apev.evaluation import evaluate_policies
from apev.machine import Machine


@dataclass(frozen=True, kw_only=True)
class Evaluate(Machine):
    """Roll out trained policies side by side: adapting, averaged, each member, and what the log itself returned."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")]
    """Run folders made by `apev train`."""
    env: str | None = None
    """A Gymnasium id, e.g. CartPole-v1 or apev/LockedDoors-v0; unless given, the environment the log came from."""
    episodes: int = 20
    """How many episodes, the same ones for every row."""
    adapt: Annotated[tuple[str, ...], tyro.conf.arg(metavar="WORD ...")] = ()
    """Behaviours of the belief, one row each: bayes, commit (act on one member until another is far more believable), hold (on
    one throughout an episode: see --life), uniform, member:2, random-member (one an episode), random-member-step. Unless
    given: bayes, uniform and each member."""
    evidence: Evidence | None = None
    """What the belief follows: td, model (needs members that are kinds of the world) or both, instead of what it was trained
    with."""
    forgetting: float | None = None
    """Share of the log-belief lost at each step, where machines change in the middle of an episode; 0.02, say."""
    life: int = 1
    """Episodes that each machine runs, the same one again, with the belief kept from one to the next; the last is told of."""
    remember: bool = False
    """Take the values of steps already taken in an episode from what they led to (worlds that are deterministic and show
    their state, discrete actions)."""
    seed: int = 0
    """Seed of the first episode."""

    def run(self) -> None:
        """Print the table; keep one record an episode in the run folder of a single run."""
        self.use()
        if not self.runs:
            raise ValueError("no run is named. Fix: apev evaluate RUN [RUN ...].")
        if self.episodes < 1:
            raise ValueError(f"--episodes {self.episodes}. Fix: at least 1.")
        if self.life < 1:
            raise ValueError(f"--life {self.life}. Fix: at least 1.")
        for word in self.adapt:
            if word not in WORDS and not word.startswith("member:"):
                raise ValueError(f"--adapt {word!r}: use one of {', '.join(WORDS)}.")
        found = evaluate_policies(
            [*self.runs],
            self.env,
            self.episodes,
            adapt=self.adapt or None,
            seed=self.seed,
            device=self.device,
            life=self.life,
            remember=self.remember,
            evidence=self.evidence,
            forgetting=self.forgetting,
        )
        if len(self.runs) == 1:
            found.save(self.runs[0])
        Console().print(found.table())
