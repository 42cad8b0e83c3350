"""Data sets as .npz files, without pickle.

A file we write and a file a user makes with `np.savez` look the same; ours adds a header with the format's version.

    observations/<key> or observations   actions   rewards   terminated   truncated
    optional: next_observations[/<key>], pictures/<key>, episodes, contexts, num_actions

A dot works in place of the slash. D4RL's `terminals` and `timeouts` are read as `terminated` and `truncated`.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from apev import __version__
from apev.data.dataset import Dataset
from apev.data.validate import DataError

FORMAT = "apev.dataset"
VERSION = 1
HEADER = "apev_header"
D4RL_NAMES = {"terminated": "terminals", "truncated": "timeouts"}
# An optional column under a wrong name would be ignored in silence, so the likely ones are refused.
MISNAMED = {
    "next_obs": "next_observations",
    "next_observation": "next_observations",
    "episode": "episodes",
    "episode_id": "episodes",
    "episode_ids": "episodes",
    "context": "contexts",
    "context_id": "contexts",
    "picture": "pictures",
}


def save(dataset: Dataset, path: str | os.PathLike[str], *, compress: bool = False) -> None:
    """Write `dataset` to `path` (.npz). A crash leaves the old file or none, never half a file."""
    target = _npz_path(path)
    header = {"format": FORMAT, "version": VERSION, "apev": __version__, "num_actions": dataset.num_actions}
    entries: dict[str, Any] = {HEADER: np.array(json.dumps(header))}
    entries |= {f"observations/{key}": column for key, column in dataset.observations.items()}
    entries |= {f"next_observations/{key}": column for key, column in (dataset.given_next or {}).items()}
    if dataset.pictures is not None:
        entries[f"pictures/{dataset.picture_key}"] = dataset.pictures
    for name in ("actions", "rewards", "terminated", "truncated", "episodes"):
        entries[name] = getattr(dataset, name)
    if dataset.contexts is not None:
        entries["contexts"] = dataset.contexts
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            (np.savez_compressed if compress else np.savez)(file, allow_pickle=False, **entries)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def load(path: str | os.PathLike[str]) -> Dataset:
    """Read and check a data set."""
    source = _npz_path(path)
    columns = _read(source)
    num_actions = _header_num_actions(source, columns)
    for wrong, right in MISNAMED.items():
        if wrong in columns and not _has(columns, right):
            raise DataError(wrong, f"no column of {source.name} may have this name", f"call it {right}")
    for ours, theirs in D4RL_NAMES.items():
        if ours not in columns and theirs in columns:
            columns[ours] = columns.pop(theirs)
    _check_present(source, columns)
    return Dataset.from_arrays(
        _observations(columns, "observations"),
        columns["actions"],
        columns["rewards"],
        columns["terminated"],
        columns["truncated"],
        next_observations=_observations(columns, "next_observations") if _has(columns, "next_observations") else None,
        pictures=_keyed(columns, "pictures") if _has(columns, "pictures") else None,
        episodes=columns.get("episodes"),
        contexts=columns.get("contexts"),
        num_actions=num_actions,
    )


def _npz_path(path: str | os.PathLike[str]) -> Path:
    file = Path(path)
    if file.suffix.lower() != ".npz":
        fix = "use a name that ends in .npz (np.savez makes such files)"
        raise DataError(file.name, f"unknown file type {file.suffix or 'without extension'!r}", fix)
    return file


def _read(source: Path) -> dict[str, np.ndarray]:
    columns = {}
    name = source.name
    try:
        with np.load(source, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it holds one bare array")
            for name in archive.files:
                columns[name] = archive[name]
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
            raise
        fix = "write it again with np.savez and arrays of numbers (object arrays need pickle, which is never read)"
        raise DataError(name, f"cannot be read from {source.name} ({error})", fix) from error
    return columns


def _header_num_actions(source: Path, columns: dict[str, np.ndarray]) -> int | None:
    """The number of actions, from our header or from a user's own entry `num_actions`."""
    if HEADER not in columns:
        given = columns.pop("num_actions", None)
        return given.item() if given is not None and given.size == 1 else None
    try:
        header = json.loads(str(columns.pop(HEADER)))
        version, num_actions = header["version"], header["num_actions"]
    except (ValueError, KeyError, TypeError) as error:
        fix = f"write the file again with Dataset.save, or remove the entry {HEADER}"
        raise DataError(HEADER, f"the header of {source.name} is damaged", fix) from error
    if header.get("format") != FORMAT or version > VERSION:
        problem = f"{source.name} has format {header.get('format')!r} version {version}; this apev reads {FORMAT} {VERSION}"
        raise DataError(HEADER, problem, "upgrade apev, or write the file again with this version")
    return num_actions


def _has(columns: Mapping[str, np.ndarray], name: str) -> bool:
    return any(column == name or column.startswith((f"{name}/", f"{name}.")) for column in columns)


def _keyed(columns: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """The entries `name/<key>` or `name.<key>` as {key: array}, in the order of the file."""
    cut = len(name) + 1
    return {column[cut:]: array for column, array in columns.items() if column.startswith((f"{name}/", f"{name}."))}


def _observations(columns: Mapping[str, np.ndarray], name: str) -> np.ndarray | dict[str, np.ndarray]:
    keyed = _keyed(columns, name)
    if name in columns and keyed:
        fix = f"keep one form: {name}, or {name}/<key> for each key"
        raise DataError(name, f"is there both by itself and with keys {list(keyed)}", fix)
    return columns.get(name, keyed)


def _check_present(source: Path, columns: Mapping[str, np.ndarray]) -> None:
    flags = [name for name in ("terminated", "truncated") if name not in columns]
    merged = next((name for name in ("dones", "done") if name in columns), None)
    if flags and merged is not None:
        problem = f"{source.name} merges termination and truncation, which mean opposite things for the value that follows"
        fix = (
            "save two columns: terminated (the world ended the episode) and truncated (only a clock did); "
            "where no time limit was ever reached: terminated=dones, truncated=np.zeros_like(dones)"
        )
        raise DataError(merged, problem, fix)
    for name in ("observations", "actions", "rewards", "terminated", "truncated"):
        if not _has(columns, name):
            fix = f"add {name} to np.savez(...), one entry a row"
            if name == "truncated":
                fix += "; np.zeros_like(terminated) if no time limit was ever reached"
            raise DataError(name, f"the column is missing in {source.name}, which has {sorted(columns)}", fix)
