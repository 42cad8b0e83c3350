"""Photographs: the set in the package, files, the official archive, and files that must be refused."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from apev.experiments.locked_doors import images as module
from apev.experiments.locked_doors.images import ImageSet, load_images

BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


class Python2Pickler(pickle._Pickler):
    """Writes byte strings as Python 2 did, as CIFAR-10's files have them."""

    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)

    def save_py2_str(self, text: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(text)) + text)  # type: ignore[attr-defined]
        self.memoize(text)  # type: ignore[attr-defined]

    dispatch[bytes] = save_py2_str


def py2_batch(labels: list[int], seed: int) -> tuple[bytes, np.ndarray]:
    data = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump({b"data": data, b"labels": labels, b"batch_label": b"x"})
    raw = file.getvalue()
    assert b"cnumpy._core.multiarray\n" in raw
    return raw.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"), data


def write_archive(path: Path, batches: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, raw in batches.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(raw)
            archive.addfile(member, io.BytesIO(raw))
    return path


def official() -> tuple[dict[str, bytes], dict[str, np.ndarray]]:
    made = {name: py2_batch(list(range(10)), seed) for seed, name in enumerate(BATCHES)}
    return {name: raw for name, (raw, _) in made.items()}, {name: data for name, (_, data) in made.items()}


def test_the_set_in_the_package_is_balanced() -> None:
    mini = load_images()
    assert mini.train_images.shape == (1000, 32, 32, 3)
    assert mini.test_images.shape == (200, 32, 32, 3)
    assert mini.train_images.dtype == np.uint8
    assert mini.train_labels.dtype == np.int64
    assert np.bincount(mini.train_labels).tolist() == [250] * 4
    assert np.bincount(mini.test_labels).tolist() == [50] * 4
    assert mini.classes == ("airplane", "automobile", "ship", "truck")
    assert mini.source == "mini (1,000 + 200 CIFAR-10 vehicles)"


@pytest.mark.parametrize("unpacked", [False, True])
def test_vehicles_come_from_the_official_files(tmp_path: Path, unpacked: bool) -> None:
    raw, data = official()
    path = write_archive(tmp_path / "cifar-10-python.tar.gz", {"batches.meta": b"not read", **raw})
    if unpacked:
        path = tmp_path / "cifar-10-batches-py"
        path.mkdir()
        for name, content in raw.items():
            (path / name).write_bytes(content)
    images = load_images(path)
    assert images.train_labels.tolist() == [0, 1, 2, 3] * 5
    assert images.test_labels.tolist() == [0, 1, 2, 3]
    ship = data["test_batch"][8]  # 1,024 reds, then greens, then blues, row by row
    np.testing.assert_array_equal(images.test_images[2][:, :, 0].ravel(), ship[:1024])
    np.testing.assert_array_equal(images.test_images[2][:, :, 2].ravel(), ship[2048:])
    assert images.source == f"{path.name} (20 + 4 images)"


def test_todays_pickles_of_the_same_batches_are_read(tmp_path: Path) -> None:
    data = np.zeros((4, 3072), dtype=np.uint8)
    batch = {"data": data, "labels": [0, 1, 8, 9]}
    path = write_archive(tmp_path / "a.tar.gz", {name: pickle.dumps(batch, protocol=2) for name in BATCHES})
    assert load_images(path).train_labels.tolist() == [0, 1, 2, 3] * 5


class Evil:
    def __init__(self, call: Any, *args: Any) -> None:
        self.call, self.args = call, args

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call, self.args


@pytest.mark.parametrize("call", [(os.mkdir,), (eval,), (np.load,)])
def test_a_hostile_pickle_is_refused_and_not_run(tmp_path: Path, call: tuple[Any]) -> None:
    trap = tmp_path / "trap"
    raw, _ = official()
    argument = f"__import__('os').mkdir({str(trap)!r})" if call[0] is eval else str(trap)
    raw["data_batch_3"] = pickle.dumps({b"data": Evil(call[0], argument), b"labels": []}, protocol=2)
    with pytest.raises(ValueError, match=r"data_batch_3: not a CIFAR-10 batch: it asks for .* refused"):
        load_images(write_archive(tmp_path / "cifar.tar.gz", raw))
    assert not trap.exists()


def test_an_incomplete_archive_is_named(tmp_path: Path) -> None:
    raw, _ = official()
    del raw["data_batch_4"]
    with pytest.raises(ValueError, match="misses data_batch_4"):
        load_images(write_archive(tmp_path / "cifar.tar.gz", raw))
    whole = write_archive(tmp_path / "whole.tar.gz", official()[0]).read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="not a complete tar archive"):
        load_images(tmp_path / "cut.tar.gz")


def arrays(**changes: Any) -> dict[str, Any]:
    images, labels = np.zeros((4, 32, 32, 3), dtype=np.uint8), np.arange(4, dtype=np.uint8)
    good = {"train_images": images, "train_labels": labels, "test_images": images, "test_labels": labels}
    return {key: value for key, value in (good | changes).items() if value is not None}


def test_an_npz_is_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **arrays())
    images = load_images(str(tmp_path / "mine.npz"))
    assert images.test_labels.tolist() == [0, 1, 2, 3]
    assert images.source == "mine.npz (4 + 4 images)"  # no folder of this machine


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_labels": None}, "misses test_labels"),
        (
            {"train_images": np.zeros((4, 3, 32, 32), np.uint8)},
            r"train_images: need shape \[N, 32, 32, 3\]",
        ),
        ({"test_images": np.zeros((4, 32, 32, 3))}, "test_images: need a uint8 array"),
        ({"train_labels": np.arange(3)}, "train_labels: need one label an image"),
        ({"train_labels": np.array([0, 1, 2, 8])}, "train_labels: row 3 is 8"),
        ({"train_labels": np.zeros(4)}, "train_labels: need whole numbers"),
        ({"train_labels": np.array([0, None, 1, 2])}, "without pickle"),
    ],
)
def test_a_bad_npz_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "bad.npz", **arrays(**changes))
    with pytest.raises(ValueError, match=message):
        load_images(tmp_path / "bad.npz")


def test_files_that_are_something_else_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load_images(tmp_path / "nothing.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(ValueError, match=r"text\.npz: not an \.npz"):
        load_images(tmp_path / "text.npz")
    (tmp_path / "photo.jpg").write_text("hello")
    with pytest.raises(ValueError, match="cannot tell what"):
        load_images(tmp_path / "photo.jpg")
    with pytest.raises(ValueError, match="name 4 classes"):
        ImageSet(**arrays(), classes=("cat", "dog"))


def test_the_download_is_kept_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write_archive(tmp_path / "cifar-10-python.tar.gz", official()[0])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "CIFAR10_URL", archive.as_uri())
    monkeypatch.setattr(module, "CIFAR10_MD5", "0" * 32)
    with pytest.raises(ValueError, match="the download is damaged"):
        load_images("cifar10")
    assert list((tmp_path / "cache" / "apev").iterdir()) == []

    monkeypatch.setattr(module, "CIFAR10_MD5", hashlib.md5(archive.read_bytes()).hexdigest())
    assert len(load_images("cifar10").test_images) == 4
    archive.unlink()  # the second time needs no internet
    assert len(load_images("cifar10").test_images) == 4


def test_no_internet_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "CIFAR10_URL", (tmp_path / "offline.tar.gz").as_uri())
    with pytest.raises(ConnectionError, match="give its path, or give no path"):
        load_images("cifar10")
