"""A table of any size, in any order, as mapped shards sorted by context, episode and time; memory stays below a limit.

    first pass     every value is checked, words are found                          `survey.py`
    second pass    read, sort, cut where a context ends, check and write a shard

DuckDB sorts. It is a library in this process that keeps to a limit of memory and spills what is more to a folder that we name.
Ray Data sorts across machines, but needs a running Ray even for one, and its sort holds blocks in an object store in shared
memory. What is larger than a machine is sorted by several that each do this with a part: `apev.data.formats.spread`.

A file is only data. DuckDB opens none: it is handed batches that pyarrow has read, under names of our own. Files, extensions
and its own settings are closed to it before it sees the first row.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from apev.data.formats import folder, shards, table
from apev.data.formats.columns import header
from apev.data.formats.parquet import BATCH, Plan, Tables, arrow
from apev.data.formats.survey import survey
from apev.data.validate import DataError
from apev.files import brief
from apev.progress import progress_bar
from apev.terminal import markup

SHARD_ROWS = 1 << 22
MEMORY = 1_000_000_000
LEAST_MEMORY = 64_000_000  # DuckDB's own needs
A_THREAD = 128_000_000  # bytes of the limit that each thread of a sort should have


def convert(
    source: Path,
    target: Path,
    names: table.Names,
    *,
    shard_rows: int = SHARD_ROWS,
    memory: int = MEMORY,
    console: Console | None = None,
) -> None:
    """Write a Parquet file, or a folder of them, as a mapped log; one that fits in a shard is a plain one.

    shard_rows: a shard ends with the first context that ends after so many rows.
    memory: bytes the sort may use; this process needs some hundred megabytes besides.
    """
    check_sizes(shard_rows, memory)
    console = console or Console(stderr=True, highlight=False)
    tables = Tables.open(source)
    roles, told = table.complete(tables.frame(), names, tables.name)
    if told:
        console.print(markup(told), soft_wrap=True)
    with progress_bar() as bars:
        bar = bars.add_task("check", total=tables.rows)
        plan = survey(tables, roles, lambda rows: bars.advance(bar, rows))
        with folder.replacing(target) as partial:
            if plan.context is not None:
                check_contexts(plan, memory, partial.parent)
            bar = bars.add_task("sort", total=tables.rows)
            written = sort(plan, partial, shard_rows, memory, lambda rows: bars.advance(bar, rows))
            finish(partial, written)


def check_sizes(shard_rows: int, memory: int) -> None:
    """Refuse what no sort can keep to."""
    if shard_rows < 1 or memory < LEAST_MEMORY:
        problem = f"shard_rows is {shard_rows:,}, memory {memory:,} bytes"
        raise ValueError(f"{problem}. Fix: at least 1 row and {LEAST_MEMORY // 10**6} MB.")


def finish(partial: Path, written: list[str]) -> None:
    """Make one log of the shards; a single one takes the place of the folder."""
    if len(written) > 1:
        shards.write_header(partial, written)
        return
    for path in (partial / written[0]).iterdir():
        path.rename(partial / path.name)
    (partial / written[0]).rmdir()


def sort(
    plan: Plan, target: Path, shard_rows: int, memory: int, seen: Callable[[int], None], batches: Iterator[Any] | None = None
) -> list[str]:
    """Sort what a plan reads into shards of a folder, and return their names.

    batches: these rows instead, as `Plan.batches` gives them.
    """
    written: list[str] = []
    shard: Shard | None = None
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".sorting-") as spill:
        rows_in_order = sorted_batches(len(plan.keys), plan.batches() if batches is None else batches, memory, spill)
        for rows in stretches(plan, rows_in_order):
            for part in rows.cut(shard_rows, 0 if shard is None else shard.rows):
                if shard is None:
                    written.append(shards.name_of(len(written)))
                    shard = Shard(plan, target / written[-1])
                shard.append(part)
                if part.ends_shard:
                    shard.close()
                    shard = None
            seen(len(rows.last))
        if shard is not None:
            shard.close()
    return written


# ---------------------------------------------------------------------- the engine


def engine(memory: int, spill: str) -> Any:
    """DuckDB with a limit of memory and a folder to spill to; nothing else can be opened, loaded or set."""
    try:
        import duckdb
    except ImportError as error:
        raise ModuleNotFoundError(
            f"sorting a table on disk needs duckdb ({error}). Fix: pip install 'apev[tables]'."
        ) from error
    settings: dict[str, Any] = {
        "memory_limit": f"{memory // 1000}KB",
        "threads": max(1, min(threads(), memory // A_THREAD)),
        "temp_directory": spill,
        "preserve_insertion_order": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "python_enable_replacements": False,  # a name in a query is never a variable of ours
    }
    connection = duckdb.connect(":memory:", config=settings)
    connection.execute("SET enable_progress_bar = false")  # it would write to stdout
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def threads() -> int:
    """Those that a sort may use; where others sort beside it, as many as it was given."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def query(words: str, batches: Iterator[Any], memory: int, spill: str) -> Iterator[Any]:
    """Record batches that a query makes of `log`, the batches that go in."""
    import duckdb

    faults: list[BaseException] = []

    def watched() -> Iterator[Any]:
        try:
            yield from batches
        except BaseException as fault:  # DuckDB would tell of it in words alone
            faults.append(fault)
            raise

    pa = arrow()
    source = watched()
    first = next(source)
    with engine(memory, spill) as connection:
        try:
            connection.register("log", pa.RecordBatchReader.from_batches(first.schema, _chained(first, source)))
            yield from connection.sql(words).to_arrow_reader(BATCH)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            if faults:
                raise faults[0] from None
            fix = f"allow it more memory (--memory {2 * memory // 10**6}MB), or make room on the disk of the target"
            raise DataError("sort", f"did not finish ({brief(error)})", fix) from error


def _chained(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def sorted_batches(keys: int, batches: Iterator[Any], memory: int, spill: str) -> Iterator[Any]:
    """Rows sorted by so many keys."""
    names = ", ".join(f"k{i}" for i in range(keys))
    return query(f"SELECT * FROM log ORDER BY {names}", batches, memory, spill)


def check_contexts(plan: Plan, memory: int, beside: Path) -> None:
    """Refuse an episode that is in two contexts: sorted by context, it would look like two."""
    pa = arrow()
    found = (found for *_, found in plan.tables.batches(plan.keys[:2]))
    batches = (pa.record_batch({"k0": part[plan.keys[0]], "k1": part[plan.keys[1]]}) for part in found)
    words = "SELECT k1, min(k0), max(k0) FROM log GROUP BY k1 HAVING min(k0) <> max(k0) LIMIT 1"
    with tempfile.TemporaryDirectory(dir=beside, prefix=".sorting-") as spill:
        for batch in query(words, batches, memory, spill):
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                episode, least, most = (f"{value!s:.80}" for value in row)
                fix = "give a row the context of its episode, or start a new episode where the context changes"
                raise DataError(str(plan.context), f"{plan.episode} {episode} is in {least} and in {most}", fix)


# ---------------------------------------------------------------------- rows in order


@dataclass(frozen=True)
class Stretch:
    """Sorted rows that follow each other."""

    batch: Any
    last: np.ndarray  # bool [n]: the last row of its episode
    last_of_context: np.ndarray  # bool [n]
    ends_shard: bool = False

    def cut(self, shard_rows: int, before: int) -> Iterator[Stretch]:
        """The same in parts, each of one shard, which has `before` rows already."""
        start = 0
        while start < len(self.last):
            ends = np.flatnonzero(self.last_of_context[start:]) + start
            enough = ends[before + ends - start + 1 >= shard_rows]
            stop = int(enough[0]) + 1 if len(enough) else len(self.last)
            part = slice(start, stop)
            yield Stretch(self.batch.slice(start, stop - start), self.last[part], self.last_of_context[part], bool(len(enough)))
            start, before = stop, 0


def stretches(plan: Plan, batches: Iterator[Any]) -> Iterator[Stretch]:
    """Sorted batches, each with the ends of its episodes and contexts, which take a look at the batch that follows."""
    held = None
    for batch in batches:
        if held is not None:
            yield _stretch(plan, held, batch)
        held = batch
    if held is not None:
        yield _stretch(plan, held, None)


def _stretch(plan: Plan, batch: Any, following: Any) -> Stretch:
    def changes(key: int) -> np.ndarray:
        """bool [n]: the value of a key is another one in the next row; so it is after the last."""
        column = batch.column(key)
        if following is not None:
            column = arrow().concat_arrays([column, following.column(key).slice(0, 1)])
        differs = arrow().compute.not_equal(column.slice(1), column.slice(0, len(column) - 1)).to_numpy(zero_copy_only=False)
        return np.asarray(differs if following is not None else np.append(differs, True), dtype=bool)

    moved = [changes(key) for key in range(len(plan.keys))]
    last = moved[0] if plan.context is None else moved[0] | moved[1]
    twice = np.flatnonzero(~last & ~moved[-1])
    if len(twice):
        episode, time = (f"{batch.column(len(plan.keys) + key)[int(twice[0])].as_py()!s:.80}" for key in (-2, -1))
        problem = f"{plan.episode} {episode} has two rows at the time {time}"
        raise DataError(plan.time, problem, "give each row of an episode a time of its own")
    return Stretch(batch, last, moved[0])


# ---------------------------------------------------------------------- a shard


class Shard:
    """A log that is written as its rows come."""

    def __init__(self, plan: Plan, path: Path) -> None:
        self.plan, self.path, self.rows = plan, path, 0
        self.episodes = self.contexts = 0  # that have ended
        path.mkdir()
        self.widths = [len(plan.words.get(name, "1")) for name in plan.observations]
        self.files: dict[str, folder.Growing] = {}

    def append(self, part: Stretch) -> None:
        """Write more rows."""
        columns = self.columns(part)
        wide = [columns.pop(name) for name in ("observations", "actions") if columns[name].ndim == 2]
        columns[folder.ROWS_FILE] = np.concatenate(wide, axis=1)
        for name, column in columns.items():
            if name not in self.files:
                file = name if name == folder.ROWS_FILE else folder.file_of(name)
                self.files[name] = folder.Growing(self.path / file, column)
            self.files[name].append(column)
        self.rows += len(part.last)
        self.episodes += int(part.last.sum())
        self.contexts += int(part.last_of_context.sum())

    def columns(self, part: Stretch) -> dict[str, np.ndarray]:
        """The columns of a log, of these rows."""
        plan, last = self.plan, part.last
        found = {name: part.batch.column(name).to_numpy(zero_copy_only=False) for name in part.batch.schema.names}
        inputs = [
            np.eye(width, dtype=np.float32)[found[f"o{i}"]] if name in plan.words else found[f"o{i}"][:, None]
            for i, (name, width) in enumerate(zip(plan.observations, self.widths, strict=True))
        ]
        columns = {"observations": np.concatenate(inputs, axis=1)}
        if plan.num_actions is None:
            columns["actions"] = np.stack([found[f"a{i}"] for i in range(len(plan.action))], axis=1)
        else:
            columns["actions"] = found["a0"].astype(np.int64)
        ended = found["terminated"] if "terminated" in found else last & ~found.get("truncated", np.zeros_like(last))
        columns |= {"rewards": found["r"], "terminated": ended, "truncated": found.get("truncated", last & ~ended)}
        columns["episodes"] = self.episodes + np.cumsum(last) - last
        if plan.context is not None:
            columns["contexts"] = self.contexts + np.cumsum(part.last_of_context) - part.last_of_context
        if plan.masks:
            columns["action_masks"] = np.stack([found[f"m{i}"] for i in range(len(plan.masks))], axis=1)
        return columns

    def close(self) -> None:
        """Write the header, and check the log as one that is loaded."""
        for file in self.files.values():
            file.close()
        width = sum(self.widths)
        places = {"observations.observation": [0, width]}
        if self.plan.num_actions is None:
            places["actions"] = [width, width + len(self.plan.action)]
        names = ["observations/observation", "actions", "rewards", "terminated", "truncated", "episodes"]
        names += [name for name in ("contexts", "action_masks") if name in self.files]
        folder.write_header(self.path, header(self.plan.num_actions, self.plan.source), names, places)
        try:
            folder.read(self.path).dataset()
        except DataError as error:
            theirs = {"actions": self.plan.action[0], "rewards": self.plan.reward} | self.plan.flags
            fix = f"{error.fix} (rows are counted in the sorted log, in shard {self.path.name})"
            raise DataError(theirs.get(error.column, error.column), error.problem, fix, rows=error.rows) from None
