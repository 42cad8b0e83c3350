"""Parquet of any size as a sorted, mapped log: the same numbers as in memory, within a limit of memory, whatever names say."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apev.cli import main
from apev.data import DataError, Dataset
from apev.data.formats import io, sort
from apev.data.formats.parquet import Tables
from apev.data.formats.survey import survey
from apev.data.formats.table import Names

pandas = pytest.importorskip("pandas", reason="pip install 'apev[tables]'")
pytest.importorskip("pyarrow", reason="pip install 'apev[tables]'")
duckdb = pytest.importorskip("duckdb", reason="pip install 'apev[tables]'")

ROLES: dict[str, Any] = {
    "episode": "visitor",
    "time": "when",
    "observations": ["age", "member", "city", "when"],
    "action": "offer",
    "reward": "paid",
}


def table(episodes: int = 60, seed: int = 0) -> Any:
    """A shuffled log with words, flags, dates and masks."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, size=episodes)
    number = np.repeat(np.arange(episodes), lengths)
    rows = len(number)
    last = np.append(number[1:] != number[:-1], True)
    frame = pandas.DataFrame(
        {
            "visitor": [f"v{i * 7919 % 1000:03d}é" for i in number],
            "when": rng.permutation(rows) * 0.5,
            "age": rng.integers(18, 90, size=rows).astype(np.int32),
            "member": rng.random(rows) < 0.5,
            "city": rng.choice(["Zürich", "Aarhus", "Ōsaka", "b"], size=rows),
            "offer": rng.choice(["bundle", "advice", "None"], size=rows),
            "paid": rng.normal(size=rows),
            "shop": [f"s{i % 7}" for i in number],
            "cut": False,
            "left": False,
        }
    )
    frame = frame.sort_values(["visitor", "when"], ignore_index=True)
    final = (frame["visitor"] != frame["visitor"].shift(-1)).to_numpy()
    frame["cut"] = final & (rng.random(rows) < 0.5)
    frame["left"] = final & ~frame["cut"]
    for name in ("advice", "bundle", "None", "nothing"):
        frame[f"may_{name}"] = (frame["offer"] == name) | (rng.random(rows) < 0.5)
    assert last.sum() == episodes
    return frame.sample(frac=1, random_state=seed)


def in_folder(frame: Any, folder: Path, files: int = 5) -> Path:
    folder.mkdir()
    for i, rows in enumerate(np.array_split(np.arange(len(frame)), files)):
        frame.iloc[rows].to_parquet(folder / f"part-{i}.parquet", row_group_size=7)
    return folder


def sorted_log(source: Path, target: Path, roles: dict[str, Any], shard_rows: int = 40) -> Dataset:
    sort.convert(source, target, Names.of(roles), shard_rows=shard_rows)
    return Dataset.load(target)


OPTIONS: dict[str, dict[str, Any]] = {
    "words": {},
    "flags": {"terminated": "left", "truncated": "cut"},
    "one flag": {"truncated": "cut"},
    "masks": {"masks": "may_"},
    "amounts": {"action": ["paid", "age"], "reward": "when", "observations": ["city"]},
    "one amount": {"action": "paid", "reward": "age", "observations": ["city", "member"]},
    "numbers": {"action": "age", "observations": ["city"]},
    "truth": {"action": "member", "observations": ["age"]},
    "numbers as ids": {"episode": "number"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_shuffled_folder_is_sorted_into_the_numbers_of_memory(name: str, tmp_path: Path) -> None:
    roles = ROLES | OPTIONS[name]
    frame = table()
    frame["number"] = pandas.factorize(frame["visitor"])[0] * -3
    memory = Dataset.from_frame(frame, **roles)
    log = sorted_log(in_folder(frame, tmp_path / "big"), tmp_path / "big.apev", roles)
    assert log.digest == memory.digest
    assert len(list((tmp_path / "big.apev").glob("*.apev"))) > 3
    assert log.source == memory.source | {"name": "big", "format": "apev"}
    for shard in (tmp_path / "big.apev").glob("*.apev"):
        assert Dataset.load(shard).num_episodes < memory.num_episodes  # each is a log of its own
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_contexts_stay_together_and_are_sorted_first(tmp_path: Path) -> None:
    frame = table()
    roles = ROLES | {"context": "shop"}
    memory = Dataset.from_frame(frame, **roles)
    log = sorted_log(in_folder(frame, tmp_path / "big"), tmp_path / "big.apev", roles)
    assert memory.contexts is not None
    assert log.contexts is not None
    assert (np.diff(log.contexts) >= 0).all()
    order = np.argsort(memory.contexts, kind="stable")
    np.testing.assert_array_equal(log.contexts, memory.contexts[order])
    np.testing.assert_array_equal(np.asarray(log.observations["observation"]), memory.observations["observation"][order])
    np.testing.assert_array_equal(np.diff(log.episodes) != 0, np.diff(memory.episodes[order]) != 0)
    for name in ("actions", "rewards", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(log, name), getattr(memory, name)[order])
    shards = [Dataset.load(path) for path in sorted((tmp_path / "big.apev").glob("*.apev"))]
    assert len(shards) > 1
    assert sum(shard.num_groups for shard in shards) == memory.num_groups  # none straddles


def test_hive_partitions_are_columns(tmp_path: Path) -> None:
    frame = table()
    for key, part in frame.groupby("shop"):
        for day, rows in part.groupby(part["age"] % 3):
            folder = tmp_path / "big" / f"shop={key}" / f"day={day}"
            folder.mkdir(parents=True)
            rows.drop(columns="shop").to_parquet(folder / "x.parquet")
    (tmp_path / "big" / "_metadata.parquet").write_text("of Spark")
    roles = ROLES | {"observations": ["day", "shop", "city"]}
    memory = Dataset.from_frame(frame.assign(day=frame["age"] % 3), **roles)
    assert sorted_log(tmp_path / "big", tmp_path / "big.apev", roles).digest == memory.digest


def test_one_file_through_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = table().rename(columns={"visitor": "episode", "when": "time", "offer": "action", "paid": "reward"})
    frame.to_parquet(tmp_path / "log.parquet")
    words = ["--observations", "age", "city", "--truncated", "cut"]
    main(["data", "convert", str(tmp_path / "log.parquet"), str(tmp_path / "log.apev"), "--memory", "100MB", *words])
    out, err = capsys.readouterr()
    assert "guessed from its columns: episode episode, time time, action action, reward reward" in " ".join(err.split())
    assert "wrote" in out
    assert (tmp_path / "log.apev" / "rows.npy").is_file()  # one shard is a plain log
    expected = Dataset.load(tmp_path / "log.parquet", observations=["age", "city"], truncated="cut")
    assert Dataset.load(tmp_path / "log.apev").digest == expected.digest
    in_folder(frame, tmp_path / "big")
    main(["data", "convert", str(tmp_path / "big"), str(tmp_path / "log.npz"), *words])
    assert Dataset.load(tmp_path / "log.npz").digest == expected.digest
    with pytest.raises(DataError, match=r"apev data convert .*big NAME.apev"):
        Dataset.load(tmp_path / "big")
    for wrong in (["--memory", "much"], ["--memory", "1MB"], ["--shard-rows", "0"]):
        with pytest.raises(SystemExit):
            main(["data", "convert", str(tmp_path / "big"), str(tmp_path / "x.apev"), *words, *wrong])
        assert "Fix:" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["data", "convert", str(tmp_path / "log.npz"), str(tmp_path / "x.apev"), "--memory", "1GB"])
    assert "Fix: leave --memory out." in " ".join(capsys.readouterr().err.split())


def test_files_may_write_a_column_in_several_types(tmp_path: Path) -> None:
    frame = table()
    half = len(frame) // 2
    (tmp_path / "big").mkdir()
    frame.iloc[:half].to_parquet(tmp_path / "big" / "a.parquet")
    other = frame.iloc[half:].astype({"age": np.int64, "paid": np.float32, "city": "category", "visitor": "category"})
    other.to_parquet(tmp_path / "big" / "b.parquet")
    expected = Dataset.from_frame(pandas.concat([frame.iloc[:half], other.astype({"city": str, "visitor": str})]), **ROLES)
    assert sorted_log(tmp_path / "big", tmp_path / "big.apev", ROLES).digest == expected.digest


def test_dates_are_times(tmp_path: Path) -> None:
    frame = table()
    expected = Dataset.from_frame(frame, **ROLES | {"observations": ["age"]}).digest
    dates = pandas.Timestamp("2024-02-28T22:00:00Z") + pandas.to_timedelta(frame["when"], unit="h")
    for i, column in enumerate((dates, dates.dt.strftime("%Y-%m-%dT%H:%M:%S%z"))):
        source = in_folder(frame.assign(when=column), tmp_path / f"{i}")
        assert sorted_log(source, tmp_path / f"{i}.apev", ROLES | {"observations": ["age"]}).digest == expected


HOSTILE = [
    "\"; ATTACH '/etc/passwd' AS x; --",
    "k0",
    "' OR 1=1 --",
    "read_text('/etc/passwd')",
    'a"b',
    "[bold]x[/bold]",
    "\x1b[31mred",
    "log",
    "a.b",
    "",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_columns_are_only_names(name: str, tmp_path: Path) -> None:
    frame = table(20)
    for role in ("visitor", "when", "age", "offer", "paid"):
        renamed = frame.rename(columns={role: name})
        swapped: dict[str, Any] = {
            key: [name if part == role else part for part in value]
            if isinstance(value, list)
            else name
            if value == role
            else value
            for key, value in ROLES.items()
        }
        folder = in_folder(renamed, tmp_path / f"{role}", files=2)
        log = sorted_log(folder, tmp_path / f"{role}.apev", swapped)
        assert log.digest == Dataset.from_frame(renamed, **swapped).digest


def test_names_of_folders_and_files_are_only_names(tmp_path: Path) -> None:
    frame = table(20)
    folder = tmp_path / "big' || (SELECT 1) || '" / "k0=%22; DROP TABLE log; --"
    folder.mkdir(parents=True)
    frame.to_parquet(folder / "*.parquet")
    roles = ROLES | {"observations": ["k0", "age"]}
    expected = Dataset.from_frame(frame.assign(k0='"; DROP TABLE log; --'), **roles)
    assert sorted_log(folder.parent, tmp_path / "x.apev", roles).digest == expected.digest


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    table(5).to_parquet(tmp_path / "elsewhere.parquet")
    in_folder(table(5), tmp_path / "big")
    (tmp_path / "big" / "z.parquet").symlink_to(tmp_path / "elsewhere.parquet")
    with pytest.raises(ValueError, match="is a link out of its folder"):
        Tables.open(tmp_path / "big")


@pytest.mark.parametrize(
    "words",
    [
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM read_parquet('{table}')",
        "SELECT * FROM '{table}'",
        "SELECT * FROM glob('{folder}/*')",
        "ATTACH '{folder}/new.db' AS other",
        "COPY (SELECT 1) TO '{folder}/out.csv'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET memory_limit = '100GB'",
        "SET temp_directory = '{folder}'",
        "SELECT * FROM secret_of_python",
    ],
)
def test_the_engine_opens_nothing(words: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    table(5).to_parquet(tmp_path / "x.parquet")
    secret_of_python = table(5)  # DuckDB would find variables by their names
    assert len(secret_of_python)
    places = {"secret": tmp_path / "secret", "table": tmp_path / "x.parquet", "folder": tmp_path}
    with tempfile.TemporaryDirectory() as spill, sort.engine(sort.LEAST_MEMORY, spill) as connection:
        assert connection.execute("SELECT 42").fetchall() == [(42,)]
        with pytest.raises(duckdb.Error):
            connection.execute(words.format(**places)).fetchall()
    assert {path.name for path in tmp_path.iterdir()} == {"secret", "x.parquet"}


def at(frame: Any, row: int, name: str, value: Any) -> Any:
    column = frame[name].astype(object)
    column.iloc[row] = value
    return frame.assign(**{name: column.infer_objects()})


MISTAKES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "missing": (lambda f: at(f, 3, "city", None), {}, r"city: the value is missing \(part-0.parquet, row 3\)"),
    "missing id": (lambda f: at(f, 70, "visitor", None), {}, r"visitor: the value is missing \(part-1.parquet, row \d+\)"),
    "not finite": (lambda f: at(f, 0, "paid", np.inf), {}, r"paid: value is NaN or infinite \(part-0.parquet, row 0\)"),
    "too large": (lambda f: at(f, 9, "paid", 1e300), {}, r"paid: value is too large for float32 \(part-0.parquet, row 9\)"),
    "twice": (lambda f: f.assign(when=0), {}, r"when: visitor v\d+é has two rows at the time 0"),
    "no flag": (
        lambda f: f,
        {"terminated": "age", "observations": ["city"]},
        r"age: value is not True or False \(part-0.parquet, row 0\)",
    ),
    "goes on": (lambda f: f.assign(cut=True), {"truncated": "cut"}, r"cut, row \d+: is True, but episode .* shard 00000.apev"),
    "no number": (lambda f: f, {"reward": "city", "observations": ["age"]}, "city: is .*string, not numbers"),
    "no time": (lambda f: f, {"time": "city"}, "city: is .*string, which has no certain order in time"),
    "whole": (lambda f: f.assign(offer=1.0), {}, "offer: are floating-point numbers, all of them whole"),
    "negative": (lambda f: f.assign(offer=-1), {}, "actions: action -1 is negative|actions, row 0: action -1"),
    "lost": (lambda f: f, {"action": "gone"}, "gone: the table has no column of this name"),
    "late": (lambda f: f, {"observations": ["paid"]}, "is only known after the action"),
    "two contexts": (lambda f: f, {"context": "member"}, r"member: visitor v\d+é is in False and in True"),
    "many words": (lambda f: f.assign(city=[f"{i}" for i in range(len(f))]), {}, "has more than 100 different values"),
    "no mask": (lambda f: f.drop(columns="may_bundle"), {"masks": "may_"}, "the action 'bundle' has none"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_and_nothing_is_written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change, roles, match = MISTAKES[name]
    monkeypatch.setattr("apev.data.formats.frame.MOST_CATEGORIES", 100)
    folder = in_folder(change(table()), tmp_path / "big")
    with pytest.raises(DataError, match=match):
        sorted_log(folder, tmp_path / "big.apev", ROLES | roles)
    assert [path.name for path in tmp_path.iterdir()] == ["big"]


def test_damage_is_named(tmp_path: Path) -> None:
    folder = in_folder(table(), tmp_path / "big")
    whole = (folder / "part-2.parquet").read_bytes()
    for damaged in (b"", b"PAR1 but no more", whole[: len(whole) // 2]):
        (folder / "part-2.parquet").write_bytes(damaged)
        with pytest.raises(DataError, match=r"part-2.parquet: cannot be read"):
            sorted_log(folder, tmp_path / "big.apev", ROLES)
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="unknown file type"):
        io.convert(tmp_path / "none", tmp_path / "x.apev")


def test_a_fault_while_sorting_is_told_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the middle of the second pass, under DuckDB, is not lost in words of the engine."""
    folder = in_folder(table(), tmp_path / "big")

    def then_changed(*args: Any) -> Any:
        plan = survey(*args)
        at(table(), 0, "city", "elsewhere").to_parquet(folder / "part-4.parquet")
        return plan

    monkeypatch.setattr("apev.data.formats.sort.survey", then_changed)
    with pytest.raises(DataError, match=r"city: part-4.parquet has changed since the first look"):
        sorted_log(folder, tmp_path / "big.apev", ROLES)


MAKE_AND_SORT = """
import sys
from pathlib import Path
import duckdb, numpy as np, pandas, pyarrow as pa, pyarrow.compute, pyarrow.parquet as pq  # what libraries take is not asked
from apev.data.formats import sort
from apev.data.formats.table import Names

rows, folder = int(sys.argv[1]), Path(sys.argv[2])
memory = int(sys.argv[4])
rng, piece = np.random.default_rng(0), 1 << 16
with pq.ParquetWriter(folder / "big.parquet", pa.schema(
    [("episode", pa.int64()), ("step", pa.int64()), *((f"x{i}", pa.float32()) for i in range(17)),
     *((f"action_{i}", pa.float32()) for i in range(6)), ("reward", pa.float32())])) as file:
    order = rng.permutation(rows)
    for begin in range(0, rows, piece):
        mine = order[begin : begin + piece]
        numbers = [pa.array(rng.random(len(mine), dtype=np.float32)) for _ in range(24)]
        file.write_table(pa.table([pa.array(mine // 500), pa.array(mine % 500), *numbers], schema=file.schema))
    del order
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

before = peak()
sort.convert(folder / "big.parquet", folder / "big.apev", Names(), shard_rows=int(sys.argv[3]), memory=memory)
print((folder / "big.parquet").stat().st_size, peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process' memory is read from /proc")
@pytest.mark.parametrize(
    ("rows", "memory", "times"),
    [(2_000_000, 64_000_000, 3), pytest.param(12_000_000, 100_000_000, 11, marks=pytest.mark.slow)],
)
def test_memory_stays_within_the_limit(rows: int, memory: int, times: float, tmp_path: Path) -> None:
    words = [sys.executable, "-c", MAKE_AND_SORT, rows, tmp_path, 100_000, memory]  # pages of a shard that is checked count too
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    size, used = map(int, done.stdout.split())
    assert size > times * memory
    assert used < memory + 150_000_000, f"{used / 1e6:.0f} MB for a limit of {memory / 1e6:.0f} MB"
