"""`apev reproduce --list`: a command for every cell of the paper's tables."""

from __future__ import annotations

from collections.abc import Iterator

from apev.experiments.common.tables import display_name
from apev.experiments.d4rl.published import PAPER

DOORS = ("single", "average", "LCB", "APE-V, evaluation only", "APE-V")

MAZES = ("single", "conservative", "APE-V")


def cells() -> Iterator[tuple[str, str]]:
    """(what the cell holds, the command that makes it)."""
    doors = "apev reproduce locked-doors --scale paper --images cifar10 --device cuda"
    for policy in DOORS:
        yield f"Locked Doors, {policy}", doors
    for levels in (200, 1000):
        for policy in MAZES:
            yield (
                f"Procgen mazes, {levels} levels, {policy}",
                (f"apev reproduce procgen --levels {levels} --mode hard --scale paper --seeds 0 1 2 3 --device cuda"),
            )
    for task, row in PAPER.items():
        for algorithm, score in row.items():
            command = f"apev reproduce d4rl --task {task} --algos {algorithm} --scale paper --seeds 0 1 2 3 --device cuda"
            data = f" --data {task.replace('-', '_')}-v2.hdf5"
            yield f"{task}, {display_name(algorithm)}: {score:g}", command + data
    yield "Theorem 4.1, Propositions 5.1 to 5.3, Figure 1", "apev reproduce theory"


def print_cells() -> None:
    """Each command under the cell it makes."""
    for what, command in cells():
        print(f"# {what}\n{command}")
