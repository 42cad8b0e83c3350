"""`apev`: the command line. Each command is a dataclass in `commands/`."""

from __future__ import annotations

import sys
from typing import Annotated

import gymnasium
import torch
import tyro
from rich.console import Console

import apev
from apev.cells import CellsError
from apev.commands.collect import Collect
from apev.commands.collect_maze import CollectMaze
from apev.commands.data import Data
from apev.commands.demo import Demo
from apev.commands.evaluate import Evaluate
from apev.commands.export import Export
from apev.commands.fqe import Fqe
from apev.commands.report import Report
from apev.commands.reproduce import Reproduce
from apev.commands.train import Train
from apev.commands.tune import Tune
from apev.loop import Interrupted, TrainingError
from apev.terminal import markup, quiet_pipes

ERRORS = Console(stderr=True, highlight=False)

Command = (
    Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Export, tyro.conf.subcommand("export")]
    | Annotated[Fqe, tyro.conf.subcommand("fqe")]
    | Annotated[Tune, tyro.conf.subcommand("tune")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Data, tyro.conf.subcommand("data")]
    | Annotated[Collect, tyro.conf.subcommand("collect")]
    | Annotated[CollectMaze, tyro.conf.subcommand("collect-maze")]
    | Annotated[Reproduce, tyro.conf.subcommand("reproduce")]
)


@quiet_pipes()
def main(argv: list[str] | None = None) -> None:
    """Entry point of the `apev` command."""
    words = sys.argv[1:] if argv is None else argv
    if words in (["--version"], ["-V"]):
        print(f"apev {apev.__version__} (torch {torch.__version__})")
        return
    if words == ["reproduce", "--list"]:
        from apev.experiments.common.cells import print_cells

        print_cells()
        return
    if words[:2] == ["collect", "maze"]:
        words = ["collect-maze", *words[2:]]
    command = tyro.cli(
        Command,
        prog="apev",
        description="Offline reinforcement learning that keeps adapting after deployment. `apev --version` prints the version.",
        args=words,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    try:
        command.run()
    except Interrupted as stop:
        ERRORS.print(f"[yellow]{markup(str(stop), lines=True)}[/yellow]", emoji=False)
        sys.exit(130)
    except KeyboardInterrupt:
        ERRORS.print("[yellow]stopped; --resume goes on from the last checkpoint[/yellow]")
        sys.exit(130)
    except CellsError as failed:
        ERRORS.print(f"[red]error:[/red] {markup(str(failed), lines=True)}", emoji=False, soft_wrap=True)
        sys.exit(1)
    except BrokenPipeError:  # see quiet_pipes
        raise
    except (TrainingError, ValueError, OSError, ImportError, gymnasium.error.Error) as error:
        told = markup(str(error), lines=True)
        ERRORS.print(f"[red]error:[/red] {told}", emoji=False, soft_wrap=True)  # names are not cut in two
        sys.exit(2)


if __name__ == "__main__":
    main()
