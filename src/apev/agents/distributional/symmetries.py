"""The eight symmetries of the square, for logs whose actions are steps left, down, up and right in a picture.

A world seen in a mirror is a world as good as the first, if its steps are mirrored too. Symmetry s turns pictures by s % 4
quarter turns counter-clockwise and, from 4 on, then mirrors left and right; `ACTION_AFTER[s, a]` is what becomes of action a.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from apev.data.batch import Batch

COUNT = 8
MOVES = ((-1, 0), (0, -1), (0, 1), (1, 0))  # left, down, up, right; y is up


def _moved(symmetry: int, move: tuple[int, int]) -> tuple[int, int]:
    x, y = move
    for _ in range(symmetry % 4):
        x, y = -y, x
    return (-x, y) if symmetry >= 4 else (x, y)


ACTION_AFTER = torch.tensor([[MOVES.index(_moved(s, move)) for move in MOVES] for s in range(COUNT)])  # [8, 4]


def transform(pictures: Tensor, symmetry: int) -> Tensor:
    """Square pictures [P, C, H, H] under one symmetry."""
    turned = torch.rot90(pictures, symmetry % 4, (-2, -1))
    return turned.flip(-1) if symmetry >= 4 else turned


def transform_each(pictures: Tensor, symmetry: Tensor) -> Tensor:
    """Square pictures [P, C, H, H], each under its own symmetry [P]."""
    out = torch.empty_like(pictures)  # keeps channels last
    for s in range(COUNT):
        rows = (symmetry == s).nonzero().flatten()
        if len(rows):
            out[rows] = transform(pictures[rows], s)
    return out


def augmented(batch: Batch, contexts: int, generator: torch.Generator) -> Batch:
    """Every context of a batch under a random symmetry of its own; `contexts`: how many the log has."""
    assert batch.obs.pictures is not None
    assert batch.obs.picture is not None
    device = batch.action.device
    drawn = torch.randint(COUNT, (contexts,), generator=generator, device=device)
    of_row = drawn[batch.group]
    of_picture = torch.zeros(len(batch.obs.pictures), dtype=torch.int64, device=device)
    of_picture[batch.obs.picture] = of_row
    if batch.next_obs.picture is not None:
        of_picture[batch.next_obs.picture] = of_row
    pictures = transform_each(batch.obs.pictures, of_picture)
    obs, next_obs = replace(batch.obs, pictures=pictures), replace(batch.next_obs, pictures=pictures)
    return replace(batch, obs=obs, next_obs=next_obs, action=ACTION_AFTER.to(device)[of_row, batch.action])
