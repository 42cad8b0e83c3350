"""A cell: one of many trainings, as plain data, and what doing it means."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from io import StringIO, TextIOBase
from pathlib import Path
from typing import Any

from apev.data import Dataset
from apev.loop import BusyError, Interrupted, TrainingError
from apev.machine import Machine
from apev.progress import told_to

WORK = {
    "train": "apev.cells.cell:train",
    "apev train": "apev.commands.train:train_cell",
    "tune": "apev.tuning:trial_cell",
    "locked-doors": "apev.experiments.locked_doors.cells:train_cell",
    "locked-doors seed": "apev.experiments.locked_doors.cells:seed_cell",
    "procgen": "apev.experiments.procgen.cells:train_cell",
    "procgen seed": "apev.experiments.procgen.cells:seed_cell",
    "d4rl": "apev.experiments.d4rl.recipe:train_cell",
    "fleet": "apev.experiments.fleet.recipe:train_cell",
    "theory": "apev.experiments.theory.recipe:work_cell",
    "convert look": "apev.data.formats.spread:look",
    "convert contexts": "apev.data.formats.spread:one_context",
    "convert spread": "apev.data.formats.spread:spread",
    "convert gather": "apev.data.formats.spread:gather",
}
"""Every function that a cell may name. Nothing else is run: a cell is data."""

Send = Callable[[dict[str, Any]], None]
"""Where a cell tells how far it is."""


@dataclass(frozen=True)
class Cell:
    """One of many trainings."""

    name: str  # as the table calls it
    work: str  # a key of WORK
    arguments: dict[str, Any]  # of that function, besides its folder: numbers, words, lists and dicts of them
    folder: Path | None = None  # where its result lands; None: what the function returns is all
    threads: int | None = None  # of the CPU; None: as many as the others
    device: str = "cpu"  # "cuda" asks for a GPU

    @property
    def gpus(self) -> int:
        """How many it asks for."""
        return int(self.device.startswith("cuda"))

    def as_json(self) -> dict[str, Any]:
        """For another process."""
        return asdict(self) | {"folder": None if self.folder is None else str(self.folder)}

    @staticmethod
    def of_json(found: dict[str, Any]) -> Cell:
        """The cell that `as_json` wrote."""
        return Cell(**found | {"folder": None if found["folder"] is None else Path(found["folder"])})


@dataclass(frozen=True)
class Outcome:
    """How a cell ended."""

    result: Any = None
    error: str | None = None  # why it failed
    stopped: bool = False  # somebody asked for it
    busy: bool = False  # another process holds its folder
    printed: str = ""  # to stdout
    seconds: float = field(default=0.0, compare=False)

    @property
    def finished(self) -> bool:
        """Whether there is a result."""
        return self.error is None and not self.stopped


def perform(cell: Cell) -> Any:
    """Do what a cell says, in this process."""
    Machine(device=cell.device, threads=cell.threads).use()
    module, _, function = WORK[cell.work].partition(":")
    where = {} if cell.folder is None else {"folder": cell.folder}
    return getattr(import_module(module), function)(**where, **cell.arguments)


def performed(cell: Cell, send: Send) -> Outcome:
    """How doing it ended. How far it is, and what it says, is sent; what it prints is kept."""
    began, printed = time.monotonic(), StringIO()

    def moved(description: str, completed: float, total: float | None) -> None:
        send({"moved": [description, completed, total]})

    outcome = Outcome()
    with redirect_stdout(printed), redirect_stderr(Lines(lambda line: send({"said": line}))), told_to(moved):
        try:
            outcome = Outcome(perform(cell))
        except (Interrupted, KeyboardInterrupt):
            outcome = Outcome(stopped=True)
        except Exception as error:
            outcome = Outcome(error=in_words(error), busy=isinstance(error, BusyError))
    return replace(outcome, printed=printed.getvalue(), seconds=time.monotonic() - began)


def in_words(error: Exception) -> str:
    """What to tell of a failure: a mistake that is known says it all, of another where it happened matters too."""
    known = (TrainingError, ValueError, OSError, ImportError)
    if isinstance(error, known) and "Fix:" in str(error):
        return str(error)
    return "".join(traceback.format_exception(error)).rstrip()


class Lines(TextIOBase):
    """A stream that hands on whole lines."""

    def __init__(self, hand_on: Callable[[str], None]) -> None:
        self.hand_on, self.rest = hand_on, ""

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str) -> int:
        """For print."""
        *lines, self.rest = (self.rest + text).split("\n")
        for line in lines:
            if line.strip():
                self.hand_on(line)
        return len(text)


def train(folder: Path, data: str, **arguments: Any) -> None:
    """`apev.train`; it goes on with what is in the folder."""
    from apev import api

    api.train(log_at(data), out=folder, resume=True, **arguments)


def log_at(path: str) -> Dataset:
    """A log, read once for all the cells that this process does with it."""
    file = Path(path)
    return _read(path, file.stat().st_mtime_ns if file.exists() else None)


@lru_cache(maxsize=1)
def _read(path: str, changed: int | None) -> Dataset:
    return Dataset.load(path)


def forget_log() -> None:
    """Free the log that `log_at` keeps: other processes do the cells."""
    _read.cache_clear()
