"""Checks on logged columns. A mistake is named by column and row, together with what to do about it.

A wrong log trains without complaint and gives a bad policy, so everything is checked once, when the data comes in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from apev.data.mapped import Shards, is_mapped, pieces
from apev.files import FileError

MOST_ACTIONS = 1 << 16  # discrete actions: each is an output of every network
ObservationsLike = ArrayLike | Mapping[str, ArrayLike]


class DataError(FileError):
    """A mistake in logged data: where it is (`column`, `row`), what it is, and the `fix`.

    `rows` are all the rows with this mistake, where rows can be named; `row` is the first of them.
    """

    def __init__(self, column: str, problem: str, fix: str, row: int | None = None, rows: np.ndarray | None = None) -> None:
        row = int(rows[0]) if rows is not None else row
        place = column if row is None else f"{column}, row {row}"
        super().__init__(place, problem, fix)
        self.column = column
        self.row = row
        self.rows = rows if rows is not None or row is None else np.array([row])


def bad_rows(array: np.ndarray, is_bad: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The rows in which `is_bad` holds anywhere."""
    found = []
    for rows in pieces(array):
        bad = is_bad(array[rows])
        if bad.any():
            found.append(rows.start + np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1)))
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def _odd_row(value: Any) -> int | None:
    """The first row of a ragged or mixed sequence that is not like row 0, or is not a number."""
    try:
        shapes = [np.shape(item) for item in value]
        odd = [i for i, shape in enumerate(shapes) if shape != shapes[0]]
        return odd[0] if odd else next(i for i, item in enumerate(value) if np.asarray(item).dtype.kind not in "biuf")
    except (TypeError, ValueError, IndexError, StopIteration):
        return None


def as_column(value: Any, column: str) -> np.ndarray:
    """`value` as an array of real numbers with a leading row axis."""
    if value is None:
        raise DataError(column, "the column is missing", f"pass {column}, one entry a row")
    if isinstance(value, Mapping):
        raise DataError(column, "is a dict", "only observations, next_observations and pictures may be dicts of arrays")
    if isinstance(value, Shards):
        return cast(np.ndarray, value)  # it stands for one
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        fix = "give every row the same shape (pad or cut), in memory of the CPU"
        raise DataError(column, f"cannot be read as one array ({error})", fix, _odd_row(value)) from error
    if array.dtype.kind == "O":
        fix = "make it an array of numbers, with the same shape in every row, before you pass it"
        raise DataError(column, "dtype is object, not a number", fix, _odd_row(array))
    if array.dtype.kind not in "biuf":
        fix = "encode it as real numbers, e.g. column.astype(np.float32) or integer codes"
        raise DataError(column, f"dtype is {array.dtype}, not a real number", fix)
    if array.ndim == 0:
        raise DataError(column, "is a single number", "pass one entry a row")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def check_lengths(columns: Mapping[str, np.ndarray]) -> int:
    """All columns have the same number of rows, at least one; the odd one out is blamed."""
    rows = Counter(len(array) for array in columns.values()).most_common(1)[0][0]
    for column, array in columns.items():
        if len(array) != rows:
            problem = f"has {len(array)} rows where the other columns have {rows}"
            fix = "log every column at every step; one entry a transition (an episode of T steps has T rows, not T + 1)"
            raise DataError(column, problem, fix, min(len(array), rows))
    if rows == 0:
        raise DataError(next(iter(columns)), "the data is empty", "pass at least one transition")
    return rows


def check_finite(array: np.ndarray, column: str) -> None:
    """No NaN and no infinity, which would spread through every weight in one update."""
    if array.dtype.kind != "f":
        return
    rows = bad_rows(array, lambda part: ~np.isfinite(part))
    if len(rows):
        values = np.atleast_1d(array[rows[0]])
        name = "NaN" if np.isnan(values[~np.isfinite(values)].flat[0]) else "infinite"
        raise DataError(column, f"value is {name}", "drop the row or repair the log (np.isfinite finds them)", rows=rows)


def _to_float32(array: np.ndarray, column: str) -> np.ndarray:
    check_finite(array, column)
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32, copy=False)
    if array.dtype.kind == "f" and array.dtype.itemsize > 4:
        rows = bad_rows(narrow, lambda part: ~np.isfinite(part))
        if len(rows):
            raise DataError(column, "value is too large for float32", "rescale the column", rows=rows)
    return narrow


def _flat(array: np.ndarray, column: str) -> np.ndarray:
    """One number a row: [N], or [N, 1] as some logs have it."""
    if array.ndim == 2 and array.shape[1] == 1:
        return array[:, 0]
    if array.ndim != 1:
        raise DataError(column, f"shape is {array.shape}, not one number a row", f"pass {column} as [N]")
    return array


def rewards(array: np.ndarray) -> np.ndarray:
    """Rewards as float32 [N]."""
    narrow = _to_float32(_flat(array, "rewards"), "rewards")
    return np.array(narrow) if is_mapped(narrow) else np.ascontiguousarray(narrow)  # narrow columns are worth the memory


def flags(array: np.ndarray, column: str) -> np.ndarray:
    """`terminated` or `truncated` as bool [N]; 0 and 1 of any dtype are understood."""
    array = _flat(array, column)
    check_finite(array, column)
    rows = np.flatnonzero((array != 0) & (array != 1))
    if len(rows):
        raise DataError(column, f"value is {array[rows[0]]}, not True or False", "use bool, or 0 and 1", rows=rows)
    return np.ascontiguousarray(array.astype(bool))


def discrete_or_continuous(array: np.ndarray, num_actions: int | None) -> tuple[np.ndarray, int | None]:
    """Discrete actions as int64 [N] with their number, or continuous ones as float32 [N, A] with None."""
    kind = array.dtype.kind
    if kind == "b":
        raise DataError("actions", "dtype is bool", "number the actions: actions.astype(np.int64)")
    if kind == "f":
        if array.ndim != 2 or array.shape[1] == 0:
            check_finite(array, "actions")
            whole = bool((array == np.round(array)).all())
            fix = "actions.astype(np.int64)" if whole else "continuous actions are [N, A]: actions.reshape(N, -1)"
            raise DataError("actions", f"are floating-point numbers of shape {array.shape}", fix)
        if num_actions is not None:
            fix = "drop num_actions, or pass integer actions [N]"
            raise DataError("actions", "are continuous, but num_actions was given", fix)
        return _in_place(_to_float32(array, "actions")), None
    if array.ndim == 2 and array.shape[1] > 1:
        fix = "pass one integer a row: actions.argmax(axis=1) if they are one-hot, np.ravel_multi_index if several"
        raise DataError("actions", f"are integers of shape {array.shape}", fix)
    actions = np.ascontiguousarray(_flat(array, "actions").astype(np.int64))
    rows = np.flatnonzero(actions < 0)
    if len(rows):
        raise DataError("actions", f"action {actions[rows[0]]} is negative", "number the actions 0, 1, 2, ...", rows=rows)
    highest = int(actions.max())
    if num_actions is None:
        if highest >= MOST_ACTIONS:
            fix = (
                f"number the {len(np.unique(actions))} actions there are 0, 1, 2, ...: np.unique(actions, return_inverse=True)"
            )
            rows = np.flatnonzero(actions >= MOST_ACTIONS)
            raise DataError("actions", f"action {highest} would need as many outputs of each network", fix, rows=rows)
        return actions, highest + 1
    whole = isinstance(num_actions, int | np.integer) and not isinstance(num_actions, bool)
    if not whole or not 1 <= num_actions <= MOST_ACTIONS:
        fix = f"pass a whole number of at least 1 and at most {MOST_ACTIONS:,}, or None"
        raise DataError("num_actions", f"is {num_actions!r:.80}", fix)
    if highest >= num_actions:
        rows = np.flatnonzero(actions >= num_actions)
        fix = f"number the actions from 0 and repair the row, or pass num_actions={highest + 1}"
        raise DataError("actions", f"action {actions[rows[0]]} is outside 0..{num_actions - 1}", fix, rows=rows)
    return actions, int(num_actions)


def vector(array: np.ndarray, column: str) -> np.ndarray:
    """A vector column as [N, D] in a compact dtype torch can index; 64-bit floats become float32."""
    array = array.reshape(len(array), 1) if array.ndim == 1 else array
    if array.shape[1] == 0:
        raise DataError(column, "has no entries", "drop the key, or give it at least one number a row")
    if array.dtype.kind == "f" and array.dtype.itemsize > 4:
        array = _to_float32(array, column)
    check_finite(array, column)
    wider = {"uint16": np.int32, "uint32": np.int64, "uint64": np.int64}.get(array.dtype.name)
    return _in_place(array if wider is None else array.astype(wider))


def _in_place(array: np.ndarray) -> np.ndarray:
    """Contiguous, or as it is where it lies in a file: copying that could fill the memory."""
    return array if is_mapped(array) else np.ascontiguousarray(array)


def images(array: np.ndarray, column: str) -> np.ndarray:
    """Raw pictures as uint8 [N, H, W, C]."""
    if array.ndim not in (3, 4) or 0 in array.shape[1:]:
        fix = "pictures are [N, H, W, C] or [N, H, W]; vectors are [N, D]: array.reshape(N, -1)"
        raise DataError(column, f"shape is {array.shape}", fix)
    if array.dtype != np.uint8:
        fix = "store pixels 0..255: (array * 255).round().astype(np.uint8) if they are 0..1; for a vector reshape(N, -1)"
        raise DataError(column, f"is a picture of dtype {array.dtype}, not uint8", fix)
    if array.ndim == 3:
        array = array[..., None]
    if array.shape[1] <= 4 < array.shape[2] == array.shape[3]:
        fix = "put the channels last: np.moveaxis(array, 1, -1)"
        raise DataError(column, f"shape {array.shape} looks like channels first", fix)
    return array


def picture_index(array: np.ndarray, column: str, count: int) -> np.ndarray:
    """Which picture each row shows, as int32 [N], within a table of `count`."""
    if array.dtype.kind not in "iu" or array.ndim > 2:
        fix = f"with `pictures` given, {column} is an integer index [N] into that table"
        raise DataError(column, f"is {array.dtype} of shape {array.shape}, not a picture index", fix)
    index = _flat(array, column)
    rows = np.flatnonzero((index < 0) | (index >= count))
    if len(rows):
        fix = "count the pictures from 0, or add the missing picture to `pictures`"
        raise DataError(column, f"picture {index[rows[0]]} is outside 0..{count - 1}", fix, rows=rows)
    return np.ascontiguousarray(index.astype(np.int32 if count <= 2**31 else np.int64))


def check_alike(given: Mapping[str, np.ndarray], following: Mapping[str, np.ndarray], labels: Mapping[str, str]) -> None:
    """`next_observations` has the keys and shapes of `observations`."""
    if set(given) != set(following):
        fix = "give both the same keys"
        raise DataError("next_observations", f"has keys {sorted(following)}, observations has {sorted(given)}", fix)
    for key, array in given.items():
        if array.shape[1:] != following[key].shape[1:]:
            problem = f"shape a row is {following[key].shape[1:]}, in observations {array.shape[1:]}"
            raise DataError(labels[key], problem, "log the same observation before and after the step")


def episode_numbers(ids: np.ndarray | None, terminated: np.ndarray, truncated: np.ndarray) -> np.ndarray:
    """Episodes numbered 0, 1, 2, ... in the order of the log, as int64 [N]; checked against the two flags."""
    both = terminated & truncated
    if both.any():
        fix = (
            "keep one: terminated if the world ended the episode (truncated &= ~terminated), "
            "truncated if only a clock did (terminated &= ~truncated)"
        )
        raise DataError("truncated", "terminated and truncated are both True", fix, rows=np.flatnonzero(both))
    ends = terminated | truncated
    if ids is None:
        return _count(ends[:-1])
    ids = _flat(ids, "episodes")
    if ids.dtype.kind not in "iu":
        raise DataError("episodes", f"dtype is {ids.dtype}", "pass one integer id a row: episodes.astype(np.int64)")
    new = ids[1:] != ids[:-1]
    starts = np.concatenate([[0], np.flatnonzero(new) + 1])
    order = np.argsort(ids[starts], kind="stable")
    again = order[1:][ids[starts][order][1:] == ids[starts][order][:-1]]
    if len(again):
        rows = np.sort(starts[again])
        fix = "sort the rows by episode and time, or give the second part an id of its own"
        raise DataError("episodes", f"episode {ids[rows[0]]} starts again after another one", fix, rows=rows)
    inside = ends[:-1] & ~new
    if inside.any():
        rows = np.flatnonzero(inside)
        row = rows[0]
        column = "terminated" if terminated[row] else "truncated"
        rows = rows[(terminated if terminated[row] else truncated)[rows]]
        fix = "start a new episode id in the next row, or clear the flag"
        raise DataError(column, f"is True, but episode {ids[row]} goes on in the next row", fix, rows=rows)
    return _count(new)


def _count(new: np.ndarray) -> np.ndarray:
    """int64 [N]: how many of the N - 1 steps up to a row began something new."""
    numbers = np.zeros(len(new) + 1, dtype=np.int64)
    np.cumsum(new, out=numbers[1:])
    return numbers


def context_numbers(ids: np.ndarray | None, episodes: np.ndarray) -> np.ndarray | None:
    """Contexts numbered from 0, as int64 [N]; an episode must stay in one."""
    if ids is None:
        return None
    ids = _flat(ids, "contexts")
    if ids.dtype.kind not in "iu":
        raise DataError("contexts", f"dtype is {ids.dtype}", "pass one integer id a row: contexts.astype(np.int64)")
    changed = np.append(False, (ids[1:] != ids[:-1]) & (episodes[1:] == episodes[:-1]))
    if changed.any():
        rows = np.flatnonzero(changed)
        row = rows[0]
        fix = "give a row the context of its episode, or start a new episode where the context changes"
        problem = f"episode {episodes[row]} changes from context {ids[row - 1]} to {ids[row]}"
        raise DataError("contexts", problem, fix, rows=rows)
    return np.unique(ids, return_inverse=True)[1].astype(np.int64)


def observation_columns(value: ObservationsLike, name: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Observations as {key: array}, and how an error calls each key."""
    if not isinstance(value, Mapping):
        return {"observation": as_column(value, name)}, {"observation": name}
    if not value or not all(isinstance(key, str) and key for key in value):
        raise DataError(name, f"has keys {list(value)}", "give at least one observation; keys are non-empty strings")
    labels = {key: f"{name}/{key}" for key in value}
    return {key: as_column(array, labels[key]) for key, array in value.items()}, labels


def picture_table(pictures: Mapping[str, ArrayLike] | None) -> tuple[str | None, np.ndarray | None]:
    """The name and the pictures of an already deduplicated column, if there is one."""
    if pictures is None:
        return None, None
    if not isinstance(pictures, Mapping) or len(pictures) != 1:
        fix = 'pass one table under the name of its observation: pictures={"image": array}'
        raise DataError("pictures", "must be a dict with one table", fix)
    key, table = next(iter(pictures.items()))
    array = images(as_column(table, f"pictures/{key}"), f"pictures/{key}")
    if len(array) == 0:
        raise DataError(f"pictures/{key}", "the table is empty", "pass the pictures the index column refers to")
    return key, np.ascontiguousarray(array)


def picture_key_of(columns: Mapping[str, np.ndarray]) -> str | None:
    """The one observation that is a picture, if there is one."""
    keys = [key for key, array in columns.items() if array.ndim > 2]
    if len(keys) > 1:
        fix = "stack them along the channels into one picture, or reshape the small ones to vectors [N, D]"
        raise DataError(f"observations/{keys[1]}", f"{len(keys)} pictures ({', '.join(keys)}), at most one is read", fix)
    return keys[0] if keys else None


def stored_columns(
    columns: Mapping[str, np.ndarray], labels: Mapping[str, str], picture_key: str | None, table: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Each column in its stored form; a raw picture column stays [N, H, W, C] for the moment."""
    checked = {}
    for key, array in columns.items():
        if key == picture_key and table is not None:
            checked[key] = picture_index(array, labels[key], len(table))
        elif key == picture_key or array.ndim > 2:
            checked[key] = images(array, labels[key])
        else:
            checked[key] = vector(array, labels[key])
    return checked
