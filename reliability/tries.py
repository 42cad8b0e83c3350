"""One try: a damaged copy of a sample, what a user would do with it, and what came of it.

Every command goes through `apev.cli.main`, so that an error is what a user would see. A try is

    code_run       something in the file was run, or a module that it names was imported
    outside_write  a file outside of what was given was written
    outside_read   a file outside of what was given was opened (inotify tells, whichever library did it)
    crash          the process died of a signal
    hang           it took longer than the limit
    memory         it ran out of memory, or used more than the limit, without an error of ours
    raw_error      an error that is not ours, or text that steers the terminal
    our_error      every error was ours: exit code 2 of `main`, with a text that says "Fix:", or names a file that is missing,
                   not allowed, or a folder; or exit code 1 of `apev data verify`, which lists defects with their fixes
    loads_equal    no error, and what was loaded is what the valid file holds
    loads_other    no error, and other values: another file that is as good as the first, or damage that nothing can notice

The first of these that fits any command of the try counts.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import io
import json
import os
import random
import shutil
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import damage
import numpy as np
import torch
import tyro
from damage.arrays import prepare
from damage.outside import CANARY_MODULE, Outside, make_outside
from forks import Limits
from samples import Sample, make_all, train_command

from apev import cli
from apev.commands.data import Convert, Info, Verify
from apev.commands.evaluate import Evaluate
from apev.commands.report import Report
from apev.data import Dataset
from apev.policy import Policy

BAD = ("code_run", "outside_write", "outside_read", "crash", "hang", "memory", "raw_error")  # the worst first
CLASSES = (*BAD, "our_error", "loads_other", "loads_equal")
SEEN = 4000  # characters of an error that are kept


class TooLate(BaseException):
    """The try has taken too long; nothing that catches errors may catch this."""


@dataclass
class Step:
    """One command of a try."""

    name: str
    how: str  # one of CLASSES, or "ok"
    error: str = ""  # its type
    message: str = ""
    place: str = ""  # the last frame of ours, and the last of all
    trace: str = ""


@dataclass
class Try:
    """What came of one try."""

    index: int
    sample: str
    kind: str
    family: str
    damage: str
    detail: str
    how: str
    steps: list[Step] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


class Bench:
    """The samples, what lies outside of them, and what each of them is worth when it is whole."""

    def __init__(self, root: Path) -> None:
        self.root = root
        with quiet(root / "made.txt"):
            self.samples = make_all(root / "samples")
            self.store = root / "outside"
            make_outside(self.store, self.samples)
            prepare()
        sys.path.append(str(self.store / "modules"))
        self.whole: dict[str, Any] = {}
        for sample in self.samples:  # also imports whatever a command imports late, so that no child has to
            folder = self.place(f"whole-{sample.name}")
            steps, self.whole[sample.name] = self.use(sample, folder, copy(sample, folder), every=True)
            shutil.rmtree(folder)
            stops = sample.name == "run-stopped"  # it may have no policy yet
            wrong = [s for s in steps if s.how in BAD or (s.how != "ok" and s.name != "evaluate" and not stops)]
            if wrong:
                raise SystemExit(
                    f"the valid sample {sample.name} fails at {wrong[0].name}: {wrong[0].message}\n{wrong[0].trace}"
                )

    def place(self, name: str) -> Path:
        """A new folder for one try."""
        folder = self.root / name
        for part in ("in", "out", "outside"):
            (folder / part).mkdir(parents=True)
        return folder

    def run(self, seed: int, index: int, limits: Limits, folder: Path | None = None) -> Try:
        """One try, decided by (seed, index) alone."""
        rng = random.Random(f"{seed}:{index}")
        sample, family, way = damage.choose(rng, self.samples)
        folder = folder or self.place(f"try-{seed}-{index}")
        given = copy(sample, folder)
        outside = Outside(self.store, folder / "outside", folder / "canary")
        os.environ["APEV_CANARY"] = str(outside.canary)
        detail = way(rng, given, outside)
        (folder / "detail.txt").write_text(detail, errors="backslashreplace")  # for whoever finds us dead
        watch = Watch(outside.folder)
        limits.apply()
        steps, worth = self.use(sample, folder, given, family in ("specs", "sizes"), watch)
        limits.lift()
        touched = watch.stop()
        result = Try(index, sample.name, sample.kind, family, way.__name__, detail, "", steps)
        found = {step.how for step in steps}
        if outside.canary.exists() or CANARY_MODULE in sys.modules:
            found.add("code_run")
        found |= {touched} if touched else set()
        found.add("loads_equal" if worth == self.whole[sample.name] else "loads_other")
        result.how = next(name for name in CLASSES if name in found)
        return result

    # ------------------------------------------------------------------ what a user does

    def use(self, sample: Sample, folder: Path, given: Path, every: bool, watch: Watch | None = None) -> tuple[list[Step], Any]:
        """Every command that takes such a file, and what was loaded; `every`: the slow ones too."""
        ways = {"policy": self._policy, "run": self._run, "results": self._results}
        steps: list[Step] = []
        worth: list[Any] = []
        before = Path.cwd()
        os.chdir(folder / "out")
        try:
            for name, command in ways.get(sample.kind, self._log)(sample, folder, given, worth, every):
                (folder / "step.txt").write_text(name)
                steps.append(through_main(name, command, folder / "said.txt"))
                touched = "" if watch is None else watch.touched()
                steps[-1].how = touched or steps[-1].how
                if steps[-1].how in BAD:
                    break
        finally:
            os.chdir(before)
        return steps, worth

    Commands = Iterator[tuple[str, Callable[[], Any]]]

    def _log(self, sample: Sample, folder: Path, given: Path, worth: list[Any], every: bool) -> Commands:
        path, out = str(given), folder / "out"
        yield "verify", Verify(path=path).run
        yield "info", Info(path=path).run
        yield "load", lambda: worth.append(worth_of_log(Dataset.load(path)))
        yield "convert", Convert(source=path, target=str(out / "converted.npz")).run
        if every:
            tiny = {"updates": 2, "batch_size": 8, "held_out": 0.0, "set": ("hidden=8",)}
            yield "train", train_command(given, out / "run", {"agent": ("bc",)}, **tiny).run
            if (out / "run" / "policy").is_dir():
                yield "evaluate", Evaluate(runs=(out / "run",), episodes=1).run

    def _policy(self, sample: Sample, folder: Path, given: Path, worth: list[Any], every: bool) -> Commands:
        yield "load", lambda: worth.append(worth_of_policy(given))

    def _run(self, sample: Sample, folder: Path, given: Path, worth: list[Any], every: bool) -> Commands:
        yield "load", lambda: worth.append(worth_of_policy(given))
        yield "evaluate", Evaluate(runs=(given,), episodes=1, adapt=("bayes",)).run
        more = train_command(sample.facts["data"], given, sample.facts["settings"], updates=14, resume=True)
        yield "resume", more.run
        yield "load again", lambda: worth.append(worth_of_policy(given))
        yield "report", Report(folder=given).run

    def _results(self, sample: Sample, folder: Path, given: Path, worth: list[Any], every: bool) -> Commands:
        yield "report", Report(folder=given).run
        yield "read", lambda: worth.extend(hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(given.glob("*.html")))


def copy(sample: Sample, folder: Path) -> Path:
    """A copy to damage, or to use up."""
    given = folder / "in" / sample.path.name
    shutil.copytree(sample.path, given) if sample.path.is_dir() else shutil.copy(sample.path, given)
    return given


# ---------------------------------------------------------------------- commands


class _Prepared:
    """A command that `main` runs instead of reading words: reading them takes longer than most tries."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self.run = run


def through_main(name: str, run: Callable[[], Any], said: Path) -> Step:
    """Run one command as `apev.cli.main` does, and class what it made of an error."""
    start = said.stat().st_size if said.exists() else 0
    step = Step(name, "ok")
    error: BaseException | None = None
    code: Any = 0
    with quiet(said), mock.patch.object(tyro, "cli", return_value=_Prepared(run)):
        try:
            cli.main(["data"])
        except SystemExit as stop:
            code, error = stop.code or 0, stop.__context__
        except BaseException as caught:
            code, error = None, caught
    with open(said, encoding="utf-8", errors="replace") as file:
        file.seek(start)
        text = file.read()
    if error is not None:
        step.error, step.message = type(error).__name__, str(error)[:SEEN]
        step.place = _place(error)
        step.trace = "".join(traceback.format_exception(error, limit=-12))[-SEEN:]
    if isinstance(error, TooLate):
        step.how = "hang"
    elif code == 0:
        step.how = "ok"
    elif code == 2 and error is not None and is_ours(error):
        step.how = "our_error"
    elif code == 1 and "Fix:" in text:
        step.how, step.message = "our_error", text[:SEEN]
    else:
        step.how = "memory" if error is not None and is_memory(error) else "raw_error"
        step.message = step.message or f"exit code {code}: {text[:SEEN]}"
    if step.how not in BAD and "\x1b" in text:
        step.how, step.error, step.message = "raw_error", "TerminalEscape", text[max(0, text.index("\x1b") - 200) :][:SEEN]
    return step


def is_ours(error: BaseException) -> bool:
    """Whether a user can act on it: it says what to do, or which file is missing, not allowed, or a folder."""
    if "Fix:" in str(error):
        return True
    named = isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError | FileExistsError)
    return named and (bool(getattr(error, "filename", None)) or os.sep in str(error) or "." in str(error))


def is_memory(error: BaseException) -> bool:
    """Whether memory ran out, or a file grew beyond the limit."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError) or (isinstance(seen, OSError) and seen.errno in (errno.ENOMEM, errno.EFBIG)):
            return True
        if any(
            word in str(seen) for word in ("can't allocate memory", "bad_alloc", "Cannot allocate memory", "Unable to allocate")
        ):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _place(error: BaseException) -> str:
    """The last frame of apev's, and the last of all."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if f"{os.sep}apev{os.sep}" in f.filename]
    told = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in [*ours[-1:], *frames[-1:]]]
    return " < ".join(dict.fromkeys(told))


@contextlib.contextmanager
def quiet(said: Path) -> Iterator[None]:
    """Send what is printed, by Python or by a library below it, to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    old = sys.stdout, sys.stderr
    with open(said, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # streams of our own: those of a test runner do not lead to descriptors 1 and 2
    sys.stdout = io.TextIOWrapper(os.fdopen(os.dup(1), "wb"), encoding="utf-8", errors="backslashreplace")
    sys.stderr = io.TextIOWrapper(os.fdopen(os.dup(2), "wb"), encoding="utf-8", errors="backslashreplace")
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.close()
        sys.stdout, sys.stderr = old
        for number, kept in zip((1, 2), saved, strict=True):
            os.dup2(kept, number)
            os.close(kept)


# ---------------------------------------------------------------------- what was loaded


def worth_of_log(dataset: Dataset) -> str:
    """A digest of every column."""
    found = hashlib.sha256()
    columns = dict(dataset.observations) | {f"next {k}": v for k, v in (dataset.given_next or {}).items()}
    columns |= {name: getattr(dataset, name) for name in ("actions", "rewards", "terminated", "truncated", "episodes")}
    columns |= {name: part for name in ("pictures", "contexts") if (part := getattr(dataset, name)) is not None}
    for name in sorted(columns):
        array = np.ascontiguousarray(columns[name])
        found.update(f"{name} {array.dtype} {array.shape}".encode(errors="backslashreplace"))
        found.update(array.tobytes())
    facts = {key: dataset.source.get(key) for key in ("name", "environment", "action_low", "action_high", "reference")}
    found.update(json.dumps([dataset.num_actions, facts], default=str).encode())
    return found.hexdigest()


def worth_of_policy(folder: Path) -> str:
    """A digest of a policy's tensors, settings and first action; it must act and keep a belief on the simplex."""
    policy = Policy.load(folder)
    layout = policy.agent.layout
    found = hashlib.sha256(repr((layout, policy.agent.config)).encode(errors="backslashreplace"))
    for name, tensor in sorted(policy.agent.policy_state().items()):
        found.update(
            name.encode(errors="backslashreplace")
            + tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    rng = np.random.default_rng(0)
    seen: dict[str, Any] = {key: rng.normal(size=width).astype(np.float32) for key, width in layout.vectors}
    if layout.picture is not None and layout.picture_shape is not None:
        depth, height, width = layout.picture_shape
        seen[layout.picture] = rng.integers(0, 256, (height, width, depth), dtype=np.uint8)
    obs = next(iter(seen.values())) if layout.bare else seen
    policy.reset()
    for reward in (0.5, -1.0):
        action = policy.act(obs)
        found.update(np.asarray(action).tobytes())
        policy.observe(reward, obs, False)
    belief = np.asarray(policy.belief, dtype=np.float64)
    if not np.isfinite(belief).all() or abs(belief.sum() - 1) > 1e-3:
        raise AssertionError(f"the belief left the simplex: {belief}")
    if not np.isfinite(np.asarray(action, dtype=np.float64)).all():
        raise AssertionError(f"the action is not finite: {action}")
    return found.hexdigest()


# ---------------------------------------------------------------------- what was touched outside

_OPEN, _MODIFY, _CREATE, _MOVED, _IS_FOLDER = 0x20, 0x2, 0x100, 0xC0, 0x40000000


class Watch:
    """Whether anybody opens or writes files below a folder, from now on; with `changes` only what changes them counts."""

    def __init__(self, folder: Path, changes: bool = False) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.handle = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.handle < 0:
            raise OSError(ctypes.get_errno(), "inotify")
        mask = _MODIFY | _CREATE | (_MOVED if changes else _OPEN)
        for place in (folder, *(p for p in folder.rglob("*") if p.is_dir() and not p.is_symlink())):
            if libc.inotify_add_watch(self.handle, os.fsencode(place), mask) < 0:
                raise OSError(ctypes.get_errno(), "inotify", str(place))

    def _masks(self) -> list[int]:
        """What happened since the last look, without what happened to folders."""
        data = bytearray()
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self.handle, 1 << 16):
                data += piece
        masks, place = [], 0
        while place < len(data):
            _, mask, _, length = struct.unpack_from("iIII", data, place)
            place += 16 + length
            masks.append(mask)
        return [mask for mask in masks if not mask & _IS_FOLDER]

    def count(self) -> int:
        """How many events since the last look."""
        return len(self._masks())

    def touched(self) -> str:
        """What was done since the last look: outside_write, outside_read, or nothing."""
        masks = self._masks()
        if any(mask & (_MODIFY | _CREATE) for mask in masks):
            return "outside_write"
        return "outside_read" if any(mask & _OPEN for mask in masks) else ""

    def stop(self) -> str:
        """The last look."""
        touched = self.touched()
        os.close(self.handle)
        return touched
