"""Cells as tasks of a Ray cluster.

Each task asks for its threads as CPUs, and for its GPU. A worker or a machine that dies costs what was done since the last
checkpoint: Ray starts the task again somewhere else, and it goes on from the cell's folder, which all machines see. Messages
come back through an actor on the machine that asked.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import apev
from apev.cells.board import Board
from apev.cells.cell import Cell, Outcome, performed
from apev.cells.local import Done, environment
from apev.signals import stop_on_signal

INSTALL = "--ray needs Ray. Fix: pip install 'apev[ray]'."
RETRIES = 20  # of a cell whose worker or machine has died
HELD = 120.0  # seconds that a process may hold its folder after its machine is taken for dead
SAVING = 60.0  # seconds that cells have to save when they are stopped
LOOK_EVERY = 0.3
ANSWER = 10.0  # seconds that a cluster has to answer
STORE = 100 << 20  # bytes; nothing big travels through Ray's store


class Post:
    """Keeps what the cells say until it is fetched."""

    def __init__(self) -> None:
        self.letters: list[tuple[int, dict[str, Any]]] = []

    def put(self, number: int, message: dict[str, Any]) -> None:
        """From a cell."""
        self.letters.append((number, message))

    def take(self) -> list[tuple[int, dict[str, Any]]]:
        """All that came since the last time."""
        taken, self.letters = self.letters, []
        return taken


def on_node(found: dict[str, Any], number: int, folder: str, version: str, post: Any) -> dict[str, Any]:
    """A cell, on whichever machine Ray has picked; `folder` is where the command was given."""

    def send(message: dict[str, Any]) -> None:
        post.put.remote(number, message)

    send({"began": "begins again"})
    cell = Cell.of_json(found)
    node = os.uname().nodename if hasattr(os, "uname") else "a machine"
    if version != apev.__version__:
        return asdict(Outcome(error=f"{node} has apev {apev.__version__}, not {version}. Fix: the same version everywhere."))
    where = Path(folder) if cell.folder is None else Path(folder, cell.folder)
    if not where.is_dir():
        return asdict(Outcome(error=f"{node} does not see {where}. Fix: a folder on storage that all machines share."))
    os.chdir(folder)
    until = time.monotonic() + HELD
    while (outcome := performed(cell, send)).busy and time.monotonic() < until:
        time.sleep(0.5)  # the process before us is about to notice that its machine is gone
    return asdict(outcome)


def ray_module() -> Any:
    """Ray, if it is installed."""
    try:
        return import_module("ray")
    except ImportError as error:
        raise ModuleNotFoundError(INSTALL) from error


def join(ray: Any, address: str) -> Callable[[], None]:
    """Start Ray here, or join a cluster; returns how to leave it."""
    if ray.is_initialized():  # by whoever calls us
        return lambda: None
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told of a cluster that we started
        ray.init(address="local", include_dashboard=False, object_store_memory=STORE, **quiet)
    else:
        try:
            check_answers(address)
            ray.init(address=address, **quiet)
        except (OSError, ValueError, RuntimeError) as error:
            told = f"--ray {address}: no cluster answers there. Fix: `ray start --head` on one machine, or --ray local."
            raise ConnectionError(told) from error
    leave: Callable[[], None] = ray.shutdown
    return leave


def check_answers(address: str) -> None:
    """Ray tries for minutes where nobody listens."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon:
        socket.create_connection((host, int(port)), timeout=ANSWER).close()


def run_on_ray(cells: Sequence[Cell], address: str, threads: int, board: Board, done: Done) -> bool:
    """Do the cells on a cluster; `done` gets each outcome. Returns whether somebody asked to stop."""
    ray = ray_module()
    leave = join(ray, address)
    strategies = import_module("ray.util.scheduling_strategies")
    here = strategies.NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    post = ray.remote(Post).options(num_cpus=0, scheduling_strategy=here).remote()
    task = ray.remote(on_node)
    running: dict[Any, int] = {}
    asked = False
    try:
        most = max(node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"])
        if threads > most:
            board.tell(f"no machine of the cluster has {threads} CPUs yet: cells wait for one (--threads)")
        for number, cell in enumerate(cells):
            if cell.folder is not None:
                cell.folder.mkdir(parents=True, exist_ok=True)
            count = cell.threads or threads
            asks = {"num_cpus": count, "num_gpus": cell.gpus, "runtime_env": {"env_vars": environment(count)}}
            given = (cell.as_json(), number, str(Path.cwd()), apev.__version__, post)
            running[task.options(max_retries=RETRIES, **asks).remote(*given)] = number
        with stop_on_signal() as stop:
            last = float("inf")
            while running and time.monotonic() < last:
                if stop.asked and not asked:
                    asked, last = True, time.monotonic() + SAVING
                    for reference in running:
                        ray.cancel(reference)
                ended, _ = ray.wait(list(running), timeout=LOOK_EVERY)
                for number, message in ray.get(post.take.remote()):
                    if number in running.values():
                        board.hear(number, message)
                for reference in ended:
                    done(running.pop(reference), outcome_of(ray, reference, asked))
        return asked
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        ray.kill(post)
        leave()


def outcome_of(ray: Any, reference: Any, asked: bool) -> Outcome:
    """How a task has ended."""
    try:
        return Outcome(**ray.get(reference))
    except ray.exceptions.TaskCancelledError:
        return Outcome(stopped=True)
    except ray.exceptions.RayError as error:
        return Outcome(stopped=True) if asked else Outcome(error=f"{error}".strip())
