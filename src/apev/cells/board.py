"""What is seen of many cells: a bar for each that runs, one for all of them, a line for each that has ended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import TaskID

from apev.cells.cell import Cell, Outcome
from apev.progress import progress_bar
from apev.terminal import markup, plain


class Board:
    """The table of all cells, while they run."""

    def __init__(self, cells: Sequence[Cell], console: Console) -> None:
        self.cells, self.console, self.bars = cells, console, progress_bar(console)
        self.all = self.bars.add_task("cells", total=len(cells))
        self.rows: dict[int, TaskID] = {}
        self.doing: dict[int, tuple[str, float | None]] = {}

    def __enter__(self) -> Board:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def hear(self, number: int, message: dict[str, Any]) -> None:
        """What a cell says: that it begins, how far it is, a line of text."""
        name = self.cells[number].name
        if "began" in message:
            if number in self.rows:
                self.tell(f"{name}: {message['began']}, from its last checkpoint")
            else:
                self.rows[number] = self.bars.add_task(name, total=None)
        elif "said" in message:
            self.tell(f"{name}: {message['said']}")
        elif number in self.rows:
            description, completed, total = message["moved"]
            self.move(number, str(description), float(completed), total)

    def move(self, number: int, description: str, completed: float, total: float | None) -> None:
        """Draw a cell's bar anew where it does something else, else move it on."""
        row, name = self.rows[number], self.cells[number].name
        if self.doing.get(number) != (description, total):
            self.doing[number] = description, total
            shown = name if description in name else f"{name} · {description}"
            self.bars.reset(row, total=total, completed=int(completed), description=plain(shown))
        self.bars.update(row, completed=completed)

    def end(self, number: int, outcome: Outcome) -> None:
        """A cell has ended, well or not."""
        if number in self.rows:
            self.bars.remove_task(self.rows.pop(number))
        self.bars.advance(self.all)
        how = "finished" if outcome.finished else "stopped" if outcome.stopped else "failed"
        self.tell(f"{self.cells[number].name}: {how} after {timedelta(seconds=round(outcome.seconds))}")

    def tell(self, line: str) -> None:
        """A line above the bars."""
        self.console.print(markup(line), highlight=False, emoji=False, soft_wrap=True)
