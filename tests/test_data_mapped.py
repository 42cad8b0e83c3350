"""Mapped columns: never copied, sampled exactly like columns in memory, and split without a copy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apev.data import Batch, DataError, Dataset, Sampler
from apev.data import sampler as sampler_module
from apev.data.mapped import Pages, is_mapped, map_of

ROWS = 500


@pytest.fixture(params=["log.apev", "log.hdf5"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Dataset, Dataset]:
    """The same log in memory and in a file."""
    rng = np.random.default_rng(0)
    cut = np.arange(ROWS) % 25 == 24
    memory = Dataset.from_arrays(
        rng.normal(size=(ROWS, 17)).astype(np.float32),
        rng.normal(size=(ROWS, 6)).astype(np.float32),
        rng.normal(size=ROWS),
        cut & (np.arange(ROWS) % 50 == 49),
        cut & (np.arange(ROWS) % 50 != 49),
        next_observations=rng.normal(size=(ROWS, 17)).astype(np.float32),
    )
    memory.save(tmp_path / request.param)
    mapped = Dataset.load(tmp_path / request.param)
    assert mapped.mapped
    assert not memory.mapped
    return memory, mapped


def equal(left: Batch, right: Batch) -> None:
    assert torch.equal(left.obs.vector, right.obs.vector)
    assert torch.equal(left.next_obs.vector, right.next_obs.vector)
    for name in ("action", "reward", "terminated", "group"):
        assert torch.equal(getattr(left, name), getattr(right, name)), name


@pytest.mark.parametrize("fetching", [False, True])
def test_batches_are_those_of_columns_in_memory(
    pair: tuple[Dataset, Dataset], fetching: bool, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(sampler_module, "SLOW", -1.0 if fetching else 1e9)
    fetched: list[int] = []
    original = Pages.fetch

    def fetch(self: Pages, rows: Any) -> Any:
        fetched.append(len(rows))
        return original(self, rows)

    monkeypatch.setattr(Pages, "fetch", fetch)
    memory, mapped = (Sampler(data, batch_size=32, seed=5) for data in pair)
    for _ in range(20):
        equal(memory.sample(), mapped.sample())
    rows = torch.tensor([3, 1, ROWS - 1])
    equal(memory.batch(rows), mapped.batch(rows))
    for left, right in zip(memory.iterate(64), mapped.iterate(64), strict=True):
        equal(left, right)
    assert fetched == ([32] * 20 if fetching else [])
    assert len(recwarn) == 0


def test_a_sampler_resumes_exactly_though_it_draws_ahead(pair: tuple[Dataset, Dataset]) -> None:
    sampler = Sampler(pair[1], batch_size=32, seed=1)
    for _ in range(3):
        sampler.sample()
    state = sampler.state_dict()
    coming = [sampler.sample() for _ in range(4)]
    for other in (sampler, Sampler(pair[1], batch_size=32, seed=9), Sampler(pair[0], batch_size=32, seed=9)):
        other.load_state_dict(state)
        for batch in coming:
            equal(batch, other.sample())


def test_no_column_is_copied(pair: tuple[Dataset, Dataset]) -> None:
    data = pair[1]
    sampler = Sampler(data, batch_size=8)
    columns = {"_vectors": data.observations["observation"], "_next_vectors": data.next_observations["observation"]}
    for name, column in columns.items():
        assert is_mapped(column)
        assert getattr(sampler, name)[0].data_ptr() == column.__array_interface__["data"][0]
    assert sampler._actions.data_ptr() == data.actions.__array_interface__["data"][0]


def test_columns_side_by_side_are_one_place_on_disk(tmp_path: Path, pair: tuple[Dataset, Dataset]) -> None:
    pair[0].save(tmp_path / "again.apev")
    data = Dataset.load(tmp_path / "again.apev")
    columns = [data.observations["observation"], data.next_observations["observation"], data.actions]
    assert len({id(map_of(column)) for column in columns}) == 1
    assert len(Pages(columns)._areas) == 1


def test_a_split_hides_rows_instead_of_copying_columns(pair: tuple[Dataset, Dataset]) -> None:
    memory, mapped = pair
    kept, held_out = mapped.split(0.2, seed=3)
    expected, expected_out = memory.split(0.2, seed=3)
    assert kept.observations["observation"] is mapped.observations["observation"]
    assert (len(held_out), held_out.mapped) == (len(expected_out), False)
    assert (kept.describe()["rows"], int(kept.usable.sum())) == (len(expected), int(expected.usable.sum()))
    assert kept.describe()["episodes"] == expected.num_episodes
    assert kept.describe()["returns"] == pytest.approx(expected.describe()["returns"])
    np.testing.assert_array_equal(kept.observations["observation"][kept.usable], expected.observations["observation"])
    seen = torch.cat([Sampler(kept, batch_size=400, seed=s).sample().group for s in range(5)]).unique()
    assert not set(seen.tolist()) & set(np.unique(mapped.episodes[kept.hidden]).tolist())
    with pytest.raises(ValueError, match="before you split"):
        kept.save("x.npz")


def test_a_second_split_keeps_the_first(pair: tuple[Dataset, Dataset]) -> None:
    kept, first = pair[1].split(0.25, seed=0)
    rest, second = kept.split(0.25, seed=1)
    parts = [part.observations["observation"][part.usable][:, 0] for part in (rest, first, second)]
    assert sorted(np.concatenate(parts).tolist()) == sorted(pair[0].observations["observation"][:, 0].tolist())


def test_checks_reach_mapped_columns(tmp_path: Path, pair: tuple[Dataset, Dataset]) -> None:
    pair[0].save(tmp_path / "bad.apev")
    rows = np.load(tmp_path / "bad.apev" / "rows.npy", mmap_mode="r+")
    rows[[7, 400], 20] = np.nan
    rows.flush()
    header = tmp_path / "bad.apev" / "header.json"  # as older versions wrote it, without checksums
    facts = {key: value for key, value in json.loads(header.read_text()).items() if key not in ("files", "sha256")}
    header.write_text(json.dumps(facts))
    with pytest.raises(DataError, match="row 7: value is NaN") as caught:
        Dataset.load(tmp_path / "bad.apev")
    assert caught.value.rows is not None
    assert caught.value.rows.tolist() == [7, 400]


def test_a_data_set_may_be_written_over_the_file_it_is_mapped_from(tmp_path: Path, pair: tuple[Dataset, Dataset]) -> None:
    for name in ("x.apev", "x.hdf5"):
        pair[0].save(tmp_path / name)
        data = Dataset.load(tmp_path / name)
        data.save(tmp_path / name)
        for one in (data, Dataset.load(tmp_path / name)):
            np.testing.assert_array_equal(one.observations["observation"], pair[0].observations["observation"])


def test_a_batch_for_another_device_is_gathered_on_the_cpu(pair: tuple[Dataset, Dataset]) -> None:
    sampler = Sampler(pair[1], batch_size=16, device="meta")  # stands for a GPU: a device without the columns
    batch = sampler.sample()
    assert {part.device.type for part in (batch.obs.vector, batch.next_obs.vector, batch.action, batch.group)} == {"meta"}
    assert (batch.obs.vector.shape, batch.action.shape) == ((16, 17), (16, 6))
