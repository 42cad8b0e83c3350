"""What a damaged file may name and nobody may touch, and checksums as whoever damages a file on purpose would write them."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from samples import Sample

CANARY_MODULE = "apev_reliability_canary"
ESCAPE = "\x1b[31mred\x1b[0m"
HUGE = 10**9


@dataclass(frozen=True)
class Outside:
    """What a damaged file may name and nobody may touch: files to read, and one that only running code makes."""

    store: Path  # where all of them are
    folder: Path  # of this try alone: it holds those that were named, and is watched
    canary: Path

    @property
    def touch(self) -> str:
        """A shell command that leaves the canary."""
        return f"touch {self.canary}"

    def bring(self, name: str) -> Path:
        """One of them, in the folder of this try."""
        target = self.folder / name
        if (self.store / name).is_dir():
            shutil.copytree(self.store / name, target, dirs_exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.store / name, target)
        return target


Damage = Callable[[random.Random, Path, Outside], str]


def make_outside(store: Path, samples: list[Sample]) -> None:
    """Files outside of every try: numbers, text, another log, other policies and runs."""
    store.mkdir(parents=True)
    np.full(4096, 7.5, dtype=np.float32).tofile(store / "numbers.bin")
    (store / "text.txt").write_text("secret\n" * 200)
    np.save(store / "rows.npy", np.full((40, 9), 7.5, dtype=np.float32))
    np.save(store / "rewards.npy", np.full(40, 7.5, dtype=np.float32))
    with h5py.File(store / "secret.hdf5", "w") as file:
        file["observations"] = np.full((40, 3), 7.5, dtype=np.float32)
        file["rewards"] = np.full(40, 7.5, dtype=np.float32)
    (store / "secret.json").write_text(json.dumps({"name": "secret", "total_steps": 1, "agent": "secret"}))
    (store / "model.xml").write_text("<mujoco><secret/></mujoco>")
    (store / "modules").mkdir()
    (store / "modules" / f"{CANARY_MODULE}.py").write_text(
        "import os\nopen(os.environ['APEV_CANARY'], 'w').close()\n"
        "from gymnasium.envs.registration import register\n"
        "class Env:\n    def __init__(self, *args, **kwargs): pass\n"
        "register('Env-v0', entry_point=Env)\n"
    )
    for sample in samples:
        if sample.path.is_dir():
            shutil.copytree(sample.path, store / sample.path.name, dirs_exist_ok=True)


def seal(document: Any) -> Any:
    """The document with a checksum that fits, if it had one."""
    if isinstance(document, dict) and "sha256" in document:
        rest = {key: value for key, value in document.items() if key != "sha256"}
        return rest | {"sha256": hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()}
    return document


def seal_folder(folder: Path) -> None:
    """Checksums of files, where the JSON beside them has some, made to fit."""
    for path in folder.glob("*.json"):
        try:
            document = json.loads(path.read_text())
        except (ValueError, RecursionError, OSError):
            continue
        if not isinstance(document, dict):
            continue
        given = document.get("files")  # of a log's columns
        listed: dict[str, Any] = given if isinstance(given, dict) else {}
        for name in listed:
            if (folder / name).is_file():
                listed[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        if "weights" in document and (folder / "weights.safetensors").is_file():  # of a policy
            document["weights"] = hashlib.sha256((folder / "weights.safetensors").read_bytes()).hexdigest()
        path.write_text(json.dumps(seal(document)))


def files_of(path: Path) -> list[Path]:
    """The plain files of a sample, in a fixed order."""
    if path.is_file():
        return [path]
    return sorted(p for p in path.rglob("*") if p.is_file() and not p.is_symlink())


def short(value: Any) -> str:
    """A value in a few words."""
    text = repr(value)
    return text if len(text) < 40 else text[:40] + "..."


def hdf5_of(path: Path) -> Path:
    """The HDF5 file of a log, which is that file or a folder of Minari's."""
    return path if path.is_file() else path / "data" / "main_data.hdf5"
