"""`apev data ...`: look at a log, check it, and change its format."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from apev.data import defects, scores
from apev.data.dataset import Dataset
from apev.data.formats import io
from apev.data.validate import DataError
from apev.terminal import markup, plain
from apev.worlds import Kinds
from apev.worlds import kinds as find_kinds

SHOWN = 10  # rows named for one defect
SHOWN_APART = ("environment_spec", "notes", "action_names", "observation_names")  # of a source


@dataclass(frozen=True, kw_only=True)
class Info:
    """Show what a log holds: sizes, episodes, quantiles of the returns, ranges of the actions, normalised scores."""

    path: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
    """An .npz, a D4RL .hdf5, a .apev folder, a Minari id or folder, or a table (.csv, .parquet)."""
    json: bool = False
    """Print JSON instead of a table."""
    horizon: int | None = None
    """Time limit in steps, for a D4RL file that marks no timeouts."""

    def run(self) -> None:
        """Print sizes, returns, ranges and notes."""
        facts = describe(io.load(self.path, horizon=self.horizon))
        if self.json:
            print(json.dumps(facts, indent=1))
            return
        table = Table(title=markup(self.path), show_header=False)
        for name, value in facts.items():
            table.add_row(markup(name.replace("_", " ")), markup(_text(value), lines=True))
        Console(emoji=False).print(table)


@dataclass(frozen=True, kw_only=True)
class KindsOf:
    """Say how many kinds of contexts a log holds, found without labels, and whether adapting can pay."""

    path: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
    """An .npz, a D4RL .hdf5, a .apev folder, a Minari id or folder, or a table (.csv, .parquet)."""
    most: int = 6
    """The largest number of kinds that is tried."""
    kinds: int | None = None
    """How many there are, where that is known; unless given, the log decides."""
    seed: int = 0
    """Decides every random number of the search."""
    picture: Path | None = None
    """Also draw it: a .svg file, or an .html page."""
    json: bool = False
    """Print JSON instead of tables."""

    def run(self) -> None:
        """Print the verdict, what was tried, and which columns tell kinds apart."""
        from apev.experiments.fleet.kinds_page import check_name, write_picture

        if self.picture is not None:
            check_name(self.picture)  # before minutes of search
        found = find_kinds(io.load(self.path), count=self.kinds, most=self.most, seed=self.seed)
        if self.picture is not None:
            write_picture(self.picture, found, Path(self.path).name)
        if self.json:
            print(json.dumps(found.as_json(), indent=1))
            return
        console = Console(emoji=False, highlight=False)
        console.print(markup(found.in_words()))
        for table in kinds_tables(found):
            console.print(table)


def kinds_tables(found: Kinds) -> list[Table]:
    """What the verdict rests on, for a terminal."""
    shown = []
    for title, header, rows in found.tables():
        table = Table(*header, title=title)
        for cells in rows:
            table.add_row(*map(markup, cells))
        shown.append(table)
    return shown


@dataclass(frozen=True, kw_only=True)
class Verify:
    """Check a log and list every defect with its column, rows and fix; the exit code is 1 if there is one."""

    path: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
    """An .npz, a D4RL .hdf5, a .apev folder, a Minari id or folder, or a table (.csv, .parquet)."""
    all_rows: bool = False
    """Name every bad row, not only the first ten of a defect."""
    horizon: int | None = None
    """Time limit in steps, for a D4RL file that marks no timeouts."""

    def run(self) -> None:
        """Print every defect, or notes and that there is none."""
        try:
            columns = io.read(self.path, horizon=self.horizon)
            found = defects.find(columns)
        except DataError as error:  # the file as a whole cannot be read
            found = [error]
        for defect in found:
            print(plain(f"{defect.column}{_rows(defect, self.all_rows)}: {defect.problem}. Fix: {defect.fix}."))
        if found:
            print(plain(f"{self.path}: {len(found)} defects"))
            sys.exit(1)
        dataset = columns.dataset()
        for note in defects.notes(dataset):
            print(plain(f"note: {note}."))
        print(plain(f"{self.path}: no defect in {len(dataset):,} rows, {dataset.num_episodes:,} episodes"))


@dataclass(frozen=True, kw_only=True)
class Convert:
    """Write a log in another format. Names decide: .npz, .hdf5 (D4RL), .apev (mapped, for data larger than memory), or a
    Minari id such as pendulum/random-v0 (written under Minari's own root). A table (.csv, .parquet) can be read too: the
    options from --episode on say which column is what, and those that are not given are guessed from the names. Parquet, also
    a folder of it with hive partitions, becomes .apev however large it is, sorted by context, episode and time."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """What to read."""
    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")]
    """What to write. An .npz, .hdf5 or .apev of that name is replaced."""
    compress: bool = False
    """Smaller .npz and .hdf5 files, which must then be read into memory."""
    horizon: int | None = None
    """Time limit in steps, for a D4RL file that marks no timeouts."""
    shard_rows: int | None = None
    """Of Parquet that becomes .apev: a shard ends with the first context that ends after so many rows, 4,194,304 unless
    given."""
    memory: Annotated[str | None, tyro.conf.arg(metavar="SIZE")] = None
    """Of Parquet that becomes .apev: what sorting may use, such as 512MB, on top of some hundred megabytes for Python; 1GB
    unless given. What does not fit lies on the target's disk for a while."""
    jobs: int | None = None
    """Of Parquet that becomes .apev: sort it in parts, so many at a time, each in a process with --memory of its own."""
    ray: str | None = None
    """Of Parquet that becomes .apev: sort it in parts on Ray. 'local' starts it here, 'auto' joins the cluster of this machine,
    HOST:PORT another one. All its machines must see SOURCE and TARGET."""
    episode: str | None = None
    """Of a table: the column with the id of a row's episode."""
    time: str | None = None
    """Of a table: the column that rows of an episode are sorted by, numbers or dates."""
    observations: Annotated[tuple[str, ...], tyro.conf.arg(metavar="COLUMN ...")] = ()
    """Of a table: what was seen before the action. Text becomes one-hot. Unless given, every column of numbers left over."""
    action: Annotated[tuple[str, ...], tyro.conf.arg(metavar="COLUMN ...")] = ()
    """Of a table: what was done. Text and whole numbers are discrete; other numbers, and several columns, are continuous."""
    continuous: bool = False
    """Of a table: the action is an amount, even if all its numbers are whole."""
    reward: str | None = None
    """Of a table: the column of the reward."""
    context: str | None = None
    """Of a table: what stays the same through an episode and may come back in others, such as a machine."""
    terminated: str | None = None
    """Of a table: the flag that the world ended the episode; unless given, the last row of an episode is terminated."""
    truncated: str | None = None
    """Of a table: the flag that only a clock ended the episode."""
    masks: Annotated[str | None, tyro.conf.arg(metavar="PREFIX")] = None
    """Of a table: what the names of the flags begin with that say which actions were allowed: may_ for may_wait, may_go, ..."""

    def run(self) -> None:
        """Convert, and say what was written."""
        io.convert(
            self.source,
            self.target,
            compress=self.compress,
            horizon=self.horizon,
            columns=self.columns(),
            shard_rows=self.shard_rows,
            memory=None if self.memory is None else bytes_of(self.memory),
            jobs=self.jobs,
            ray=self.ray,
        )
        print(plain(f"wrote {self.target}: {io.load(self.target)!r}"))

    def columns(self) -> dict[str, Any]:
        """Which column of a table is what, as far as it was said."""
        if self.continuous and not self.action:
            raise ValueError("--continuous without a column. Fix: --action COLUMN.")
        named = {
            name: getattr(self, name) for name in ("episode", "time", "reward", "context", "terminated", "truncated", "masks")
        }
        named["observations"] = list(self.observations) or None
        named["action"] = self.action[0] if len(self.action) == 1 and not self.continuous else list(self.action) or None
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Data:
    """Look at a log, check it, find its kinds of contexts, or change its format (tables, NumPy, D4RL, Minari, or
    mapped folders)."""

    action: Annotated[
        Annotated[Info, tyro.conf.subcommand("info")]
        | Annotated[Verify, tyro.conf.subcommand("verify")]
        | Annotated[KindsOf, tyro.conf.subcommand("kinds")]
        | Annotated[Convert, tyro.conf.subcommand("convert")],
        tyro.conf.arg(name=""),
    ]

    def run(self) -> None:
        """Pass on to what was asked for."""
        self.action.run()


def bytes_of(size: str) -> int:
    """512MB, 1.5 GB, ... as bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT])B?\s*", size, re.IGNORECASE)
    if match is None:
        raise ValueError(f"--memory {size}: no size. Fix: a number and a unit, such as 512MB or 4GB.")
    return int(float(match[1]) * 1000 ** ("KMGT".index(match[2].upper()) + 1))


def describe(dataset: Dataset) -> dict[str, Any]:
    """`Dataset.describe`, and lengths, ranges, bytes, the source and normalised scores; plain values."""
    facts = dataset.describe()
    lengths = np.bincount(dataset.episodes)
    facts["lengths"] = {"min": int(lengths.min()), "median": float(np.median(lengths)), "max": int(lengths.max())}
    facts["rewards"] = {"min": float(dataset.rewards.min()), "max": float(dataset.rewards.max())}
    facts |= {key: dataset.source[key] for key in ("observation_names",) if key in dataset.source}
    if dataset.discrete:
        counts = np.bincount(dataset.actions, minlength=dataset.num_actions or 0).tolist()
        names = dataset.source.get("action_names")
        facts["action_counts"] = counts if names is None else dict(zip(names, counts, strict=True))
    else:
        facts["action_ranges"] = [
            [float(low), float(high)]
            for low, high in zip(dataset.actions.min(axis=0), dataset.actions.max(axis=0), strict=True)
        ]
    if dataset.action_masks is not None:
        facts["action_masks"] = f"{dataset.action_masks.sum(axis=1).mean():.1f} of {dataset.num_actions} allowed on average"
    arrays = [*dataset.observations.values(), *(dataset.given_next or {}).values(), dataset.actions, dataset.rewards]
    facts["megabytes"] = round(sum(array.nbytes for array in arrays) / 1e6, 1)
    facts["in_memory"] = not dataset.mapped
    points = scores.episode_scores(dataset)
    if points is not None:
        quantiles = np.quantile(points, [0, 0.25, 0.5, 0.75, 1]).tolist()
        facts["normalised_score"] = {"mean": float(points.mean())}
        facts["normalised_score"] |= dict(zip(("min", "q25", "median", "q75", "max"), quantiles, strict=True))
    facts["source"] = {key: value for key, value in dataset.source.items() if key not in SHOWN_APART}
    facts["notes"] = defects.notes(dataset)
    return facts


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{plain(str(key))} {_text(item)}" for key, item in value.items()) or "-"
    if isinstance(value, list):
        if value and all(isinstance(item, list) for item in value):
            return " ".join(f"[{_text(item)}]" for item in value)
        return ("\n" if any(isinstance(item, str) for item in value) else " ").join(map(_text, value)) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}" if isinstance(value, float) else plain(str(value))


def _rows(defect: DataError, everything: bool) -> str:
    if defect.rows is None:
        return ""
    shown = defect.rows if everything else defect.rows[:SHOWN]
    more = len(defect.rows) - len(shown)
    word = "row" if len(defect.rows) == 1 else "rows"
    return f", {word} {', '.join(map(str, shown))}" + (f" and {more:,} more" if more else "")
