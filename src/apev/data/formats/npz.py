"""Data sets as .npz files, without pickle.

A file we write and a file a user makes with `np.savez` look the same; ours adds a header with the format's version.
The names of the columns are in `apev.data.formats.columns`.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from apev.data.dataset import Dataset
from apev.data.formats.columns import HEADER, Columns, entries, from_file, header_of
from apev.data.validate import DataError
from apev.files import check_memory, reading, regular, whole

FIX = "write it again with np.savez and arrays of numbers (object arrays need pickle, which is never read)"
MOST_GROWTH = 100  # times the size of the file; numbers of a log are compressed to a tenth or so
SMALL = 1 << 28  # bytes that a file may grow to in any case


def write(dataset: Dataset, target: Path, *, compress: bool = False) -> None:
    """Write `dataset` to `target`. A crash leaves the old file or none, never half a file."""
    columns: dict[str, Any] = {HEADER: np.array(header_of(dataset))} | entries(dataset)
    with whole(target) as partial, open(partial, "wb") as file:
        (np.savez_compressed if compress else np.savez)(file, allow_pickle=False, **columns)


def read(source: Path) -> Columns:
    """The columns of an .npz."""
    source = regular(source)
    arrays: dict[str, np.ndarray] = {}
    with reading(source.name, FIX, raises=DataError), zipfile.ZipFile(source) as archive:
        sizes = {}
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if name in sizes:
                raise DataError(name, f"is there twice in {source.name}", FIX)
            with reading(name, FIX, raises=DataError, of=source.name), archive.open(entry) as file:
                sizes[name] = array_size(file, entry.file_size)
        check_growth(source, sum(sizes.values()))
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            with reading(name, FIX, raises=DataError, of=source.name), archive.open(entry) as file:
                arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
                file.read()  # to the end, where the archive's own checksum is compared
    header = arrays.pop(HEADER, None)
    columns = from_file(source.name, arrays, None if header is None else str(header))
    columns.source["format"] = "npz"
    return columns


def array_size(file: Any, stored: int) -> int:
    """Bytes of the array that a file's header tells of, if the file can hold it."""
    version = np.lib.format.read_magic(file)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read_header is None:
        raise ValueError(f"version {version} of NumPy's format is unknown")
    shape, _, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError("it holds objects, not numbers")
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size > stored or not dtype.itemsize:
        raise ValueError(f"its header tells of shape {shape}, the file has {stored:,} bytes")
    return size


def check_growth(source: Path, size: int) -> None:
    """A file that unpacks to far more than numbers compress to is no log, or one that was better not compressed."""
    check_memory(source.name, size)
    if size > max(SMALL, MOST_GROWTH * source.stat().st_size):
        problem = f"its {source.stat().st_size:,} bytes unpack to {size:,}"
        raise DataError(source.name, problem, "check where it comes from; if it is right, write it without compression")
