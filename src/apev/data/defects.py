"""Every defect of a log, not only the first: what `apev data verify` prints.

The checks are those of `apev.data.validate`. Each column is checked by itself; rows found wrong are neutralised, and the column
is checked again, until nothing is left to find. Then the columns are checked against each other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from apev.data import masks, scores, validate
from apev.data import source as sources
from apev.data.dataset import Dataset
from apev.data.formats.columns import Columns
from apev.data.formats.hdf5 import breaks
from apev.data.validate import DataError

KINDS_A_COLUMN = 10  # a column has at most a few kinds of defect; this only bounds the loop


def find(columns: Columns) -> list[DataError]:
    """All defects, in the order of the columns; each knows its column, all its rows and the fix."""
    found = list(columns.faults())
    if columns.empty() is not None:
        return found
    checked: dict[str, np.ndarray] = {}
    table_rows = _picture_rows(columns, found)
    for name, array in columns.arrays.items():
        check = _check_of(name, columns, table_rows)
        if check is None:
            continue
        column = _exhaust(partial(validate.as_column, column=name), array, found)
        if column is not None and len(column):  # without a row there is nothing to check but that
            column = _exhaust(check, column, found)
        if column is not None:
            checked[name] = column
    lengths = {name: column for name, column in checked.items() if not name.startswith("pictures")}
    before = len(found)
    while len({len(column) for column in lengths.values()}) > 1:
        _attempt(lambda: validate.check_lengths(lengths), found)
        lengths.pop(found[-1].column)
    if lengths and len(next(iter(lengths.values()))) == 0:
        _attempt(lambda: validate.check_lengths(lengths), found)
    if len(found) == before:
        _together(columns, checked, found)
    return found


def _attempt(check: Callable[[], Any], found: list[DataError]) -> Any:
    try:
        return check()
    except DataError as error:
        found.append(error)
        return None


def _exhaust(check: Callable[[np.ndarray], Any], array: np.ndarray, found: list[DataError]) -> np.ndarray | None:
    """Check, set bad rows to 0 and check again; what the check returned in the end, or None."""
    for _ in range(KINDS_A_COLUMN):
        try:
            return np.asarray(check(array))
        except DataError as error:
            found.append(error)
            if error.rows is None:
                return None
            array = np.array(array)
            array[error.rows] = 0
    return None


def _picture_rows(columns: Columns, found: list[DataError]) -> dict[str, int]:
    """{key: pictures in its table}."""
    if not columns.has("pictures"):
        return {}
    pair = _attempt(lambda: validate.picture_table(columns.keyed("pictures")), found)
    return {} if pair is None else {pair[0]: len(pair[1])}


def _check_of(name: str, columns: Columns, tables: dict[str, int]) -> Callable[[np.ndarray], Any] | None:
    """The check of one column; None where it has none of its own."""
    head, key = name, ""
    for prefix in ("next_observations", "observations"):
        if name == prefix or name.startswith((f"{prefix}/", f"{prefix}.")):
            head, key = prefix, name[len(prefix) + 1 :]
            break
    if head in ("observations", "next_observations"):
        if key in tables:
            return lambda array: validate.picture_index(array, name, tables[key])
        return lambda array: validate.images(array, name) if array.ndim > 2 else validate.vector(array, name)
    if name == "actions":
        return lambda array: validate.discrete_or_continuous(array, columns.num_actions)[0]
    if name == "rewards":
        return validate.rewards
    if name in ("terminated", "truncated"):
        return lambda array: validate.flags(array, name)
    if name in ("episodes", "contexts"):
        return lambda array: array
    if name in ("action_masks", "next_action_masks"):
        return lambda array: masks.masks(array, name)
    return None


def _together(columns: Columns, checked: dict[str, np.ndarray], found: list[DataError]) -> None:
    """What only shows when columns are compared."""
    ended, cut = checked.get("terminated"), checked.get("truncated")
    if ended is not None and cut is not None:
        if (ended & cut).any():
            _attempt(partial(validate.episode_numbers, None, ended, cut), found)
            cut = cut & ~ended
        numbers = _attempt(partial(validate.episode_numbers, checked.get("episodes"), ended, cut), found)
        if numbers is not None and "contexts" in checked:
            _attempt(lambda: validate.context_numbers(checked["contexts"], numbers), found)
    taken, allowed, after = (checked.get(name) for name in ("actions", "action_masks", "next_action_masks"))
    if taken is not None and allowed is not None and taken.ndim == 1 and int(taken.max()) < allowed.shape[1]:
        _attempt(lambda: masks.action_masks(allowed, taken, allowed.shape[1]), found)
        if after is not None and ended is not None:
            _attempt(lambda: masks.next_masks(after, allowed, ended), found)
    if not found:  # the rest has no rows to neutralise: shapes and keys that do not fit
        _attempt(columns.dataset, found)


def _out_of_bounds(dataset: Dataset) -> list[str]:
    """Continuous actions that the environment would not take, where its bounds are known."""
    bounds = None if dataset.discrete else sources.action_bounds(dataset.source)
    if bounds is None:
        return []
    width = dataset.actions.shape[1:]
    if np.ndim(bounds[0]) and np.shape(bounds[0]) != width:
        return [f"actions have {width[0]} numbers a row, the environment's {np.size(bounds[0])}"]
    low, high = (np.broadcast_to(bound, width) for bound in bounds)
    slack = 1e-3 * (high - low)
    outside = validate.bad_rows(dataset.actions, lambda part: (part < low - slack) | (part > high + slack))
    if not len(outside):
        return []
    least, most = float(dataset.actions.min()), float(dataset.actions.max())
    return [
        f"actions: {len(outside)} rows (first {int(outside[0])}) lie outside the environment's bounds, "
        f"{low.min():g} to {high.max():g}: they reach from {least:g} to {most:g}"
    ]


def notes(dataset: Dataset) -> list[str]:
    """What is no defect but good to know before training."""
    told = list(dataset.source.get("notes", []))
    lost = len(dataset) - int(dataset.usable.sum())
    if lost:
        told.append(f"{lost} rows end an episode without a known next observation: not used for learning")
    following = dataset.given_next or {}
    for key in dataset.vector_keys if following else ():
        gaps = breaks(dataset.observations[key], following[key]) & (dataset.next_rows != np.arange(len(dataset)))
        if gaps.any():
            first = int(np.argmax(gaps))
            told.append(
                f"next_observations of {key}: {int(gaps.sum())} rows (first {first}) inside an episode are not the following "
                "row. Learning uses them as logged; episode returns and lengths may be wrong there"
            )
    told += _out_of_bounds(dataset)
    if scores.counts_up(dataset):
        told.append(
            "each reward is the number of subtasks done so far, as in D4RL's kitchen logs: a normalised score is of the "
            "highest reward of an episode, not of their sum"
        )
    if dataset.rewards.min() == dataset.rewards.max():
        told.append(f"every reward is {dataset.rewards[0]:g}: there is nothing to learn from rewards alone")
    return told
