"""Files: the one place that opens what somebody else made, and that writes what must survive a crash.

A file is only data. Nothing read here names code to run, a module to import or another file to read; damage of any kind becomes
one error that says which file, what is wrong and what to do. Whatever is written appears whole or not at all: a temporary name
that nobody can guess, a sync to the disk, a rename. Files that grow line by line may lose their last line, never more.

Tensors and JSON of ours carry a checksum of their content. A file without one is from an older version, and is read.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import stat
import struct
import sys
import tempfile
import time
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

CHECKSUM = "sha256"
AGAIN = "copy or write it again: it is damaged"
MOST_JSON = 1 << 28  # bytes of a JSON file; the largest of ours, a page's replays, has a hundredth of that
OLD = 3600.0  # seconds after which a half-written file has nobody who writes it
SPARE = 0.9  # share of the free memory that one file may ask for

# What parsers raise on damaged input. Programming errors look the same there, so nothing but parsing belongs inside `reading`.
_DAMAGE = (
    ValueError,  # with JSON's and Unicode's own
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    EOFError,
    RecursionError,
    RuntimeError,  # h5py's and torch's
    SyntaxError,  # of a header of NumPy's
    tokenize.TokenError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    SafetensorError,
    MemoryError,
)
_NOT_DAMAGE = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOSPC, errno.ENOTDIR)


class FileError(ValueError):
    """A file, or something in it, that cannot be used: which one, what is wrong with it, and the fix."""

    def __init__(self, file: str | os.PathLike[str], problem: str, fix: str) -> None:
        super().__init__(f"{os.fspath(file)}: {problem}. Fix: {fix}.")
        self.file, self.problem, self.fix = os.fspath(file), problem, fix


ErrorType = Callable[[str, str, str], Exception]
"""What makes an error of (place, problem, fix): `FileError`, or `DataError` for what is in a log."""

# ---------------------------------------------------------------------- reading


@contextmanager
def reading(place: str | os.PathLike[str], fix: str = AGAIN, *, raises: ErrorType = FileError, of: str = "") -> Iterator[None]:
    """Whatever a parser raises inside becomes one error that names the place; errors that are ours already pass.

    raises: the kind of error; of: the file, where `place` is something in it.
    """
    try:
        yield
    except (*_DAMAGE, OSError) as error:
        if isinstance(error, FileError) or (isinstance(error, OSError) and error.errno in _NOT_DAMAGE):
            raise
        where = f" from {of}" if of else ""
        raise raises(os.fspath(place), f"cannot be read{where} ({brief(error)})", fix) from error


def brief(error: BaseException) -> str:
    """What an error says, in one line that fits a terminal."""
    text = " ".join(str(error).split())
    named = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return named if len(named) <= 200 else named[:200] + "..."


def regular(path: str | os.PathLike[str]) -> Path:
    """The path, if a plain file is there: a pipe would be waited for without end."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no file {path}")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a file")
    if not stat.S_ISREG(path.stat().st_mode):
        raise FileError(path, "is no plain file", "name a file on a disk, not a pipe or a device")
    return path


def inside(folder: Path, name: str) -> Path:
    """The plain file `name` of a folder that somebody gave us; a link that leads out of the folder is refused."""
    path = folder / name
    if leads_out(path, folder):
        raise FileError(path, "is a link out of its folder", "put the file itself there")
    return regular(path)


def leads_out(path: Path, folder: Path) -> bool:
    """Whether a path below a folder is a link, or lies behind one, that leads out of the folder or nowhere."""
    between = [path, *path.parents]
    if not any(part.is_symlink() for part in between[: between.index(folder)]):
        return False
    try:
        return folder.resolve() not in path.resolve(strict=True).parents
    except (OSError, RuntimeError):  # nowhere, or round in a circle
        return True


def check_links(folder: Path) -> None:
    """Refuse a folder to write into that has links out of it, one level deep or two: what goes there would go elsewhere."""
    for path in sorted(folder.iterdir()):
        inner = sorted(path.iterdir()) if path.is_dir() and not path.is_symlink() else []
        for found in (path, *inner):
            if leads_out(found, folder):
                raise FileError(found, "is a link out of its folder", "put the file or folder itself there")


def parse_json(
    text: str | bytes, file: str | os.PathLike[str], kind: type = dict, fix: str = AGAIN, raises: ErrorType = FileError
) -> Any:
    """JSON text as a value of this kind."""
    with reading(file, fix, raises=raises):
        value = json.loads(text)
    if not isinstance(value, kind):
        raise raises(os.fspath(file), f"holds a {type(value).__name__} where a {kind.__name__} belongs", fix)
    return value


def read_json(
    path: str | os.PathLike[str],
    kind: type = dict,
    fix: str = AGAIN,
    raises: ErrorType = FileError,
    *,
    checked_since: tuple[str, ...] = (),
) -> Any:
    """A JSON file as a value of this kind; its checksum is checked if it has one.

    checked_since: keys that only files written with a checksum have. A file that has one and no checksum is damaged: the
        checksum's own name may be what changed.
    """
    path = regular(path)
    if path.stat().st_size > MOST_JSON:
        raise raises(str(path), f"has {path.stat().st_size:,} bytes", "JSON of ours is never that large")
    with reading(path, fix, raises=raises):
        text = path.read_text(encoding="utf-8")
    value = parse_json(text, path, kind, fix, raises)
    if isinstance(value, dict) and CHECKSUM in value:
        told = value.pop(CHECKSUM)
        if told != json_digest(value):
            raise raises(str(path), "its content is not what was written (the checksum differs)", fix)
    elif isinstance(value, dict) and any(key in value for key in checked_since):
        raise raises(str(path), "its content is not what was written (the checksum is missing)", fix)
    return value


def read_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines; a last line that was cut short by a crash is left out."""
    path = regular(path)
    with reading(path):
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(parse_json(line, path))
        except FileError as error:
            if number == len(lines):  # no newline after it
                break
            raise FileError(path, f"line {number} {error.problem}", error.fix) from error
    return found


def read_tensors(path: str | os.PathLike[str], fix: str = AGAIN) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors of a safetensors file and its metadata; damage and numbers that are not finite are refused."""
    path = regular(path)
    check_memory(path, 2 * path.stat().st_size)
    with reading(path, fix), safe_open(path, framework="pt") as file:
        about: dict[str, str] = dict(file.metadata() or {})
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
    told = about.pop(CHECKSUM, None)
    if told is not None and told != tensor_digest(tensors, about):
        raise FileError(path, "its content is not what was written (the checksum differs)", fix)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise FileError(path, f"{name} holds numbers that are not finite", fix)
    return tensors, about


def tensor_shapes(path: str | os.PathLike[str], fix: str = AGAIN) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a safetensors file, without reading the tensors."""
    path = regular(path)
    with reading(path, fix), safe_open(path, framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (not a dict)


# ---------------------------------------------------------------------- checksums


def json_digest(value: Any) -> str:
    """The checksum of a JSON value, whatever its layout."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def tensor_digest(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    """The checksum of named tensors and what is said about them."""
    found = hashlib.sha256(json.dumps(dict(about), sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():
            found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def file_digest(path: Path) -> str:
    """The checksum of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---------------------------------------------------------------------- writing


@contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new file to write beside `path`, which takes its place when all of it is on the disk; a crash leaves the old one."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{path.name}.*.partial"):  # by a process that was killed
        if time.time() - left.lstat().st_mtime > OLD:
            left.unlink(missing_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        partial.chmod(0o666 & ~current_umask())
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def current_umask() -> int:
    """What new files are not allowed; asking for it means setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def sync_folder(folder: Path) -> None:
    """Have renames in a folder reach the disk too."""
    if os.name == "nt":  # folders cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file, all of it or nothing."""
    with whole(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], value: Any, *, indent: int | None = 1, checksum: bool = False) -> None:
    """Write a JSON file, all of it or nothing; with `checksum` it carries one of its content."""
    if checksum:
        plain = json.loads(json.dumps(value))
        value = plain | {CHECKSUM: json_digest(plain)}
    write_text(path, json.dumps(value, indent=indent) + "\n")


def write_lines(path: str | os.PathLike[str], lines: list[dict[str, Any]]) -> None:
    """Write a file of JSON lines, gzipped if its name ends in .gz, all of it or nothing."""
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    with whole(path) as partial:
        partial.write_bytes(gzip.compress(text, mtime=0) if Path(path).suffix == ".gz" else text)


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Add one JSON line; a crash may cut it short, and `read_lines` then leaves it out."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file with a checksum, all of it or nothing."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    facts = dict(about or {})
    with whole(path) as partial:
        try:
            save_file(plain, partial, metadata=facts | {CHECKSUM: tensor_digest(plain, facts)})
        except SafetensorError as error:  # a full disk, among others
            raise OSError(f"{path} cannot be written ({brief(error)}). Fix: make room on the disk, then --resume.") from error


# ---------------------------------------------------------------------- memory


def check_memory(file: str | os.PathLike[str], needed: int, fix: str | None = None) -> None:
    """Refuse a file that says it needs more memory than there is, before any is asked for."""
    there = free_memory()
    if there is not None and needed > SPARE * there:
        fix = fix or "check that its sizes are right; a log larger than memory is read as NAME.apev (`apev data convert`)"
        raise FileError(file, f"needs {needed / 1e9:,.1f} GB of memory, and {there / 1e9:,.1f} GB are free", fix)


def free_memory() -> int | None:
    """Bytes that this process can still take, as far as the system tells; None if it does not."""
    found = []
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            found += [int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable")]
    except (OSError, ValueError):
        if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
            found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if sys.platform.startswith("linux"):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            with open("/proc/self/statm", encoding="ascii") as file:
                found.append(max(0, limit - int(file.read().split()[0]) * resource.getpagesize()))
    return min(found, default=None)
