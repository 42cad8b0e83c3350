"""`apev demo`: train on the shipped photographs and watch an agent change its mind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from apev.commands.report import Report
from apev.machine import Machine


@dataclass(frozen=True, kw_only=True)
class Demo(Machine):
    """Train on the photographs shipped in the package, and watch an agent change its mind (a few minutes)."""

    out: Path = Path("runs/demo")
    """Folder for summary.json, report.html and the trained agents."""
    resume: bool = False
    """Go on with an interrupted demo in the same folder."""

    def run(self) -> None:
        """Train, evaluate and report; an interrupted demo goes on."""
        from apev.envs import load_images
        from apev.experiments.common.provenance import provenance
        from apev.experiments.locked_doors.recipe import RECIPES, run

        self.use()
        if (self.out / "summary.json").exists():
            Console(stderr=True, highlight=False).print(
                f"{self.out} holds a finished demo; --out another folder runs it again."
            )
            Report(folder=self.out).run()
            return
        meta = provenance() | {"scale": "demo"}
        run(
            self.out, load_images(), RECIPES["demo"], device=self.device, resume=self.resume or _unfinished(self.out), meta=meta
        )


def _unfinished(folder: Path) -> bool:
    """An interrupted demo goes on by itself: its folder holds agents but no summary."""
    return (folder / "agents").exists() and not (folder / "summary.json").exists()
