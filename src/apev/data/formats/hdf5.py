"""D4RL's HDF5 files, read and written with h5py alone.

    observations  actions  rewards  terminals  timeouts  next_observations     infos/*, metadata/*: ignored

`terminals` is our `terminated`, `timeouts` our `truncated`. The files differ:

  - without `next_observations` the following row serves; the row at a timeout then has none, so it is kept for the returns
    but not `usable` (in the file the row after it is another episode's first, a classic mistake of loaders);
  - without `timeouts` (older files) episodes that a clock cut are not marked. Where `next_observations` are there, an
    episode ends where they do not match the following row. Else a known time limit is counted off (1000 in D4RL's MuJoCo
    data, or what the caller says); else only `terminals` end an episode, and a note says so;
  - a row may be both terminal and timed out: the world ended it, so it is `terminated`.

Columns that lie in the file in one piece, uncompressed (as we write them), are memory-mapped, not read. D4RL's own files are
compressed: they are read into memory, or unpacked once by `apev data convert FILE NAME.apev`.
"""

from __future__ import annotations

import math
import os
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import h5py
import numpy as np

from apev.data import source as sources
from apev.data.dataset import Dataset
from apev.data.formats.columns import D4RL_NAMES, HEADER, Columns, entries, from_file, header_of, known
from apev.data.formats.folder import copy_column
from apev.data.formats.npz import check_growth
from apev.data.mapped import PIECE_BYTES
from apev.data.validate import DataError
from apev.files import brief, reading, regular, whole

SUFFIXES = (".hdf5", ".h5")
ORDER = "apev_order"  # the order of the observations: HDF5 sorts names
PATIENCE = 10.0  # seconds for a look through a file's structure
LOOKS = 2000  # names that are looked at
DEEPEST = 8  # groups within groups; a key of an observation may have slashes
OWN = "write the file with numbers of its own; a log may not read from elsewhere"


def write(dataset: Dataset, target: Path, *, compress: bool = False) -> None:
    """Write D4RL's layout; several observations become `observations/<key>`. Complete or not at all."""
    columns = entries(dataset)
    bare = list(dataset.observations) == ["observation"] and dataset.pictures is None
    derived = np.append(0, np.cumsum((dataset.terminated | dataset.truncated)[:-1]))
    with whole(target) as partial, h5py.File(partial, "w", track_order=True) as file:
        file.attrs[HEADER] = header_of(dataset)
        file.attrs[ORDER] = list(dataset.observations)
        for name, column in columns.items():
            if name == "episodes" and np.array_equal(column, derived):
                continue  # D4RL's files have no such column; it is written only where the flags do not tell
            path = name.removesuffix("/observation") if bare else name
            path = D4RL_NAMES.get(path, path)
            file.create_dataset(path, data=column, compression="gzip" if compress else None)


def is_minari(path: Path) -> bool:
    """Whether this is the main_data.hdf5 of a Minari data set."""
    with opened(path) as file:
        return "episode_0" in file and "observations" not in file


def read(path: Path, horizon: int | None = None, unpack: Path | None = None) -> Columns:
    """The columns of a D4RL file.

    horizon: the time limit, for files that do not mark timeouts.
    unpack: a folder for mapped copies of the columns that cannot be mapped where they are, instead of reading them.
    """
    with opened(path) as file:
        datasets = _datasets(file)
        if unpack is None:
            check_growth(
                path, sum(dataset.size * dataset.dtype.itemsize for dataset in datasets.values() if is_packed(dataset))
            )
        arrays = {name: _column(path, dataset, name, unpack) for name, dataset in datasets.items()}
        header, order = file.attrs.get(HEADER), [str(key) for key in file.attrs.get(ORDER, [])]
        if header is not None and not isinstance(header, str):
            raise DataError(HEADER, f"the header of {path.name} is no text", f"remove the attribute {HEADER}")
    place = {f"{head}/{key}": i for i, key in enumerate(order) for head in ("observations", "next_observations")}
    arrays = dict(sorted(arrays.items(), key=lambda item: place.get(item[0], -1)))
    columns = from_file(path.name, arrays, None if header is None else str(header))
    if header is None:  # not one of ours: its name is all it says of itself
        name = sources.d4rl_name(path)
        robot = sources.d4rl_robot(name)
        columns.source = {"name": name} | ({"environment": sources.ENVIRONMENTS[robot]} if robot else {})
        horizon = horizon or sources.HORIZONS.get(robot or "")
    columns.source["format"] = "d4rl"
    if not columns.has("truncated") and columns.has("terminated") and not (columns.has("dones") or columns.has("done")):
        _mark_cuts(columns, horizon)
    elif header is None and columns.has("truncated") and columns.has("terminated"):
        _clear_both(columns)
    return columns


def _clear_both(columns: Columns) -> None:
    """A row both terminal and timed out is terminated."""
    ended, cut = (columns.arrays[name].reshape(-1) for name in ("terminated", "truncated"))
    both = (ended != 0) & (cut != 0) if len(ended) == len(cut) else np.zeros(1, dtype=bool)
    if both.any():
        columns.arrays["truncated"] = np.where(both, 0, cut).astype(cut.dtype)
        columns.note(f"{int(both.sum())} rows are both terminal and timed out: read as terminated")


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """The file, open for reading; whatever h5py raises on damage becomes one error."""
    path = regular(path)
    fix = "download or write it again; a D4RL file is HDF5 with observations, actions, rewards, terminals"
    facts = path.stat()
    if not _survives(path, facts.st_mtime_ns, facts.st_size):
        raise DataError(path.name, "cannot be read as HDF5 (its structure leads the library astray)", fix)
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise DataError(path.name, f"cannot be read as HDF5 ({brief(error)})", fix) from error
    with reading(path.name, fix, raises=DataError), file:
        yield file


@lru_cache(maxsize=64)
def _survives(path: Path, changed: int, size: int) -> bool:
    """Whether the file can be looked through: a damaged one can send libhdf5 round in circles, or crash it.

    Neither can be stopped from inside, so that a child process takes the first look. Nothing but structure is read there.
    """
    if not hasattr(os, "fork"):
        return True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child runs no Python of other threads
        pid = os.fork()
    if pid == 0:
        try:
            with h5py.File(path, "r") as file:
                _look_through(file, [LOOKS])
        except BaseException:  # damage that is noticed is told by whoever reads
            pass
        finally:
            os._exit(0)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.WIFEXITED(status)
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def _look_through(group: h5py.Group, looks: list[int]) -> None:
    """Names, attributes and shapes below a group, as many as `looks` allows."""
    dict(group.attrs)
    for name in group:
        looks[0] -= 1
        if looks[0] < 0:
            return
        if isinstance(group.get(name, getlink=True), h5py.HardLink):
            item = group[name]
            if isinstance(item, h5py.Group):
                _look_through(item, looks)
            else:
                _ = (item.shape, item.dtype, item.chunks, item.id.get_storage_size())


def child(group: h5py.Group, name: str) -> Any:
    """The data set or group `name`, if its numbers lie in this file: HDF5 can point into any other file of the machine."""
    link = group.get(name, getlink=True)
    if isinstance(link, h5py.ExternalLink | h5py.SoftLink):
        where = f"another file, {link.filename}" if isinstance(link, h5py.ExternalLink) else link.path
        raise DataError(name, f"is a link to {where}", OWN)
    item = group[name]
    if isinstance(item, h5py.Dataset):
        if item.external is not None:
            raise DataError(name, f"keeps its numbers in another file, {item.external[0][0]}", OWN)
        if item.is_virtual:
            raise DataError(name, "is virtual: its numbers are those of other data sets", OWN)
        if item.dtype.kind not in "biuf":
            raise DataError(name, f"holds {item.dtype}, not real numbers", "encode it as numbers")
        if item.chunks is not None and item.id.get_num_chunks() < _chunks(item):
            problem = f"has shape {item.shape}, but only {item.id.get_num_chunks():,} of {_chunks(item):,} pieces were written"
            raise DataError(name, problem, "write the file again: the rest of it would be read as zeros")
        if item.chunks is None and item.size and item.id.get_storage_size() < item.size * item.dtype.itemsize:
            raise DataError(name, f"has shape {item.shape}, but its numbers were never written", "write the file again")
    return item


def _chunks(dataset: h5py.Dataset) -> int:
    """How many pieces the data set has when all of it is written."""
    return math.prod(-(-length // size) for length, size in zip(dataset.shape, dataset.chunks, strict=True))


def _datasets(file: h5py.File) -> dict[str, h5py.Dataset]:
    """The columns among what the file holds, at the top and below, as in observations/<key>."""
    found: dict[str, h5py.Dataset] = {}
    waiting = [(name, file, name, 0) for name in reversed(known(dict.fromkeys(file)))]
    while waiting:
        path, group, name, depth = waiting.pop()
        item = child(group, name)
        if isinstance(item, h5py.Dataset):
            found[path] = item
        elif depth == DEEPEST:  # a group may hold itself
            raise DataError(path, f"lies more than {DEEPEST} groups deep", "keep columns in observations/<key>")
        else:
            waiting += [(f"{path}/{key}", item, key, depth + 1) for key in reversed(list(item))]
    return found


def is_packed(dataset: h5py.Dataset) -> bool:
    """Whether the numbers must be read into memory: they do not lie in one piece in the machine's byte order."""
    plain = dataset.dtype.kind in "iuf" and dataset.dtype.isnative and dataset.ndim > 0 and dataset.size > 0
    return not plain or dataset.id.get_offset() is None  # None for chunked (so compressed) or compact data


def _column(path: Path, dataset: h5py.Dataset, name: str, unpack: Path | None) -> np.ndarray:
    """Mapped where the numbers lie in one piece in the machine's byte order, else read."""
    packed = is_packed(dataset)
    narrow = np.dtype(np.float32) if dataset.dtype == np.float64 else dataset.dtype
    number = dataset.dtype.kind in "iuf" and dataset.dtype.isnative and dataset.ndim > 0 and dataset.size > 0
    with reading(name, "download or write the file again", raises=DataError, of=path.name):
        if unpack is not None and number and (packed or narrow != dataset.dtype):
            copy = unpack / f"{quote(name, safe='')}.npy"
            copy_column(dataset, copy, narrow)
            return np.asarray(np.load(copy, mmap_mode="r", allow_pickle=False))
        if not packed:
            return np.memmap(path, dtype=dataset.dtype, mode="r", offset=dataset.id.get_offset(), shape=dataset.shape)
        return np.asarray(dataset[()])


def _mark_cuts(columns: Columns, horizon: int | None) -> None:
    """`truncated` for a file that does not mark where a clock cut an episode."""
    arrays = columns.arrays
    ended = arrays["terminated"].reshape(-1) != 0
    now, after = columns.observations("observations"), columns.observations("next_observations")
    if isinstance(now, np.ndarray) and isinstance(after, np.ndarray) and now.shape == after.shape:
        cut = breaks(now, after) & ~ended
        how = "an episode ends where next_observations is not the following row"
    elif horizon is not None:
        cut = _count_off(ended, horizon)
        how = f"episodes are cut at the time limit of {horizon} steps, and the cut rows have no next observation"
    else:
        cut = np.zeros_like(ended)
        how = (
            "only terminals end an episode, so a step that a clock cut seems to lead into the next episode. "
            "Fix: give the time limit, `apev data convert SRC DST --horizon STEPS`"
        )
    arrays["truncated"] = cut
    columns.note(f"{columns.file} has no timeouts: {how} ({int(cut.sum())} rows marked)")


def breaks(now: np.ndarray, after: np.ndarray) -> np.ndarray:
    """bool [N]: the row's next observation is not the following row's observation; False for the last row."""
    broken = np.zeros(len(now), dtype=bool)
    step = max(1, PIECE_BYTES // max(1, now[:1].nbytes))
    for start in range(0, len(now) - 1, step):
        stop = min(start + step, len(now) - 1)
        differs = after[start:stop] != now[start + 1 : stop + 1]
        if differs.any():
            close = np.isclose(after[start:stop], now[start + 1 : stop + 1], rtol=1e-4, atol=1e-5, equal_nan=True)
            broken[start:stop] = ~close.reshape(stop - start, -1).all(axis=1)
    return broken


def _count_off(ended: np.ndarray, horizon: int) -> np.ndarray:
    """bool [N]: every `horizon`-th step since the last end, where the world did not end the episode itself."""
    start_of = np.maximum.accumulate(np.where(np.append(True, ended[:-1]), np.arange(len(ended)), 0))
    cut: np.ndarray = ((np.arange(len(ended)) - start_of) % horizon == horizon - 1) & ~ended
    return cut
