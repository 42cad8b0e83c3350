"""Cells side by side on this machine: some processes, each with its own threads, each doing one cell after another."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

from apev.cells.board import Board
from apev.cells.cell import Cell, Outcome
from apev.signals import stop_on_signal

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Libraries read them when they are imported: they have to be there before."""

Done = Callable[[int, Outcome], None]


def environment(threads: int) -> dict[str, str]:
    """What a process that computes with so many threads finds."""
    return dict.fromkeys(THREADS, str(threads))


class Worker:
    """A process, and what it is doing."""

    def __init__(self, threads: int, heard: queue.Queue[tuple[Worker, dict[str, Any] | None]]) -> None:
        self.number: int | None = None  # of its cell
        self.process = subprocess.Popen(
            [sys.executable, "-m", "apev.cells.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | environment(threads),
            encoding="utf-8",
            errors="replace",
            process_group=0 if os.name == "posix" else None,  # Ctrl-C is for us, who pass it on once
        )
        said = Thread(target=self._errors, args=(heard,), daemon=True)
        said.start()
        Thread(target=self._messages, args=(heard, said), daemon=True).start()

    def _messages(self, heard: queue.Queue[tuple[Worker, dict[str, Any] | None]], said: Thread) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            heard.put((self, json.loads(line)))
        said.join()
        self.process.wait()
        heard.put((self, None))

    def _errors(self, heard: queue.Queue[tuple[Worker, dict[str, Any] | None]]) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.strip():
                heard.put((self, {"said": line.rstrip()}))

    def do(self, number: int, cell: Cell) -> None:
        """Hand it a cell."""
        assert self.process.stdin is not None
        self.number = number
        try:
            self.process.stdin.write(json.dumps(cell.as_json()) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has died, which `_messages` tells

    def leave(self) -> None:
        """There are no more cells."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def how_it_died(self) -> str:
        """In words."""
        code = self.process.returncode
        how = f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
        return (
            f"its process ended {how}. Fix: enough memory for so many at a time (--jobs); then it goes on from its checkpoint."
        )


def run_local(cells: Sequence[Cell], jobs: int, threads: int, board: Board, done: Done) -> bool:
    """Do the cells, so many at a time; `done` gets each outcome. Returns whether somebody asked to stop."""
    heard: queue.Queue[tuple[Worker, dict[str, Any] | None]] = queue.Queue()
    waiting, workers = deque(range(len(cells))), set[Worker]()
    asked = False

    def next_cell(worker: Worker) -> None:
        worker.number = None
        if waiting and not asked:
            number = waiting.popleft()
            worker.do(number, cells[number])
        else:
            worker.leave()

    def begin() -> None:
        workers.add(worker := Worker(threads, heard))
        next_cell(worker)

    try:
        with stop_on_signal() as stop:
            for _ in range(jobs):
                begin()
            while workers:
                if stop.asked and not asked:
                    asked = True
                    for worker in workers:
                        if worker.number is not None:
                            worker.process.terminate()
                try:
                    worker, message = heard.get(timeout=0.2)
                except queue.Empty:
                    continue
                if message is None:
                    workers.remove(worker)
                    if worker.number is not None:  # it died in the middle of a cell
                        ended = Outcome(stopped=True) if asked else Outcome(error=worker.how_it_died())
                        done(worker.number, ended)
                        if waiting and not asked:
                            begin()
                elif "ended" in message:
                    assert worker.number is not None
                    done(worker.number, Outcome(**message["ended"]))
                    next_cell(worker)
                elif worker.number is not None:
                    board.hear(worker.number, message)
            return asked
    finally:
        for worker in workers:
            worker.process.kill()
