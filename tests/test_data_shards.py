"""Logs in several files: read as one, sampled exactly like a log in memory, and refused where a file does not belong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from apev.data import DataError, Dataset, Sampler
from apev.data.formats import shards
from apev.data.mapped import Pages, Shards, is_mapped, moments
from apev.files import write_json

EPISODE = 20


def log(episodes: int, seed: int, contexts: bool = True) -> Dataset:
    rng = np.random.default_rng(seed)
    rows = episodes * EPISODE
    last = np.arange(rows) % EPISODE == EPISODE - 1
    return Dataset.from_arrays(
        rng.normal(size=(rows, 5)).astype(np.float32),
        rng.normal(size=(rows, 2)).astype(np.float32),
        rng.normal(size=rows),
        last,
        np.zeros(rows, dtype=bool),
        episodes=np.arange(rows) // EPISODE,
        contexts=np.arange(rows) // EPISODE // 2 if contexts else None,
    )


def end_to_end(parts: list[Dataset]) -> Dataset:
    """The same log in memory."""

    def counted(name: str) -> np.ndarray | None:
        columns = [getattr(part, name) for part in parts]
        if columns[0] is None:
            return None
        starts = np.cumsum([0, *(column.max() + 1 for column in columns[:-1])])
        return np.concatenate([column + start for column, start in zip(columns, starts, strict=True)])

    names = ("actions", "rewards", "terminated", "truncated")
    return Dataset.from_arrays(
        np.concatenate([part.observations["observation"] for part in parts]),
        *(np.concatenate([getattr(part, name) for part in parts]) for name in names),
        episodes=counted("episodes"),
        contexts=counted("contexts"),
    )


def write(folder: Path, parts: list[Dataset]) -> Path:
    folder.mkdir()
    names = [shards.name_of(i) for i in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        part.save(folder / name)
    shards.write_header(folder, names)
    return folder


@pytest.fixture(params=[False, True], ids=["episodes", "contexts"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Dataset, Dataset]:
    """The same log in memory and in three shards."""
    parts = [log(4, 0, request.param), log(10, 1, request.param), log(2, 2, request.param)]
    return end_to_end(parts), Dataset.load(write(tmp_path / "big.apev", parts))


def test_shards_are_one_log(pair: tuple[Dataset, Dataset], tmp_path: Path) -> None:
    memory, mapped = pair
    assert mapped.mapped
    assert isinstance(mapped.observations["observation"], Shards)
    assert mapped.digest == memory.digest
    mapped.save(tmp_path / "one.apev")
    assert Dataset.load(tmp_path / "one.apev").digest == memory.digest
    mapped.save(tmp_path / "one.npz")
    assert Dataset.load(tmp_path / "one.npz").digest == memory.digest
    for left, right in zip(memory.split(0.3, seed=1), mapped.split(0.3, seed=1), strict=True):
        np.testing.assert_array_equal(
            left.observations["observation"][left.usable], right.observations["observation"][right.usable]
        )


def test_batches_are_those_of_a_log_in_memory(pair: tuple[Dataset, Dataset]) -> None:
    memory, mapped = (Sampler(data, batch_size=64, seed=3) for data in pair)
    for _ in range(5):
        left, right = memory.sample(), mapped.sample()
        for name in ("action", "reward", "terminated", "group"):
            assert torch.equal(getattr(left, name), getattr(right, name)), name
        assert torch.equal(left.obs.vector, right.obs.vector)
        assert torch.equal(left.next_obs.vector, right.next_obs.vector)


def test_columns_in_shards_are_read_as_arrays(pair: tuple[Dataset, Dataset]) -> None:
    array, column = (data.observations["observation"] for data in pair)
    rng = np.random.default_rng(0)
    mask = rng.random(len(array)) < 0.3
    for rows in (slice(None), slice(75, 90), slice(10, 300, 7), slice(5, 5), rng.integers(len(array), size=50), mask, 81):
        np.testing.assert_array_equal(array[rows], column[rows])
    np.testing.assert_array_equal(np.asarray(column), array)
    np.testing.assert_array_equal(column.min(axis=0), array.min(axis=0))
    assert column.max() == array.max()
    assert (column.shape, column.dtype, column.nbytes) == (array.shape, array.dtype, array.nbytes)
    for found, expected in zip(moments(column), moments(array), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    with pytest.raises(IndexError):
        column[np.array([len(array)])]
    assert is_mapped(column)


def test_rows_are_fetched_from_the_shard_that_has_them(pair: tuple[Dataset, Dataset]) -> None:
    pages = Pages([pair[1].observations["observation"], pair[1].actions])
    assert [(number, count) for *_, number, count in pages._areas.values()] == [(0, 80), (80, 200), (280, 40)]
    pages.fetch(np.array([319, 0, 79, 80]))  # would leave the map if it asked the wrong one


def test_an_agent_trains_on_shards(pair: tuple[Dataset, Dataset], tmp_path: Path) -> None:
    import apev

    policy = apev.train(pair[1], "td3-bc", out=tmp_path / "run", updates=3, hidden=(8, 8))
    assert policy.agent.layout == apev.data.Layout.of(pair[0])


@pytest.mark.parametrize(
    ("mistake", "match"),
    [
        ("lost", "00001.apev: is missing"),
        ("link", "is a link out of"),
        ("name", r"calls a shard '\.\./other\.apev'"),
        ("changed", "checksum differs"),
        ("other", "is of another log"),
        ("none", "names no shard"),
        ("version", "upgrade apev"),
    ],
)
def test_a_shard_that_does_not_belong_is_refused(mistake: str, match: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "big.apev", [log(2, 0), log(3, 1)])
    log(2, 2).save(tmp_path / "other.apev")
    second, header = folder / "00001.apev", folder / "header.json"
    facts = {key: value for key, value in json.loads(header.read_text()).items() if key != "sha256"}
    if mistake in ("lost", "link"):
        shutil.rmtree(second)
    if mistake == "link":
        second.symlink_to(tmp_path / "other.apev")
    if mistake == "name":
        facts["shards"]["../other.apev"] = facts["shards"].pop("00001.apev")
    if mistake == "changed":
        shutil.rmtree(second)
        log(3, 3).save(second)
    if mistake == "other":
        log(3, 1, contexts=False).save(second)
        shards.write_header(folder, ["00000.apev", "00001.apev"])
        facts = json.loads(header.read_text())
    if mistake == "none":
        facts["shards"] = {}
    if mistake == "version":
        facts["version"] = 9
    facts.pop("sha256", None)
    write_json(header, facts, checksum=True)
    with pytest.raises(DataError, match=match):
        Dataset.load(folder)
