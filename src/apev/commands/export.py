"""`apev export`: a trained policy as files that run without torch and apev."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from apev.agents.agent import Evidence
from apev.files import read_json
from apev.policy import Policy
from apev.terminal import markup


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write a trained policy as ONNX files: act.onnx, observe.onnx, and about.json, which says what goes in and comes out."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """A run folder made by `apev train`."""
    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")]
    """Where the files go."""
    adapt: Annotated[str, tyro.conf.arg(metavar="WORD")] = "bayes"
    """What the belief does: bayes follows the evidence, uniform stays at the average, member:2 trusts that member alone."""
    evidence: Evidence | None = None
    """What the belief follows: td, model or both, instead of what the policy was trained with."""
    forgetting: float | None = None
    """Share of the log-belief lost at each step, where machines change in the middle of an episode; 0.02, say."""

    def run(self) -> None:
        """Write the files and print what they take and give."""
        from apev.export.files import ABOUT

        if not self.run_folder.is_dir():
            raise FileNotFoundError(f"no folder {self.run_folder}. Fix: name one that `apev train` made.")
        policy = Policy.load(self.run_folder, self.adapt, evidence=self.evidence, forgetting=self.forgetting)
        folder = policy.export(self.out)
        about = read_json(folder / ABOUT)
        console = Console(highlight=False)
        for name in ("act", "observe"):
            given, answers = (", ".join(about[name][part]) for part in ("inputs", "outputs"))
            size = (folder / f"{name}.onnx").stat().st_size / 1e6
            console.print(markup(f"{folder / name}.onnx  {name}({given}) -> {answers}  {size:.1f} MB"), soft_wrap=True)
        console.print(markup(f"{folder / ABOUT}  shapes, types and the belief to start with"), soft_wrap=True)
