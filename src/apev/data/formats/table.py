"""Logs in CSV and Parquet files: tables with one row a step, read as `apev.data.formats.frame` reads a DataFrame.

Which column is what can be said, `Dataset.load("log.csv", episode="customer", ...)`, or is guessed from the names:

    episode       episode, trajectory or session, with or without _id
    time          time, step, t, timestep, timestamp or date
    action        action, or action_0, action_1, ... (continuous)
    reward        reward
    optional      context, terminated, truncated, action_mask_<action> for each action
    observations  every other column of numbers

A guess is told in one line. Columns that are only known after the action (next_*, returns) are never guessed to be
observations, and neither are empty ones, nor `done`: it does not say whether the world or a clock ended the episode.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from shlex import quote
from typing import Any

from rich.console import Console

from apev.data.dataset import Dataset
from apev.data.formats import frame as frames
from apev.data.formats.npz import check_growth
from apev.data.validate import DataError
from apev.files import check_memory, reading, regular
from apev.terminal import markup

SUFFIXES = (".csv", ".parquet")
MISSING = ["", "nan", "NaN", "NA", "N/A", "null", "NULL"]  # of a CSV; pandas would count the word None too, a fine action
ROLES: dict[str, tuple[str, ...]] = {
    "episode": ("episode", "episode_id", "episodes", "trajectory", "trajectory_id", "session", "session_id"),
    "time": ("time", "step", "t", "timestep", "time_step", "timestamp", "date"),
    "action": ("action", "actions"),
    "reward": ("reward", "rewards"),
    "context": ("context", "context_id", "contexts"),
    "terminated": ("terminated", "terminal", "terminals"),
    "truncated": ("truncated", "timeout", "timeouts"),
}
OPTIONAL = ("context", "terminated", "truncated")
MASKS = "action_mask_"
AGAIN = "write it again: one line of column names, then one row a step, as UTF-8 (DataFrame.to_csv, DataFrame.to_parquet)"
MERGED = ("done", "dones")
NUMBERED = re.compile(r"actions?_(\d+)")
LATER = re.compile(r"next_.*|returns?|return_to_go|rtg")  # known after the action: an observation of it would be cheating


@dataclass(frozen=True)
class Names:
    """Which column of a table is what, as in `Dataset.from_frame`; None: to be guessed."""

    episode: str | None = None
    time: str | None = None
    observations: Sequence[str] | None = None
    action: str | Sequence[str] | None = None
    reward: str | None = None
    context: str | None = None
    terminated: str | None = None
    truncated: str | None = None
    masks: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Names:
        """Names as a caller gives them; an unknown role is refused."""
        known = [f.name for f in fields(cls)]
        for role in given:
            if role not in known:
                raise TypeError(f"a table has no {role!r}. Fix: one of {', '.join(known)}.")
        return cls(**given)


def load(path: str | os.PathLike[str], names: Names | None = None, *, console: Console | None = None) -> Dataset:
    """Read and check a table in a file; what had to be guessed is said on `console`, in one line."""
    path = Path(path)
    frame = read_frame(path)
    columns, told = complete(frame, names or Names(), path.name)
    if told:
        (console or Console(stderr=True, highlight=False)).print(markup(told), soft_wrap=True)
    about = {"name": path.stem, "format": "table"}
    try:
        with reading(path.name, AGAIN, raises=DataError):  # text of a Parquet file is only decoded when it is looked at
            return Dataset.from_frame(_with_times(frame, columns["time"]), **columns, source=about)
    except DataError as error:
        if error.rows is None:
            raise
        fix = f"{error.fix} (rows of {path.name} are counted from 0, below its header)"
        raise DataError(error.column, error.problem, fix, rows=error.rows) from None


def read_frame(path: Path) -> Any:
    """The table in a .csv or .parquet file."""
    pandas, path = frames.pandas(), regular(path)
    with reading(path.name, AGAIN, raises=DataError), path.open("rb") as file:
        if path.suffix.lower() == ".csv":
            check_memory(path, 4 * path.stat().st_size)  # text of a number is about as long as the number, and it is copied
            return pandas.read_csv(file, keep_default_na=False, na_values=MISSING, low_memory=False)
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise ModuleNotFoundError(f".parquet files need pyarrow ({error}). Fix: pip install 'apev[tables]'.") from error
        about = parquet.ParquetFile(file).metadata
        check_growth(path, sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups)))
        file.seek(0)
        return pandas.read_parquet(file)


def complete(frame: Any, names: Names, file: str) -> tuple[dict[str, Any], str]:
    """(every argument of `Dataset.from_frame`, a sentence about those that were guessed; empty if none was)."""
    there = [str(name) for name in frame.columns]
    frame.columns = there
    by_word = {_word(name): name for name in reversed(there)}
    found = {f.name: getattr(names, f.name) for f in fields(names)}
    guessed: dict[str, Any] = {}
    for role, words in ROLES.items():
        if found[role] is None and _may_be_guessed(role, names):
            guess: str | list[str] | None = next((by_word[word] for word in words if word in by_word), None)
            if guess is None and role == "action":
                guess = _numbered(there)
            if guess is not None:
                found[role] = guessed[role] = guess
    if found["masks"] is None and any(name.startswith(MASKS) for name in there):
        found["masks"] = guessed["masks"] = MASKS
    _check_merged(found, by_word)
    lost = [role for role in ROLES if role not in OPTIONAL and found[role] is None]
    if lost:
        options, arguments = (
            sep.join(form.format(role) for role in lost) for sep, form in ((" ", "--{} COLUMN"), (", ", "{}=..."))
        )
        problem = f"the names of {file}'s columns do not say which is the {' and the '.join(lost)}: {there!s:.300}"
        fix = f"name it: `apev data convert {quote(file)} log.npz {options}`, or Dataset.load({file!r}, {arguments})"
        raise DataError("table", problem, fix)
    left: list[str] = []
    if found["observations"] is None:
        guessed["observations"], left = _observations(frame, there, found)
        found["observations"] = guessed["observations"]
    return found, _told(file, guessed, left) if guessed else ""


def _may_be_guessed(role: str, names: Names) -> bool:
    """Flags go together: a caller who names one has said how episodes end."""
    return role not in ("terminated", "truncated") or (names.terminated is None and names.truncated is None)


def _check_merged(found: Mapping[str, Any], by_word: Mapping[str, str]) -> None:
    """Refuse a table that tells ends by `done` alone."""
    merged = next((by_word[word] for word in MERGED if word in by_word), None)
    if merged is None or found["terminated"] is not None or found["truncated"] is not None:
        return
    problem = "does not say whether the world ended the episode or only a clock did, which mean opposite things for learning"
    fix = (
        f"say which: --terminated {merged} (terminated={merged!r}) if no time limit was ever reached, "
        f"--truncated {merged} if it is always a clock; else split it into two columns, terminated and truncated"
    )
    raise DataError(merged, problem, fix)


def _word(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def _numbered(there: Sequence[str]) -> list[str] | None:
    """The columns action_0, action_1, ... in the order of their numbers."""
    numbers = {int(match[1]): name for name in there if (match := NUMBERED.fullmatch(_word(name)))}
    return [numbers[i] for i in sorted(numbers)] or None


def _observations(frame: Any, there: Sequence[str], found: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """(columns of numbers that can be observations, the columns that are left out)."""
    taken = {name for role in ROLES for name in ([found[role]] if isinstance(found[role], str) else found[role] or ())}
    roles = {word for words in ROLES.values() for word in words} | set(MERGED)
    numeric = frames.pandas().api.types.is_numeric_dtype
    rest = [name for name in there if name not in taken]
    if found["masks"] is not None:
        rest = [name for name in rest if not name.startswith(found["masks"])]
    unfit = {name for name in rest if _word(name) in roles or LATER.fullmatch(_word(name)) or NUMBERED.fullmatch(_word(name))}
    empty = {name for name in rest if len(frame) and frame[name].isna().all()}
    fit = [name for name in rest if name not in unfit | empty and numeric(frame[name])]
    if not fit:
        fix = "name them: --observations COLUMN ..., observations=[...]; text becomes one-hot"
        raise DataError("observations", f"no column of numbers is left to be one; {list(there)!s:.300} are there", fix)
    return fit, [name for name in rest if name not in fit]


def _told(file: str, guessed: Mapping[str, Any], left: Sequence[str]) -> str:
    """One line: what was taken for what."""
    parts = [f"{role} {' '.join([names] if isinstance(names, str) else names)}" for role, names in guessed.items()]
    if not {"terminated", "truncated"} & guessed.keys() and "episode" in guessed:
        parts.append("the last row of an episode terminated")
    rest = f"; not read: {' '.join(left)}" if left else ""
    return f"{file}, guessed from its columns: {', '.join(parts)}{rest}. Options such as --episode, or arguments, name others."


def _with_times(frame: Any, time: str) -> Any:
    """The table with a time in text read as the date that it is, where all of it is written as ISO 8601 does."""
    pandas = frames.pandas()
    if time not in frame.columns or not isinstance(frame[time], pandas.Series) or not _is_text(frame[time]):
        return frame
    try:
        dates = pandas.to_datetime(frame[time], format="ISO8601", utc=True)
    except (ValueError, TypeError):
        return frame  # told by whoever reads the column
    return frame.assign(**{time: dates})


def _is_text(column: Any) -> bool:
    pandas = frames.pandas()
    return bool(pandas.api.types.is_string_dtype(column)) and not isinstance(column.dtype, pandas.CategoricalDtype)
