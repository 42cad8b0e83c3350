"""A table that is larger than a machine, sorted by several: what each does with its part. `apev.cells.sorting` asks for it.

    look      a piece, some of the files: every value is checked, words and a sample of the first key are found
    spread    a piece is sorted and cut where ranges of the first key begin; each range goes to a file of its own
    gather    a range, from all pieces: it is sorted into shards (`apev.data.formats.sort`)

Ranges follow each other, and a context lies in one of them: their shards end to end are the log that one machine would have
made. What goes from one step to the next lies in a folder that all machines see, Arrow files of numbers and ids. Each step
writes under another name first: whoever does it again, because a machine died, finds all of a file or none.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from apev.data.formats import sort
from apev.data.formats.parquet import File, Plan, Tables, arrow
from apev.data.formats.survey import Checks
from apev.data.validate import DataError
from apev.files import reading, regular
from apev.progress import progress_bar

EVERY = 256  # a row in so many is in the sample
BOUNDS = "bounds.arrow"  # the least key of each range but the first
AGAIN = "convert again"


def pieces(files: Sequence[File], rows: int) -> list[list[str]]:
    """Files that follow each other, by what messages call them: about so many rows together."""
    found: list[list[str]] = []
    room = 0
    for file in files:
        if room <= 0:
            found.append([])
            room = rows
        found[-1].append(file.label)
        room -= file.rows
    return found


def opened(source: str, piece: Sequence[str]) -> tuple[Tables, Tables]:
    """(the whole table, a piece of it)."""
    whole = Tables.open(Path(source))
    there = {file.label: file for file in whole.files}
    if gone := [label for label in piece if label not in there]:
        raise DataError(whole.name, f"{gone[0]} is not there", "convert again when nobody writes to it")
    return whole, replace(whole, files=tuple(there[label] for label in piece))


def look(folder: Path, source: str, roles: Mapping[str, Any], piece: Sequence[str], number: int) -> dict[str, Any]:
    """Check every value of a piece; returns what it found, the sample is in the folder."""
    pa, (_, part) = arrow(), opened(source, piece)
    checks, sample = Checks.begin(part, roles), []
    with progress_bar() as bars:
        bar = bars.add_task("check", total=part.rows)
        for file, first, found in part.batches(checks.plan.columns):
            checks.look(file, first, found)
            key = found[checks.plan.keys[0]]
            sample.append(key.take(pa.array(range(-first % EVERY, len(key), EVERY), pa.int64())))
            bars.advance(bar, len(key))
    write_column(folder / f"sample-{number:05d}.arrow", pa.chunked_array(sample, part.type(checks.plan.keys[0])))
    return checks.as_json()


def write_bounds(folder: Path, ranges: int) -> int:
    """Cut what the samples tell of the first key into ranges of about as many rows; returns how many there are."""
    pa = arrow()
    chunks = [chunk for path in sorted(folder.glob("sample-*.arrow")) for chunk in read_column(path).chunks]
    keys = pa.chunked_array(chunks)
    order = pa.compute.sort_indices(keys)
    places = sorted({len(keys) * part // ranges for part in range(1, ranges)} - {0})
    bounds = pa.compute.unique(keys.take(order.take(pa.array(places, pa.int64()))))
    write_column(folder / BOUNDS, pa.chunked_array([bounds]))
    return len(bounds) + 1


def plan_of(tables: Tables, roles: Mapping[str, Any], found: Mapping[str, Any]) -> Plan:
    """The plan, when all pieces have been looked at."""
    return Checks.begin(tables, roles).take(found).result()


def one_context(folder: Path, source: str, roles: Mapping[str, Any], found: Mapping[str, Any], memory: int) -> None:
    """Refuse an episode that is in two contexts: they may be in different ranges."""
    sort.check_contexts(plan_of(Tables.open(Path(source)), roles, found), memory, folder)


def spread(
    folder: Path,
    source: str,
    roles: Mapping[str, Any],
    found: Mapping[str, Any],
    piece: Sequence[str],
    number: int,
    memory: int,
) -> None:
    """Write the rows of a piece to a file for each range of the first key."""
    whole, part = opened(source, piece)
    plan = replace(plan_of(whole, roles, found), tables=part)
    bounds = read_column(folder / BOUNDS).combine_chunks()
    with tempfile.TemporaryDirectory(dir=folder, prefix="sorting-") as spill, progress_bar() as bars:
        bar = bars.add_task("spread", total=part.rows)
        open_range, writer, rest = -1, None, Path(spill) / "range.arrow"

        def close() -> None:
            if writer is not None:
                writer.close()
                os.replace(rest, folder / staged(number, open_range))

        for place, batch in in_ranges(sort.sorted_batches(1, plan.batches(), memory, spill), bounds):
            if place != open_range:
                close()
                open_range, writer = place, arrow().ipc.new_file(str(rest), batch.schema)
            assert writer is not None
            writer.write_batch(batch)
            bars.advance(bar, len(batch))
        close()


def in_ranges(batches: Iterator[Any], bounds: Any) -> Iterator[tuple[int, Any]]:
    """Sorted batches cut where ranges begin, each with the number of its range."""
    compute, place = arrow().compute, 0
    for batch in batches:
        rest = batch
        while len(rest):
            here = len(rest)
            if place < len(bounds):
                key = rest.column(0)
                here = compute.sum(compute.less(key, bounds[place].cast(key.type))).as_py()
            if here:
                yield place, rest.slice(0, here)
            rest = rest.slice(here)
            place += int(len(rest) > 0)


def gather(
    folder: Path, source: str, roles: Mapping[str, Any], found: Mapping[str, Any], number: int, shard_rows: int, memory: int
) -> list[str]:
    """Sort a range into shards; returns their names in `range_folder`."""
    plan, files = plan_of(Tables.open(Path(source)), roles, found), sorted(folder.glob(staged(None, number)))
    if not files:
        return []
    making = Path(tempfile.mkdtemp(dir=folder, prefix="making-"))
    with progress_bar() as bars:
        bar = bars.add_task("sort", total=None)
        written = sort.sort(plan, making, shard_rows, memory, lambda rows: bars.advance(bar, rows), staged_batches(files))
    final = range_folder(folder, number)
    shutil.rmtree(final, ignore_errors=True)  # of somebody who did the same, and was taken for dead
    os.replace(making, final)
    return written


def staged_batches(files: Sequence[Path]) -> Iterator[Any]:
    """What the pieces wrote of a range."""
    pa = arrow()
    for path in files:
        with reading(path.name, AGAIN, raises=DataError), pa.ipc.open_file(str(regular(path))) as file:
            for place in range(file.num_record_batches):
                yield file.get_batch(place)


def staged(piece: int | None, place: int) -> str:
    """The file of a piece and a range; of any piece, as a pattern."""
    return f"piece-{'*' if piece is None else f'{piece:05d}'}-{place:05d}.arrow"


def range_folder(folder: Path, number: int) -> Path:
    """Where the shards of a range are made."""
    return folder / f"range-{number:05d}"


def write_column(path: Path, column: Any) -> None:
    """One column; all of it is there, or nothing."""
    pa = arrow()
    table, partial = pa.table({"k0": column}), path.with_suffix(f".{os.getpid()}")
    with pa.ipc.new_file(str(partial), table.schema) as file:
        file.write_table(table)
    os.replace(partial, path)


def read_column(path: Path) -> Any:
    """What `write_column` wrote."""
    with reading(path.name, AGAIN, raises=DataError), arrow().ipc.open_file(str(regular(path))) as file:
        return file.read_all().column(0)
