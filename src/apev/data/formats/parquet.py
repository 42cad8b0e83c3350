"""Tables larger than memory: Parquet files with one row a step, read in a stream.

    log.parquet                        one file
    big/*.parquet                      a folder of them, at any depth; names that begin with _ or . are left out
    big/region=eu/day=3/part-0.parquet hive partitions: region and day are columns too

Two passes are made. The first (`apev.data.formats.survey`) checks every value that will be used and finds what only the whole
log tells: the words of a column of text, the highest action. The second (`Plan.batches`) gives numbers that can be sorted,
under names of our own: whatever the columns of a file are called, no name of theirs gets further (`apev.data.formats.sort`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from apev.data.formats import frame as frames
from apev.data.validate import DataError
from apev.files import FileError, leads_out, reading, regular

SUFFIX = ".parquet"
BATCH = 1 << 14  # rows at a time
READ_BYTES = 1 << 18  # of a file at a time: a row group may be larger than memory
NOWHERE = "__HIVE_DEFAULT_PARTITION__"  # what engines call the folder of missing values
AGAIN = "write it again as Parquet with one row a step (DataFrame.to_parquet)"
INDEX = "__index_level_"  # pandas keeps the numbers of shuffled rows under such names


def arrow() -> Any:
    """pyarrow with the parts of it that are used here, or which command installs it."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise ModuleNotFoundError(f"{SUFFIX} files need pyarrow ({error}). Fix: pip install 'apev[tables]'.") from error
    return pyarrow


@dataclass(frozen=True)
class File:
    """One file, and what the names of its folders say."""

    path: Path
    label: str  # how messages call it
    rows: int
    partition: dict[str, str | None]


@dataclass(frozen=True)
class Tables:
    """Parquet files that are one table; columns of several types get one that holds them all."""

    name: str
    files: tuple[File, ...]
    schema: Any

    @classmethod
    def open(cls, source: Path) -> Tables:
        """Look at a file, or all in a folder, without reading their rows."""
        if not source.exists():
            raise FileNotFoundError(f"no file {source}")
        found, schemas = [], []
        for path in files_of(source):
            label = path.relative_to(source).as_posix() if source.is_dir() else path.name
            with reading(label, AGAIN, raises=DataError), _opened(path) as file:
                found.append(File(path, label, file.metadata.num_rows, partition_of(path, source)))
                schemas.append(_plain_schema(file.schema_arrow))
        pa = arrow()
        with reading(source.name, "write all files with the same columns", raises=DataError):
            schema = schemas[0] if len(schemas) == 1 else pa.unify_schemas(schemas, promote_options="permissive")
        for key in dict.fromkeys(key for file in found for key in file.partition):
            if key not in schema.names:
                values = [file.partition.get(key) for file in found]
                whole = all(value is not None and value.lstrip("-").isdecimal() for value in values)
                schema = schema.append(pa.field(key, pa.int64() if whole else pa.string()))
        if not sum(file.rows for file in found):
            raise DataError(source.name, "the table is empty", "log at least one row")
        return cls(source.name, tuple(found), schema)

    @property
    def rows(self) -> int:
        """Of all files."""
        return sum(file.rows for file in self.files)

    def frame(self) -> Any:
        """A pandas table of the same columns without a row, to guess from."""
        return self.schema.empty_table().to_pandas()

    def type(self, name: str) -> Any:
        """The type of a column, in Arrow's words."""
        return self.schema.field(name).type

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """(file, number of the first row, {column: values}) of every stretch of rows, in the order of the files."""
        pa = arrow()
        for file in self.files:
            first = 0
            with reading(file.label, AGAIN, raises=DataError), _opened(file.path) as source:
                own = [name for name in columns if name in source.schema_arrow.names]
                for batch in source.iter_batches(BATCH, columns=own, use_threads=False) if own else _nothing(file.rows):
                    found = {}
                    for name in columns:
                        kind = self.type(name)
                        if name in own:
                            found[name] = _decoded(batch.column(name)).cast(kind)
                        else:
                            value = file.partition.get(name)
                            found[name] = pa.repeat(pa.scalar(value).cast(kind), len(batch))
                    yield file.label, first, found
                    first += len(batch)


def _opened(path: Path) -> Any:
    return arrow().parquet.ParquetFile(regular(path), buffer_size=READ_BYTES, pre_buffer=False)


def _nothing(rows: int) -> Iterator[Any]:
    """Stretches of a file none of whose own columns are used."""
    return (range(start, min(start + BATCH, rows)) for start in range(0, rows, BATCH))


def _plain_schema(schema: Any) -> Any:
    """Without what pandas adds, and with words instead of numbers for categories."""
    pa = arrow()
    kept = [field for field in schema if not field.name.startswith(INDEX)]
    return pa.schema([pa.field(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in kept])


def _decoded(column: Any) -> Any:
    return column.dictionary_decode() if arrow().types.is_dictionary(column.type) else column


def files_of(source: Path) -> list[Path]:
    """The Parquet files that a path means, in a certain order."""
    if not source.is_dir():
        return [regular(source)]
    found = []
    for path in sorted(source.rglob(f"*{SUFFIX}")):
        if any(part.startswith(("_", ".")) for part in path.relative_to(source).parts):
            continue
        if leads_out(path, source):
            raise FileError(path, "is a link out of its folder", "put the file itself there")
        found.append(path)
    if not found:
        raise DataError(source.name, f"no file in this folder ends in {SUFFIX}", "name a folder of Parquet files")
    return found


def partition_of(path: Path, source: Path) -> dict[str, str | None]:
    """What the folders between a file and its source say: {"region": "eu"} for region=eu."""
    if not source.is_dir():
        return {}
    pairs = [part.partition("=") for part in path.relative_to(source).parts[:-1] if "=" in part]
    return {unquote(key): None if value == NOWHERE else unquote(value) for key, _, value in pairs}


# ---------------------------------------------------------------------- what becomes of a column


@dataclass(frozen=True)
class Plan:
    """What is read of a table, and what it becomes."""

    tables: Tables
    episode: str
    time: str
    observations: list[str]
    action: list[str]
    reward: str
    context: str | None = None
    flags: dict[str, str] = field(default_factory=dict)  # terminated, truncated: their columns
    masks: list[str] = field(default_factory=list)  # columns, in the order of the actions
    words: dict[str, list[str]] = field(default_factory=dict)  # of columns of text, sorted
    num_actions: int | None = None  # None: continuous
    source: dict[str, Any] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        """What rows are sorted by."""
        return [*([] if self.context is None else [self.context]), self.episode, self.time]

    @property
    def columns(self) -> list[str]:
        """All that is read."""
        payload = [*self.observations, *self.action, self.reward, *self.flags.values(), *self.masks]
        return list(dict.fromkeys([*self.keys, *payload]))

    def batches(self) -> Iterator[Any]:
        """Record batches to sort: k0, k1, ... are the keys, o0, ... observations, a0, ... actions, r, terminated, m0, ..."""
        pa = arrow()
        for file, _, found in self.tables.batches(self.columns):
            arrays: dict[str, Any] = {f"k{i}": found[name] for i, name in enumerate(self.keys)}
            arrays[f"k{len(self.keys) - 1}"] = moments_of(found[self.time], self.time)
            for i, name in enumerate(self.observations):
                arrays[f"o{i}"] = self._codes(found, name, file) if name in self.words else pa.array(float32(found[name], name))
            for i, name in enumerate(self.action):
                if name in self.words:
                    arrays[f"a{i}"] = self._codes(found, name, file)
                else:
                    discrete = self.num_actions is not None
                    arrays[f"a{i}"] = pa.array(
                        numbers(found[name], name).astype(np.int64) if discrete else float32(found[name], name)
                    )
            arrays["r"] = pa.array(float32(found[self.reward], self.reward))
            given = self.flags | {f"m{i}": name for i, name in enumerate(self.masks)}
            arrays |= {role: pa.array(numbers(found[name], name) != 0) for role, name in given.items()}
            yield pa.record_batch(arrays)

    def _codes(self, found: Mapping[str, Any], name: str, file: str) -> Any:
        pa = arrow()
        codes = pa.compute.index_in(found[name], value_set=pa.array(self.words[name], found[name].type))
        if codes.null_count:
            raise DataError(name, f"{file} has changed since the first look at it", "convert again when nobody writes to it")
        return codes


def is_text(kind: Any) -> bool:
    """Whether a column of this type holds words."""
    types = arrow().types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def numbers(column: Any, name: str) -> np.ndarray:
    """A column of numbers or truth values: bool, int64 or float64, as a table in memory has them."""
    types = arrow().types
    kind = column.type
    if types.is_boolean(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=bool)
    if types.is_integer(kind):
        return np.asarray(column.cast("int64").to_numpy(zero_copy_only=False))
    if types.is_floating(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)
    raise DataError(name, f"is {kind!s:.80}, not numbers", "write it as numbers")


def float32(column: Any, name: str) -> np.ndarray:
    """Numbers as networks read them."""
    with np.errstate(over="ignore"):
        return numbers(column, name).astype(np.float32)


def moments_of(column: Any, name: str) -> Any:
    """Times that can be sorted; text is read as the dates that it is, where it is written as ISO 8601 does."""
    types, kind = arrow().types, column.type
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_temporal(kind):
        return column
    problem, fix = f"is {kind!s:.80}, which has no certain order in time", "write numbers, timestamps, or dates as in ISO 8601"
    if not is_text(kind):
        raise DataError(name, problem, fix)
    try:
        dates = frames.pandas().to_datetime(column.to_pandas(), format="ISO8601", utc=True).dt.as_unit("ns")
    except (ValueError, TypeError, OverflowError):
        raise DataError(name, problem, fix) from None
    return arrow().array(dates.astype("int64").to_numpy())
