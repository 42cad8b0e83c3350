"""Every example runs, at a size that takes seconds."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = {
    "own_log.py": {"updates": 20, "episodes": 2},
    "own_environment.py": {"updates": 20, "episodes": 2},
    "watch_belief.py": {"updates": 10, "steps": 3},
}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = runpy.run_path(str(path))["main"](**SMALL[path.name])
    out = capsys.readouterr().out
    if path.name == "watch_belief.py":
        assert all(abs(np.sum(belief) - 1) < 1e-5 for belief in made)
        assert "belief" in out
    else:
        assert "the log" in out
