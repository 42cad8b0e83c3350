"""How far a command has come: a bar in a terminal or a notebook, a line a minute in a log file, or told to whoever asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from apev.terminal import plain

LINE_EVERY = 60.0  # seconds
TOLD_EVERY = 0.5

Listener = Callable[[str, float, float | None], None]
"""Is told what is being done, how far it is, and of how much."""
_listener: Listener | None = None


class RateColumn(ProgressColumn):
    """Steps a second."""

    def render(self, task: Task) -> Text:
        """For rich."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.1f}/s", style="progress.data.speed")


class Bars(Progress):
    """rich's bars, which are seen in terminals only; elsewhere each says now and then how far it is."""

    def add_task(self, description: str, *args: Any, **fields: Any) -> TaskID:
        """For rich; what a bar is of may be a name from a file. Its first line comes after a while: short work says nothing."""
        return super().add_task(plain(description), *args, said=time.monotonic(), **fields)

    def update(self, task_id: TaskID, *args: Any, **fields: Any) -> None:
        """For rich."""
        if fields.get("description") is not None:
            fields["description"] = plain(fields["description"])
        super().update(task_id, *args, **fields)
        self.say(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """For rich."""
        super().advance(task_id, advance)
        self.say(task_id)

    def say(self, task_id: TaskID) -> None:
        """A line in a log, or a word to the listener."""
        now, task = time.monotonic(), self._tasks[task_id]
        if now - task.fields["said"] < (LINE_EVERY if _listener is None else TOLD_EVERY):
            return
        task.fields["said"] = now
        if _listener is not None:
            _listener(task.description, task.completed, task.total)
        elif not shows_bars(self.console):
            self.console.print(in_words(task), highlight=False, markup=False, emoji=False, soft_wrap=True)


def in_words(task: Task) -> str:
    """How far it is, in a line."""
    line = f"{task.description}: {task.completed:,.0f}" + ("" if task.total is None else f" of {task.total:,.0f}")
    if task.speed is not None:
        line += f", {task.speed:,.1f}/s"
    if task.time_remaining is not None:
        line += f", {timedelta(seconds=int(task.time_remaining))} left"
    return line


@contextmanager
def told_to(listener: Listener) -> Iterator[None]:
    """Within it bars tell the listener what they would show: another process draws them, beside those of others."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


def shows_bars(console: Console) -> bool:
    """Whether a bar can be drawn over and over: in a terminal, and in a notebook that has widgets."""
    return bool(find_spec("ipywidgets")) if console.is_jupyter else console.is_terminal


def progress_bar(console: Console | None = None) -> Bars:
    """The bar everything over five seconds shows: what, how far, how fast, how long still."""
    console = console or Console(stderr=True)
    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(),
        TimeRemainingColumn(),
        console=console,
        # In a notebook without widgets rich would ask for them, and draw nothing; a listener draws for us.
        disable=_listener is not None or (console.is_jupyter and not shows_bars(console)),
    )
