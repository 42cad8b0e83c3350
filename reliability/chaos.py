"""Does a training survive whatever ends it? python reliability/chaos.py --kills 200 --out results/reliability/chaos.json

Trainings of several agents are ended in the middle, again and again, and resumed, until they have finished. What they leave
must be, bit for bit, what an undisturbed training leaves: the policy's weights, metrics.jsonl and curves.jsonl. How they end:

    moment      SIGKILL at a random moment
    write       SIGKILL inside of a call that writes: a file opened, half of its text written, synced, renamed
    event       SIGKILL as soon as the system reports a change in the folder (inotify): for what libraries write by themselves
    term, int   SIGTERM and Ctrl-C at a random moment: these may say how to go on, and stop by themselves

Half of the kills are `write` and `event`. Apart from those:

    disk full   writing fails with "no space left" at a random call, or beyond a size (RLIMIT_FSIZE); then there is space again
    read-only   the folder may not be written, for a user who is not root; then it may
    two         a second process in the same folder, which must be refused while the first goes on unharmed

torch is imported once, and every training is a fork. The last line is JSON; the exit code is 1 if a run was lost.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import hashlib
import io
import itertools
import json
import mmap
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from common import bar, keep, scratch, tell
from forks import Limits, run_all
from samples import continuous, discrete
from tries import Watch, is_ours, quiet

from apev import cli
from apev.policy import Policy

SMALL = ["--threads", "1", "--batch-size", "16", "--held-out", "0.3", "--updates", "120", "--checkpoint-every", "20"]
RUNS: dict[str, list[str]] = {
    "ape-v": ["discrete.npz", "--agent", "ape-v", "--members", "3", "--set", "hidden=16,16", "--eval-env", "CartPole-v1"],
    "dqn": ["discrete.npz", "--agent", "dqn", "--members", "2", "--set", "hidden=16,16", "--lr-decay"],
    "bc": ["continuous.npz", "--agent", "bc", "--set", "hidden=16,16"],
    "ape-v-sac": ["continuous.npz", "--agent", "ape-v", "--members", "2", "--set", "hidden=16,16", "critics=4"],
    "sac-n": ["continuous.npz", "--agent", "sac-n", "--set", "hidden=16,16", "critics=4"],
    "folder": ["discrete.apev", "--agent", "iql", "--set", "hidden=16,16"],
}
WAYS = {"moment": 3.0, "write": 6.0, "event": 2.0, "term": 0.75, "int": 0.75}  # and how often it is tried: writes may be over
SIDE = ("disk full", "disk full", "read-only", "two", "two at once")
PATIENCE = 120.0  # seconds after which a training counts as hung
NOBODY = 65534


@dataclass(frozen=True)
class Options:
    """End trainings in the middle, resume them, and compare what they leave with an undisturbed one."""

    kills: int = 200
    """How many trainings are ended."""
    seed: int = 0
    """Decides agents, ways and calls; moments depend on the machine too."""
    jobs: int = 2
    """Trainings at a time."""
    side: int = 20
    """Tries of a full disk, a read-only folder and two processes, in turns."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write all numbers to this JSON file."""


# ---------------------------------------------------------------------- one training, in a child


class Trouble:
    """What happens at the n-th call that writes into a folder: the process is killed, or the call fails."""

    def __init__(self, folder: Path, at: int, error: int = 0) -> None:
        self.folder, self.at, self.error = str(folder), at, error
        self._count = mmap.mmap(-1, 8)  # shared with the parent

    @property
    def calls(self) -> int:
        """How many calls there were, in this process or a child."""
        return int.from_bytes(self._count[:8], "little")

    def mine(self, path: Any) -> bool:
        """Whether this is about a file of the folder."""
        return isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(self.folder)

    def strike(self, before: Callable[[], Any] = lambda: None) -> None:
        """Count a call; at the n-th do `before`, and end it."""
        calls = self.calls + 1
        self._count[:8] = calls.to_bytes(8, "little")
        if self.at and (calls >= self.at if self.error else calls == self.at):
            before()
            if self.error:
                raise OSError(self.error, os.strerror(self.error), self.folder)
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        """Wrap whatever writes files in this process."""
        opened, os_open, fsync, replace, mkdir = io.open, os.open, os.fsync, os.replace, os.mkdir

        def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            writes = any(c in mode for c in "wax+") and self.mine(file)
            if writes:
                self.strike()
            handle = opened(file, mode, *args, **kwargs)
            return _Writer(handle, self) if writes else handle

        def os_open_(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            if self.mine(path) and flags & (os.O_WRONLY | os.O_RDWR):
                self.strike()
            return os_open(path, flags, *args, **kwargs)

        def fsync_(handle: int) -> None:
            self.strike()
            fsync(handle)

        def replace_(source: Any, target: Any, **kwargs: Any) -> None:
            if self.mine(target):
                self.strike()
            replace(source, target, **kwargs)
            if self.mine(target):
                self.strike()

        def mkdir_(path: Any, *args: Any, **kwargs: Any) -> None:
            if self.mine(path):
                self.strike()
            mkdir(path, *args, **kwargs)

        names: dict[str, Any] = {"open": os_open_, "fsync": fsync_, "replace": replace_, "rename": replace_, "mkdir": mkdir_}
        for name, function in names.items():
            setattr(os, name, function)
        for module in (io, builtins):
            module.open = open_  # type: ignore[attr-defined]


class _Writer:
    """A file whose writing may be ended half way."""

    def __init__(self, handle: Any, trouble: Trouble) -> None:
        self._handle, self._trouble = handle, trouble

    def write(self, data: Any) -> Any:
        """Write, or write half and end."""

        def half() -> None:
            self._handle.write(data[: len(data) // 2])
            self._handle.flush()

        self._trouble.strike(half)
        return self._handle.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def __enter__(self) -> _Writer:
        self._handle.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._handle.__exit__(*error)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._handle)


def start(words: list[str], said: Path, prepare: Callable[[], Any] = lambda: None) -> int:
    """`apev WORDS` in a child; returns its number at once."""
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        with open(said, "ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", 0, closefd=False), write_through=True)
        sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", 0, closefd=False), write_through=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        prepare()
        cli.main(words)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def wait(pid: int, seconds: float = PATIENCE) -> int | None:
    """Its exit code, minus the signal that ended it, or None if it has not ended in this time."""
    deadline = time.monotonic() + seconds
    pause = 0.0005
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(pause)
        pause = min(0.01, pause * 1.5)


def finish(pid: int) -> int:
    """Its exit code, whatever it takes; a hung one is killed and counts as -9."""
    code = wait(pid)
    if code is None:
        os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code


# ---------------------------------------------------------------------- what is left


def remains(folder: Path) -> dict[str, str]:
    """Digests of what a finished training leaves; the weights by themselves, without what is said about them."""
    found = {}
    for name in ("metrics.jsonl", "curves.jsonl", "policy/weights.safetensors", "policy/policy.json"):
        path = folder / name
        found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"
    return found


@dataclass(frozen=True)
class Reference:
    """An undisturbed training: what it leaves, how long it takes, and how many calls write."""

    left: dict[str, str]
    seconds: float
    calls: int


class Stage:
    """The logs, the references, and what can be done to a training."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.chmod(0o755)  # for a user who is not root
        discrete().save(root / "discrete.npz")
        discrete().save(root / "discrete.apev")
        continuous().save(root / "continuous.npz")
        with quiet(root / "said.txt"):  # in this process: children then import nothing and find everything warm
            for name in RUNS:
                cli.main(self.words(name, root / f"warm-{name}", resume=False))
        self.references = {name: self._reference(name) for name in RUNS}

    def words(self, name: str, folder: Path, resume: bool) -> list[str]:
        """The words of `apev train`."""
        log, *rest = RUNS[name]
        return ["train", "--data", str(self.root / log), "--out", str(folder), *SMALL, *rest, *(["--resume"] if resume else [])]

    def _reference(self, name: str) -> Reference:
        folder, said = self.root / f"whole-{name}", self.root / "said.txt"
        trouble = Trouble(folder, at=0)
        began = time.monotonic()
        code = finish(start(self.words(name, folder, resume=False), said, trouble.install))
        if code:
            raise SystemExit(f"an undisturbed training of {name} ends with {code}:\n{said.read_text()[-2000:]}")
        return Reference(remains(folder), time.monotonic() - began, trouble.calls)

    # ------------------------------------------------------------------ kills

    def life(self, seed: int, index: int) -> dict[str, Any]:
        """One training that is ended a few times and resumed; what happened, and whether it left what it should."""
        rng = random.Random(f"{seed}:{index}")
        name = rng.choice(sorted(RUNS))
        folder, said = self.root / f"life-{seed}-{index}", self.root / f"life-{seed}-{index}.txt"
        told: dict[str, Any] = {"agent": name, "ends": [], "stops": [], "unspoken": 0, "problem": ""}
        for round_ in range(rng.choice((1, 2, 4, 8))):
            way = rng.choices(list(WAYS), list(WAYS.values()))[0]
            code = self._end(rng, name, folder, said, way, round_ > 0, told)
            if code == 0:
                break
            problem = self._look(folder)
            early = code == 99 and _tail(said).endswith("KeyboardInterrupt\n")  # before there was a training to stop
            if code > 0 and not (way in ("term", "int") and (code in (130, 143) or early)):
                problem = problem or f"{way}: ended with {code}"
            if problem:
                told["problem"] = f"{problem}: {_tail(said)}"
                return told
            told["ends"].append(way)
        self._close(name, folder, said, told)
        return told

    def _end(
        self, rng: random.Random, name: str, folder: Path, said: Path, way: str, resume: bool, told: dict[str, Any]
    ) -> int:
        """Start a training and end it in this way; its exit code."""
        reference, words = self.references[name], self.words(name, folder, resume)
        if way == "write":
            trouble = Trouble(folder, at=1 + int(reference.calls * rng.random() ** 2))
            return finish(start(words, said, trouble.install))
        if way == "event":
            folder.mkdir(exist_ok=True)
            (folder / "checkpoints").mkdir(exist_ok=True)
            watch, events = Watch(folder, changes=True), rng.randrange(1, 60)
            pid = start(words, said)
            while (code := wait(pid, 0)) is None:
                events -= watch.count()
                if events <= 0:
                    os.kill(pid, signal.SIGKILL)
                    code = finish(pid)
                    break
            watch.stop()
            return code
        pid = start(words, said)
        code = wait(pid, rng.random() * reference.seconds)
        if code is not None:
            return code
        number = {"moment": signal.SIGKILL, "term": signal.SIGTERM, "int": signal.SIGINT}[way]
        before = said.stat().st_size if said.exists() else 0  # killed before it said anything
        os.kill(pid, number)
        began = time.monotonic()
        code = finish(pid)
        if way != "moment" and code:
            told["stops"].append(time.monotonic() - began)
            told["unspoken"] += "--resume" not in said.read_text()[before:]
        return -number if code == 128 + number else code

    def _look(self, folder: Path) -> str:
        """What is wrong with a folder that a training was ended in: its policy loads, or there is an error of ours."""
        try:
            with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings(action="ignore"):
                Policy.load(folder)
        except Exception as error:
            if not is_ours(error):
                return f"apev.load: {error!r}"
        return ""

    def _close(self, name: str, folder: Path, said: Path, told: dict[str, Any]) -> None:
        """Let a training finish, and compare."""
        code = finish(start(self.words(name, folder, resume=True), said))
        if code:
            told["problem"] = f"the last resume ended with {code}: {_tail(said)}"
            return
        left = remains(folder)
        told["differs"] = [part for part, digest in self.references[name].left.items() if left[part] != digest]
        told["leftovers"] = sum(1 for path in folder.rglob("*") if path.suffix in (".partial", ".tmp"))
        shutil.rmtree(folder)

    # ------------------------------------------------------------------ other trouble

    def side(self, seed: int, index: int) -> dict[str, Any]:
        """A full disk, a read-only folder, or two processes; then the training goes on."""
        rng = random.Random(f"{seed}:side:{index}")
        name, way = rng.choice(sorted(RUNS)), SIDE[index % len(SIDE)]
        folder, said = self.root / f"side-{seed}-{index}", self.root / f"side-{seed}-{index}.txt"
        told: dict[str, Any] = {"agent": name, "way": way, "problem": ""}
        if way.startswith("two"):
            told["problem"] = self._two(rng, name, folder, said, at_once=way == "two at once")
        else:
            if rng.random() < 0.7:  # it has begun already
                self._end(rng, name, folder, said, "moment", resume=False, told=told | {"stops": [], "unspoken": 0})
            told["problem"] = (
                self._no_space(rng, name, folder, said) if way == "disk full" else self._read_only(name, folder, said)
            )
        told["problem"] = told["problem"] or self._look(folder)
        if told["problem"]:
            told["problem"] += f": {_tail(said)}"
        else:
            self._close(name, folder, said, told)
        return told

    def _no_space(self, rng: random.Random, name: str, folder: Path, said: Path) -> str:
        """Writing fails, from some call or some size on; the training must end with an error of ours."""
        limit = rng.randrange(8_000, 60_000)  # what it prints goes to a file too
        trouble = Trouble(folder, at=rng.randrange(1, self.references[name].calls), error=errno.ENOSPC)

        def few_bytes() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

        code = finish(start(self.words(name, folder, resume=True), said, trouble.install if rng.random() < 0.6 else few_bytes))
        return "" if code in (0, 2) else f"a full disk ended it with {code}"

    def _read_only(self, name: str, folder: Path, said: Path) -> str:
        """The folder belongs to somebody else."""
        folder.mkdir(exist_ok=True)
        before = _listing(folder)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        said.touch()

        def become_nobody() -> None:
            if os.geteuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)

        code = finish(start(self.words(name, folder, resume=True), said, become_nobody))
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        if code != 2:
            return f"a read-only folder ended it with {code}"
        return "" if _listing(folder) == before else "a read-only folder was changed"

    def _two(self, rng: random.Random, name: str, folder: Path, said: Path, at_once: bool) -> str:
        """A second process must be refused; the first finishes, or is killed and leaves the folder free."""
        first = start(self.words(name, folder, resume=True), said)
        held = folder / "config.json"
        while not at_once and not held.exists():
            if (code := wait(first, 0.001)) is not None:
                return f"the first of two ended with {code}"
        second = start(self.words(name, folder, resume=rng.random() < 0.7), said)
        codes = [finish(first), finish(second)]
        if at_once:  # either may have been there first, and the other may have come when it was done
            return "" if 0 in codes and set(codes) <= {0, 2} else f"two at once ended with {codes}"
        return "" if codes[0] == 0 and codes[1] in (0, 2) else f"two ended with {codes}"


def _listing(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def _tail(said: Path) -> str:
    return said.read_text(errors="replace")[-600:] if said.exists() else ""


# ---------------------------------------------------------------------- all of them


def chaos(options: Options, stage: Stage, show: bool = True) -> dict[str, Any]:
    """Lives until there are enough kills, then the other trouble; counts."""
    ways: Counter[str] = Counter()
    side: Counter[str] = Counter()
    lives: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    limits = Limits(seconds=1200)
    with bar(show) as progress:
        task = progress.add_task("kills", total=options.kills)
        with contextlib.closing(
            run_all(lambda i: stage.life(options.seed, i), itertools.count(), options.jobs, limits)
        ) as all_:
            while ways.total() < options.kills:
                life = _answer(*next(all_))
                lives.append(life)
                ways.update(life["ends"])
                progress.update(task, completed=ways.total(), refresh=True)
        task = progress.add_task("other trouble", total=options.side)
        for index, ended in run_all(lambda i: stage.side(options.seed, i), range(options.side), options.jobs, limits):
            others.append(_answer(index, ended))
            side[others[-1]["way"].removesuffix(" at once")] += 1
            progress.update(task, advance=1, refresh=True)
    lost = [life for life in [*lives, *others] if life["problem"] or life.get("differs")]
    stops = [seconds for life in lives for seconds in life["stops"]]
    return {
        "tries": ways.total(),
        "seed": options.seed,
        "lost": len(lost),
        "bit_equal": not any(life.get("differs") for life in [*lives, *others]),
        "runs": len(lives) + len(others),
        "while_writing": ways["write"] + ways["event"],
        "ways": dict(sorted(ways.items())),
        "agents": dict(sorted(Counter(life["agent"] for life in lives).items())),
        "other_trouble": dict(sorted(side.items())),
        "disk_full_by": "errors of the calls that write, and RLIMIT_FSIZE",
        "stopped_by_signal": len(stops),
        "slowest_stop_seconds": round(max(stops, default=0.0), 2),
        "stops_without_a_word": sum(life["unspoken"] for life in lives),
        "leftover_files": sum(life.get("leftovers", 0) for life in [*lives, *others]),
        "lost_runs": lost[:20],
    }


def _answer(index: int, ended: Any) -> dict[str, Any]:
    answer: dict[str, Any] = ended.answer or {"harness": f"it {ended.how}ed, signal {ended.signal}"}
    if "harness" in answer:
        raise SystemExit(f"run {index}: chaos itself failed:\n{answer['harness']}")
    return answer


def main(options: Options) -> None:
    """Train undisturbed, then disturbed; end with the line of JSON."""
    if options.kills < 0 or options.side < 0 or options.jobs < 1:
        raise SystemExit("counts must be positive. Fix: e.g. --kills 200 --side 20 --jobs 2.")
    torch.set_num_threads(1)
    root = scratch()
    try:
        answer = chaos(options, Stage(root))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    for life in answer["lost_runs"]:
        tell(json.dumps(life, indent=1))
    keep(options.out, answer, f"python reliability/chaos.py --kills {options.kills} --seed {options.seed}")
    print(json.dumps({key: value for key, value in answer.items() if key != "lost_runs"}))
    if answer["lost"]:
        sys.exit(1)


if __name__ == "__main__":
    main(tyro.cli(Options, description=Options.__doc__))
