"""The eight symmetries of the square, for logs whose actions are steps left, down, up and right in a picture.

A world seen in a mirror is a world as good as the first, if its steps are mirrored too. Symmetry s turns pictures by s % 4
quarter turns counter-clockwise and, from 4 on, then mirrors left and right; `ACTION_AFTER[s, a]` is what becomes of action a.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
