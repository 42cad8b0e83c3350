"""Children of this process, each with limits on memory and time: torch is imported once, and a try costs a fork.

The parent must have one thread: a lock that another thread holds at the fork would never be released in the child.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

POLL = 0.25  # seconds: how late we may notice a child that ended while something else holds its pipe


@dataclass(frozen=True)
class Limits:
    """What one child may use."""

    memory: int = 2 << 30  # bytes of address space beyond what the parent has
    resident: int = 3 << 29  # bytes of memory really used beyond the parent's: more counts as "memory"
    seconds: float = 20.0  # on the clock, and of the processor
    file_bytes: int = 1 << 30  # largest file

    def apply(self) -> None:
        """Set the soft limits of this process."""
        _soft(resource.RLIMIT_AS, address_space() + self.memory)
        _soft(resource.RLIMIT_CPU, int(self.seconds) + 2)
        _soft(resource.RLIMIT_FSIZE, self.file_bytes)
        _soft(resource.RLIMIT_CORE, 0)

    def lift(self) -> None:
        """Allow what the system allows: to report what happened."""
        for kind in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE):
            _soft(kind, resource.getrlimit(kind)[1])


def _soft(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def address_space() -> int:
    """Bytes of address space this process has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def resident(own: bool = False) -> int:
    """Bytes of memory this process holds; `own`: without pages of files, which a child does not start with."""
    with open("/proc/self/statm", encoding="ascii") as file:
        _, pages, of_files, *_ = map(int, file.read().split())
    return (pages - of_files * own) * resource.getpagesize()


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    how: Literal["done", "hang", "crash"]
    answer: dict[str, Any] | None  # what the work returned
    signal: int  # that ended it; 0: none
    grown: int  # bytes of memory it used beyond the parent's
    seconds: float


@dataclass
class _Running:
    index: int
    pipe: int
    began: float
    text: bytearray
    killed: bool = False


def run_all(
    work: Callable[[int], dict[str, Any]], indices: Iterable[int], jobs: int, limits: Limits
) -> Generator[tuple[int, Ended], None, None]:
    """`work(index)` in a child each, at most `jobs` at a time; yields as they end, in any order.

    The work sets the limits on itself when it is ready (`limits.apply()`); the clock runs from the start.
    """
    waiting, running, base = iter(indices), dict[int, _Running](), resident(own=True)
    more = True
    try:
        while more or running:
            while more and len(running) < jobs:
                index = next(waiting, None)
                more = index is not None
                if index is not None:
                    pid, child = _start(work, index, limits)
                    running[pid] = child
            if running:
                yield from _collect(running, limits, base)
    finally:
        for pid in running:
            _kill(pid)
            os.waitpid(pid, 0)


def _start(work: Callable[[int], dict[str, Any]], index: int, limits: Limits) -> tuple[int, _Running]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, _Running(index, reader, time.monotonic(), bytearray())
    code = 1
    try:
        os.close(reader)
        os.setsid()  # what it starts can be ended with it
        try:
            answer = work(index)
        except BaseException as error:
            limits.lift()
            answer = {"harness": "".join(traceback.format_exception(error))[-4000:]}
        limits.lift()
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(json.dumps(answer).encode())
        code = 0
    finally:
        os._exit(code)  # no handlers of the parent's: its bars and its temporary folders are not ours


def _collect(running: dict[int, _Running], limits: Limits, base: int) -> Iterator[tuple[int, Ended]]:
    """Wait a little; yield the children that ended."""
    pipes = {child.pipe: child for child in running.values()}
    for pipe in select.select(list(pipes), [], [], POLL)[0]:
        pipes[pipe].text += os.read(pipe, 1 << 16)
    for pid, child in list(running.items()):
        late = time.monotonic() - child.began
        if late > limits.seconds and not child.killed:
            child.killed = True
            _kill(pid)
        ended, status, used = os.wait4(pid, os.WNOHANG)
        if not ended:
            continue
        del running[pid]
        while piece := _rest(child.pipe):
            child.text += piece
        os.close(child.pipe)
        _kill(pid, started=True)
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        answer = None
        if not number and child.text:
            answer = json.loads(child.text.decode())
        how: Literal["done", "hang", "crash"] = "done" if answer is not None else "crash"
        if child.killed or number == signal.SIGXCPU:
            how = "hang"
        yield child.index, Ended(how, answer, number, max(0, used.ru_maxrss * 1024 - base), late)


def _rest(pipe: int) -> bytes:
    """What is left in a pipe whose writer has ended; a grandchild that holds it is not waited for."""
    return os.read(pipe, 1 << 16) if select.select([pipe], [], [], 0)[0] else b""


def _kill(pid: int, started: bool = False) -> None:
    """End a child and what it started, or that alone: the number of a child that ended may be another's by now."""
    for kill in (os.killpg,) if started else (os.killpg, os.kill):  # before its setsid it has no group
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
