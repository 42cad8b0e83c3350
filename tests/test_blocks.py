"""Rows drawn in blocks: every row of an epoch once, mixed across the log, the same again after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import apev
from apev.cli import main
from apev.data import Dataset, Sampler
from apev.data.blocks import RowBlocks, resolved
from apev.data.history import HistorySampler, WindowSampler
from apev.data.mapped import Pages
from apev.data.prioritised import PrioritisedSampler

EPISODE = 50


def log(rows: int, contexts: np.ndarray | None = None) -> Dataset:
    """Row numbers as observations, so that a batch says which rows it holds."""
    number = np.arange(rows)
    last = number % EPISODE == EPISODE - 1
    if contexts is not None:
        last |= np.append(contexts[1:] != contexts[:-1], True)
    last[-1] = True
    return Dataset.from_arrays(
        number[:, None].astype(np.float32),
        np.random.default_rng(0).uniform(-1, 1, size=(rows, 2)).astype(np.float32),
        number / rows,
        last,
        np.zeros(rows, dtype=bool),
        contexts=contexts,
    )


def rows_of(sampler: Sampler) -> list[int]:
    rows: list[int] = sampler.sample().obs.vector[:, 0].long().tolist()
    return rows


def mapped(data: Dataset, folder: Path) -> Dataset:
    data.save(folder / "log.apev")
    return Dataset.load(folder / "log.apev")


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.integers(1, 64), st.integers(1, 40), st.integers(1, 12), st.integers(0, 99))
def test_an_epoch_holds_every_row_once(rows: int, size: int, block: int, pool: int, seed: int) -> None:
    blocks = RowBlocks(None, rows, size, torch.Generator().manual_seed(seed), None, block, pool)
    for _ in range(2):
        drawn, wanted = [], 0
        while True:
            drawn += blocks.next()[0].tolist()
            assert blocks._now is not None
            now = blocks._now
            if blocks._used == len(now.round.rows):
                there = sum(map(len, now.round.reads))
                wanted += max(1, there // size) * size
                if there < size:  # a tiny round gives its rows again
                    assert len(set(drawn[-size:])) == there
                if now.number + 1 == len(now.epoch.seeds):
                    break
        assert len(drawn) == wanted
        assert set(drawn) <= set(range(rows))
        if size == 1:
            assert sorted(drawn) == list(range(rows))
        if min(rows // len(now.epoch.seeds), block * pool) >= 4 * size:
            assert len(set(drawn)) == len(drawn)


def test_a_batch_comes_from_many_places() -> None:
    sampler = Sampler(log(20_000), batch_size=64, draw="blocks", block_rows=50, pool_blocks=100, seed=1)
    places = [len({row // 50 for row in rows_of(sampler)}) for _ in range(50)]
    assert np.mean(places) > 40  # of 64 rows; a whole block would be 2 at most
    assert np.mean(np.abs(np.diff(rows_of(sampler))) < 50) < 0.1  # neighbours in a batch are none in the log


@pytest.mark.parametrize("by_context", [False, True])
def test_all_rows_are_equally_likely(by_context: bool) -> None:
    data = log(600, np.arange(600) // 100 if by_context else None)
    sampler = Sampler(data, batch_size=48, draw="blocks", block_rows=20, pool_blocks=6, seed=2)
    counts = np.zeros(600)
    for _ in range(2000):
        np.add.at(counts, rows_of(sampler), 1)
    assert counts.sum() == 2000 * 48
    if by_context:  # rows of a block come together: compare places that are far apart
        assert stats.chisquare(counts.reshape(6, 100).sum(1)).statistic < 5 * 120
        assert abs(counts / counts.mean() - 1).max() < 0.5
    else:
        assert abs(counts / counts.mean() - 1).max() < 0.15  # without replacement: nearly the same number


def test_a_context_gives_its_rows_together() -> None:
    contexts = np.repeat(np.arange(40), np.random.default_rng(0).integers(1, 60, size=40))
    data = log(len(contexts), contexts)
    sampler = Sampler(data, batch_groups=5, per_group=4, draw="blocks", block_rows=8, pool_blocks=10)
    seen: set[int] = set()
    for _ in range(3000):
        batch = sampler.sample()
        groups = batch.group.view(5, 4)
        assert bool((groups == groups[:, :1]).all())
        rows = batch.obs.vector[:, 0].long().numpy()
        np.testing.assert_array_equal(contexts[rows], batch.group)
        seen |= set(rows.tolist())
    assert seen == set(np.flatnonzero(data.usable).tolist())


@pytest.mark.parametrize("by_context", [False, True])
@pytest.mark.parametrize("taken", [0, 1, 7, 40])
def test_a_sampler_resumes_exactly(taken: int, by_context: bool, tmp_path: Path) -> None:
    memory = log(1000, np.arange(1000) // 100 if by_context else None)
    data = mapped(memory, tmp_path)
    how: dict[str, Any] = {"batch_size": 32, "draw": "blocks", "block_rows": 16, "pool_blocks": 8}
    sampler = Sampler(data, seed=3, **how)
    for _ in range(taken):
        sampler.sample()
    state = sampler.state_dict()
    coming = [rows_of(sampler) for _ in range(70)]  # more than an epoch
    assert len({tuple(rows) for rows in coming}) == 70
    for other in (Sampler(data, seed=9, **how), Sampler(memory, seed=9, **how), sampler):
        other.load_state_dict(state)
        assert [rows_of(other) for _ in range(70)] == coming
        assert rows_of(other) not in coming
    with pytest.raises(ValueError, match=r"draws blocks, and this one draws rows. Fix: draw='blocks'"):
        Sampler(data, batch_size=32).load_state_dict(state)
    with pytest.raises(ValueError, match=r"Fix: draw='rows'"):
        Sampler(data, **how).load_state_dict(Sampler(data, batch_size=32).state_dict())


def test_rows_are_asked_for_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[int] = set()
    original, most = Pages.fetch, [0]

    def fetch(self: Pages, rows: np.ndarray) -> None:
        asked.update(rows.tolist())
        most[0] = max(most[0], len(rows))
        original(self, rows)

    monkeypatch.setattr(Pages, "fetch", fetch)
    sampler = Sampler(mapped(log(2000), tmp_path), batch_size=32, draw="blocks", block_rows=16, pool_blocks=16)
    for _ in range(120):
        assert set(rows_of(sampler)) <= asked
    assert most[0] <= 64  # never a whole round at once


def test_hidden_rows_stay_hidden(tmp_path: Path) -> None:
    kept, _ = mapped(log(1000), tmp_path).split(0.3, seed=0)
    sampler = Sampler(kept, batch_size=20, draw="blocks", block_rows=16, pool_blocks=4)
    seen = {row for _ in range(300) for row in rows_of(sampler)}
    assert seen == set(np.flatnonzero(kept.usable).tolist())


def test_auto_takes_blocks_where_memory_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = log(1000)
    data = mapped(memory, tmp_path)
    size = 1000 * 3 * 4
    for there, expected in ((2 * size, "rows"), (2 * size - 2, "blocks"), (None, "rows")):
        monkeypatch.setattr("apev.data.blocks.free_memory", lambda there=there: there)
        assert resolved("auto", data) == Sampler(data, batch_size=8).draw == expected
        assert resolved("auto", memory) == "rows"
    with pytest.raises(ValueError, match=r"draw is 'all'. Fix"):
        Sampler(memory, draw="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="block_rows is 0"):
        Sampler(memory, draw="blocks", block_rows=0)


def test_samplers_that_choose_their_own_rows_do_so_still(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("apev.data.blocks.free_memory", lambda: 1)
    data = mapped(log(1000), tmp_path)
    windows = WindowSampler(data, window=8, burn_in=2, batch_size=64)
    assert windows.draw == PrioritisedSampler(data, 4, by_context=False).draw == "rows"
    past = HistorySampler(data, steps=3, batch_size=64, block_rows=16, pool_blocks=4)
    assert past.draw == "blocks"
    batch = past.sample()
    rows = batch.obs.vector[:, :1]
    there = batch.past.there  # type: ignore[attr-defined]
    before = batch.past.vector[..., 0]  # type: ignore[attr-defined]
    assert torch.equal(before[there], (rows - torch.tensor([3.0, 2.0, 1.0]))[there])


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in apev.load(folder).agent.state_dict().items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_a_training_in_blocks_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = mapped(log(2000), tmp_path)
    how: dict[str, Any] = {"hidden": (8,), "batch_size": 64, "seed": 4}
    apev.train(data, "td3-bc", out=tmp_path / "rows", updates=60, **how)
    apev.train(data, "td3-bc", out=tmp_path / "whole", updates=60, draw="blocks", **how)
    assert not same(weights(tmp_path / "rows"), weights(tmp_path / "whole"))
    monkeypatch.setattr("apev.data.blocks.free_memory", lambda: 1)
    apev.train(data, "td3-bc", out=tmp_path / "parts", updates=23, **how)  # auto: blocks
    monkeypatch.setattr("apev.data.blocks.free_memory", lambda: 10**15)
    apev.train(data, "td3-bc", out=tmp_path / "parts", updates=60, resume=True, **how)  # as it began
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    apev.train(data, "td3-bc", out=tmp_path / "again", updates=60, **how)
    assert same(weights(tmp_path / "rows"), weights(tmp_path / "again"))
    with pytest.raises(ValueError, match="draw was 'blocks'"):
        apev.train(data, "td3-bc", out=tmp_path / "parts", updates=70, resume=True, draw="rows", **how)


def test_the_command_line_says_how_rows_are_drawn(tmp_path: Path) -> None:
    mapped(log(2000), tmp_path)
    words = ["train", "--data", str(tmp_path / "log.apev"), "--agent", "bc", "--updates", "10", "--set", "hidden=8,8"]
    for draw in ("rows", "blocks"):
        main([*words, "--draw", draw, "--out", str(tmp_path / draw)])
    assert not same(weights(tmp_path / "rows"), weights(tmp_path / "blocks"))


def test_kinds_take_single_rows() -> None:
    rng, contexts = np.random.default_rng(0), np.repeat(np.arange(20), 40)
    actions, last = rng.integers(2, size=800), np.arange(800) % 40 == 39
    paid = np.where(actions == contexts % 2, 1.0, -1.0)  # which action pays is the kind of a context
    data = Dataset.from_arrays(rng.normal(size=(800, 2)), actions, paid, last, ~last & last, contexts=contexts)
    kinds = [context % 2 for context in range(20)]
    with pytest.raises(ValueError, match=r"2 kinds of contexts, and a batch takes single rows of each.*draw='rows'"):
        apev.train(data, "ape-v", updates=1, draw="blocks", kinds=kinds)
