"""Data sets as .npz files, without pickle.

A file we write and a file a user makes with `np.savez` look the same; ours adds a header with the format's version.
The names of the columns are in `apev.data.columns`.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from apev.data.columns import HEADER, Columns, entries, from_file, header_of
from apev.data.dataset import Dataset
from apev.data.validate import DataError


def write(dataset: Dataset, target: Path, *, compress: bool = False) -> None:
    """Write `dataset` to `target`. A crash leaves the old file or none, never half a file."""
    columns: dict[str, Any] = {HEADER: np.array(header_of(dataset))} | entries(dataset)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            (np.savez_compressed if compress else np.savez)(file, allow_pickle=False, **columns)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def read(source: Path) -> Columns:
    """The columns of an .npz."""
    arrays = {}
    name = source.name
    try:
        with np.load(source, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it holds one bare array")
            for name in archive.files:
                arrays[name] = archive[name]
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
            raise
        fix = "write it again with np.savez and arrays of numbers (object arrays need pickle, which is never read)"
        raise DataError(name, f"cannot be read from {source.name} ({error})", fix) from error
    header = arrays.pop(HEADER, None)
    columns = from_file(source.name, arrays, None if header is None else str(header))
    columns.source["format"] = "npz"
    return columns
