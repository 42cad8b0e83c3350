"""`apev tune`: which algorithm and settings for a log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from apev.cells import Machines
from apev.tuning import REPORT, tune


@dataclass(frozen=True, kw_only=True)
class Tune(Machines):
    """Try algorithms and settings on a log, value each on contexts that none learned from, and name the best.

    Ctrl-C stops; the same command goes on. Needs Optuna: pip install 'apev[tune]'.
    """

    data: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """The log, as for `apev train`."""
    out: Path = Path("runs/tune")
    """The folder: a run folder for each trial, tune.json and tune.html with all of them."""
    trials: int = 20
    """How many trials in all."""
    algorithms: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ()
    """Which algorithms; unless given ape-v, iql, bc, and cql for discrete actions or td3-bc for continuous ones."""
    updates: int = 3000
    """The most gradient steps of a trial; half and a quarter of it are tried too."""
    held_out: float = 0.3
    """Share of the log that no trial learns from."""
    gamma: float | None = None
    """Discount of the values that trials are judged by, as for `apev fqe`."""
    kinds: int | None = None
    """How many kinds of contexts the log holds, where that is known; 1: do not look for any."""
    at_once: int | None = None
    """Trials that are suggested together, before any of them is known, and tried side by side: as many as --jobs unless given,
    4 with --ray. Another number is another search."""
    seed: int = 0
    """Decides every random number."""

    def run(self) -> None:
        """Search, then print all trials and what to do with the best."""
        self.use()
        found = tune(
            self.data,
            trials=self.trials,
            out=self.out,
            algorithms=self.algorithms or None,
            updates=self.updates,
            held_out=self.held_out,
            gamma=self.gamma,
            kinds=self.kinds,
            seed=self.seed,
            device=self.device,
            at_once=self.at_once,
            jobs=self.jobs,
            threads=self.threads,
            ray=self.ray,
        )
        Console(highlight=False).print(found.table())
        print(f"all trials: {self.out / REPORT}, {self.out / 'tune.html'}")
        print(f'best: {found.run}  (policy = apev.load("{found.run}"))')
        print(f"evaluate it: apev evaluate {found.run} --env ID   or, without an environment: apev fqe {found.run} --data LOG")
