"""A folder of Parquet files sorted in parts: whatever the parts and whoever does them, the log is that of one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from apev.cells import CellsError, sorting
from apev.cli import main
from apev.data import DataError, Dataset
from apev.data.formats import io, sort, spread
from apev.data.formats.table import Names

pandas = pytest.importorskip("pandas", reason="pip install 'apev[tables]'")
pyarrow = pytest.importorskip("pyarrow", reason="pip install 'apev[tables]'")
pytest.importorskip("duckdb", reason="pip install 'apev[tables]'")

QUIET = Console(quiet=True)
ROLES: dict[str, Any] = {
    "episode": "visit",
    "time": "when",
    "observations": ["age", "city"],
    "action": "offer",
    "reward": "paid",
    "context": "shop",
}


def table(rows: int = 600) -> Any:
    """Shops of very different sizes, some visited once; words that not every file has; in no order."""
    rng = np.random.default_rng(0)
    shop = np.sort(rng.integers(0, 40, size=rows) ** 2 // 40)
    visit = shop * 1000 + rng.integers(0, 4, size=rows)
    frame = pandas.DataFrame(
        {
            "shop": [f"s{number:02d}é" for number in shop],
            "visit": visit,
            "when": pandas.Timestamp("2026-01-01") + pandas.to_timedelta(rng.permutation(rows), unit="min"),
            "age": rng.normal(size=rows).astype(np.float32),
            "city": rng.choice(["Zürich", "Aarhus", "Ōsaka"], size=rows),
            "offer": rng.choice(["bundle", "advice"], size=rows),
            "paid": rng.normal(size=rows),
        }
    )
    frame.loc[0, "city"], frame.loc[rows - 1, "offer"] = "only once", "rare"
    return frame.sample(frac=1, random_state=1)


def in_folder(frame: Any, folder: Path, files: int = 7) -> Path:
    folder.mkdir()
    for number, rows in enumerate(np.array_split(np.arange(len(frame)), files)):
        frame.iloc[rows].to_parquet(folder / f"part-{number}.parquet")
    return folder


KEYS: dict[str, dict[str, Any]] = {
    "words": {},
    "numbers": {"context": None},
    "amounts": {"context": None, "episode": "share"},
    "dates": {"context": "day"},
    "truth": {"context": "member"},
}


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("shard_rows", [50, 10_000])
def test_parts_give_the_log_of_one_machine(name: str, shard_rows: int, tmp_path: Path) -> None:
    frame = table()
    frame["share"] = frame["visit"] * 0.1
    frame["day"] = pandas.to_datetime("2026-01-01") + pandas.to_timedelta(frame["visit"] % 11, unit="D")
    frame["member"] = frame["visit"] % 2 == 1
    source, names = in_folder(frame, tmp_path / "big"), Names.of(ROLES | KEYS[name])
    sort.convert(source, tmp_path / "one.apev", names, shard_rows=shard_rows, console=QUIET)
    sorting.convert(source, tmp_path / "parts.apev", names, shard_rows=shard_rows, jobs=1, console=QUIET)
    one, parts = Dataset.load(tmp_path / "one.apev"), Dataset.load(tmp_path / "parts.apev")
    assert parts.digest == one.digest
    assert parts.source == one.source
    shards = list((tmp_path / "parts.apev").glob("*.apev"))
    assert len(shards) > 2 or shard_rows > 600 or name == "truth"
    assert (tmp_path / "parts.apev" / "rows.npy").is_file() == (shard_rows > 600)  # one shard is a plain log
    assert [path.name for path in (tmp_path / "parts.apev").iterdir() if not path.is_file() and path not in shards] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big", "one.apev", "parts.apev"]


def test_the_command_sorts_with_several_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = in_folder(table().rename(columns={"visit": "episode", "when": "time", "offer": "action"}), tmp_path / "big")
    words = ["--reward", "paid", "--observations", "age", "city", "--context", "shop", "--shard-rows", "200"]
    main(["data", "convert", str(source), str(tmp_path / "one.apev"), *words])
    main(["data", "convert", str(source), str(tmp_path / "two.apev"), *words, "--jobs", "2", "--memory", "100MB"])
    _, err = capsys.readouterr()
    assert "look at part 1 of 3: finished" in err
    assert "check contexts: finished" in err
    assert Dataset.load(tmp_path / "two.apev").digest == Dataset.load(tmp_path / "one.apev").digest


def test_mistakes_are_named_and_nothing_is_left(tmp_path: Path) -> None:
    frame = table()
    bad = frame.copy()
    bad.iloc[400, bad.columns.get_loc("paid")] = np.nan
    twice = frame.copy()
    twice.iloc[[3, 500], twice.columns.get_loc("visit")] = 7
    gone = {"action": "offre"}
    for number, (wrong, roles, told) in enumerate(
        ((bad, {}, "paid: .*part-4.parquet, row"), (twice, {}, "shop: visit 7 is in s"), (frame, gone, "offre"))
    ):
        source = in_folder(wrong, tmp_path / f"big-{number}")
        with pytest.raises((CellsError, DataError), match=f"(?s){told}.*Fix"):
            sorting.convert(source, tmp_path / "log.apev", Names.of(ROLES | roles), shard_rows=100, jobs=1, console=QUIET)
        assert not (tmp_path / "log.apev").exists()
        assert not any(path.name.startswith(".") for path in tmp_path.iterdir())


def test_a_step_that_is_done_again_changes_nothing(tmp_path: Path) -> None:
    """Its machine died when it had written some, or all."""
    source, staging = in_folder(table(), tmp_path / "big", files=2), tmp_path / "staging"
    staging.mkdir()
    labels = ["part-0.parquet", "part-1.parquet"]
    roles = Names.of(ROLES).__dict__
    seen = [spread.look(staging, str(source), roles, [label], n) for n, label in enumerate(labels)]
    found = seen[0] | {"words": {name: sorted({*seen[0]["words"][name], *seen[1]["words"][name]}) for name in seen[0]["words"]}}
    ranges = spread.write_bounds(staging, 3)
    assert ranges == 3
    given: Any = {"source": str(source), "roles": roles, "found": found, "memory": 100_000_000}

    def all_of_it() -> list[list[str]]:
        for n, label in enumerate(labels):
            spread.spread(staging, **given, piece=[label], number=n)
        return [spread.gather(staging, **given, number=n, shard_rows=80) for n in range(ranges)]

    once = all_of_it()
    digests = [[Dataset.load(spread.range_folder(staging, n) / name).digest for name in once[n]] for n in range(ranges)]
    (staging / "making-x").mkdir()
    assert all_of_it() == once
    assert digests == [[Dataset.load(spread.range_folder(staging, n) / name).digest for name in once[n]] for n in range(ranges)]
    with pytest.raises(DataError, match="is not there"):
        spread.look(staging, str(source), roles, ["part-9.parquet"], 0)


@pytest.mark.parametrize("how", [{"jobs": 2}, {"ray": "local"}])
def test_only_a_sort_on_disk_has_parts(how: dict[str, Any], tmp_path: Path) -> None:
    frame = table(60)
    frame.to_csv(tmp_path / "log.csv", index=False)
    with pytest.raises(DataError, match=f"--{next(iter(how))} out"):
        io.convert(tmp_path / "log.csv", tmp_path / "log.npz", columns=ROLES, **how)
    with pytest.raises(DataError, match=r"ends in \.apev"):
        io.convert(in_folder(frame, tmp_path / "big"), tmp_path / "log.npz", columns=ROLES, **how)
