"""Logs in tables: a pandas DataFrame with one row a step, in any order.

    customer  visit  age  offer     reward
    c0412         0   34  discount     4.0
    c0412         1   34  bundle       0.0     <- the last row of an episode: terminated, unless a column says otherwise
    c0413         0   51  advice       3.0

Rows are sorted by episode and time. Ids become numbers in the order of the sorted ids. Text and categories become numbers
0, 1, ... as actions and one-hot columns as observations, in alphabetical order or that of the categories; names stay in the
source, as `action_names` and `observation_names`. An error names the column and the row of the table as it was given.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from apev.data import validate
from apev.data.dataset import Dataset
from apev.data.validate import DataError

MOST_CATEGORIES = 1000  # of an observation: each is an input of every network


def pandas() -> Any:
    """The library, or which command installs it."""
    try:
        return importlib.import_module("pandas")
    except ImportError as error:
        raise ModuleNotFoundError(f"tables need pandas ({error}). Fix: pip install 'apev[tables]'.") from error


def read(
    frame: Any,
    *,
    episode: str,
    time: str,
    observations: Sequence[str],
    action: str | Sequence[str],
    reward: str,
    context: str | None = None,
    terminated: str | None = None,
    truncated: str | None = None,
    masks: str | None = None,
    source: Mapping[str, Any] | None = None,
) -> Dataset:
    """See `Dataset.from_frame`."""
    seen = [observations] if isinstance(observations, str) else list(observations)
    acts = [action] if isinstance(action, str) else list(action)
    _check_table(frame)
    allowed = {} if masks is None else mask_columns([str(name) for name in frame.columns], masks)
    flags = {"terminated": terminated, "truncated": truncated}
    optional = [name for name in (context, *flags.values()) if name is not None]
    check_names(list(frame.columns), seen, acts, [reward, *optional[context is not None :]])
    named = [episode, time, *seen, *acts, reward, *allowed.values(), *optional]
    check_there(list(frame.columns), named)
    _check_filled(frame, named, seen)

    ids, values = _ids(frame[episode])
    moments, instants = _times(frame[time])
    order = np.lexsort((moments, ids))
    ids = ids[order]
    twice = np.flatnonzero((np.diff(ids) == 0) & (np.diff(moments[order]) == 0)) + 1
    if len(twice):
        problem = f"{episode} {values[ids[twice[0]]]} has two rows at the time {instants[moments[order][twice[0]]]}"
        raise DataError(time, problem, "give each row of an episode a time of its own", rows=np.sort(order[twice]))

    vectors, names = zip(*(_inputs(frame[name]) for name in seen), strict=True)
    about = dict(source or {}) | {"observation_names": [name for part in names for name in part]}
    actions, labels = _one_action(frame[action]) if isinstance(action, str) else (_several_actions(frame, acts), None)
    if allowed:
        actions, labels = with_allowed(actions, labels, list(allowed), str(masks))
    if labels is not None:
        about["action_names"] = labels
    order_of_masks = labels or [str(i) for i in range(len(allowed))]
    mask = np.stack([_numbers(frame[allowed[name]]) for name in order_of_masks], axis=1)[order] if allowed else None
    last = np.append(np.diff(ids) != 0, True)
    given = {name: _numbers(frame[column])[order] for name, column in flags.items() if column is not None}
    ended = given.get("terminated", last & (given.get("truncated", ~last) == 0))
    cut = given.get("truncated", last & (ended == 0))
    rewards, contexts = _numbers(frame[reward]), None if context is None else _ids(frame[context])[0][order]
    try:
        return Dataset.from_arrays(
            np.concatenate(vectors, axis=1)[order],
            actions[order],
            rewards[order],
            ended,
            cut,
            episodes=ids,
            contexts=contexts,
            action_masks=mask,
            num_actions=None if labels is None else len(labels),
            source=about,
        )
    except DataError as error:
        theirs = {"actions": acts[0], "rewards": reward, "episodes": episode, "contexts": context} | flags
        rows = None if error.rows is None else np.sort(order[error.rows])
        raise DataError(theirs.get(error.column) or error.column, error.problem, error.fix, rows=rows) from None


def mask_columns(there: Sequence[str], prefix: str) -> dict[str, str]:
    """{action: column} of the columns whose names begin with a prefix and end with an action."""
    found = {name[len(prefix) :]: name for name in there if name.startswith(prefix) and name != prefix}
    if not found:
        raise DataError("masks", f"no column begins with {prefix!r}; there are {list(there)!s:.300}", "name one flag an action")
    return found


def with_allowed(actions: np.ndarray, labels: list[str] | None, named: list[str], prefix: str) -> tuple[np.ndarray, Any]:
    """(actions, their names) with those among them that have a mask but were never taken."""
    if actions.ndim > 1:
        raise DataError("masks", "are given, but the action is continuous", "leave them out")
    if labels is None:
        if {str(i) for i in range(max(len(named), int(actions.max()) + 1))} != set(named):
            raise DataError("masks", f"are of the actions {named!s:.200}", f"one for each: {prefix}0, {prefix}1, ...")
        return actions, None
    lost = [name for name in labels if name not in named]
    if lost:
        raise DataError("masks", f"the action {lost[0]!r} has none", f"add the column {prefix}{lost[0]}")
    every = [*labels, *sorted(set(named) - set(labels))]
    return actions, every


def _check_table(frame: Any) -> None:
    if not isinstance(frame, pandas().DataFrame):
        raise DataError(
            "frame", f"is a {type(frame).__name__}, not a pandas DataFrame", "make one of it: pandas.DataFrame(...)"
        )
    if not len(frame):
        raise DataError("frame", "the table is empty", "pass at least one row")


def check_names(there: list[str], seen: list[str], acts: list[str], later: list[str]) -> None:
    """Observations and actions are columns, each once, and nothing is observed that is only known `later`."""
    for name, columns in (("observations", seen), ("action", acts)):
        if not columns or len(set(columns)) < len(columns):
            raise DataError(name, f"names the columns {columns}", "at least one, and none twice")
    check_there(there, [*seen, *acts])
    late = [name for name in seen if name in (*acts, *later)]
    if late:
        problem = "is an observation, but is only known after the action"
        raise DataError(late[0], problem, "leave it out of observations, or shift it by a row within its episode")


def check_there(there: list[str], names: list[str]) -> None:
    """A table with these columns, one each."""
    for name in names:
        count = there.count(name)
        if count != 1:
            problem = f"the table has {count or 'no'} column{'s' * (count > 1)} of this name; it has {there!s:.300}"
            raise DataError(str(name), problem, "name one of them" if not count else "rename all but one")


def _check_filled(frame: Any, names: list[str], seen: list[str]) -> None:
    """A value in every row of these columns, of which `seen` could be left out."""
    for name in names:
        rows = np.flatnonzero(frame[name].isna().to_numpy())
        if len(rows):
            fix = "fill it in, or drop the row: frame.dropna()"
            fix += "; or name --observations without it" if name in seen else ""
            raise DataError(name, "the value is missing", fix, rows=rows)


def _ids(column: Any) -> tuple[np.ndarray, Any]:
    """(a number a row, the ids that they stand for, sorted)."""
    try:
        codes, values = pandas().factorize(column, sort=True)
    except TypeError as error:
        fix = f"make them all text: frame[{column.name!r}].astype(str)"
        raise DataError(str(column.name), "has ids of several types, which have no order", fix) from error
    return codes.astype(np.int64), values


def _times(column: Any) -> tuple[np.ndarray, Any]:
    """(the rank of each row's time, the times that they stand for)."""
    types = pandas().api.types
    dated = types.is_datetime64_any_dtype(column) or types.is_timedelta64_dtype(column)
    if not dated and not types.is_numeric_dtype(column):
        fix = f"pandas.to_datetime(frame[{column.name!r}]), or a number"
        raise DataError(str(column.name), f"is {column.dtype}, which has no certain order in time", fix)
    if not dated:
        _numbers(column)
    return _ids(column)


def _numbers(column: Any) -> np.ndarray:
    """A column of numbers or truth values; finite."""
    types = pandas().api.types
    if not types.is_numeric_dtype(column) or types.is_complex_dtype(column):
        fix = f"make it numbers: pandas.to_numeric(frame[{column.name!r}])"
        raise DataError(str(column.name), f"is {column.dtype}, not numbers", fix)
    kind = np.bool_ if types.is_bool_dtype(column) else np.int64 if types.is_integer_dtype(column) else np.float64
    array = column.to_numpy(dtype=kind)
    validate.check_finite(array, str(column.name))
    return np.asarray(array)


def _labels(column: Any) -> tuple[np.ndarray, list[str]] | None:
    """(a number a row, the names that they stand for) of text or categories; None for anything else."""
    library = pandas()
    if isinstance(column.dtype, library.CategoricalDtype):
        names = [str(name) for name in column.cat.categories]
        if len(set(names)) < len(names):
            raise DataError(str(column.name), "two of its categories look the same as text", "rename one of them")
        return column.cat.codes.to_numpy(dtype=np.int64), names
    if column.dtype == object:
        rows = np.flatnonzero([not isinstance(value, str) for value in column])
        if len(rows):
            problem = f"value is a {type(column.iloc[int(rows[0])]).__name__} in a column of objects"
            raise DataError(str(column.name), problem, "make all of it text, or all of it numbers", rows=rows)
    elif not library.api.types.is_string_dtype(column):
        return None
    codes, values = _ids(column)
    return codes, [str(value) for value in values]


def _inputs(column: Any) -> tuple[np.ndarray, list[str]]:
    """(an observation as float32 [N, D], a name for each of D)."""
    labels = _labels(column)
    if labels is None:
        return _numbers(column).astype(np.float32)[:, None], [str(column.name)]
    codes, names = labels
    if len(names) > MOST_CATEGORIES:
        problem = f"has {len(names):,} different values, each of which would be an input of its own"
        raise DataError(str(column.name), problem, "encode it as numbers, group rare ones, or leave it out")
    return np.eye(len(names), dtype=np.float32)[codes], [f"{column.name}={name}" for name in names]


def _one_action(column: Any) -> tuple[np.ndarray, list[str] | None]:
    """(discrete actions [N] and their names, if they have any), or (continuous actions [N, 1], None)."""
    labels = _labels(column)
    if labels is not None:
        return labels
    numbers = _numbers(column)
    if numbers.dtype.kind == "b":
        return numbers.astype(np.int64), ["False", "True"]
    if numbers.dtype.kind == "i":
        return numbers, None
    if (numbers == np.round(numbers)).all():
        fix = f"frame[{column.name!r}].astype(int) if they number choices, action=[{column.name!r}] (--continuous) if amounts"
        raise DataError(str(column.name), "are floating-point numbers, all of them whole", fix)
    return numbers[:, None], None


def _several_actions(frame: Any, names: list[str]) -> np.ndarray:
    """Continuous actions [N, A]."""
    return np.stack([_numbers(frame[name]).astype(np.float64) for name in names], axis=1)
