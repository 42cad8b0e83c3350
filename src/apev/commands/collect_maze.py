"""`apev collect maze`: every step of Procgen's maze levels as a log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from apev.experiments.procgen.log import log_mazes
from apev.experiments.procgen.maze import Mode, make_maze
from apev.experiments.procgen.pictures import Renderer, make_renderer


@dataclass(frozen=True, kw_only=True)
class CollectMaze:
    """Log every cell of Procgen's maze levels and the four steps from it, as the paper does."""

    out: Path = Path("maze.npz")
    """The file: .npz, or a .apev folder that is read without loading it all."""
    levels: int = 200
    """How many levels, from number 0 on."""
    mode: Mode = "hard"
    """easy: boards of 15 cells a side; hard: 25, which fits the paper's count of transitions."""
    renderer: Renderer = "procgen"
    """procgen: the real pixels (`make procgen` installs it); simple: our own drawing, which needs nothing."""
    seed: int = 0
    """Decides where the mouse looks left."""

    def run(self) -> None:
        """Lay out, draw, save."""
        from apev.progress import progress_bar

        if self.levels < 1:
            raise ValueError(f"--levels {self.levels}. Fix: at least 1.")
        make_renderer(self.renderer, self.mode)  # a missing Procgen is named before any work
        with progress_bar(Console(stderr=True)) as progress:
            task = progress.add_task("laying out", total=self.levels)
            mazes = []
            for level in range(self.levels):
                mazes.append(make_maze(level, self.mode))
                progress.advance(task)
            dataset = log_mazes(mazes, self.renderer, seed=self.seed, track=progress.track(mazes, description="drawing"))
        dataset.save(self.out)
        assert dataset.pictures is not None
        facts: dict[str, Any] = dataset.describe() | {"pictures": len(dataset.pictures)}
        print(f"{self.out}: {facts['rows']:,} transitions, {facts['pictures']:,} pictures, {facts['groups']} levels")
