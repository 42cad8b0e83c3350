"""Data sets in files: the name says the format.

    log.npz                     NumPy columns                    apev.data.formats.npz
    halfcheetah_medium-v2.hdf5  D4RL's layout (.h5 too)          apev.data.formats.hdf5
    log.apev                    a folder of mapped columns       apev.data.formats.folder
    mujoco/hopper/expert-v0     a Minari id, or its folder       apev.data.formats.minari
    log.csv, log.parquet        a table, one row a step          apev.data.formats.table (read only)
    big/                        a folder of Parquet files        apev.data.formats.sort (converted only)

The names of the columns are in `apev.data.formats.columns`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from apev.data.dataset import Dataset
from apev.data.formats import folder, hdf5, npz, parquet, sort, table
from apev.data.formats import minari as minari_files
from apev.data.formats.columns import Columns, entries
from apev.data.validate import DataError

Kind = Literal["npz", "hdf5", "folder", "minari", "table", "tables"]


def kind_of(path: str | os.PathLike[str], *, reading: bool = True) -> Kind:
    """The format that a path or a Minari id means; an HDF5 file to read may be the inside of a Minari data set."""
    file = Path(path)
    suffix = file.suffix.lower()
    if suffix == ".npz":
        return "npz"
    if suffix in hdf5.SUFFIXES:
        return "minari" if reading and file.exists() and hdf5.is_minari(file) else "hdf5"
    if suffix == ".apev":
        return "folder"
    if suffix in table.SUFFIXES:
        if reading:
            return "table"
        raise DataError(file.name, "tables are read, not written", "write .npz, .hdf5, .apev, or a Minari id")
    if reading and minari_files.is_folder(path):
        return "minari"
    if reading and file.is_dir() and next(file.rglob(f"*{parquet.SUFFIX}"), None) is not None:
        return "tables"
    if minari_files.is_name(path):
        return "minari"
    fix = (
        "use .npz (np.savez makes such files), .hdf5 (D4RL), .apev, a table (.csv, .parquet, a folder of Parquet files), "
        "or a Minari id such as mujoco/hopper/expert-v0"
    )
    raise DataError(file.name, f"unknown file type {suffix or 'without extension'!r}", fix)


def read(path: str | os.PathLike[str], *, horizon: int | None = None) -> Columns:
    """The columns as they were logged, before any check of the values."""
    kind = kind_of(path)
    if kind == "tables":
        fix = f"sort it into a mapped log first: `apev data convert {path} NAME.apev`"
        raise DataError(Path(path).name, "is a folder of Parquet files", fix)
    if kind == "table":
        log = table.load(path)
        return Columns(Path(path).name, entries(log), log.num_actions, log.source)
    if kind == "minari":
        return minari_files.read(path)
    if kind == "hdf5":
        return hdf5.read(Path(path), horizon)
    return npz.read(Path(path)) if kind == "npz" else folder.read(Path(path))


def load(path: str | os.PathLike[str], *, horizon: int | None = None, columns: Mapping[str, Any] | None = None) -> Dataset:
    """Read and check a data set.

    horizon: the time limit, for D4RL files that do not mark timeouts.
    columns: {"episode": "customer", ...}, which column of a table is what; see `apev.data.formats.table`.
    """
    if kind_of(path) == "table":
        return table.load(path, table.Names.of(columns or {}))
    if columns:
        problem = f"has columns of its own, so that {', '.join(columns)} cannot be said"
        raise DataError(Path(path).name, problem, "leave that out; only a .csv or .parquet needs it")
    return read(path, horizon=horizon).dataset()


def save(dataset: Dataset, path: str | os.PathLike[str], *, compress: bool = False) -> None:
    """Write `dataset` in the format its name says. A crash leaves the old file or none, never half a file."""
    kind = kind_of(path, reading=False)
    if dataset.hidden is not None:
        raise ValueError("this part of a mapped data set shares its files with the other. Fix: save before you split.")
    if kind == "npz":
        npz.write(dataset, Path(path), compress=compress)
    elif kind == "hdf5":
        hdf5.write(dataset, Path(path), compress=compress)
    elif kind == "folder":
        folder.write(dataset, Path(path))
    else:
        minari_files.write(dataset, str(path))


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    compress: bool = False,
    horizon: int | None = None,
    columns: Mapping[str, Any] | None = None,
    shard_rows: int | None = None,
    memory: int | None = None,
    jobs: int | None = None,
    ray: str | None = None,
) -> None:
    """Write `source` in the format that `target` says, after every check.

    HDF5, and Parquet that becomes .apev, is never held in memory as a whole; shard_rows, memory: see `sort.convert`.
    jobs, ray: of Parquet that becomes .apev, sort it with several processes or machines (`apev.cells.sorting`).
    """
    kind, given = kind_of(target, reading=False), kind_of(source)
    sorts = given == "tables" or (given == "table" and kind == "folder" and Path(source).suffix.lower() == parquet.SUFFIX)
    if sorts:
        names = table.Names.of(columns or {})
        rows, limit = sort.SHARD_ROWS if shard_rows is None else shard_rows, sort.MEMORY if memory is None else memory
        if kind == "folder" and (jobs, ray) != (None, None):
            from apev.cells import sorting  # which trains, and so reads data

            sorting.convert(Path(source), Path(target), names, shard_rows=rows, memory=limit, jobs=jobs, ray=ray)
            return
        if kind == "folder":
            sort.convert(Path(source), Path(target), names, shard_rows=rows, memory=limit)
            return
        _only_sorted(source, jobs=jobs, ray=ray)
        with tempfile.TemporaryDirectory(prefix="sorted-") as unpack:
            sort.convert(Path(source), Path(unpack) / "log.apev", names, shard_rows=rows, memory=limit)
            save(load(Path(unpack) / "log.apev"), target, compress=compress)
        return
    _only_sorted(source, shard_rows=shard_rows, memory=memory, jobs=jobs, ray=ray)
    if columns or given != "hdf5":
        save(load(source, horizon=horizon, columns=columns), target, compress=compress)
        return
    beside = None if kind == "minari" else Path(target).absolute().parent
    with tempfile.TemporaryDirectory(dir=beside, prefix=".unpacked-") as unpack:
        save(hdf5.read(Path(source), horizon, Path(unpack)).dataset(), target, compress=compress)


def _only_sorted(source: str | os.PathLike[str], **given: Any) -> None:
    """Refuse what only a sort on disk can use."""
    if any(value is not None for value in given.values()):
        options = ", ".join(f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None)
        problem = "is not sorted on disk: only Parquet that becomes .apev is"
        or_else = ", or name a target that ends in .apev" if Path(source).is_dir() else ""
        raise DataError(Path(source).name, problem, f"leave {options} out{or_else}")
