"""Logs in tables: what becomes of ids, text and order, and that a mistake is named by column and row."""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apev.data import DataError, Dataset
from apev.envs.fleet import customers_frame, customers_log
from apev.files import FileError

pandas = pytest.importorskip("pandas", reason="pip install 'apev[tables]'")

NAMES: dict[str, Any] = {
    "episode": "customer",
    "time": "visit",
    "observations": ["age", "shop"],
    "action": "offer",
    "reward": "reward",
}


def table(**changes: Any) -> Any:
    """Two customers, their rows out of order: row 1 is the first, row 4 the last of b."""
    columns = {
        "customer": ["b", "b", "a", "a", "b"],
        "visit": [2, 1, 10, 9, 3],
        "age": [30, 30, 50, 50, 30],
        "shop": ["town", "town", "web", "web", "web"],
        "offer": ["discount", "advice", "none", "advice", "discount"],
        "reward": [1.0, 2.0, 3.0, 4.0, 5.0],
    }
    return pandas.DataFrame(columns | changes)


def read(frame: Any, **changes: Any) -> Dataset:
    return Dataset.from_frame(frame, **(NAMES | changes))


def test_rows_are_sorted_and_names_become_numbers() -> None:
    log = read(table())
    np.testing.assert_array_equal(log.rewards, [4, 3, 2, 1, 5])
    np.testing.assert_array_equal(log.episodes, [0, 0, 1, 1, 1])
    np.testing.assert_array_equal(log.actions, [0, 2, 0, 1, 1])
    np.testing.assert_array_equal(log.observations["observation"], [[50, 0, 1], [50, 0, 1], [30, 1, 0], [30, 1, 0], [30, 0, 1]])
    np.testing.assert_array_equal(log.terminated, [False, True, False, False, True])
    assert not log.truncated.any()
    assert log.num_actions == 3
    assert log.source["action_names"] == ["advice", "discount", "none"]
    assert log.source["observation_names"] == ["age", "shop=town", "shop=web"]
    assert log.contexts is None
    assert log.usable.all()


def test_the_index_of_the_table_and_its_order_do_not_matter() -> None:
    frame = table()
    for other in (frame.sample(frac=1, random_state=3), frame.set_index(pandas.Index([7, 7, 7, 7, 7]))):
        assert read(other).digest == read(frame).digest


def test_categories_keep_their_order_and_those_that_no_row_shows() -> None:
    offers = pandas.Categorical(table()["offer"], categories=["none", "discount", "gift", "advice"])
    shops = pandas.Categorical(table()["shop"], categories=["web", "town", "phone"])
    log = read(table(offer=offers, shop=shops))
    np.testing.assert_array_equal(log.actions, [3, 0, 3, 1, 1])
    assert (log.num_actions, log.source["action_names"]) == (4, ["none", "discount", "gift", "advice"])
    np.testing.assert_array_equal(log.observations["observation"][0], [50, 1, 0, 0])


def test_actions_that_are_numbers() -> None:
    whole = read(table(offer=[2, 0, 1, 0, 2]))
    np.testing.assert_array_equal(whole.actions, [0, 1, 0, 2, 2])
    assert "action_names" not in whole.source
    np.testing.assert_array_equal(read(table(offer=[True, False, True, True, False])).actions, [1, 1, 0, 1, 0])
    dose = [0.5, 1.0, 2.0, 0.0, 1.0]
    np.testing.assert_array_equal(read(table(offer=dose)).actions[:, 0], np.array([0, 2, 1, 0.5, 1], np.float32))
    several = read(table(offer=dose, other=1), action=["offer", "other"])
    np.testing.assert_array_equal(several.actions[:, 1], np.ones(5))
    whole_floats = table(offer=[2.0, 0.0, 1.0, 0.0, 2.0])
    with pytest.raises(DataError, match=r"offer: .*all of them whole.*astype\(int\).*action=\['offer'\]"):
        read(whole_floats)
    assert not read(whole_floats, action=["offer"]).discrete


def test_flags_say_how_an_episode_ended() -> None:
    ends = [False, False, True, False, False]  # of a's last row
    np.testing.assert_array_equal(read(table(end=ends), terminated="end").terminated, [False, True, False, False, False])
    cut = read(table(end=ends), terminated="end").truncated
    np.testing.assert_array_equal(cut, [False, False, False, False, True])  # b: only the table ended
    log = read(table(end=np.array(ends, np.int64)), truncated="end")
    np.testing.assert_array_equal(log.truncated, [False, True, False, False, False])
    np.testing.assert_array_equal(log.terminated, [False, False, False, False, True])
    with pytest.raises(DataError, match=r"end, row 1: is True, but episode 1 goes on"):
        read(table(end=[False, True, False, False, False]), terminated="end")
    with pytest.raises(DataError, match=r"end, row 2: value is 2"):
        read(table(end=[0, 0, 2, 0, 0]), terminated="end")


def test_contexts_dates_and_nullable_columns() -> None:
    log = read(table(machine=["m2", "m2", "m1", "m1", "m2"]), context="machine")
    np.testing.assert_array_equal(log.group, [0, 0, 1, 1, 1])
    with pytest.raises(DataError, match=r"machine, row 4: episode 1 changes"):
        read(table(machine=["m2", "m2", "m1", "m1", "m1"]), context="machine")
    days = pandas.to_datetime(["2026-01-02", "2026-01-01", "2026-03-10", "2026-03-09", "2026-01-10"])
    assert read(table(visit=days)).digest == read(table()).digest
    nullable = table().convert_dtypes()
    assert read(nullable).digest == read(table()).digest
    arrow = table().convert_dtypes(dtype_backend="pyarrow")
    assert read(arrow).digest == read(table()).digest
    numbered = table(customer=[12, 12, 9, 9, 12])
    assert read(numbered).digest == read(table()).digest


@pytest.mark.parametrize("column", ["customer", "visit", "age", "shop", "offer", "reward"])
def test_a_missing_value_is_refused_by_row_and_column(column: str) -> None:
    frame = table().astype(object)
    frame.loc[3, column] = None
    with pytest.raises(DataError, match=rf"{column}, row 3: the value is missing.*Fix"):
        read(frame.infer_objects())


@pytest.mark.parametrize(
    ("changes", "settings", "match"),
    [
        ({}, {"reward": "money"}, r"money: the table has no column of this name; it has \['customer'"),
        ({"visit": [1, 1, 10, 9, 3]}, {}, r"visit, row 1: customer b has two rows at the time 1"),
        ({"visit": list("21098")}, {}, r"visit: is .*no certain order in time.*to_datetime"),
        ({"reward": [1.0, 2.0, np.inf, 4.0, 5.0]}, {}, r"reward, row 2: value is infinite"),
        ({"age": [1.0, np.inf, 2.0, 4.0, 5.0]}, {}, r"age, row 1: value is infinite"),
        ({"reward": list("abcde")}, {}, r"reward: is .*not numbers"),
        ({"offer": ["a", 1, "b", "a", "b"]}, {}, r"offer, row 1: value is a int"),
        ({"offer": [0, -1, 1, 0, 0]}, {}, r"offer, row 1: action -1 is negative"),
        ({"customer": [date(2026, 1, 1)] * 3 + [1, 1]}, {}, r"customer: has ids of several types"),
        ({}, {"observations": ["age", "reward"]}, r"reward: .*only known after the action"),
        ({}, {"observations": []}, r"observations: names the columns \[\]"),
        ({}, {"observations": ["age", "age"]}, r"observations: .*none twice"),
        ({"age": pandas.to_datetime(["2026-01-02"] * 5)}, {}, r"age: is datetime64.*not numbers"),
    ],
)
def test_a_mistake_is_named_with_its_fix(changes: dict[str, Any], settings: dict[str, Any], match: str) -> None:
    with pytest.raises(DataError, match=match) as caught:
        read(table(**changes), **settings)
    assert "Fix: " in str(caught.value)


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(DataError, match="is a dict, not a pandas DataFrame"):
        read({"age": [1]})
    with pytest.raises(DataError, match="the table is empty"):
        read(table().iloc[:0])
    with pytest.raises(DataError, match="has 2 columns of this name"):
        read(pandas.concat([table(), table()[["age"]]], axis=1))
    many = pandas.DataFrame(
        {"customer": 0, "visit": range(2000), "id": [f"x{i}" for i in range(2000)], "offer": 0, "reward": 0.0}
    )
    with pytest.raises(DataError, match="id: has 2,000 different values"):
        read(many, observations=["id"])


@pytest.mark.parametrize("name", ["log.npz", "log.apev", "log.hdf5"])
def test_names_survive_files(name: str, tmp_path: Path) -> None:
    log = read(table(), source={"environment": "apev/Customers-v0"})
    log.save(tmp_path / name)
    again = Dataset.load(tmp_path / name)
    assert again.digest == log.digest
    for key in ("action_names", "observation_names", "environment"):
        assert again.source[key] == log.source[key]


@pytest.mark.parametrize("names", [["a", "b"], ["a", "b", "b"], "abc", [1, 2, 3], []])
def test_names_in_a_file_that_are_not_those_of_its_actions_are_refused(names: Any, tmp_path: Path) -> None:
    log = read(table())
    log.source["action_names"] = names
    log.save(tmp_path / "log.npz")
    with pytest.raises(FileError, match=r"names.*Fix"):
        Dataset.load(tmp_path / "log.npz")


def test_the_customers_table_is_the_customers_log() -> None:
    frame, segments = customers_frame(customers=50, seed=2)
    log, kinds = customers_log(customers=50, seed=2)
    columns: dict[str, Any] = {"observations": ["visit", "age", "basket"], "action": "offer", "reward": "reward"}
    read_back = Dataset.from_frame(frame.sample(frac=1, random_state=0), episode="customer", time="visit", **columns)
    assert read_back.digest == log.digest
    assert read_back.source["action_names"] == log.source["action_names"]
    assert [segments[f"c{i:04d}"] for i in range(50)] == kinds.tolist()
    assert not {"segment", "kind"} & set(frame.columns)


def test_without_pandas_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"Fix: pip install 'apev\[tables\]'"):
        customers_frame(10)
    assert len(Dataset.example("customers")) == 8000
