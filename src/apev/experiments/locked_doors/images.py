"""The photographs of Locked Doors: four kinds of vehicles from CIFAR-10 (Krizhevsky, 2009).

    load_images()                             the small set inside the package: 1,000 training and 200 test pictures
    load_images("vehicles.npz")               your own arrays
    load_images("cifar-10-python.tar.gz")     the official archive, or the folder it unpacks to
    load_images("cifar10")                    downloads that archive once, and checks it

The official archive holds Python pickles. A pickle can run any code, so they are read by an unpickler that knows
NumPy arrays and nothing else.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

CLASSES = ("airplane", "automobile", "ship", "truck")
CIFAR10_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
CIFAR10_MD5 = "c58f30108f718f92721af3b95e74349a"

_KEYS = ("train_images", "train_labels", "test_images", "test_labels")
_CIFAR_LABELS = (0, 1, 8, 9)  # CIFAR-10's numbers of CLASSES
_TRAIN_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_TEST_BATCH = "test_batch"


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Photographs with the class, and so the unlocked door, of each."""

    train_images: NDArray[np.uint8]  # [N, 32, 32, 3]
    train_labels: NDArray[np.int64]  # [N], 0..3: a place in `classes`
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]
    classes: tuple[str, ...] = CLASSES
    source: str = "arrays"  # where they come from, in a few words for people

    def __post_init__(self) -> None:
        if len(self.classes) != 4:
            raise ValueError(f"classes: the room has 4 doors, so name 4 classes, not {len(self.classes)}")
        for split in ("train", "test"):
            images, labels = getattr(self, f"{split}_images"), np.asarray(getattr(self, f"{split}_labels"))
            _check(split, images, labels)
            object.__setattr__(self, f"{split}_labels", labels.astype(np.int64))

    def split(self, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The images and labels of "train" or "test"."""
        if name == "train":
            return self.train_images, self.train_labels
        if name == "test":
            return self.test_images, self.test_labels
        raise ValueError(f'split must be "train" or "test", not {name!r}')


def load_images(path: str | Path | None = None) -> ImageSet:
    """Photographs from the package (None), a file or folder, or the internet (the word "cifar10")."""
    if path is None:
        with (resources.files("apev.experiments.locked_doors") / "assets" / "cifar10_vehicles_mini.npz").open("rb") as file:
            arrays = _read_npz(io.BytesIO(file.read()), "the package's own images")
        sizes = f"{len(arrays['train_images']):,} + {len(arrays['test_images']):,}"
        return ImageSet(**arrays, source=f"mini ({sizes} CIFAR-10 vehicles)")
    if str(path) == "cifar10":
        path = _download()
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f"images: there is no file {str(path)!r}; give an .npz, cifar-10-python.tar.gz or its unpacked folder, "
            'the word "cifar10" to download it, or nothing for the small set in the package'
        )
    if path.is_dir():
        arrays = _select_vehicles(_folder_batches(path), path.name)
    elif path.suffix == ".npz":
        with path.open("rb") as opened:
            arrays = _read_npz(opened, path.name)
    elif path.name.endswith((".tar.gz", ".tgz", ".tar")):
        arrays = _select_vehicles(_archive_batches(path), path.name)
    else:
        raise ValueError(f"images: cannot tell what {path.name!r} is; give an .npz, a .tar.gz or the unpacked folder")
    sizes = f"{len(arrays['train_images']):,} + {len(arrays['test_images']):,}"
    return ImageSet(**arrays, source=f"{path.name} ({sizes} images)")


def _check(split: str, images: Any, labels: NDArray[Any]) -> None:
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8:
        raise ValueError(f"{split}_images: need a uint8 array (values 0..255), got {getattr(images, 'dtype', images)}")
    if images.ndim != 4 or images.shape[1:] != (32, 32, 3):
        raise ValueError(f"{split}_images: need shape [N, 32, 32, 3] (channels last), got {list(images.shape)}")
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{split}_labels: need whole numbers 0..3, got dtype {labels.dtype}")
    if labels.shape != (len(images),):
        raise ValueError(f"{split}_labels: need one label an image, [{len(images)}], got shape {list(labels.shape)}")
    if len(images) == 0:
        raise ValueError(f"{split}_images: there are no images")
    if labels.min() < 0 or labels.max() > 3:
        row = int(np.flatnonzero((labels < 0) | (labels > 3))[0])
        raise ValueError(f"{split}_labels: row {row} is {labels[row]}; a label names one of the doors 0..3")


def _read_npz(file: IO[bytes], name: str) -> dict[str, Any]:
    try:
        loaded = np.load(file, allow_pickle=False)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{name}: not an .npz file that NumPy can read ({error})") from error
    if not isinstance(loaded, np.lib.npyio.NpzFile):
        raise ValueError(f"{name}: holds one array; save the four arrays {', '.join(_KEYS)} with np.savez")
    missing = [key for key in _KEYS if key not in loaded]
    if missing:
        raise ValueError(f"{name}: misses {', '.join(missing)}; it holds {', '.join(loaded) or 'nothing'}")
    try:
        return {key: loaded[key] for key in _KEYS}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:  # object arrays would be pickles
        raise ValueError(f"{name}: an array cannot be read without pickle, or is damaged ({error})") from error


# ---- the official archive


def _latin1(text: str, encoding: str) -> bytes:
    """What a Python 3 pickle of an old protocol calls to write bytes; no other encoding is needed."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding!r} is refused")
    return text.encode("latin1")


_RECONSTRUCT = np.empty(0).__reduce__()[0]  # NumPy's own, under whatever module name this version has
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,  # NumPy 1
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,  # NumPy 2
    ("_codecs", "encode"): _latin1,
}


class _ArrayUnpickler(pickle.Unpickler):
    """Reads dictionaries of arrays, lists and strings; every other class or function is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no image needs; refused")
        return _ALLOWED[module, name]


def _read_batch(raw: bytes, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        batch = _ArrayUnpickler(io.BytesIO(raw), encoding="bytes").load()
    except Exception as error:  # a damaged or hostile pickle can raise anything
        raise ValueError(f"{name}: not a CIFAR-10 batch: {error}") from error
    batch = {_text(key): value for key, value in batch.items()} if isinstance(batch, dict) else {}
    data, labels = batch.get("data"), batch.get("labels")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3 * 32 * 32:
        raise ValueError(f"{name}: not a CIFAR-10 batch: its 'data' is not a uint8 array [N, 3072]")
    if not isinstance(labels, list) or len(labels) != len(data) or not all(isinstance(k, int) for k in labels):
        raise ValueError(f"{name}: not a CIFAR-10 batch: its 'labels' are not a list of {len(data)} numbers")
    return data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.asarray(labels, dtype=np.int64)


def _text(key: Any) -> str:
    return key.decode("latin1") if isinstance(key, bytes) else str(key)


def _folder_batches(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.iterdir()):
        if path.name in (*_TRAIN_BATCHES, _TEST_BATCH):
            yield path.name, path.read_bytes()


def _archive_batches(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(path) as archive:
            for member in archive:  # nothing is unpacked onto the disk
                name = member.name.rsplit("/", 1)[-1]
                file = archive.extractfile(member) if name in (*_TRAIN_BATCHES, _TEST_BATCH) else None
                if file is not None:
                    yield name, file.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ValueError(f"{path.name}: not a complete tar archive ({error}); download it again") from error


def _select_vehicles(batches: Iterator[tuple[str, bytes]], source: str) -> dict[str, Any]:
    read = {name: _read_batch(raw, name) for name, raw in batches}
    missing = [name for name in (*_TRAIN_BATCHES, _TEST_BATCH) if name not in read]
    if missing:
        raise ValueError(f"{source}: misses {', '.join(missing)}; it should be CIFAR-10's Python version, complete")
    arrays: dict[str, Any] = {}
    for split, names in (("train", _TRAIN_BATCHES), ("test", (_TEST_BATCH,))):
        images = np.concatenate([read[name][0] for name in names])
        labels = np.concatenate([read[name][1] for name in names])
        keep = np.isin(labels, _CIFAR_LABELS)
        arrays[f"{split}_images"] = np.ascontiguousarray(images[keep])
        arrays[f"{split}_labels"] = np.searchsorted(_CIFAR_LABELS, labels[keep])
    return arrays


# ---- the download


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _download() -> Path:
    """The official archive in the user's cache; fetched once, and never used with a wrong checksum."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "apev"
    path = folder / CIFAR10_URL.rsplit("/", 1)[-1]
    if path.exists() and _md5(path) == CIFAR10_MD5:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        _fetch(part)
        found = _md5(part)
        if found != CIFAR10_MD5:
            raise ValueError(f"{CIFAR10_URL}: the download is damaged (md5 {found}, not {CIFAR10_MD5}); try again")
        os.replace(part, path)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise ConnectionError(
            f"could not download {CIFAR10_URL} ({error}). Without internet, copy that file here from another "
            "machine and give its path, or give no path to use the small set in the package"
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return path


def _fetch(target: Path) -> None:
    columns = (TextColumn("CIFAR-10"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with urllib.request.urlopen(CIFAR10_URL, timeout=30) as reply, target.open("wb") as file, Progress(*columns) as bar:
        size = reply.headers.get("Content-Length")
        task = bar.add_task("download", total=int(size) if size else None)
        while chunk := reply.read(1 << 18):
            file.write(chunk)
            bar.advance(task, len(chunk))
