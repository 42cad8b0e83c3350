"""What the three harnesses share: a bar, a folder in memory, and how an answer is kept."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from apev.experiments.common.provenance import provenance

ERRORS = Console(stderr=True, highlight=False)


def bar(show: bool = True) -> Progress:
    """A progress bar that is drawn when it is told to: a thread that draws would not survive forks."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=ERRORS, auto_refresh=False, disable=not show)


def tell(text: str) -> None:
    """A line for people; whatever steers a terminal is shown, not obeyed."""
    ERRORS.print(text.replace("\x1b", "<ESC>"), markup=False, soft_wrap=True)


def scratch() -> Path:
    """A new temporary folder, in memory where there is such a place: tries sync their files to the disk."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="apev-reliability-", dir=memory if os.access(memory, os.W_OK) else None))


def keep(path: Path | None, answer: dict[str, Any], command: str) -> None:
    """Write an answer to a JSON file, with where it comes from; nothing without a path."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        meta = provenance() | {"command": command}
        path.write_text(json.dumps(answer | {"meta": meta}, indent=1) + "\n", encoding="utf-8")
