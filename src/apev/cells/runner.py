"""One list of cells, wherever it runs: in this process, in several, on a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from apev.cells.board import Board
from apev.cells.cell import Cell, Outcome, forget_log, in_words, perform
from apev.cells.local import run_local
from apev.loop import Interrupted, begun_with
from apev.machine import Machine
from apev.terminal import markup

Finished = Callable[[Cell, Any], None]
"""Is told of every cell that has finished, with its result, in the process that asked for them."""


class CellsError(Exception):
    """Some cells failed; the others have finished."""


@dataclass(frozen=True, kw_only=True)
class Many:
    """How many at a time, and on which machines."""

    jobs: int | None = None
    """How many trainings at a time, each in a process of its own. Unless given: as many as there are free cores."""
    ray: str | None = None
    """Train on Ray: 'local' starts it here, 'auto' joins the cluster that this machine is part of, HOST:PORT another one. --out
    must lie where all its machines see it. Each training asks for --threads CPUs, one unless given."""

    def use(self) -> None:
        """Refuse what makes no sense."""
        check(self.jobs, None, self.ray)

    def run_cells(self, cells: Sequence[Cell], finished: Finished | None = None) -> list[Any]:
        """See `run_cells`."""
        return run_cells(cells, jobs=self.jobs, ray=self.ray, finished=finished)


@dataclass(frozen=True, kw_only=True)
class Machines(Many, Machine):
    """Where many trainings compute, and how."""

    def use(self) -> None:
        """Refuse what makes no sense; compute so here too, unless a cluster has the GPUs."""
        check(self.jobs, self.threads, self.ray)
        Machine.use(self if self.ray is None else replace(self, device="cpu"))

    def run_cells(self, cells: Sequence[Cell], finished: Finished | None = None) -> list[Any]:
        """See `run_cells`."""
        placed = [replace(cell, device=self.device) for cell in cells]
        return run_cells(placed, jobs=self.jobs, threads=self.threads, ray=self.ray, finished=finished)


def run_cells(
    cells: Sequence[Cell],
    *,
    jobs: int | None = None,
    threads: int | None = None,
    ray: str | None = None,
    finished: Finished | None = None,
    console: Console | None = None,
) -> list[Any]:
    """Do every cell; returns their results, in order.

    jobs: how many at a time, each in a process of its own; as many as there are free cores unless given.
    threads: of each. Unless given: the cores shared out among the jobs, or one with Ray.
    ray: "local" starts Ray here, "auto" joins the cluster of this machine, "host:port" another one.
    finished: called with each cell that has finished and its result.

    A cell that fails does not stop the others: `CellsError` tells of it at the end. Ctrl-C and SIGTERM save and stop all:
    `Interrupted`. The same cells again go on from there, if their work does.
    """
    check(jobs, threads, ray)
    console = console or Console(stderr=True, highlight=False)
    if not cells:
        return []
    outcomes: dict[int, Outcome] = {}
    jobs = usual_jobs(cells, jobs)
    if jobs == 1 and ray is None:
        stopped = in_turn(cells, threads, outcomes, finished, console)
    else:
        each = threads or (1 if ray else shared_out(jobs))
        cells = [replace(cell, threads=cell.threads or begun(cell) or each) for cell in cells]
        if ray is None:
            warn(cells, jobs, console)
        forget_log()
        with Board(cells, console) as board:

            def done(number: int, outcome: Outcome) -> None:
                outcomes[number] = outcome
                board.end(number, outcome)
                if outcome.finished and finished is not None:
                    finished(cells[number], outcome.result)

            if ray is None:
                stopped = run_local(cells, jobs, each, board, done)
            else:
                from apev.cells.on_ray import run_on_ray

                stopped = run_on_ray(cells, ray, each, board, done)
        for number in sorted(outcomes):
            print(outcomes[number].printed, end="")
    good = [outcome for outcome in outcomes.values() if outcome.finished]
    if stopped or any(outcome.stopped for outcome in outcomes.values()):
        raise Interrupted(
            f"stopped: {len(good)} of {len(cells)} have finished, the others are saved. --resume goes on with them."
        )
    if len(good) < len(cells):
        told = [f"{cells[n].name}: {outcome.error}" for n, outcome in sorted(outcomes.items()) if outcome.error is not None]
        raise CellsError("\n".join([f"{len(told)} of {len(cells)} failed, the others have finished.", *told]))
    return [outcomes[number].result for number in range(len(cells))]


def check(jobs: int | None, threads: int | None, ray: str | None) -> None:
    """Refuse what makes no sense."""
    for name, value in (("jobs", jobs), ("threads", threads)):
        if value is not None and value < 1:
            raise ValueError(f"--{name} {value}. Fix: at least 1.")
    if ray is not None and jobs is not None:
        raise ValueError("--jobs and --ray: Ray decides how many run at a time. Fix: leave one out.")


def in_turn(
    cells: Sequence[Cell], threads: int | None, outcomes: dict[int, Outcome], finished: Finished | None, console: Console
) -> bool:
    """One after another in this process; a single cell fails as if there were no list."""
    for number, cell in enumerate(cells):
        if len(cells) > 1:
            console.print(f"[bold]{markup(cell.name)}[/bold]")
        try:
            outcomes[number] = Outcome(perform(replace(cell, threads=cell.threads or threads)))
        except Interrupted:
            raise
        except Exception as error:
            if len(cells) == 1:
                raise
            outcomes[number] = Outcome(error=in_words(error))
            console.print(f"[red]failed:[/red] {markup(str(error), lines=True)}")
            continue
        if finished is not None:
            finished(cell, outcomes[number].result)
    return False


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usual_jobs(cells: Sequence[Cell], jobs: int | None) -> int:
    """As many as are asked for, or as there are cores that nobody uses; on a GPU one. Never more than cells."""
    if jobs is None:
        busy = round(os.getloadavg()[0]) if hasattr(os, "getloadavg") else 0
        jobs = 1 if any(cell.gpus for cell in cells) else max(1, cores() - busy)
    return min(jobs, len(cells))


def shared_out(jobs: int) -> int:
    """The threads of each job. Whoever set OMP_NUM_THREADS has chosen already."""
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    return int(chosen) if chosen.isdecimal() and int(chosen) > 0 else max(1, cores() // jobs)


def begun(cell: Cell) -> int | None:
    """How many threads a run that goes on had: another number rounds otherwise."""
    return None if cell.folder is None else begun_with(cell.folder)


def warn(cells: Sequence[Cell], jobs: int, console: Console) -> None:
    """Threads that wait for each other's cores are many times slower than fewer of them."""
    most = max(cell.threads or 1 for cell in cells)
    if jobs * most > cores():
        told = f"{jobs} jobs with {most} threads each on {cores()} cores: they will wait for each other."
        console.print(f"[yellow]{told} Fix: fewer --jobs or --threads.[/yellow]")
