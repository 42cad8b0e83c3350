"""Columns that lie in files: what the operating system must know to read their rows quickly.

A random row of a file that does not fit in memory costs one wait for the disk, about 100 microseconds; a batch has hundreds.
Told beforehand which rows come next, the system fetches them all at once while the current batch trains (`Pages.fetch`).
"""

from __future__ import annotations

import mmap
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor


def is_mapped(array: np.ndarray) -> bool:
    """Whether the array, or what it is a view of, is memory-mapped."""
    return map_of(array) is not None


def map_of(array: np.ndarray) -> mmap.mmap | None:
    """The map of a file that the array lies in, if it does."""
    base: Any = array
    while base is not None and not isinstance(base, mmap.mmap):
        base = getattr(base, "base", None)
    return base


def as_tensor(array: np.ndarray) -> Tensor:
    """A tensor on the array's own memory, even if that is read-only: nobody here writes to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(array if is_mapped(array) else np.ascontiguousarray(array))


class Pages:
    """The mapped ones among some columns; says which of their rows are wanted next."""

    def __init__(self, columns: list[np.ndarray]) -> None:
        self._areas: dict[int, tuple[mmap.mmap, int, int]] = {}  # by address: the map, its first row and bytes a row
        for column in columns:
            area = map_of(column)
            if area is None or not hasattr(mmap, "MADV_WILLNEED"):
                continue
            address = np.frombuffer(area, np.uint8).__array_interface__["data"][0]
            begin = column.__array_interface__["data"][0] - address
            if address in self._areas:  # columns side by side in one file
                begin = min(begin, self._areas[address][1])
            self._areas[address] = (area, begin, column.strides[0])

    def __bool__(self) -> bool:
        return bool(self._areas)

    def expect_random(self) -> None:
        """Single rows will be read, so reading ahead in the file would only push useful pages out of memory."""
        for area, *_ in self._areas.values():
            area.madvise(mmap.MADV_RANDOM)

    def fetch(self, rows: np.ndarray) -> None:
        """Start reading these rows; returns before they are there."""
        for area, begin, size in self._areas.values():
            first = (begin + rows * size) // mmap.PAGESIZE
            last = (begin + rows * size + size - 1) // mmap.PAGESIZE
            for start, stop in {*zip(first.tolist(), last.tolist(), strict=True)}:
                area.madvise(mmap.MADV_WILLNEED, start * mmap.PAGESIZE, (stop - start + 1) * mmap.PAGESIZE)
