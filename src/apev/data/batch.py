"""What an agent reads: observations with every picture stored once, and batches of transitions.

    pictures  [P, C, H, W] uint8   each distinct picture, once
    picture   [B] int64            which of them row b shows

Fifty steps in front of one photograph are one picture and fifty indices, so an encoder sees the photograph once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from apev.data.mapped import pieces

if TYPE_CHECKING:
    from apev.data.dataset import Dataset


@dataclass(frozen=True)
class Observations:
    """A batch of B observations: a flat vector, a picture, or both."""

    vector: Tensor  # [B, D] float32; D = 0 when there is only a picture
    pictures: Tensor | None = None  # [P, C, H, W] uint8
    picture: Tensor | None = None  # [B] int64, rows of `pictures`
    history: Tensor | None = None  # [B, M] what an agent keeps of the steps before, where it keeps something
    allowed: Tensor | None = None  # [B, A] bool: the discrete actions that may be taken; None: all. At least one in each row

    def of_rows(self) -> Tensor | None:
        """[B, C, H, W]: the picture that each row shows; None where there are none."""
        return None if self.pictures is None or self.picture is None else self.pictures[self.picture]

    def to(self, device: torch.device) -> Observations:
        """The same on another device."""
        parts = (self.pictures, self.picture, self.history, self.allowed)
        rest = (None if part is None else part.to(device) for part in parts)
        return Observations(self.vector.to(device), *rest)


@dataclass(frozen=True)
class Batch:
    """B logged transitions; `next_obs` shares the table `pictures` of `obs`."""

    obs: Observations
    action: Tensor  # [B] int64, or float32 [B, A] when they are continuous
    reward: Tensor  # [B] float32
    next_obs: Observations
    terminated: Tensor  # [B] float32: 1 where the episode really ended (a time limit does not count)
    group: Tensor  # [B] int64: the context (picture or episode) a transition belongs to
    weight: Tensor | None = None  # [B] importance of each row, where some were drawn more often than others
    returns: Tensor | None = None  # [B] what the log says of each row's return, where agents learn from it (`data/returns.py`)
    learned: Callable[[Tensor], None] | None = None  # takes the loss of each row [B], for a sampler that draws by it
    shares_pictures: bool = False
    """Whether each row shows the same picture before and after its step, as where a context is one picture. Agents then
    encode the table once, and targets read the online encoder's features; else targets have an encoder of their own."""
    blocks: bool = False
    """Whether the rows are one block for each member, as long as each other, in the order of the members: a member then learns
    from its own block alone. Else all members learn from all rows."""
    log_belief: Tensor | None = None  # [B, K] what the log's own evidence would have taught before the step,
    next_log_belief: Tensor | None = None  # [B, K] and after it

    def prioritised(self, weight: Tensor, returns: Tensor | None, learned: Callable[[Tensor], None]) -> Batch:
        """The same rows with their importance, perhaps their returns, and somebody who wants to know how they went."""
        return replace(self, weight=weight, returns=returns, learned=learned)

    def to(self, device: torch.device) -> Batch:
        """The same on another device; both observations go on sharing their pictures."""
        obs, after = self.obs.to(device), replace(self.next_obs, pictures=None).to(device)
        rest = (self.action, self.reward, self.terminated, self.group)
        action, reward, terminated, group = (column.to(device) for column in rest)
        weight, returns = (None if column is None else column.to(device) for column in (self.weight, self.returns))
        next_obs = replace(after, pictures=obs.pictures)
        columns = (obs, action, reward, next_obs, terminated, group, weight, returns)
        beliefs = (None if b is None else b.to(device) for b in (self.log_belief, self.next_log_belief))
        return Batch(*columns, self.learned, self.shares_pictures, self.blocks, *beliefs)


@dataclass(frozen=True)
class Layout:
    """How observations and actions look: enough to build the networks and to read what an environment sends."""

    vectors: tuple[tuple[str, int], ...]  # (key, width), in the order they are joined
    picture: str | None  # the key of the picture
    picture_shape: tuple[int, int, int] | None  # C, H, W
    num_actions: int  # 0: actions are continuous
    bare: bool = False  # observations are one array, not a dict
    action_low: tuple[float, ...] = ()  # bounds of continuous actions, one a dimension
    action_high: tuple[float, ...] = ()
    action_names: tuple[str, ...] = ()  # of discrete actions 0, 1, ..., where the log has words for them
    observation_names: tuple[str, ...] = ()  # of the entries of the joined vector, where the log has words for them
    masked: bool = False  # the log says which actions were allowed

    @property
    def action_dim(self) -> int:
        """Width of continuous actions; 0 when they are discrete."""
        return len(self.action_low)

    @property
    def vector_dim(self) -> int:
        """Width of all vectors joined."""
        return sum(width for _, width in self.vectors)

    @classmethod
    def of(cls, dataset: Dataset) -> Layout:
        """The layout of a data set. Continuous actions are bounded as its source says, else by the largest in the log."""
        low: tuple[float, ...] = ()
        high: tuple[float, ...] = ()
        if dataset.num_actions is None:
            dim = dataset.actions.shape[1]
            given = [np.broadcast_to(dataset.source.get(key, np.nan), dim) for key in ("action_low", "action_high")]
            if np.isfinite(given).all():
                low, high = (tuple(float(x) for x in bound) for bound in given)
            else:
                most = np.max([np.abs(dataset.actions[rows]).max(axis=0) for rows in pieces(dataset.actions)], axis=0)
                high = tuple(1.0 if x <= 1 else float(x) for x in most)  # most actions are logged in [-1, 1]
                low = tuple(-x for x in high)
        shape = None if dataset.pictures is None else dataset.pictures.shape[1:]
        return cls(
            vectors=tuple((key, dataset.observations[key].shape[1]) for key in dataset.vector_keys),
            picture=dataset.picture_key,
            picture_shape=None if shape is None else (shape[2], shape[0], shape[1]),
            num_actions=dataset.num_actions or 0,
            action_low=low,
            action_high=high,
            bare=list(dataset.observations) == ["observation"],
            action_names=_names(dataset, "action_names", dataset.num_actions or 0),
            observation_names=_names(dataset, "observation_names", dataset.vector_dim),
            masked=dataset.action_masks is not None,
        )

    def read(self, obs: Any, pictures: Tensor | None = None, device: torch.device | str = "cpu") -> Observations:
        """A batch of raw observations, as Gymnasium's vector environments give them.

        With a table `pictures` ([P, C, H, W]) the picture column holds indices into it instead of pixels.
        """
        columns = {"observation": obs} if self.bare else obs
        self.check(columns)
        parts = []
        for key, width in self.vectors:
            part = torch.as_tensor(np.asarray(columns[key]), device=device).float()
            if not part.ndim or not len(part):
                raise ValueError(f"observation {key!r} is of no environment at all. Fix: one row an environment.")
            parts.append(part.reshape(len(part), -1))
            if parts[-1].shape[1] != width:
                raise ValueError(f"observation {key!r} has width {parts[-1].shape[1]}, the training data had {width}.")
        if self.picture is None:
            return Observations(torch.cat(parts, 1))
        shown = torch.as_tensor(np.asarray(columns[self.picture]), device=device)
        if pictures is None:
            shown = shown[..., None] if shown.ndim == 3 else shown.clone()  # the environment may reuse its buffer
            pictures, index = shown.permute(0, 3, 1, 2), torch.arange(len(shown), device=device)
            if pictures.shape[1:] != self.picture_shape:
                raise ValueError(
                    f"picture {self.picture!r} has shape {tuple(shown.shape[1:])}, height, width and channels must be "
                    f"those of the training data: C, H, W = {self.picture_shape}."
                )
        else:
            index = shown.long()
        vector = torch.cat(parts, 1) if parts else torch.zeros(len(index), 0, device=device)
        return Observations(vector, pictures, index)

    def check(self, columns: Any) -> None:
        """A dict with every key we read."""
        if not isinstance(columns, Mapping):
            raise TypeError(f"this policy reads a dict with {self.keys}, got {type(columns).__name__}.")
        missing = [key for key in self.keys if key not in columns]
        if missing:
            raise KeyError(f"observation lacks {missing}; it has {sorted(columns)}.")

    @property
    def keys(self) -> list[str]:
        """Every key an observation must have."""
        return [key for key, _ in self.vectors] + ([self.picture] if self.picture else [])


def _names(dataset: Dataset, key: str, count: int) -> tuple[str, ...]:
    """The words that a log's source has for its actions or observations, one each; none where they do not fit."""
    told = dataset.source.get(key)
    return tuple(map(str, told)) if isinstance(told, list) and len(told) == count else ()
