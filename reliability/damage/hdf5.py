"""Damage to HDF5 files, D4RL's and Minari's."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from damage.arrays import NAMES, weird_array
from damage.outside import HUGE, Outside, hdf5_of, short


def damage_hdf5(rng: random.Random, path: Path, outside: Outside) -> str:
    """A data set or group of an HDF5 file that is not what belongs there."""
    with h5py.File(hdf5_of(path), "a") as file:
        return damage_group(rng, file)


WRONG = (
    "missing", "renamed", "twice", "group", "full group", "values", "values", "values", "values", "strings", "compound",
    "references", "null", "ragged", "enum", "attribute", "circle", "odd type",
)  # fmt: skip
LINKS = (
    "storage", "storage", "storage missing", "external", "external missing", "soft", "soft missing", "soft circle", "virtual",
    "virtual missing", "virtual self", "group", "attribute",
)  # fmt: skip
SPACES: tuple[Any, ...] = (
    {"type": "Discrete", "n": 2**40, "start": 0, "dtype": "int64"}, {"type": "Discrete", "n": -1}, {"type": "Discrete"},
    {"type": "Discrete", "n": "x", "start": "y"}, {"type": "Box"}, {"type": "Box", "low": "x", "high": [1]},
    {"type": "Box", "low": [float("nan")], "high": [float("inf")], "shape": [HUGE]}, {"type": "Dict", "subspaces": []},
    {"type": "Tuple", "subspaces": [{"type": "Box"}]}, {"type": "os:system"}, {"type": "Box", "low": [-2.0] * 9, "high": 3},
    {"type": "Text", "max_length": HUGE}, {"type": "Dict", "subspaces": {"a": None}}, {}, [], "x", 7, None,
    {"type": "Box", "dtype": "uint8", "shape": [8, 8, 3], "low": 0, "high": 255}, {"type": "MultiBinary", "n": [1]},
)  # fmt: skip


def damage_group(rng: random.Random, file: h5py.File) -> str:
    """One data set or group of an HDF5 file."""
    found: dict[str, bool] = {}
    file.visititems(lambda name, item: found.__setitem__(name, isinstance(item, h5py.Dataset)))
    name = rng.choice(sorted(found))
    how = rng.choice(WRONG)
    item = file[name]
    shape = item.shape if found[name] else (4,)
    if how == "values" and found[name] and item.shape:
        array, told = weird_array(rng, item[()])
        if array.dtype.kind in "biufcS":
            del file[name]
            file.create_dataset(name, data=array)
            return f"{name} {told}"
        how = "strings"
    if how == "renamed":
        to = rng.choice([n for n in NAMES if n.strip("/") and not n.endswith("/")] + ["episode_7", "episode_x", "episode_-1"])
        if to not in file:
            with contextlib.suppress(ValueError):  # below a data set there is no place
                file.move(name, to)
        return f"{name} renamed {to!r}"
    if how == "twice":
        to = rng.choice([n for n in NAMES if n.strip("/") and not n.endswith("/")])
        if to not in file:
            with contextlib.suppress(OSError):
                file[to] = item
        return f"{name} also as {to!r}"
    if how == "circle":
        file["observations_circle"] = file["/"]
        if found[name]:
            del file[name]
            file[name] = file["/"]
        return f"{name} is the file itself"
    if how == "attribute":
        values = (np.zeros(3), "x", 7, np.array(["a", "a"], dtype=object), h5py.Empty("f"), np.bytes_(b"\xff"))
        which = rng.choice(("apev_order", "apev_header", "id", "total_steps", "seed", "rewards"))
        target = file if rng.random() < 0.7 else item
        target.attrs[which] = rng.choice(values) if rng.random() < 0.8 else np.zeros(9000, "u1")
        return f"attribute {which} of {name if target is item else '/'}"
    del file[name]
    if how in ("group", "full group"):
        group = file.create_group(name)
        if how == "full group":
            group["x"] = np.zeros(4)
    elif how == "strings":
        file.create_dataset(name, data=["x"] * (shape[0] if shape else 1), dtype=h5py.string_dtype())
    elif how == "compound":
        file.create_dataset(name, data=np.zeros(shape, dtype=[("a", "f4"), ("b", "i4")]))
    elif how == "references":
        file.create_dataset(name, data=np.array([file.ref] * max(1, shape[0] if shape else 1), dtype=h5py.ref_dtype))
    elif how == "null":
        file.create_dataset(name, data=h5py.Empty("f4"))
    elif how == "ragged":
        rows = file.create_dataset(name, (shape[0] if shape else 1,), dtype=h5py.vlen_dtype(np.float32))
        rows[0] = [1.0, 2.0]
    elif how == "enum":
        file.create_dataset(name, data=np.zeros(shape, "i4"), dtype=h5py.enum_dtype({"RED": 0, "GREEN": 42}, basetype="i4"))
    elif how == "odd type":
        file.create_dataset(name, data=np.zeros(shape, rng.choice((">f8", "f2", "c16", "S3", "V5", "u8", "?"))))
    return f"{name} {how}"


def _columns_of(file: h5py.File) -> list[str]:
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    return sorted(name for name in found if not name.startswith(("infos", "metadata")))


def huge_hdf5(rng: random.Random, path: Path, outside: Outside) -> str:
    """An empty data set that says it has terabytes."""
    with h5py.File(hdf5_of(path), "a") as file:
        names = _columns_of(file) if rng.random() < 0.7 else _columns_of(file)[:1]
        name = rng.choice(names)
        rows = rng.choice((1 << 31, 1 << 40, 1 << 28, HUGE))
        old = file[name]
        shape = rng.choice(((rows, *old.shape[1:]), (len(old) if old.shape else 1, rows), (rows,)))
        dtype = old.dtype
        every = rng.random() < 0.3
        for each in names if every else [name]:
            del file[each]
            file.create_dataset(each, shape, dtype=dtype, chunks=tuple(min(64, n) for n in shape), compression="gzip")
        return f"{'every column' if every else name} has shape {shape}"


def link_hdf5(rng: random.Random, path: Path, outside: Outside) -> str:
    """A data set whose numbers lie in another file, or nowhere, or under another name."""
    secret, numbers = outside.bring("secret.hdf5"), outside.bring("numbers.bin")
    how = rng.choice(LINKS)
    with h5py.File(hdf5_of(path), "a") as file:
        name = rng.choice(_columns_of(file))
        shape, dtype = file[name].shape, file[name].dtype
        parent = name.rpartition("/")[0]
        if how == "group" and not parent:
            how = "external"
        kept = file[name][()]
        if how not in ("group", "attribute"):
            del file[name]
        if how.startswith("storage"):
            stored = numbers if how == "storage" else outside.folder / "nowhere.bin"
            file.create_dataset(name, shape, dtype, external=[(str(stored), 0, 4 * 4096)])
        elif how.startswith("external"):
            linked = secret if how == "external" else outside.folder / "nowhere.hdf5"
            file[name] = h5py.ExternalLink(str(linked), "rewards" if len(shape) == 1 else "observations")
        elif how.startswith("soft"):
            if how == "soft":
                file["elsewhere/kept"] = kept
            file[name] = h5py.SoftLink({"soft": "/elsewhere/kept", "soft circle": f"/{name}"}.get(how, "/nowhere"))
        elif how.startswith("virtual"):
            layout = h5py.VirtualLayout(shape, dtype)
            there = {"virtual": str(secret), "virtual self": "."}.get(how, str(outside.folder / "nowhere.hdf5"))
            layout[...] = h5py.VirtualSource(there, "rewards" if len(shape) == 1 else "observations", shape)
            file.create_virtual_dataset(name, layout, fillvalue=0)
        elif how == "group":
            del file[parent]
            file[parent] = h5py.ExternalLink(str(secret), "/")
        else:
            file.attrs["apev_order"] = [str(secret)]
        return f"{name}: {how}"


def damage_minari(rng: random.Random, path: Path, outside: Outside) -> str:
    """Episodes and metadata that do not fit each other."""
    file = path / "data" / "metadata.json"
    meta = json.loads(file.read_text())
    how = rng.choice(("steps", "episodes", "space", "observations", "ragged", "group", "format", "pictures", "missing"))
    if how == "steps":
        meta["total_steps"] = rng.choice((2**31, 2**40, 0, -1, 35, 37, 1e300, "36", 36.5, None, 10**30))
    elif how == "episodes":
        meta["total_episodes"] = rng.choice((2**31, 0, -1, 3, 5, "4", 1e300, None))
    elif how in ("space", "observations"):
        which = "action_space" if how == "space" else "observation_space"
        space = rng.choice(SPACES)
        meta[which] = json.dumps(space) if rng.random() < 0.8 else space
    elif how == "format":
        meta["data_format"] = rng.choice(("arrow", "x", "", None, 7, "pickle", "zarr", ["hdf5"]))
    elif how == "pictures":
        meta["jpeg_encoding"] = rng.choice((True, "x", None, 7))
        meta["observation_space"] = json.dumps({"type": "Box", "dtype": "uint8", "shape": [8, 8, 3], "low": 0, "high": 255})
    elif how == "missing":
        del meta[rng.choice(sorted(meta))]
    else:
        with h5py.File(path / "data" / "main_data.hdf5", "a") as h5:
            group = h5[f"episode_{rng.randrange(4)}"]
            name = rng.choice(sorted(group))
            if isinstance(group[name], h5py.Group) or how == "group":
                del group[name]
                group.create_group(name)
            else:
                array, told = group[name][()], ""
                array, told = (array[: rng.randrange(len(array))], "short") if rng.random() < 0.5 else weird_array(rng, array)
                del group[name]
                if array.dtype.kind in "biufcS":
                    group[name] = array
                return f"{group.name}/{name} {told}"
            return f"{group.name}/{name} is an empty group"
    file.write_text(json.dumps(meta))
    return f"{how}: {short({k: meta.get(k) for k in ('total_steps', 'total_episodes', 'data_format')})}"
