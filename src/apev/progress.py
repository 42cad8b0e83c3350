"""How far a command has come: a bar in a terminal or a notebook, a line a minute in a log file."""

from __future__ import annotations

import time
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


class RateColumn(ProgressColumn):
    """Steps a second."""

    def render(self, task: Task) -> Text:
        """For rich."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.1f}/s", style="progress.data.speed")


class Bars(Progress):
    """rich's bars, which are seen in terminals only; elsewhere it says now and then how far it is."""

    said = 0.0

    def start(self) -> None:
        """The first line comes after a while, so that short work says nothing."""
        self.said = time.monotonic()
        super().start()

    def add_task(self, description: str, *args: Any, **fields: Any) -> TaskID:
        """For rich; what a bar is of may be a name from a file."""
        return super().add_task(plain(description), *args, **fields)

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
        """A line in a log."""
        now = time.monotonic()
        if shows_bars(self.console) or now - self.said < LINE_EVERY:
            return
        self.said = now
        task = next(task for task in self.tasks if task.id == task_id)
        line = f"{task.description}: {task.completed:,.0f}" + ("" if task.total is None else f" of {task.total:,.0f}")
        if task.speed is not None:
            line += f", {task.speed:,.1f}/s"
        if task.time_remaining is not None:
            line += f", {timedelta(seconds=int(task.time_remaining))} left"
        self.console.print(line, highlight=False, markup=False, emoji=False, soft_wrap=True)


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
        disable=console.is_jupyter and not shows_bars(console),  # rich would ask for ipywidgets, and draw nothing
    )
