"""`apev fqe`: what trained policies are worth, from a log alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from apev.machine import Machine
from apev.terminal import markup
from apev.valuation import fqe


@dataclass(frozen=True, kw_only=True)
class Fqe(Machine):
    """Value trained policies on a log, without an environment: adapting, frozen, and the log itself.

    Fitted Q evaluation on state and belief. `unknown` is the share of a policy's actions that the log says little about.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")]
    """Run folders made by `apev train`."""
    data: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """The log, as for `apev train`: the one that the runs learned from, or better another of the same world."""
    gamma: float | None = None
    """Discount; 1 gives returns of episodes. Unless given: 1 where all logged episodes end within 100 steps, else the largest
    that the policies were trained with."""
    updates: int | None = None
    """Gradient steps of each fit; unless given as many as the log's size asks for."""
    members: int = 8
    """Functions that are fitted, each on its own resample of contexts: the interval is their spread."""
    frozen: bool = True
    """Also value each adaptive policy with a belief that stays at the average."""
    keep_belief: bool = False
    """The belief is carried over the episodes of a context."""
    kinds: int | None = None
    """How many kinds of contexts the log holds; 1: do not look. Unless given, those the runs were trained with."""
    json: bool = False
    """Print JSON instead of a table."""
    seed: int = 0
    """Decides every random number."""

    def run(self) -> None:
        """Print the table, the best first, and what to make of it."""
        self.use()
        if not self.runs:
            raise ValueError("no run is named. Fix: apev fqe RUN [RUN ...] --data LOG.")
        found = fqe(
            [*self.runs],
            self.data,
            gamma=self.gamma,
            updates=self.updates,
            members=self.members,
            frozen=self.frozen,
            keep_belief=self.keep_belief,
            kinds=self.kinds,
            seed=self.seed,
            device=self.device,
        )
        if self.json:
            print(json.dumps(found.as_json(), indent=1))
            return
        console = Console(highlight=False)
        console.print(found.table())
        for line in found.lines():
            console.print(markup(line))
