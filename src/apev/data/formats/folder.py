"""Data sets larger than memory: a folder NAME.apev with one uncompressed .npy a column, mapped instead of read.

    NAME.apev/header.json     the format's version, the number of actions, the source, where each column is, checksums
              rows.npy        float32 [N, W]: observations, next observations and continuous actions of a row, side by side
              rewards.npy  terminated.npy  ...  other columns, one file each

or, where the log was too large for one (`apev.data.formats.shards`):

    NAME.apev/header.json     which shards there are, and checksums of their headers
              00000.apev/     a log like the above; 00001.apev, ... go on where it ends

`np.load(file, mmap_mode="r")` opens a file; the operating system keeps in memory what is used and drops the rest. What a
transition needs lies in one place, because on a disk each place costs a wait of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from apev.data.dataset import Dataset
from apev.data.formats import shards
from apev.data.formats.columns import Columns, entries, from_file, header_of
from apev.data.formats.npz import array_size
from apev.data.validate import DataError
from apev.files import current_umask, file_digest, inside, read_json, reading, sync_folder, write_json

COPY_BYTES = 1 << 26
HEADER_FILE = shards.HEADER_FILE
ROWS_FILE = "rows.npy"


def write(dataset: Dataset, target: Path) -> None:
    """Write a checked data set as a folder."""
    write_columns(entries(dataset), header_of(dataset), target)


def write_columns(columns: Mapping[str, Any], header: str, target: Path) -> None:
    """Write arrays, or anything that gives one when sliced, piece by piece; floats become float32 at most."""
    with replacing(target) as partial:
        wide = {name: column for name, column in columns.items() if is_wide(name, column)}
        ends = np.cumsum([0, *(column.shape[1] for column in wide.values())]).tolist()
        places = {plain_name(name): [ends[i], ends[i + 1]] for i, name in enumerate(wide)}
        if wide:
            copy_column(SideBySide(list(wide.values())), partial / ROWS_FILE, np.dtype(np.float32))
        for name, column in columns.items():
            if name not in wide:
                dtype = np.dtype(np.float32) if column.dtype.kind == "f" and column.dtype.itemsize > 4 else column.dtype
                copy_column(column, partial / file_of(name), dtype)
        write_header(partial, header, list(columns), places)


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A new folder that takes the place of `target` when all is in it; a crash leaves the old one, or none."""
    if target.exists() and not (target / HEADER_FILE).is_file():
        raise DataError(target.name, "is there already and is no data set of ours", "choose another name, or remove it")
    target.absolute().parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=target.absolute().parent, prefix=f".{target.name}.", suffix=".partial"))
    old = partial.with_suffix(".old")
    try:
        yield partial
        partial.chmod(0o777 & ~current_umask())
        if target.exists():
            os.replace(target, old)
        os.replace(partial, target)
        sync_folder(target.absolute().parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
        elif old.exists():
            os.replace(old, target)


def write_header(folder: Path, header: str, columns: Sequence[str], places: Mapping[str, Sequence[int]]) -> None:
    """The header of a folder whose columns are all there; `places`: which part of a row a column is."""
    facts = json.loads(header) | {"columns": [plain_name(name) for name in columns], "rows": dict(places)}
    facts["files"] = {path.name: file_digest(path) for path in sorted(folder.glob("*.npy"))}
    write_json(folder / HEADER_FILE, facts, checksum=True)


def file_of(name: str) -> str:
    """The file of a column that has one to itself."""
    return f"{quote(plain_name(name), safe=' ')}.npy"


def plain_name(name: str) -> str:
    """A column's name as headers and files have it."""
    return name.replace("/", ".", 1)


def is_wide(name: str, column: Any) -> bool:
    """Whether the column goes into the file of rows."""
    mine = name == "actions" or plain_name(name).split(".")[0] in ("observations", "next_observations")
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


class Growing:
    """A column as .npy that is written as its rows come; one piece says what its rows are like."""

    def __init__(self, path: Path, like: np.ndarray) -> None:
        self.file, self.dtype, self.shape, self.rows = open(path, "wb"), like.dtype, like.shape[1:], 0  # noqa: SIM115
        self._header()

    def _header(self) -> None:
        """NumPy leaves room in a header for the number of rows to grow."""
        facts = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": (self.rows, *self.shape)}
        np.lib.format.write_array_header_1_0(self.file, facts)

    def append(self, piece: np.ndarray) -> None:
        """More rows."""
        assert piece.shape[1:] == self.shape
        self.file.write(np.ascontiguousarray(piece, dtype=self.dtype).data)
        self.rows += len(piece)

    def close(self) -> None:
        """All rows are there, and on the disk."""
        begin = self.file.tell() - self.rows * self.dtype.itemsize * int(np.prod(self.shape))
        self.file.seek(0)
        self._header()
        assert self.file.tell() == begin
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()


def read(source: Path) -> Columns:
    """The columns of a folder, mapped read-only; every file's checksum is compared first, where the header has them."""
    if not source.exists():
        raise FileNotFoundError(f"no file {source}")
    if not (source / HEADER_FILE).exists():
        raise DataError(source.name, f"there is no {HEADER_FILE} in it", "write it with `apev data convert SRC NAME.apev`")
    fix = "write the folder again"
    facts = read_json(inside(source, HEADER_FILE), fix=fix, raises=DataError, checked_since=("files", "shards"))
    if facts.get("format") == shards.FORMAT:
        return shards.joined(source, facts, read)
    with reading(HEADER_FILE, fix, raises=DataError, of=source.name):
        sums, places = dict(facts.pop("files", {})), dict(facts.get("rows", {}))
        places = {str(name): slice(int(start), int(stop)) for name, (start, stop) in places.items()}
        order = {str(name): i for i, name in enumerate(facts.get("columns", []))}
        lost = sorted(sums.keys() - {path.name for path in source.iterdir()})
    if lost:
        raise DataError(lost[0], f"is missing in {source.name}", fix)
    arrays: dict[str, np.ndarray] = {}
    for path in sorted(source.glob("*.npy")):
        name = unquote(path.stem)
        with reading(name, fix, raises=DataError, of=source.name):
            path = inside(source, path.name)
            if path.name in sums and file_digest(path) != sums[path.name]:
                raise DataError(name, f"is not what was written to {source.name} (its checksum differs)", fix)
            with path.open("rb") as file:
                array_size(file, path.stat().st_size)  # before it is mapped
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            if path.name == ROWS_FILE:
                if array.ndim != 2 or any(not 0 <= place.start < place.stop <= array.shape[1] for place in places.values()):
                    raise DataError(name, f"has shape {array.shape}, the header's columns lie elsewhere", fix)
                arrays |= {column: array[:, place] for column, place in places.items()}
            else:
                arrays[name] = array
    arrays = dict(sorted(arrays.items(), key=lambda item: order.get(item[0], len(order))))
    columns = from_file(source.name, arrays, json.dumps(facts))
    columns.source["format"] = "apev"
    return columns
