"""Checks on masks: bool [N, A], True where a discrete action is allowed."""

from __future__ import annotations

import numpy as np

from apev.data.validate import DataError, bad_rows


def mask_width(array: np.ndarray | None) -> int | None:
    """How many actions a column of masks tells of."""
    return None if array is None or array.ndim != 2 else array.shape[1]


def masks(array: np.ndarray, column: str) -> np.ndarray:
    """Masks as bool [N, A]; 0 and 1 of any dtype are understood."""
    if array.ndim != 2 or array.shape[1] == 0:
        fix = "pass bool [N, A]: True where an action is allowed, one column an action"
        raise DataError(column, f"shape is {array.shape}", fix)
    rows = bad_rows(array, lambda part: (part != 0) & (part != 1))
    if len(rows):
        raise DataError(column, "holds a value that is neither True nor False", "use bool, or 0 and 1", rows=rows)
    return np.ascontiguousarray(array.astype(bool, copy=False))


def action_masks(array: np.ndarray | None, actions: np.ndarray, num_actions: int | None) -> np.ndarray | None:
    """Masks as bool [N, A] that allow something in every row, and what was done there."""
    if array is None:
        return None
    allowed = masks(array, "action_masks")
    if num_actions is None:
        raise DataError(
            "action_masks", "are given, but actions are continuous", "leave them out; masks are of discrete actions"
        )
    if allowed.shape[1] != num_actions:
        fix = f"one column for each of the {num_actions} actions"
        raise DataError("action_masks", f"tell of {allowed.shape[1]} actions", fix)
    rows = np.flatnonzero(~allowed.any(axis=1))
    if len(rows):
        raise DataError("action_masks", "every action is forbidden", "allow at least the one that was taken", rows=rows)
    rows = np.flatnonzero(~allowed[np.arange(len(actions)), actions])
    if len(rows):
        fix = "repair the mask or the action; True means allowed (~action_masks if it is the other way round)"
        raise DataError("action_masks", f"action {actions[rows[0]]} was taken, but is forbidden", fix, rows=rows)
    return allowed


def next_masks(array: np.ndarray | None, now: np.ndarray | None, terminated: np.ndarray) -> np.ndarray | None:
    """Masks after each step, as bool [N, A]; where the world ended they may forbid everything."""
    if array is None:
        return None
    if now is None:
        raise DataError("next_action_masks", "is there without action_masks", "log both, or action_masks alone")
    allowed = masks(array, "next_action_masks")
    if allowed.shape != now.shape:
        raise DataError(
            "next_action_masks", f"has shape {allowed.shape}, action_masks {now.shape}", "log the same actions in both"
        )
    rows = np.flatnonzero(~allowed.any(axis=1) & ~terminated)
    if len(rows):
        fix = "allow an action, or set terminated if the world ended there"
        raise DataError("next_action_masks", "every action is forbidden, but the episode goes on", fix, rows=rows)
    return allowed
