"""What a running environment sends, checked before it can touch a belief.

Networks pass a NaN on, and a belief that is NaN stays so until the episode ends while the policy goes on answering. So every
number is looked at when it comes in, and a step that is refused changes nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from apev.data.batch import Layout

LARGEST = 1e18  # squared, it is still a number that float32 can hold


def column(name: str, value: Any, count: int, device: torch.device, used: Tensor | None = None) -> Tensor:
    """Finite numbers float32 [n], one an environment; rows that are not `used` may hold anything, and become 0."""
    array = _array(name, value, count)
    numbers = torch.as_tensor(array, device=device).float()
    return _finite(name, numbers, used)


def flags(name: str, value: Any, count: int, device: torch.device, used: Tensor | None = None) -> Tensor:
    """True or False [n], one an environment; 0 and 1 are understood."""
    numbers = column(name, value, count, device, used)
    if not bool(((numbers == 0) | (numbers == 1)).all()):
        raise ValueError(f"{name} is {_shown(value)}. Fix: True or False, one an environment.")
    return numbers > 0


def actions(value: Any, count: int, layout: Layout, device: torch.device, used: Tensor | None = None) -> Tensor:
    """The actions that were executed: int64 [n] within their number, or finite float32 [n, A]."""
    if layout.action_dim:
        shape = np.shape(value)
        if shape not in ((count, layout.action_dim), (layout.action_dim,) if count == 1 else None):
            raise ValueError(f"action has shape {shape}, where ({count}, {layout.action_dim}) is needed.")
        given = torch.as_tensor(_numbers("action", value), device=device).float().reshape(count, layout.action_dim)
        return _finite("action", given, used)
    given = column("action", value, count, device, used)
    if not bool(((given == given.round()) & (given >= 0) & (given < layout.num_actions)).all()):
        raise ValueError(f"action {_shown(value)} is not one of 0 to {layout.num_actions - 1}.")
    return given.long()


def masks(name: str, value: Any, count: int, layout: Layout, device: torch.device, free: Tensor | None = None) -> Tensor:
    """Allowed actions, bool [n, A], at least one in every row; rows that are `free` may hold anything, and allow all."""
    array, shape = _numbers(name, value), (count, layout.num_actions)
    if array.shape != shape and not (count == 1 and array.shape == shape[1:]):
        raise ValueError(f"{name} has shape {array.shape}, where {shape} is needed. Fix: True or False for each action.")
    given = torch.as_tensor(array, device=device).reshape(shape)
    if not bool(((given == 0) | (given == 1)).all()):
        raise ValueError(f"{name} is {_shown(value)}. Fix: True or False for each action.")
    allowed = given > 0 if free is None else (given > 0) | free[:, None]
    if not bool(allowed.any(1).all()):
        row = int((~allowed.any(1)).int().argmax())
        raise ValueError(f"{name} forbids every action (environment {row}). Fix: allow at least one.")
    return allowed


def observed(name: str, vector: Tensor, used: Tensor | None = None) -> Tensor:
    """Vectors [n, D] that are finite wherever they are used; other rows become 0."""
    if not len(vector):
        raise ValueError(f"{name} is of no environment at all. Fix: one row an environment.")
    return _finite(name, vector, used)


def _array(name: str, value: Any, count: int) -> np.ndarray:
    array = np.atleast_1d(_numbers(name, value))
    if array.ndim > 1:
        fix = f"Fix: one number an environment, {name}.reshape(-1)."
        raise ValueError(f"{name} has shape {array.shape} for {count} environments. {fix}")
    if len(array) != count:
        raise ValueError(f"{name} has {len(array)} entries for {count} environments.")
    return array


def _numbers(name: str, value: Any) -> np.ndarray:
    array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} is {_shown(value)}, which are no real numbers. Fix: pass an array of numbers.")
    return array


def _finite(name: str, numbers: Tensor, used: Tensor | None) -> Tensor:
    if used is not None:
        numbers = torch.where(used if numbers.ndim == 1 else used[:, None], numbers, 0)
    sound = numbers.abs() <= LARGEST  # False for NaN too
    if not bool(sound.all()):
        row = int((~sound).flatten(1).any(1).int().argmax() if sound.ndim > 1 else (~sound).int().argmax())
        where = f" (environment {row})" if len(numbers) > 1 else ""
        raise ValueError(
            f"{name} holds a number that is NaN, infinite or beyond {LARGEST:g}{where}: a belief updated with it would be "
            "lost. Fix: repair the reading, or leave the row out (active=)."
        )
    return numbers


def _shown(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else text[:80] + "..."
