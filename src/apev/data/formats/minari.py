"""Minari data sets: read from their folder or id, written through Minari itself.

    <root>/<id>/data/metadata.json     spaces, environment, references
                     main_data.hdf5    episode_<i>/{observations [T + 1], actions [T], rewards, terminations, truncations}

The root is $MINARI_DATASETS_PATH, else ~/.minari/datasets. Plain numbers in HDF5 are read with h5py alone; JPEG pictures need
the extra, pip install "apev[minari]", and Arrow storage pip install "minari[arrow]". Nothing is downloaded: `minari download
ID` does that.

An episode of T steps has T + 1 observations, so every row has its next observation. A row both terminated and truncated is read
as terminated. The environment stays in `Dataset.source`, so evaluation finds it.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np

from apev.data.dataset import Dataset
from apev.data.formats.columns import Columns
from apev.data.formats.hdf5 import child, opened
from apev.data.source import checked, named_environment, recover_environment
from apev.data.validate import DataError
from apev.files import FileError, check_memory, inside, leads_out, parse_json, read_json, reading

ID = re.compile(r"(?:[-_\w]+/)*[-_\w]+-v\d+")
AGAIN = "download or write the data set again"
INSTALL = 'Fix: pip install "apev[minari]".'
Episode = tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a Minari data set is there."""
    return _data_folder(path) is not None


def is_name(path: str | os.PathLike[str]) -> bool:
    """Whether this is a Minari folder, or could be a Minari id."""
    return is_folder(path) or (not Path(path).is_absolute() and ID.fullmatch(str(path)) is not None)


def _data_folder(path: str | os.PathLike[str]) -> Path | None:
    """The folder with metadata.json, from it, the one above, the HDF5 file inside, or an id."""
    given = Path(path)
    root = Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")
    places = [given, given / "data", given.parent if given.is_file() else given, root / given / "data"]
    found = next((place for place in places if (place / "metadata.json").is_file()), None)
    if found is not None and found in (given / "data", root / given / "data") and leads_out(found, found.parent):
        raise FileError(found, "is a link out of its folder", "put the folder itself there")
    return found


def read(path: str | os.PathLike[str]) -> Columns:
    """The columns of a data set on this machine."""
    data = _data_folder(path)
    if data is None:
        raise FileNotFoundError(f"no Minari data set {path} on this machine. Fix: `minari download {path}` fetches it.")
    meta = read_json(inside(data, "metadata.json"), fix=AGAIN, raises=DataError)
    with reading("metadata.json", AGAIN, raises=DataError):
        rows = _count(meta, "total_steps")
        action_space = _space(meta, "action_space")
        source = checked(_source(meta, action_space, str(path)), "metadata.json")
        discrete = action_space.get("type") == "Discrete"
        first, count = int(action_space.get("start", 0)), int(action_space["n"]) if discrete else None
    with reading(data.parent.name, AGAIN, raises=DataError):
        columns = Columns(str(path), _gather(_episodes(data, meta), rows), source=source)
        arrays = columns.arrays
        both = (arrays["terminated"] != 0) & (arrays["truncated"] != 0)
        if both.any():
            arrays["truncated"] = np.where(both, 0, arrays["truncated"]).astype(arrays["truncated"].dtype)
            columns.note(f"{int(both.sum())} rows are both terminated and truncated: read as terminated")
        if discrete:
            arrays["actions"] = arrays["actions"] - first
            columns.num_actions = count
        elif arrays["actions"].dtype.kind == "f":
            arrays["actions"] = arrays["actions"].reshape(rows, -1)
    return columns


def _count(meta: Mapping[str, Any], name: str) -> int:
    """A number of things that the metadata tells."""
    number = meta[name]
    if isinstance(number, bool) or number != int(number) or int(number) < 1:
        raise DataError("metadata.json", f"tells of {name} {number!r:.80}", AGAIN)
    return int(number)


def _space(meta: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A space of the metadata, JSON within JSON; empty where it has none."""
    space: dict[str, Any] = parse_json(meta.get(name) or "{}", "metadata.json", fix=AGAIN, raises=DataError)
    return space


def _source(meta: Mapping[str, Any], action_space: Mapping[str, Any], path: str) -> dict[str, Any]:
    source: dict[str, Any] = {"name": meta.get("dataset_id", path), "format": "minari"}
    spec = meta.get("eval_env_spec") or meta.get("env_spec")
    if spec:
        source |= {"environment": named_environment({"environment_spec": spec}).id, "environment_spec": spec}
    if action_space.get("type") == "Box":
        bounds = {f"action_{end}": np.ravel(action_space[end]).tolist() for end in ("low", "high")}
        if np.isfinite([*bounds.values()]).all():  # a space without bounds says nothing
            source |= bounds
    if meta.get("ref_min_score") is not None and meta.get("ref_max_score") is not None:
        source["reference"] = [float(meta["ref_min_score"]), float(meta["ref_max_score"])]
    return source


def _episodes(data: Path, meta: Mapping[str, Any]) -> Iterator[Episode]:
    """Observations by key (T + 1 rows each; a lone array has the key ""), actions, rewards and the two flags."""
    main = data / "main_data.hdf5"
    if meta.get("data_format", "hdf5") == "hdf5" and main.is_file() and not _has_pictures(meta):
        with opened(inside(data, main.name)) as file:
            for number in range(_count(meta, "total_episodes")):
                group = child(file, f"episode_{number}")
                actions = child(group, "actions")
                if isinstance(actions, h5py.Group):
                    raise DataError("actions", "are a dict or tuple", "log one Box or Discrete action")
                numbers = (child(group, name)[()] for name in ("rewards", "terminations", "truncations"))
                yield _episode(child(group, "observations"), actions[()], *numbers)
        return
    minari = _package("to read this storage")
    if meta.get("data_format") == "arrow" and find_spec("pyarrow") is None:
        raise ModuleNotFoundError("this data set is stored in Arrow's format. Fix: pip install 'minari[arrow]'.")
    for file in data.rglob("*"):
        if not file.is_dir() or file.is_symlink():
            inside(data, str(file.relative_to(data)))
    if main.is_file():
        with opened(main) as file:  # before another library follows its links
            for number in range(_count(meta, "total_episodes")):
                _only_own(child(file, f"episode_{number}"))
    for episode in minari.MinariDataset(data).iterate_episodes():
        flags = (episode.terminations, episode.truncations)
        yield _episode(episode.observations, episode.actions, episode.rewards, *flags)


def _only_own(group: h5py.Group) -> None:
    """Refuse links and numbers from elsewhere anywhere below; JPEGs are no numbers, and are not looked at."""
    for name in group:
        link = group.get(name, getlink=True)
        item = group[name] if isinstance(link, h5py.HardLink) else child(group, name)
        if isinstance(item, h5py.Group):
            _only_own(item)
        elif item.dtype.kind in "biuf" or item.external is not None or item.is_virtual:
            child(group, name)


def _episode(observations: Any, actions: Any, rewards: Any, terminations: Any, truncations: Any) -> Episode:
    arrays = [np.asarray(part) for part in (actions, rewards, terminations, truncations)]
    return _by_key(observations), arrays[0], arrays[1], arrays[2], arrays[3]


def _has_pictures(meta: Mapping[str, Any]) -> bool:
    """Whether observations may be JPEGs: a space of bytes with two axes or three."""
    if not meta.get("jpeg_encoding", True) or "observation_space" not in meta:
        return False
    space = _space(meta, "observation_space")
    boxes = [space, *space.get("subspaces", {}).values()] if isinstance(space.get("subspaces", {}), dict) else [space]
    return any(box.get("dtype") == "uint8" and len(box.get("shape", ())) >= 2 for box in boxes)


def _by_key(observations: Any) -> dict[str, np.ndarray]:
    if not isinstance(observations, Mapping | h5py.Group):
        return {"": np.asarray(observations[()] if isinstance(observations, h5py.Dataset) else observations)}
    found = {}
    for key in observations:
        value = child(observations, key) if isinstance(observations, h5py.Group) else observations[key]
        if isinstance(value, Mapping | h5py.Group | tuple):
            fix = "flatten the observation (gymnasium.wrappers.FlattenObservation) when logging"
            raise DataError(f"observations/{key}", "is a dict within a dict", fix)
        found[key] = np.asarray(value[()] if isinstance(value, h5py.Dataset) else value)
    return found


def _gather(episodes: Iterator[Episode], rows: int) -> dict[str, np.ndarray]:
    """All episodes in columns allocated once; 64-bit floats are narrowed on the way, as the data set would."""
    columns: dict[str, np.ndarray] = {}
    start = 0
    for number, (observations, actions, rewards, terminations, truncations) in enumerate(episodes):
        steps = len(rewards)
        parts: dict[str, np.ndarray] = {}
        for key, column in observations.items():
            if len(column) != steps + 1:
                problem = f"episode {number} has {len(column)} observations for {steps} steps"
                raise DataError("observations", problem, "Minari logs T + 1 of them: write the data set again", start)
            suffix = f"/{key}" if key else ""
            parts[f"observations{suffix}"], parts[f"next_observations{suffix}"] = column[:-1], column[1:]
        if not observations:
            raise DataError("observations", f"episode {number} has none", AGAIN, start)
        parts |= {"actions": actions, "rewards": rewards, "terminated": terminations, "truncated": truncations}
        parts["episodes"] = np.full(steps, number)
        if not columns:
            types = {name: _stored_type(name, part) for name, part in parts.items()}
            each = sum(types[name].itemsize * math.prod(part.shape[1:]) for name, part in parts.items())
            check_memory("metadata.json", rows * each, f"check total_steps, which says {rows:,}")
            columns = {name: np.empty((rows, *part.shape[1:]), dtype=types[name]) for name, part in parts.items()}
        if parts.keys() != columns.keys():
            odd = sorted(parts.keys() ^ columns.keys())
            raise DataError(odd[0], f"is there in some episodes and not in others (see episode {number})", AGAIN, start)
        for name, part in parts.items():
            if len(part) != steps or start + steps > rows or part.shape[1:] != columns[name].shape[1:]:
                problem = f"episode {number} has shape {part.shape}, the data set {columns[name].shape}"
                raise DataError(name, problem, AGAIN, start)
            columns[name][start : start + steps] = part
        start += steps
    if start != rows:
        raise DataError("metadata.json", f"tells of {rows} steps, the episodes have {start}", "write the data set again")
    return columns


def _stored_type(name: str, part: np.ndarray) -> np.dtype[Any]:
    return np.dtype(np.float32) if part.dtype == np.float64 and name not in ("rewards", "actions") else part.dtype


def _package(purpose: str) -> Any:
    try:
        import minari
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"the package minari is needed {purpose}. {INSTALL}") from error
    return minari


def write(dataset: Dataset, name: str) -> None:
    """Write a data set of vectors under Minari's root. An episode's last row is left out where its next is unknown."""
    if not ID.fullmatch(name):
        raise DataError(name, "is no Minari id", "name it like pendulum/random-v0")
    if dataset.pictures is not None:
        raise DataError("pictures", "Minari would store pictures as lossy JPEGs", "write .npz or .apev instead")
    if dataset.action_masks is not None:
        raise DataError("action_masks", "Minari has no column for masks", "write .npz, .hdf5 or .apev instead")
    minari = _package("to write Minari data sets")
    from minari.data_collector import EpisodeBuffer

    inside = np.flatnonzero(dataset.next_rows != np.arange(len(dataset)))
    for key, column in (dataset.given_next or {}).items():
        differs = (column[inside] != dataset.observations[key][inside + 1]).any(axis=1)
        if differs.any():
            fix = "start a new episode there, or write another format: Minari stores each observation of an episode once"
            problem = "is not the observation of the following row"
            raise DataError(f"next_observations/{key}", problem, fix, rows=inside[differs])
    bare = list(dataset.observations) == ["observation"]
    starts = np.flatnonzero(np.append(True, dataset.episodes[1:] != dataset.episodes[:-1]))
    buffers = []
    for first, stop in zip(starts, [*starts[1:], len(dataset)], strict=True):
        end = stop if dataset.usable[stop - 1] else stop - 1
        if end == first:
            continue
        final = dataset.next_observations_of(slice(end - 1, end))
        if end < stop:
            final = {key: column[end : end + 1] for key, column in dataset.observations.items()}
        shown = {key: np.concatenate([column[first:end], final[key]]) for key, column in dataset.observations.items()}
        cut = dataset.truncated[first:end].copy()
        cut[-1] |= not dataset.terminated[end - 1]
        buffers.append(
            EpisodeBuffer(
                observations=shown["observation"] if bare else shown,
                actions=dataset.actions[first:end],
                rewards=dataset.rewards[first:end],
                terminations=dataset.terminated[first:end],
                truncations=cut,
            )
        )
    spaces = {key: _observation_space(column) for key, column in dataset.observations.items()}
    low, high = (dataset.source.get("reference") or [None, None])[:2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(
            dataset_id=name,
            buffer=buffers,
            env=_environment(dataset),
            observation_space=spaces["observation"] if bare else gymnasium.spaces.Dict(spaces),
            action_space=_action_space(dataset),
            ref_min_score=low,
            ref_max_score=high,
            description=f"Written by apev from {dataset.source.get('name', 'arrays')}",
        )


def _environment(dataset: Dataset) -> Any:
    """The environment's spec, where this machine can build it; Minari tries to."""
    try:
        env = recover_environment(dataset.source)
    except (ValueError, ImportError, gymnasium.error.Error):
        return None
    env.close()
    return env.spec


def _observation_space(column: np.ndarray) -> gymnasium.Space[Any]:
    low, high = (-np.inf, np.inf) if column.dtype.kind == "f" else (column.min(), column.max())
    return gymnasium.spaces.Box(low, high, (column.shape[1],), column.dtype.type)


def _action_space(dataset: Dataset) -> gymnasium.Space[Any]:
    if dataset.num_actions is not None:
        return gymnasium.spaces.Discrete(dataset.num_actions)
    width = dataset.actions.shape[1]
    low, high = (dataset.source.get(f"action_{end}") for end in ("low", "high"))
    if low is None or high is None or len(low) != width:
        bound = float(max(1.0, np.abs(dataset.actions).max()))
        return gymnasium.spaces.Box(-bound, bound, (width,), np.float32)
    return gymnasium.spaces.Box(np.array(low, np.float32), np.array(high, np.float32), (width,), np.float32)
