"""What fitted Q evaluation found, as a table, as JSON and in plain words."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from apev.terminal import markup
from apev.valuation.coverage import Coverage

FEW = 8  # contexts or episodes, whose spread says little
UNSETTLED = 0.5  # of an interval's half-width: solutions that differ by more have not settled


@dataclass(frozen=True)
class Interval:
    """A number and its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{number(self.value)} ({number(self.low)} to {number(self.high)})"


@dataclass(frozen=True)
class Estimate:
    """Of one policy."""

    name: str
    value: Interval
    over_log: Interval  # value less the log's own, from the same resamples
    coverage: Coverage
    unsettled: float  # how much the last solutions of the fit differed
    frozen: Interval | None = None  # the same policy with its belief frozen at the average
    gain: Interval | None = None  # value less that, from the same resamples
    frozen_coverage: Coverage | None = None
    resamples: list[float] = field(default_factory=list)  # the value in each resample
    history: bool = False  # it keeps a history, and was valued with those of the log

    @property
    def trusted(self) -> bool:
        """Whether the number may be taken at its word."""
        return self.coverage.trusted and not self.history

    @property
    def settled(self) -> bool:
        """Whether more updates would hardly change it."""
        return self.unsettled <= UNSETTLED * (self.value.high - self.value.low) / 2

    @property
    def verdict(self) -> str:
        """Whether adapting pays; empty for a policy that does not adapt."""
        if self.gain is None:
            return ""
        if self.gain.low > 0:
            return f"adapting pays {self.gain}"
        if self.gain.high < 0:
            return f"adapting costs {self.gain}: deploy it frozen (adapt='uniform')"
        return f"adapting or not makes no difference that the log shows {self.gain}"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        both = {"policy": self.name, "value": vars(self.value), "over_log": vars(self.over_log), "settled": self.settled}
        both |= {"trusted": self.trusted, "history": self.history}
        both |= {"coverage": vars(self.coverage) | {"trusted": self.coverage.trusted, "told": self.coverage.in_words()}}
        if self.frozen is not None and self.gain is not None and self.frozen_coverage is not None:
            both |= {"frozen": vars(self.frozen), "gain": vars(self.gain), "frozen_coverage": vars(self.frozen_coverage)}
        return both | {"verdict": self.verdict, "resamples": self.resamples}


@dataclass
class Estimates:
    """Of several policies on one log."""

    rows: list[Estimate]
    logged: Interval  # the log's own policy, by the same fit
    logged_return: float  # what its episodes returned, undiscounted
    gamma: float
    timed: bool
    kinds: int  # that the fit knows of
    sure: float  # how surely whole contexts show their kind
    units: int
    resampled: str
    updates: int
    members: int
    seed: int
    digest: str  # of the log

    def __getitem__(self, name: str) -> Estimate:
        """The policy of this name."""
        found = {row.name: row for row in self.rows}
        if name not in found:
            raise KeyError(f"no policy is called {name!r}; there are {list(found)}.")
        return found[name]

    def ranked(self) -> list[Estimate]:
        """The surely best first: by the lower end of their intervals, which a lucky guess about unknown actions lifts less."""
        return sorted(self.rows, key=lambda row: -row.value.low)

    def table(self) -> Table:
        """For a terminal, 60 columns wide where names are short."""
        title = f"fitted Q evaluation, {self.unit()}"
        shown = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0), header_style="bold")
        shown.add_column("policy", overflow="fold")
        for name in ("value", "95% interval", "unknown"):
            shown.add_column(name, justify="right", no_wrap=True)
        for row in self.ranked():
            shown.add_row(markup(row.name), *_cells(row.value), f"{row.coverage.little_known:.0%}")
            if row.frozen is not None and row.frozen_coverage is not None:
                shown.add_row("  frozen", *_cells(row.frozen), f"{row.frozen_coverage.little_known:.0%}")
        shown.add_row("the log", *_cells(self.logged), "")
        return shown

    def unit(self) -> str:
        """What a value is."""
        if self.gamma == 1:
            return "returns of an episode"
        return f"returns discounted by {self.gamma:g} a step"

    def lines(self) -> list[str]:
        """What to make of the table, one thought a line."""
        told = []
        if self.gamma < 1:
            told.append(f"Values are discounted, for ever; the log's episodes returned {number(self.logged_return)} in all.")
        if self.kinds > 1:
            told.append(f"Each of {self.kinds} kinds of contexts is valued by itself: whoever logged may have known the kind.")
        elif self.sure < 1:
            told.append(
                f"Contexts show their kind too unsurely ({self.sure:.0%}) to value each by itself: if whoever logged knew it, "
                "values are too high."
            )
        if self.units < FEW:
            told.append(f"There are {self.units} {self.resampled} to resample: intervals are narrower than they should be.")
        for row in self.ranked():
            name = f"{row.name}: " if len(self.rows) > 1 else ""
            if not row.coverage.trusted:
                told.append(f"{name}{row.coverage.in_words()}.")
            if row.history:
                told.append(f"{name}it was valued along the log's histories, and will meet others: do not trust this number.")
            if row.verdict:
                told.append(f"{name}{row.verdict}.")
            if not row.settled:
                told.append(f"{name}the fit has not settled: more updates (--updates {2 * self.updates}).")
        return [line[0].upper() + line[1:] if len(self.rows) == 1 else line for line in told]

    def as_json(self) -> dict[str, Any]:
        """All of it, as plain values."""
        about = {name: value for name, value in vars(self).items() if name not in ("rows", "logged")}
        return (
            {"values_are": self.unit()} | about | {"log": vars(self.logged), "policies": [r.as_json() for r in self.ranked()]}
        )

    def __str__(self) -> str:
        text = io.StringIO()
        console = Console(file=text, width=100, color_system=None)
        console.print(self.table())
        for line in self.lines():
            console.print(markup(line), highlight=False)
        return text.getvalue().rstrip()


def number(value: float) -> str:
    """As many digits as matter."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}"


def _cells(interval: Interval) -> tuple[str, str]:
    return number(interval.value), f"{number(interval.low)} to {number(interval.high)}"
