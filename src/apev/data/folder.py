"""Data sets larger than memory: a folder NAME.apev with one uncompressed .npy a column, mapped instead of read.

    NAME.apev/header.json     the format's version, the number of actions, the source, and where each column is
              rows.npy        float32 [N, W]: observations, next observations and continuous actions of a row, side by side
              rewards.npy  terminated.npy  ...  other columns, one file each

`np.load(file, mmap_mode="r")` opens a file; the operating system keeps in memory what is used and drops the rest. What a
transition needs lies in one place, because on a disk each place costs a wait of its own.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from apev.data.columns import Columns, entries, from_file, header_of
from apev.data.dataset import Dataset
from apev.data.validate import DataError

COPY_BYTES = 1 << 26
HEADER_FILE = "header.json"
ROWS_FILE = "rows.npy"


def write(dataset: Dataset, target: Path) -> None:
    """Write a checked data set as a folder."""
    write_columns(entries(dataset), header_of(dataset), target)


def write_columns(columns: Mapping[str, Any], header: str, target: Path) -> None:
    """Write arrays, or anything that gives one when sliced, piece by piece; floats become float32 at most."""
    if target.exists() and not (target / HEADER_FILE).is_file():
        raise DataError(target.name, "is there already and is no data set of ours", "choose another name, or remove it")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    try:
        partial.mkdir(parents=True)
        wide = {name: column for name, column in columns.items() if _is_wide(name, column)}
        ends = np.cumsum([0, *(column.shape[1] for column in wide.values())]).tolist()
        places = {_plain(name): [ends[i], ends[i + 1]] for i, name in enumerate(wide)}
        if wide:
            copy_column(SideBySide(list(wide.values())), partial / ROWS_FILE, np.dtype(np.float32))
        for name, column in columns.items():
            if name not in wide:
                dtype = np.dtype(np.float32) if column.dtype.kind == "f" and column.dtype.itemsize > 4 else column.dtype
                copy_column(column, partial / f"{quote(_plain(name), safe=' ')}.npy", dtype)
        facts = json.loads(header) | {"columns": [_plain(name) for name in columns], "rows": places}
        (partial / HEADER_FILE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        if target.exists():
            os.replace(target, old)
        os.replace(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
        elif old.exists():
            os.replace(old, target)


def _plain(name: str) -> str:
    return name.replace("/", ".", 1)


def _is_wide(name: str, column: Any) -> bool:
    """Whether the column goes into the file of rows."""
    mine = name == "actions" or _plain(name).split(".")[0] in ("observations", "next_observations")
    return mine and column.dtype.kind == "f" and len(column.shape) == 2


class SideBySide:
    """Columns [N, D] seen as one; sliced piece by piece."""

    def __init__(self, columns: list[Any]) -> None:
        lengths = {column.shape[0] for column in columns}
        if len(lengths) > 1:
            raise DataError("rows", f"columns have {sorted(lengths)} rows", "log every column at every step")
        self.columns, self.shape = columns, (lengths.pop(), sum(column.shape[1] for column in columns))

    def __getitem__(self, rows: slice) -> np.ndarray:
        return np.concatenate([np.asarray(column[rows], dtype=np.float32) for column in self.columns], axis=1)


def copy_column(column: Any, path: Path, dtype: np.dtype[Any]) -> None:
    """One column as .npy, without holding all of it in memory."""
    size = max(1, dtype.itemsize * int(np.prod(column.shape[1:])))
    step = max(1, COPY_BYTES // size)
    with open(path, "wb") as file:
        facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": tuple(column.shape)}
        np.lib.format.write_array_header_1_0(file, facts)
        for start in range(0, column.shape[0] if column.shape else 0, step):
            np.ascontiguousarray(column[start : start + step], dtype=dtype).tofile(file)
        file.flush()
        os.fsync(file.fileno())


def read(source: Path) -> Columns:
    """The columns of a folder, mapped read-only."""
    header = source / HEADER_FILE
    if not header.is_file():
        raise DataError(source.name, f"there is no {HEADER_FILE} in it", "write it with `apev data convert SRC NAME.apev`")
    arrays: dict[str, np.ndarray] = {}
    facts = _facts(header)
    for path in sorted(source.glob("*.npy")):
        name = unquote(path.stem)
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise DataError(name, f"cannot be read from {source.name} ({error})", "write the folder again") from error
        if path.name == ROWS_FILE:
            arrays |= {column: array[:, start:stop] for column, (start, stop) in facts.get("rows", {}).items()}
        else:
            arrays[name] = array
    order = {name: i for i, name in enumerate(facts.get("columns", []))}
    arrays = dict(sorted(arrays.items(), key=lambda item: order.get(item[0], len(order))))
    columns = from_file(source.name, arrays, header.read_text(encoding="utf-8"))
    columns.source["format"] = "apev"
    return columns


def _facts(header: Path) -> dict[str, Any]:
    """The header as a dict; `from_file` complains if it is damaged."""
    try:
        return dict(json.loads(header.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        return {}
