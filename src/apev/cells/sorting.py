"""`apev data convert --jobs N` and `--ray`: a folder of Parquet files, sorted in parts that are cells.

    look at pieces  ->  spread pieces over ranges, check contexts  ->  sort each range into shards  ->  one log

What each does is in `apev.data.formats.spread`. How many ranges there are follows from the rows, not from the machines.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from apev.cells.cell import Cell
from apev.cells.runner import check, run_cells
from apev.data.formats import folder, shards, sort, spread, table
from apev.data.formats.parquet import Tables
from apev.data.formats.survey import Checks
from apev.terminal import markup


def convert(
    source: Path,
    target: Path,
    names: table.Names,
    *,
    shard_rows: int = sort.SHARD_ROWS,
    memory: int = sort.MEMORY,
    jobs: int | None = None,
    ray: str | None = None,
    console: Console | None = None,
) -> None:
    """Write Parquet as a mapped log, as `apev.data.formats.sort.convert` does, with several processes or machines.

    shard_rows: a range of the first key holds about so many rows, and a shard no more than fit until a context ends.
    memory: bytes that each sort may use: there are as many at a time as jobs, or CPUs of the cluster.
    jobs, ray: see `apev.cells.run_cells`.
    """
    sort.check_sizes(shard_rows, memory)
    check(jobs, None, ray)
    console = console or Console(stderr=True, highlight=False)
    source = source.absolute()
    tables = Tables.open(source)
    roles, told = table.complete(tables.frame(), names, tables.name)
    if told:
        console.print(markup(told), soft_wrap=True)
    checks = Checks.begin(tables, roles)  # names that are wrong are told before anything is read
    groups = spread.pieces(tables.files, shard_rows)
    with folder.replacing(target.absolute()) as partial:
        staging = partial / "staging"
        staging.mkdir()

        given = {"source": str(source), "roles": roles}

        def cells(what: str, work: str, each: Sequence[dict[str, Any]], beside: Sequence[Cell] = ()) -> list[Any]:
            made = [
                Cell(f"{what} {n + 1} of {len(each)}", f"convert {work}", given | extra, staging)
                for n, extra in enumerate(each)
            ]
            return run_cells([*made, *beside], jobs=jobs, ray=ray, console=console)[: len(made)]

        for seen in cells("look at part", "look", [{"piece": piece, "number": n} for n, piece in enumerate(groups)]):
            checks.take(seen)
        plan, found = checks.result(), checks.as_json()
        ranges = spread.write_bounds(staging, math.ceil(tables.rows / shard_rows))
        sizes = {"found": found, "memory": memory}
        contexts = [Cell("check contexts", "convert contexts", given | sizes, staging)] if plan.context is not None else []
        cells("spread part", "spread", [{"piece": piece, "number": n} | sizes for n, piece in enumerate(groups)], contexts)
        asked = [{"number": n, "shard_rows": shard_rows} | sizes for n in range(ranges)]
        written: list[str] = []
        for number, names_there in enumerate(cells("sort range", "gather", asked)):
            for name in names_there:
                written.append(shards.name_of(len(written)))
                (spread.range_folder(staging, number) / name).rename(partial / written[-1])
        shutil.rmtree(staging)
        sort.finish(partial, written)
