"""Where numbers come from: the command, the commit, the versions, so that a stored result can be made again."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import apev
from apev.files import write_json


def provenance() -> dict[str, Any]:
    """What goes into the "meta" of a summary."""
    return {
        "command": " ".join([*_program(), *(shlex.quote(_short(word)) for word in sys.argv[1:])]),
        "commit": commit(),
        "version": apev.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def keep_answer(path: Path | None, answer: dict[str, Any]) -> None:
    """Write what a benchmark found to a JSON file, with where it comes from; nothing without a path."""
    if path is not None:
        write_json(path, answer | {"meta": provenance()})


def peak_memory_gb() -> float:
    """The most memory this process has held, in GB."""
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1e9 if sys.platform == "darwin" else 1e9 / 1024), 2)  # bytes on macOS, kilobytes on Linux


def commit() -> str:
    """The commit this code was run from, with "+changes" if files differed from it; "unknown" outside a checkout."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + (
            "+changes" if git("status", "--porcelain", "--", str(here.parent)) else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _program() -> list[str]:
    """How this program was started, by its place in the repository."""
    script = Path(sys.argv[0])
    return ["python", f"benchmarks/{script.name}"] if script.parent.name == "benchmarks" else ["apev"]


def _short(word: str) -> str:
    """Absolute paths say more about a machine than about an experiment: keep the file name."""
    option, equals, value = word.partition("=")
    if equals and option.startswith("--"):
        return f"{option}={_short(value)}"
    return Path(word).name if word.startswith("/") or word.startswith("..") else word
