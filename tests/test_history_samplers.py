"""Batches for agents that keep a history: the steps before each row, and windows of episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from apev.data import Dataset
from apev.data.history import HistorySampler, WindowSampler, windows_of


def numbered(lengths: list[int], *, given_next: bool = False) -> Dataset:
    """Episodes of these lengths whose row i shows i, does i % 2 and is paid 10 i; a time limit ends each."""
    n, last = sum(lengths), np.zeros(sum(lengths), dtype=bool)
    last[np.cumsum(lengths) - 1] = True
    number = np.arange(n, dtype=np.float32)
    following = (number + 1)[:, None] if given_next else None
    return Dataset.from_arrays(
        number[:, None], np.arange(n) % 2, 10 * number, last & False, last, next_observations=following, num_actions=2
    )


def test_the_steps_before_a_row_by_hand() -> None:
    batch: Any = HistorySampler(numbered([3, 4]), steps=2).batch(torch.tensor([0, 1, 3, 5]))
    past = batch.past
    assert past.there.tolist() == [[False, False], [False, True], [False, False], [True, True]]
    assert past.vector[3, :, 0].tolist() == [3, 4]
    assert past.action[3].tolist() == [1, 0]
    assert past.reward[3].tolist() == [30, 40]
    assert past.vector[1, 1, 0] == 0
    assert batch.obs.vector[:, 0].tolist() == [0, 1, 3, 5]


def test_windows_of_an_episode_by_hand() -> None:
    begin, first, end = windows_of(numbered([10, 2], given_next=True), window=4, burn_in=1)
    assert begin.tolist() == [0, 3, 6, 10]
    assert first.tolist() == [0, 4, 7, 10]
    assert end.tolist() == [4, 7, 10, 12]


@pytest.mark.parametrize("given_next", [True, False])
@pytest.mark.parametrize(("window", "burn_in"), [(64, 16), (8, 2), (5, 1), (1, 0)])
def test_every_usable_row_counts_in_one_window(window: int, burn_in: int, given_next: bool) -> None:
    log = numbered([1, 7, 8, 9, 30, 64, 65, 200], given_next=given_next)
    begin, first, end = windows_of(log, window, burn_in)
    counted = np.concatenate([np.arange(a, b) for a, b in zip(first, end, strict=True)])
    assert len(np.unique(counted)) == len(counted)
    assert set(np.flatnonzero(log.usable)) <= set(counted)
    assert bool((log.episodes[begin] == log.episodes[end - 1]).all())
    assert bool((end - begin <= window).all())
    inside = begin != np.searchsorted(log.episodes, log.episodes[begin])
    assert bool((first - begin >= burn_in)[inside].all())


def test_a_batch_of_windows_follows_episodes_and_counts_no_row_twice() -> None:
    log = numbered([3, 10, 2], given_next=True)
    sampler = WindowSampler(log, window=4, burn_in=1, batch_size=100, seed=0)
    batch = sampler.sample()
    assert batch.window == 4
    assert batch.counted is not None
    shown, counted = batch.obs.vector[:, 0].reshape(-1, 4), batch.counted.reshape(-1, 4)
    assert len(shown) == 25
    assert bool(((shown.diff(dim=1) == 1) | ~counted[:, 1:]).all())
    for row, learned in zip(shown.tolist(), counted.tolist(), strict=True):
        own = [number for number, here in zip(row, learned, strict=True) if here]
        assert own in ([0, 1, 2], [3, 4, 5, 6], [7, 8, 9], [10, 11, 12], [13, 14])


@pytest.mark.parametrize(("kind", "how"), [(HistorySampler, {"steps": 3}), (WindowSampler, {"window": 4, "burn_in": 1})])
def test_a_sampler_goes_on_where_its_state_was_taken(kind: Any, how: dict[str, int]) -> None:
    one, two = (kind(numbered([3, 10, 2]), **how) for _ in range(2))
    one.sample()
    two.load_state_dict(one.state_dict())
    for _ in range(3):
        assert torch.equal(one.sample().obs.vector, two.sample().obs.vector)
