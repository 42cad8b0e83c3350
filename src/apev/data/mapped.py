"""Columns that lie in files: what the operating system must know to read their rows quickly, and several files as one column.

A random row of a file that does not fit in memory costs one wait for the disk, about 100 microseconds; a batch has hundreds.
Told beforehand which rows come next, the system fetches them all at once while the current batch trains (`Pages.fetch`).
"""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

PIECE_BYTES = 1 << 24


class Shards:
    """Arrays [N_i, D] of several files, end to end: stands where an array [N, D] does, as far as columns are read.

    It gives rows as an array does, for slices, numbers and masks. Whatever needs all of it goes through `pieces`.
    """

    ndim = 2

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        kinds = {(part.dtype, part.shape[1:]) for part in parts}
        if len(kinds) != 1 or parts[0].ndim != self.ndim:
            raise ValueError(f"shards differ: {sorted(map(str, kinds))}")
        self.parts = list(parts)
        self.ends = np.cumsum([len(part) for part in parts])
        self.dtype = parts[0].dtype
        self.shape = (int(self.ends[-1]), parts[0].shape[1])
        self.itemsize = self.dtype.itemsize
        self.nbytes = sum(part.nbytes for part in parts)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step != 1:
                return self[np.arange(start, stop, step)]
            begins = self.ends - [len(part) for part in self.parts]
            inside = [
                part[max(0, start - begin) : stop - begin]
                for part, begin in zip(self.parts, begins, strict=True)
                if begin < stop and begin + len(part) > start
            ]
            return np.concatenate(inside) if len(inside) != 1 else inside[0]
        index = np.asarray(rows)
        if index.dtype == bool:
            index = np.flatnonzero(index)
        if index.ndim == 0:
            return np.asarray(self[index[None]][0])
        return TensorShards(self).index_select(0, torch.from_numpy(index.astype(np.int64))).numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All of it, in memory: for whoever writes it to a file of another kind."""
        return np.concatenate(self.parts).astype(dtype or self.dtype, copy=False)

    def astype(self, dtype: Any, copy: bool = True) -> Any:
        """As it is where that is what was asked for; else in memory."""
        return self if np.dtype(dtype) == self.dtype and not copy else np.asarray(self, dtype=dtype)

    def min(self, axis: int | None = None, **_: Any) -> Any:
        """As an array's."""
        return np.min([part.min(axis=axis) for part in self.parts], axis=0)

    def max(self, axis: int | None = None, **_: Any) -> Any:
        """As an array's."""
        return np.max([part.max(axis=axis) for part in self.parts], axis=0)


class TensorShards:
    """`Shards` as torch reads columns: rows by their numbers."""

    def __init__(self, shards: Shards) -> None:
        self._parts = [as_tensor(part) for part in shards.parts]
        self._ends = torch.from_numpy(shards.ends)
        self._shape, self._dtype = shards.shape, self._parts[0].dtype

    def index_select(self, dim: int, rows: Tensor) -> Tensor:
        """[B, D]: these rows, in this order; each file is asked once."""
        assert dim == 0
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < self._shape[0]:
            raise IndexError(f"rows from {int(rows.min())} to {int(rows.max())} of {self._shape[0]}")
        owner = torch.searchsorted(self._ends, rows, right=True)
        order = torch.argsort(owner, stable=True)
        sizes = torch.bincount(owner, minlength=len(self._parts)).tolist()
        found = torch.empty(len(rows), self._shape[1], dtype=self._dtype)
        for part, end, at in zip(self._parts, self._ends.tolist(), order.split(sizes), strict=True):
            if len(at):
                found[at] = part.index_select(0, rows[at] - (end - len(part)))
        return found


def is_mapped(array: Any) -> bool:
    """Whether the array, or what it is a view of, is memory-mapped."""
    return isinstance(array, Shards) or map_of(array) is not None


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


def pieces(array: Any) -> Iterator[slice]:
    """Rows in pieces of a few megabytes, so that a look at all of a mapped column needs little memory."""
    size = max(1, array.itemsize * int(np.prod(array.shape[1:])))
    step = max(1, PIECE_BYTES // size)
    for start in range(0, len(array), step):
        yield slice(start, start + step)


def moments(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation [D] of a column [N, D] in float64; piece by piece where it lies in files."""
    if not is_mapped(column):
        return np.asarray(np.mean(column, axis=0, dtype=np.float64)), np.asarray(np.std(column, axis=0, dtype=np.float64))
    mean = sum(column[rows].sum(axis=0, dtype=np.float64) for rows in pieces(column)) / len(column)
    squares = sum(np.square(column[rows] - mean).sum(axis=0) for rows in pieces(column))
    return mean, np.sqrt(squares / len(column))


class Pages:
    """The mapped ones among some columns; says which of their rows are wanted next."""

    def __init__(self, columns: Sequence[Any]) -> None:
        self._areas: dict[int, tuple[mmap.mmap, int, int, int, int]] = {}
        """By address: the map, where its first row begins, bytes a row, the number of that row, how many there are."""
        for column in columns:
            parts = column.parts if isinstance(column, Shards) else [column]
            number = 0
            for part in parts:
                self._add(part, number)
                number += len(part)

    def _add(self, part: np.ndarray, number: int) -> None:
        area = map_of(part)
        if area is None or not hasattr(mmap, "MADV_WILLNEED"):
            return
        address = np.frombuffer(area, np.uint8).__array_interface__["data"][0]
        begin = part.__array_interface__["data"][0] - address
        if address in self._areas:  # columns side by side in one file
            begin = min(begin, self._areas[address][1])
        self._areas[address] = (area, begin, part.strides[0], number, len(part))

    def __bool__(self) -> bool:
        return bool(self._areas)

    def expect_random(self) -> None:
        """Single rows will be read, so reading ahead in the file would only push useful pages out of memory."""
        for area, *_ in self._areas.values():
            area.madvise(mmap.MADV_RANDOM)

    def fetch(self, rows: np.ndarray) -> None:
        """Start reading these rows; returns before they are there. Pages that follow each other are asked for together."""
        rows = np.sort(rows)
        for area, begin, size, number, count in self._areas.values():
            mine = rows[np.searchsorted(rows, number) : np.searchsorted(rows, number + count)] - number
            if not len(mine):
                continue
            first = (begin + mine * size) // mmap.PAGESIZE
            last = (begin + mine * size + size - 1) // mmap.PAGESIZE
            apart = np.flatnonzero(first[1:] > last[:-1] + 1) + 1
            starts, stops = first[np.append(0, apart)], last[np.append(apart - 1, -1)]
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
                area.madvise(mmap.MADV_WILLNEED, start * mmap.PAGESIZE, (stop - start + 1) * mmap.PAGESIZE)
