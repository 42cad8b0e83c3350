"""Batches: the right rows with the right pictures, drawn uniformly, and the same again after a resume."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from apev.data import Batch, DataError, Dataset, Sampler

EPISODES, LENGTH, PICTURES = 30, 4, 10
ROWS = EPISODES * LENGTH


def log(*, shared: bool = True, given_next: bool = False, picture: bool = True, raw: bool = False) -> Dataset:
    """Row numbers as observations, so that a batch says which rows it holds; picture p is all p.

    Every third episode ends by truncation, the others by termination.
    """
    row = np.arange(ROWS)
    last = row % LENGTH == LENGTH - 1
    cut = last & (row // LENGTH % 3 == 0)
    index = row // LENGTH % PICTURES if shared else row % PICTURES
    table = np.arange(PICTURES, dtype=np.uint8)[:, None, None, None] * np.ones((1, 4, 6, 3), dtype=np.uint8)
    after = index if shared else (index + 1) % PICTURES
    observations: dict[str, Any] = {"row": row.astype(np.int32), "one": np.ones((ROWS, 2), dtype=np.uint8)}
    following: dict[str, Any] = {"row": row.astype(np.int32) + 1, "one": np.ones((ROWS, 2), dtype=np.uint8)}
    if picture:
        observations["image"], following["image"] = (table[index], table[after]) if raw else (index, after)
    return Dataset.from_arrays(
        observations,
        row % 4,
        row / 2,
        last & ~cut,
        cut,
        next_observations=following if given_next else None,
        pictures={"image": table} if picture and not raw else None,
    )


def check(batch: Batch, data: Dataset) -> np.ndarray:
    """Every field of the batch is that of the rows it claims to hold; returns those rows."""
    rows = batch.obs.vector[:, 0].long().numpy()
    assert batch.obs.vector.dtype == torch.float32
    assert data.usable[rows].all()
    np.testing.assert_array_equal(batch.obs.vector[:, 1:], np.ones((len(rows), 2)))
    np.testing.assert_array_equal(batch.action, data.actions[rows])
    np.testing.assert_array_equal(batch.reward, data.rewards[rows])
    np.testing.assert_array_equal(batch.terminated, data.terminated[rows].astype(np.float32))
    np.testing.assert_array_equal(batch.group, data.group[rows])
    assert (batch.action.dtype, batch.reward.dtype, batch.terminated.dtype) == (
        torch.int64,
        torch.float32,
        torch.float32,
    )
    np.testing.assert_array_equal(batch.next_obs.vector[:, 0], data.next_observations["row"][rows, 0])
    going_on = ~data.terminated[rows]
    np.testing.assert_array_equal(batch.next_obs.vector[:, 0][going_on], rows[going_on] + 1)
    if data.pictures is None:
        assert batch.obs.pictures is None
        assert batch.obs.picture is None
        return rows
    assert batch.obs.pictures is batch.next_obs.pictures
    for obs, column in ((batch.obs, data.observations), (batch.next_obs, data.next_observations)):
        assert obs.pictures is not None
        assert obs.picture is not None
        assert (obs.pictures.dtype, obs.picture.dtype, obs.pictures.shape[1:]) == (torch.uint8, torch.int64, (3, 4, 6))
        shown = obs.pictures[obs.picture].permute(0, 2, 3, 1)
        np.testing.assert_array_equal(shown, data.pictures[column["image"][rows]])
    return rows


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("given_next", [False, True])
def test_shared_pictures_are_drawn_once_for_many_rows(given_next: bool, raw: bool) -> None:
    data = log(given_next=given_next, raw=raw)
    sampler = Sampler(data, batch_groups=6, per_group=5, seed=1)
    seen: set[int] = set()
    for _ in range(60):
        batch = sampler.sample()
        assert batch.obs.pictures is not None
        assert batch.obs.picture is not None
        assert batch.next_obs.picture is not None
        assert batch.obs.pictures.shape == (6, 3, 4, 6)
        assert batch.obs.pictures.is_contiguous(memory_format=torch.channels_last)
        assert batch.obs.picture.tolist() == np.repeat(np.arange(6), 5).tolist()
        assert batch.next_obs.picture.tolist() == batch.obs.picture.tolist()
        seen |= set(check(batch, data).tolist())
    assert sampler.batch_size == 30
    assert seen == set(np.flatnonzero(data.usable).tolist())


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("given_next", [False, True])
def test_changing_pictures_are_gathered_before_and_after_the_step(given_next: bool, raw: bool) -> None:
    data = log(shared=False, given_next=given_next, raw=raw)
    assert not data.shared_pictures
    sampler = Sampler(data, batch_size=40)
    for _ in range(20):
        batch = sampler.sample()
        assert batch.obs.pictures is not None
        assert batch.obs.picture is not None
        assert batch.next_obs.picture is not None
        assert batch.obs.pictures.shape == (80, 3, 4, 6)
        assert batch.obs.pictures.is_contiguous(memory_format=torch.channels_last)
        assert batch.obs.picture.tolist() == list(range(40))
        assert batch.next_obs.picture.tolist() == list(range(40, 80))
        check(batch, data)


@pytest.mark.parametrize("given_next", [False, True])
def test_vectors_alone(given_next: bool) -> None:
    data = log(picture=False, given_next=given_next)
    sampler = Sampler(data, batch_size=64)
    seen = np.unique(np.concatenate([check(sampler.sample(), data) for _ in range(40)]))
    assert seen.tolist() == np.flatnonzero(data.usable).tolist()


def test_a_picture_alone_has_an_empty_vector() -> None:
    image = np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1)
    flags = np.array([False, True] * 3)
    batch = Sampler(Dataset.from_arrays(image, [0] * 6, [0] * 6, flags, ~flags & False), batch_size=7).sample()
    assert batch.obs.vector.shape == (7, 0)
    assert batch.next_obs.vector.dtype == torch.float32


def test_continuous_actions_keep_their_shape() -> None:
    actions = np.random.default_rng(0).random((4, 3)).astype(np.float32)
    data = Dataset.from_arrays(np.arange(4.0), actions, np.zeros(4), [False] * 3 + [True], [False] * 4)
    batch = Sampler(data, batch_size=9).sample()
    np.testing.assert_array_equal(batch.action, actions[batch.obs.vector[:, 0].long()])


def test_groups_are_equally_likely_whatever_their_size_and_so_are_rows_within() -> None:
    sizes = np.array([1, 2, 3, 5, 8, 13, 21, 34])
    picture = np.repeat(np.arange(8), sizes)
    ends = np.append(picture[1:] != picture[:-1], True)
    rows = len(picture)
    data = Dataset.from_arrays(
        {"image": picture, "row": np.arange(rows)},
        np.zeros(rows, dtype=int),
        np.zeros(rows),
        ends,
        np.zeros(rows, dtype=bool),
        pictures={"image": np.arange(9, dtype=np.uint8).reshape(9, 1, 1, 1)},  # picture 8 is never shown
    )
    sampler = Sampler(data, batch_groups=32, per_group=8, seed=5)
    drawn = [sampler.sample() for _ in range(150)]
    groups = np.bincount(np.concatenate([batch.group[::8] for batch in drawn]), minlength=9)
    assert groups[8] == 0
    assert stats.chisquare(groups[:8]).pvalue > 1e-3
    seen = np.concatenate([batch.obs.vector[:, 0].long() for batch in drawn])
    within = np.bincount(seen[picture[seen] == 7], minlength=rows)[-34:]
    assert stats.chisquare(within).pvalue > 1e-3


@pytest.mark.parametrize("picture", [False, True])
def test_named_contexts_are_drawn_together(picture: bool) -> None:
    plain = log(picture=picture)
    data = replace(plain, contexts=plain.episodes // 5)  # five episodes each, six contexts
    batch = Sampler(data, batch_groups=4, per_group=8, seed=0).sample()
    check(batch, data)
    groups = batch.group.reshape(4, 8)
    assert (groups == groups[:, :1]).all()
    assert len(set(batch.obs.vector[:8, 0].long().tolist())) > 4  # rows of different episodes


def test_rows_without_pictures_are_equally_likely() -> None:
    data = log(picture=False)
    sampler = Sampler(data, batch_size=500, seed=2)
    seen = np.bincount(np.concatenate([sampler.sample().obs.vector[:, 0].long() for _ in range(40)]), minlength=ROWS)
    assert seen[~data.usable].sum() == 0
    assert stats.chisquare(seen[data.usable]).pvalue > 1e-3


def test_groups_without_a_usable_row_are_never_drawn() -> None:
    data = Dataset.from_arrays(
        {"image": np.array([0, 1, 1])},
        [0, 0, 0],
        np.zeros(3),
        [False, False, True],
        [True, False, False],  # picture 0 has one row, truncated, with nothing known after it
        pictures={"image": np.array([50, 51], dtype=np.uint8).reshape(2, 1, 1, 1)},
    )
    sampler = Sampler(data, batch_groups=16, per_group=2)
    for _ in range(10):
        batch = sampler.sample()
        assert batch.obs.pictures is not None
        assert (batch.group == 1).all()
        assert (batch.obs.pictures == 51).all()


def test_no_usable_row_is_a_mistake_with_a_fix() -> None:
    data = Dataset.from_arrays(np.zeros(2), [0, 0], np.zeros(2), [False, False], [True, True])
    with pytest.raises(DataError, match=r"next_observations: .* Fix: pass next_observations"):
        Sampler(data)
    with pytest.raises(ValueError, match="per_group is 0"):
        Sampler(log(), per_group=0)


@pytest.mark.parametrize("shared", [True, False])
def test_resume_repeats_the_same_batches(shared: bool) -> None:
    data = log(shared=shared)

    def rows(sampler: Sampler, count: int) -> list[list[float]]:
        return [sampler.sample().obs.vector[:, 0].tolist() for _ in range(count)]

    first = Sampler(data, batch_groups=4, per_group=4, batch_size=16, seed=7)
    rows(first, 3)
    state = first.state_dict()
    assert state["generator"].dtype == torch.uint8
    ahead = rows(first, 5)
    other = Sampler(data, batch_groups=4, per_group=4, batch_size=16, seed=99)
    assert rows(other, 5) != ahead
    other.load_state_dict(state)
    assert rows(other, 5) == ahead
    other.load_state_dict(state)  # sampling did not change the saved state
    assert rows(other, 5) == ahead
    with pytest.raises(KeyError, match="state_dict"):
        other.load_state_dict({})


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("given_next", [True, False])
def test_given_rows_come_in_order_with_each_picture_once(shared: bool, given_next: bool) -> None:
    data = log(shared=shared, given_next=given_next)
    sampler = Sampler(data)
    before = sampler.state_dict()["generator"]
    batch = sampler.batch(torch.tensor([9, 8, 9, 40, 61]))
    assert check(batch, data).tolist() == [9, 8, 9, 40, 61]
    assert batch.obs.pictures is not None
    assert len(torch.unique(batch.obs.pictures.flatten(1), dim=0)) == len(batch.obs.pictures)
    assert torch.equal(before, sampler.state_dict()["generator"])


def test_rows_that_make_no_transition_are_refused() -> None:
    data = log()
    sampler = Sampler(data)
    with pytest.raises(ValueError, match=r"row 3 has no next observation\. Fix"):
        sampler.batch(torch.tensor([0, 3]))
    for bad in (-1, ROWS):
        with pytest.raises(IndexError, match="Fix"):
            sampler.batch(torch.tensor([bad]))


@pytest.mark.parametrize("picture", [True, False])
def test_iterate_covers_every_usable_row_once_in_order(picture: bool) -> None:
    data = log(picture=picture)
    batches = list(Sampler(data).iterate(32))
    assert np.concatenate([check(batch, data) for batch in batches]).tolist() == np.flatnonzero(data.usable).tolist()
    assert [len(batch.reward) for batch in batches] == [32, 32, 32, 14]


def test_read_only_arrays_are_sampled_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    observations = np.arange(4.0, dtype=np.float32)[:, None]
    observations.flags.writeable = False
    data = Dataset.from_arrays(observations, [0] * 4, np.zeros(4), [False] * 3 + [True], [False] * 4)
    Sampler(data).sample()
    assert len(recwarn) == 0


def test_a_batch_says_whether_rows_show_one_picture_before_and_after_the_step() -> None:
    """It decides which encoder targets read, and must not be lost on the way to another device."""
    shared = Sampler(log(), batch_groups=6, per_group=5).sample()
    changing = Sampler(log(shared=False), batch_size=30).sample()
    assert (shared.shares_pictures, changing.shares_pictures) == (True, False)
    for batch in (shared, changing):
        moved = batch.to(torch.device("meta"))
        assert moved.shares_pictures == batch.shares_pictures
        assert moved.obs.pictures is moved.next_obs.pictures
    vector = log(picture=False)
    assert not Sampler(replace(vector, contexts=vector.episodes // 5), batch_groups=4, per_group=8).sample().shares_pictures


def test_batch_size_is_honoured_where_rows_are_drawn_by_group() -> None:
    sampler = Sampler(log(), batch_size=64)
    assert (sampler.batch_groups, sampler.per_group, sampler.batch_size) == (4, 16, 64)
    assert len(sampler.sample().action) == 64
    assert len(Sampler(log(), batch_size=30, per_group=5).sample().action) == 30
    assert len(Sampler(log()).sample().action) == len(Sampler(log(picture=False)).sample().action) == 512
    for wrong in (100, 8):
        with pytest.raises(ValueError, match=r"16 rows of each, and batch_size \d+ is no multiple.*Fix"):
            Sampler(log(), batch_size=wrong)
        assert Sampler(log(picture=False), batch_size=wrong).batch_size == wrong
