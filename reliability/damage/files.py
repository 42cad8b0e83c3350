"""Damage to bytes and to the places of files, of whatever format."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

from damage.outside import ESCAPE, Outside, files_of


def flip_bit(rng: random.Random, path: Path, outside: Outside) -> str:
    """One bit, somewhere."""
    file = rng.choice(files_of(path))
    data = bytearray(file.read_bytes())
    place = rng.randrange(len(data))
    data[place] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    return f"bit of byte {place} of {file.name}"


def flip_bytes(rng: random.Random, path: Path, outside: Outside) -> str:
    """A few bytes, near each other or far apart; half of the time near the start, where headers are."""
    file = rng.choice(files_of(path))
    data = bytearray(file.read_bytes())
    end = min(len(data), 512) if rng.random() < 0.5 else len(data)
    places = sorted(rng.randrange(end) for _ in range(rng.choice((1, 2, 4, 16))))
    for place in places:
        data[place] = rng.choice((0, 255, 127, 128, rng.randrange(256)))
    file.write_bytes(data)
    return f"bytes {places} of {file.name}"


def truncate(rng: random.Random, path: Path, outside: Outside) -> str:
    """Cut short."""
    file = rng.choice(files_of(path))
    size = file.stat().st_size
    keep = rng.choice((0, 1, size - 1, rng.randrange(size), rng.randrange(size), rng.randrange(min(size, 64))))
    os.truncate(file, keep)
    return f"{file.name} cut to {keep} of {size} bytes"


def extend(rng: random.Random, path: Path, outside: Outside) -> str:
    """Longer than it was."""
    file = rng.choice(files_of(path))
    data = file.read_bytes()
    what = rng.choice(("zeros", "noise", "itself", "newlines"))
    count = rng.choice((1, 7, 4096))
    more = {"zeros": bytes(count), "noise": rng.randbytes(count), "itself": data, "newlines": b"\n" * count}[what]
    file.write_bytes(data + more)
    return f"{file.name} longer by {len(more)} bytes of {what}"


def zero_fill(rng: random.Random, path: Path, outside: Outside) -> str:
    """A hole of zeros, as a lost block of a disk leaves it."""
    file = rng.choice(files_of(path))
    data = bytearray(file.read_bytes())
    start = rng.randrange(len(data))
    stop = min(len(data), start + rng.choice((8, 64, 512, len(data))))
    data[start:stop] = bytes(stop - start)
    file.write_bytes(data)
    return f"{file.name} zero from {start} to {stop}"


def shuffle_blocks(rng: random.Random, path: Path, outside: Outside) -> str:
    """Two blocks in each other's place."""
    file = rng.choice(files_of(path))
    data = bytearray(file.read_bytes())
    size = max(1, min(rng.choice((8, 64, 512)), len(data) // 2))
    a, b = rng.randrange(len(data) - size + 1), rng.randrange(len(data) - size + 1)
    one, two = data[a : a + size], data[b : b + size]
    data[a : a + size], data[b : b + size] = two, one
    file.write_bytes(data)
    return f"{size} bytes at {a} and {b} of {file.name} swapped"


def misplace(rng: random.Random, path: Path, outside: Outside) -> str:
    """A file that is missing, under another name, twice, or something else than a file."""
    file = rng.choice(files_of(path))
    what = rng.choice(("missing", "renamed", "twice", "folder", "pipe", "broken link", "circle", "other", "empty folder"))
    if what == "missing":
        file.unlink()
    elif what == "renamed":
        file.rename(file.with_name(rng.choice((f"x{file.name}", f"{file.name}.bak", file.name.upper()))))
    elif what == "twice":
        shutil.copy(file, file.with_name(rng.choice((f"x{file.name}", f"%2e%2e%2f{file.name}", f"{ESCAPE}{file.name}"))))
    elif what == "other":
        file.write_bytes(rng.choice(files_of(path)).read_bytes() if path.is_dir() else b"hello\n")
    elif what == "empty folder" and path.is_dir():
        shutil.rmtree(path)
        path.mkdir()
    else:
        file.unlink()
        if what in ("folder", "empty folder"):
            file.mkdir()
        elif what == "pipe":
            os.mkfifo(file)
        else:
            file.symlink_to(file.name if what == "circle" else "nowhere")
    return f"{file.name}: {what}"


def link_files(rng: random.Random, path: Path, outside: Outside) -> str:
    """A file or folder of the sample that is a link to one outside, of the same content or another."""
    file = rng.choice(files_of(path))
    names = ["text.txt", "numbers.bin", "secret.json", "rows.npy", "rewards.npy", "secret.hdf5"]
    twin = f"{path.name}/{file.relative_to(path)}"
    name = rng.choice([*names, *[twin] * 8])
    if rng.random() < 0.15 and file.parent != path:
        target = outside.bring(f"{path.name}/{file.parent.relative_to(path)}")
        shutil.rmtree(file.parent)
        file.parent.symlink_to(target)
        return f"the folder {file.parent.name} is a link out"
    target = outside.bring(name)
    file.unlink()
    file.symlink_to(os.path.relpath(target, file.parent) if rng.random() < 0.2 else target)
    return f"{file.name} is a link to {target.name}"
