"""`apev demo`: train a small agent and watch it change its mind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from apev.commands.report import Report
from apev.machine import Machine


@dataclass(frozen=True, kw_only=True)
class Demo(Machine):
    """Train a small agent and watch it change its mind (a few minutes)."""

    world: Literal["doors", "pendulum", "customers"] = "doors"
    """doors: which door fits this photograph; pendulum: motors that may be wired the wrong way round; customers: three segments
    that want different things. In the last two, kinds are found in a log without labels."""
    out: Path | None = None
    """Folder for summary.json, report.html and the trained agents; runs/demo unless given, or runs/demo-WORLD."""
    resume: bool = False
    """Go on with an interrupted demo in the same folder."""

    def run(self) -> None:
        """Train, evaluate and report; an interrupted demo goes on."""
        self.use()
        out = self.out or Path("runs/demo" if self.world == "doors" else f"runs/demo-{self.world}")
        if (out / "summary.json").exists():
            Console(stderr=True, highlight=False).print(f"{out} holds a finished demo; --out another folder runs it again.")
            Report(folder=out).run()
        elif self.world == "doors":
            self.doors(out)
        else:
            self.kinds(out)

    def doors(self, out: Path) -> None:
        """Locked doors."""
        from apev.envs import load_images
        from apev.experiments.common.provenance import provenance
        from apev.experiments.locked_doors.recipe import run
        from apev.experiments.locked_doors.scales import RECIPES

        meta = provenance() | {"scale": "demo"}
        run(out, load_images(), RECIPES["demo"], device=self.device, resume=self.resume or _unfinished(out), meta=meta)

    def kinds(self, out: Path) -> None:
        """A world with hidden kinds: the adaptive policy beside a blind one."""
        from apev.experiments.fleet.recipe import run
        from apev.experiments.fleet.report import show, write_summary
        from apev.experiments.fleet.worlds import DEMOS

        assert self.world != "doors"
        world, agents = DEMOS[self.world]
        run(world, out, data=None, seeds=(0,), only=agents, device=self.device)
        write_summary(out, {"world": self.world, "scale": "demo"})
        show(out)


def _unfinished(folder: Path) -> bool:
    """An interrupted demo goes on by itself: its folder holds agents but no summary."""
    return (folder / "agents").exists() and not (folder / "summary.json").exists()
