"""What an agent reads: observations with every picture stored once, and batches of transitions.

    pictures  [P, C, H, W] uint8   each distinct picture, once
    picture   [B] int64            which of them row b shows

Fifty steps in front of one photograph are one picture and fifty indices, so an encoder sees the photograph once.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Observations:
    """A batch of B observations: a flat vector, a picture, or both."""

    vector: Tensor  # [B, D] float32; D = 0 when there is only a picture
    pictures: Tensor | None = None  # [P, C, H, W] uint8
    picture: Tensor | None = None  # [B] int64, rows of `pictures`


@dataclass(frozen=True)
class Batch:
    """B logged transitions; `next_obs` shares the table `pictures` of `obs`."""

    obs: Observations
    action: Tensor  # [B] int64
    reward: Tensor  # [B] float32
    next_obs: Observations
    terminated: Tensor  # [B] float32: 1 where the episode really ended (a time limit does not count)
    group: Tensor  # [B] int64: the context (picture or episode) a transition belongs to
