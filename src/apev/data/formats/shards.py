"""Several .apev logs as one: what a log becomes that was sorted piece by piece (`apev.data.formats.sort`).

    NAME.apev/header.json     {"format": "apev.shards", "version": 1, "shards": {"00000.apev": checksum of its header, ...}}
              00000.apev/     a log of its own, which `Dataset.load` reads alone too
              00001.apev/     the rows that follow

No episode and no context is in two shards: each numbers its own from 0, and they are counted on here. Wide columns stay in
their files (`apev.data.mapped.Shards`); rewards, flags and numbers are read into memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from apev.data.formats.columns import Columns
from apev.data.mapped import Shards, is_mapped
from apev.data.validate import DataError
from apev.files import file_digest, inside, leads_out, reading, write_json

FORMAT = "apev.shards"
VERSION = 1
NAME = re.compile(r"\d{5,9}\.apev")
HEADER_FILE = "header.json"
AGAIN = "write the folder again"
COUNTED = ("episodes", "contexts")  # numbers that every shard begins at 0


def name_of(number: int) -> str:
    """The folder of a shard."""
    return f"{number:05d}.apev"


def write_header(folder: Path, names: Sequence[str]) -> None:
    """Make one log of the shards in a folder, in this order."""
    sums = {name: file_digest(folder / name / HEADER_FILE) for name in names}
    write_json(folder / HEADER_FILE, {"format": FORMAT, "version": VERSION, "shards": sums}, checksum=True)


def joined(source: Path, facts: Mapping[str, Any], read: Callable[[Path], Columns]) -> Columns:
    """The columns of all shards, end to end; `read` reads one of them."""
    with reading(HEADER_FILE, AGAIN, raises=DataError, of=source.name):
        version, sums = int(facts["version"]), {str(name): str(told) for name, told in dict(facts["shards"]).items()}
    if version > VERSION:
        problem = f"{source.name} has shards of version {version}; this apev reads {VERSION}"
        raise DataError(HEADER_FILE, problem, "upgrade apev, or write the folder again with this version")
    if not sums:
        raise DataError(HEADER_FILE, f"{source.name} names no shard", AGAIN)
    parts = [_shard(source, name, told, read) for name, told in sums.items()]
    for name, part in zip(sums, parts, strict=True):
        _check_alike(parts[0], part, name, source.name)
    arrays = {name: _column(name, [part.arrays[name] for part in parts]) for name in parts[0].arrays}
    return Columns(source.name, arrays, parts[0].num_actions, parts[0].source)


def _shard(source: Path, name: str, told: str, read: Callable[[Path], Columns]) -> Columns:
    """One of the shards, if it is the one that was written."""
    if not NAME.fullmatch(name):
        raise DataError(HEADER_FILE, f"{source.name} calls a shard {name!r:.80}", AGAIN)
    if leads_out(source / name, source):
        raise DataError(name, f"is a link out of {source.name}", "put the folder itself there")
    if not (source / name).is_dir():
        raise DataError(name, f"is missing in {source.name}", AGAIN)
    if file_digest(inside(source / name, HEADER_FILE)) != told:
        raise DataError(name, f"is not what was written to {source.name} (its checksum differs)", AGAIN)
    columns = read(source / name)
    if columns.has("pictures"):
        raise DataError(name, "has pictures, and shards have none", "keep such a log in one folder")
    return columns


def _check_alike(first: Columns, part: Columns, name: str, file: str) -> None:
    """Shards of one log have the same columns and mean the same by them."""
    kinds = [{key: (array.dtype, array.shape[1:]) for key, array in one.arrays.items()} for one in (first, part)]
    if kinds[0] != kinds[1] or first.num_actions != part.num_actions or first.source != part.source:
        raise DataError(name, f"is of another log than the first shard of {file}", AGAIN)


def _column(name: str, parts: list[np.ndarray]) -> np.ndarray:
    """The column of all shards: in its files where it is wide, else in memory."""
    if all(is_mapped(part) and part.ndim == 2 and part.dtype.kind == "f" for part in parts):
        return cast(np.ndarray, Shards(parts))  # it stands for one
    if name in COUNTED:
        starts = np.cumsum([0, *(int(part.max(initial=-1)) + 1 for part in parts[:-1])])
        parts = [part + start for part, start in zip(parts, starts, strict=True)]
    return np.concatenate(parts)
