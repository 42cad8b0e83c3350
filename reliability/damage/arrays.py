"""Damage to columns: .npy, .npz, and pickles where numbers belong."""

from __future__ import annotations

import io
import os
import pickle
import random
import struct
import warnings
import zipfile
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from damage.outside import ESCAPE, HUGE, Outside, files_of, seal_folder

NAMES = (
    "observations", "next_observations", "next_obs", "actions", "rewards", "terminated", "truncated", "terminals", "timeouts",
    "dones", "done", "episodes", "episode_id", "contexts", "num_actions", "pictures", "pictures/x", "observations/x",
    "observations.x", "next_observations/[/a]", f"observations/{ESCAPE}", "observations/", "/", "x" * 300, "apev_header", "é",
    "apev_order", "Rewards",
)  # fmt: skip
DTYPES = ("?", "i1", "u1", "<i4", "<i8", "<u8", ">f4", ">i8", "f2", "f8", "g", "c8", "S4", "U4", "M8[s]", "m8[s]", "V8")


def weird_array(rng: random.Random, array: np.ndarray) -> tuple[np.ndarray, str]:
    """A column with something wrong in it, and what."""
    how = rng.choice(("value", "value", "value", "dtype", "dtype", "shape", "rows"))
    with np.errstate(all="ignore"):
        if how == "value" and array.size and array.dtype.kind in "biuf":
            wide = array.astype(np.float64) if array.dtype.kind == "f" else array.astype(np.int64)
            values: tuple[Any, ...] = (-1, 2, 3, HUGE, 2**31, 2**62, -(2**63), 0)
            if wide.dtype.kind == "f":
                values = (np.nan, np.inf, -np.inf, 3e38, 1e300, -1, 0, 0.5, 1e-40)
            value = rng.choice(values)
            if rng.random() < 0.3:
                wide[:] = value
            else:
                wide.reshape(-1)[rng.randrange(wide.size)] = value
            keep = wide.dtype.kind == "f" and abs(value) < 3.4e38 and rng.random() < 0.5
            return (wide.astype(array.dtype) if keep else wide), f"holds {value}"
        if how == "dtype":
            kind = rng.choice(DTYPES)
            try:
                return array.astype(kind), f"is {kind}"
            except (TypeError, ValueError):
                return np.zeros(array.shape, kind), f"is {kind}"
        if how == "shape":
            shapes: tuple[tuple[int, ...], ...] = (
                (), (0,), (array.size,), (array.size, 1), (1, *array.shape), (*array.shape, 1), (len(array), 0),
                (array.size,) + (1,) * 20, (0, *array.shape[1:]), (1, 1), array.shape[::-1],
            )  # fmt: skip
            shape = rng.choice(shapes)
            return np.resize(array, shape), f"has shape {shape}"
    keep_rows = rng.randrange(len(array) + 1)
    if rng.random() < 0.3:
        return np.concatenate([array, array]), "has its rows twice"
    return array[:keep_rows], f"has {keep_rows} rows"


def damage_columns(rng: random.Random, path: Path, outside: Outside) -> str:
    """A column that is missing, renamed, doubled, or of other numbers than belong there."""
    if path.is_dir():
        return _damage_npy(rng, path)
    entries = read_zip(path)
    told = _damage_entries(rng, entries)
    write_zip(path, entries)
    return told


def _damage_entries(rng: random.Random, entries: dict[str, bytes]) -> str:
    """One member of an .npz."""
    name = rng.choice([n for n in sorted(entries) if n != "apev_header.npy"])
    other = f"{rng.choice(NAMES)}.npy"
    how = rng.choice(("missing", "renamed", "twice", "added", "values", "values", "values", "values", "values"))
    if how == "missing":
        del entries[name]
    elif how == "renamed":
        entries[other] = entries.pop(name)
    elif how == "twice":
        entries[other] = entries[name]
    elif how == "added":
        kinds: tuple[Any, ...] = (0, -1, HUGE, 2.5, np.nan, "x", [1, 2], [], np.zeros((2, 2)), np.array("é"), np.zeros(0))
        entries[other] = npy_bytes(np.array(rng.choice(kinds)))
    else:
        array, told = weird_array(rng, np.load(io.BytesIO(entries[name]), allow_pickle=False))
        entries[name] = npy_bytes(array)
        return f"{name} {told}"
    return f"{name} {how}"


def _damage_npy(rng: random.Random, folder: Path) -> str:
    """One column of a .apev folder."""
    file = rng.choice([p for p in files_of(folder) if p.suffix == ".npy"])
    array, told = weird_array(rng, np.load(file))
    np.save(file, array)
    seal_folder(folder)
    return f"{file.name} {told}"


# ---------------------------------------------------------------------- zip and npy


def read_zip(path: Path) -> dict[str, bytes]:
    """The members of a zip."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_zip(path: Path, entries: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> None:
    """A zip of these members, always with the same date."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(zipfile.ZipInfo(name), data, method)


def npy_bytes(array: np.ndarray) -> bytes:
    """An array as .npy."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def npy_header(descr: str, shape: str, fortran: str = "False", version: bytes = b"\x01\x00") -> bytes:
    """The start of an .npy that says what we like."""
    text = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}"
    text += " " * (63 - (len(text) + 10) % 64) + "\n"
    size = struct.pack("<H", len(text)) if version == b"\x01\x00" else struct.pack("<I", len(text))
    return b"\x93NUMPY" + version + size + text.encode()


SHAPES = (
    "(1000000000000,)", "(40, 1000000000)", "(4611686018427387904, 4)", "(2147483648,)", "(-1,)", "(-40, -3)", "(40.0,)",
    "('x',)", "40", "None", "(True, 3)", "(0, 9223372036854775807)", "(40,) + (2,)", "(1,) * 100", "(" * 80 + ")" * 80,
    "(40, 3", "__import__('os')", "(9" + "9" * 400 + ",)", "(1, " + "1, " * 70 + ")", "(40,\x00)", "()",
)  # fmt: skip
DESCRS = (
    "'<f4'", "'<f8'", "'|O'", "'<U1000000000'", "'|V2147483647'", "'<M8[ns]'", "[('a', '<f4'), ('b', '|O')]", "'x'", "7",
    "None", "['<f4']", "'<f4,<i4'", "[('a', '<f4', (1000000, 1000000))]", "'>f8'", "'|S0'", "'<c16'", "'|b1'", "'float32'",
    "object",
)  # fmt: skip


def weird_npy(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    """An .npy whose header lies."""
    descr = "'<f4'" if rng.random() < 0.5 else rng.choice(DESCRS)
    shape = rng.choice(SHAPES) if rng.random() < 0.7 else "(40,)"
    fortran = rng.choice(("False", "False", "False", "True", "7", "None"))
    version = rng.choice((b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"))
    return npy_header(descr, shape, fortran, version) + data[128:], f"descr {descr[:30]}, shape {shape[:30]}"


def giant_npy(rng: random.Random, path: Path, outside: Outside) -> str:
    """A column that says it is larger, or something else, than it is."""
    if path.is_dir():
        file = rng.choice([p for p in files_of(path) if p.suffix == ".npy"])
        data, told = weird_npy(rng, file.read_bytes())
        file.write_bytes(data)
        seal_folder(path)
        return f"{file.name}: {told}"
    entries = read_zip(path)
    name = rng.choice(sorted(entries))
    entries[name], told = weird_npy(rng, entries[name])
    write_zip(path, entries, rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
    return f"{name}: {told}"


@cache
def bomb(gigabytes: float) -> tuple[bytes, int, int]:
    """Deflated zeros, their checksum, and how many they are, after an .npy header: a thousandth of what it unpacks to."""
    block = 1 << 20
    count = int(gigabytes * 1024)
    header = npy_header("'<f8'", f"({count * block // 8},)")
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    start = packer.compress(header) + packer.flush(zlib.Z_FULL_FLUSH)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = packer.compress(bytes(block)) + packer.flush(zlib.Z_FULL_FLUSH)
    end = zlib.compressobj(9, zlib.DEFLATED, -15).flush()
    crc, zeros = zlib.crc32(header), bytes(block)
    for _ in range(count):
        crc = zlib.crc32(zeros, crc)
    return start + piece * count + end, crc, len(header) + count * block


def prepare() -> None:
    """What takes seconds is made once, before the forks."""
    bomb(4)
    bomb(0.5)


def zip_bomb(rng: random.Random, path: Path, outside: Outside) -> str:
    """A column of a few megabytes that unpacks to gigabytes."""
    gigabytes = rng.choice((4, 4, 0.5))
    data, crc, size = bomb(gigabytes)
    entries = read_zip(path)
    name = rng.choice(sorted(entries)).encode()
    lies = rng.random() < 0.3  # about how much it unpacks to
    told = 4096 if lies else min(size, 0xFFFFFFFE)
    entries.pop(name.decode())
    write_zip(path, entries)
    whole = path.read_bytes()
    end = whole.rindex(b"PK\x05\x06")
    count, length, start = struct.unpack("<HII", whole[end + 10 : end + 20])
    local = struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, 0, 8, 0, 33, crc, len(data), told, len(name), 0) + name + data
    central = struct.pack(
        "<IHHHHHHIIIHHHHHII", 0x02014B50, 20, 20, 0, 8, 0, 33, crc, len(data), told, len(name), *(0,) * 5, start
    )
    directory = whole[start : start + length] + central + name
    tail = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count + 1, count + 1, len(directory), start + len(local), 0)
    path.write_bytes(whole[:start] + local + directory + tail)
    return f"{name.decode()} unpacks to {gigabytes} GB" + (" and says 4 kB" if lies else "")


def odd_zip(rng: random.Random, path: Path, outside: Outside) -> str:
    """A zip that is unusual, or no zip."""
    entries = read_zip(path)
    name = rng.choice(sorted(entries))
    how = rng.choice(
        ("bare", "text", "names", "absolute", "no end", "method", "encrypted", "deep", "member twice", "lzma", "huge extra")
    )
    if how == "bare":
        path.write_bytes(entries[name])
    elif how == "text":
        path.write_text("observations,actions\n1,2\n")
    elif how in ("names", "absolute"):
        to = "../../x.npy" if how == "names" else "/tmp/x.npy"
        entries[rng.choice((to, f"{name.removesuffix('.npy')}", "", f"{ESCAPE}.npy", "a/b/c/d.npy"))] = entries.pop(name)
        write_zip(path, entries)
    elif how == "no end":
        entries[name.removesuffix(".npy")] = b"no array"
        write_zip(path, entries)
    elif how in ("method", "encrypted"):
        data = bytearray(path.read_bytes())
        start = data.rindex(b"PK\x01\x02")
        place = start + (10 if how == "method" else 8)
        data[place] = 99 if how == "method" else 1
        path.write_bytes(data)
    elif how == "deep":
        inner = path.read_bytes()
        write_zip(path, {"observations.npy": inner, "data.npz": inner})
    elif how == "member twice":
        with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(path, "a") as archive:
            archive.writestr(zipfile.ZipInfo(name), npy_bytes(np.zeros(3)))
    elif how == "huge extra":
        with zipfile.ZipFile(path, "a") as archive:
            archive.comment = b"x" * 65_000
            archive.writestr(zipfile.ZipInfo("notes.txt"), b"x" * 100_000)
    else:
        write_zip(path, entries, rng.choice((zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2)))
    return f"{how} ({name})"


# ---------------------------------------------------------------------- pickles


class _Payload:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def pickled(rng: random.Random, path: Path, outside: Outside) -> str:
    """An object that runs code when it is unpickled, where numbers belong."""
    payload = pickle.dumps(_Payload(outside.touch))
    if path.suffix == ".npz":
        if rng.random() < 0.3:
            path.write_bytes(payload)
            return "a bare pickle"
        entries = read_zip(path)
        name = rng.choice(sorted(entries))
        buffer = io.BytesIO()
        np.save(buffer, np.array([_Payload(outside.touch)] * 2, dtype=object), allow_pickle=True)
        entries[name] = buffer.getvalue()
        write_zip(path, entries)
        return f"{name} is an object"
    file = rng.choice([p for p in files_of(path) if p.suffix in (".npy", ".safetensors", ".json", ".jsonl", ".hdf5")])
    if file.suffix == ".npy" and rng.random() < 0.7:
        np.save(file, np.array([_Payload(outside.touch)] * 40, dtype=object), allow_pickle=True)
    elif file.suffix == ".safetensors" and rng.random() < 0.7:
        torch.save({"x": _Payload(outside.touch)}, file)
    else:
        file.write_bytes(payload)
    seal_folder(path)
    return f"{file.name} is a pickle"
