"""What a running environment sends, checked before it can touch a belief.

Networks pass a NaN on, and a belief that is NaN stays so until the episode ends while the policy goes on answering. So every
number is looked at when it comes in, and a step that is refused changes nothing.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from apev.data.batch import Layout, Observations

LARGEST = 1e18  # squared, it is still a number that float32 can hold
PLAIN = (float, int, bool, np.float64, np.float32, np.bool_)  # types of single numbers that need no reading


def read(obs: Any, layout: Layout, device: torch.device) -> tuple[Observations, bool]:
    """Raw observations as the networks read them, and whether they were those of a single environment."""
    usual_type = type(obs) is np.ndarray and obs.dtype == np.float32 and obs.ndim == 1
    if usual_type and layout.bare and layout.picture is None and obs.shape[0] == layout.vectors[0][1] > 1:
        return Observations(torch.from_numpy(obs[None].copy()).to(device)), True  # no more than one environment needs
    key = layout.picture or layout.vectors[0][0]
    if not layout.bare:
        layout.check(obs)
    shape = np.shape(obs if layout.bare else obs[key])
    usual = len(layout.picture_shape or ()) if layout.picture else 1
    number = not layout.picture and layout.vectors[0][1] == 1  # a column of single numbers: (), or [n] for many
    single = shape == () or (len(shape) == usual and not (number and shape != (1,)))
    if number and shape == ():
        obs = np.reshape(obs, 1) if layout.bare else obs | {key: np.reshape(obs[key], 1)}
    if single:
        obs = np.asarray(obs)[None] if layout.bare else {k: np.asarray(v)[None] for k, v in obs.items()}
    return layout.read(obs, device=device), single


def column(name: str, value: Any, count: int, device: torch.device, used: Tensor | None = None) -> Tensor:
    """Finite numbers float32 [n], one an environment; rows that are not `used` may hold anything, and become 0."""
    return torch.from_numpy(_column(name, value, count, used)).to(device)


def flags(name: str, value: Any, count: int, device: torch.device, used: Tensor | None = None) -> Tensor:
    """True or False [n], one an environment; 0 and 1 are understood."""
    if count == 1 and used is None and type(value) in (bool, np.bool_):
        return torch.tensor([bool(value)], device=device)
    numbers = _column(name, value, count, used)
    if not ((numbers == 0) | (numbers == 1)).all():
        raise ValueError(f"{name} is {_shown(value)}. Fix: True or False, one an environment.")
    return torch.from_numpy(numbers > 0).to(device)


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
    if not vector.shape[0]:
        raise ValueError(f"{name} is of no environment at all. Fix: one row an environment.")
    return _finite(name, vector, used)


def _column(name: str, value: Any, count: int, used: Tensor | None) -> np.ndarray:
    """Checked as an array: for a few numbers that is many times as quick as a tensor's."""
    if count == 1 and used is None and type(value) in PLAIN and -LARGEST <= value <= LARGEST:
        return np.array([value], np.float32)
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
        numbers = _array(name, value, count).astype(np.float32)
    if used is not None:
        numbers = np.where(used.cpu().numpy(), numbers, np.float32(0))
    sound = np.abs(numbers) <= LARGEST  # False for NaN too
    if not sound.all():
        _refuse(name, int((~sound).argmax()), count)
    return numbers


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
        numbers = torch.where(used[:, None], numbers, 0)
    flat = numbers.reshape(-1)
    if float(flat.dot(flat)) <= LARGEST:  # then each of them is, by far; else one by one
        return numbers
    sound = numbers.abs() <= LARGEST  # False for NaN too
    if not bool(sound.all()):
        _refuse(name, int((~sound).flatten(1).any(1).int().argmax()), len(numbers))
    return numbers


def _refuse(name: str, row: int, count: int) -> NoReturn:
    where = f" (environment {row})" if count > 1 else ""
    raise ValueError(
        f"{name} holds a number that is NaN, infinite or beyond {LARGEST:g}{where}: a belief updated with it would be "
        "lost. Fix: repair the reading, or leave the row out (active=)."
    )


def _shown(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else text[:80] + "..."
