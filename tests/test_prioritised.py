from typing import Any

import numpy as np
import pytest
import torch
from narrow import there
from scipy.stats import chisquare

from apev.data import Dataset
from apev.data.prioritised import LEAST, Priorities, PrioritisedSampler
from apev.data.returns import logged_returns
from apev.experiments.procgen.log import log_mazes, make_mazes

MAZES = make_mazes(0, 6, "easy")
LOG = log_mazes(MAZES, "simple")


def test_items_are_drawn_as_often_as_their_probabilities_say() -> None:
    priorities = Priorities(6, exponent=0.6)
    priorities.learn(torch.arange(5), torch.tensor([0.5, 1.0, 2.0, 0.1, 4.0]))
    expected = torch.tensor([0.5, 1.0, 2.0, 0.1, 4.0, 4.0]) ** 0.6  # the one unseen is as likely as the worst
    np.testing.assert_allclose(priorities.probabilities, (expected / expected.sum()).double(), rtol=1e-6)
    items, _ = priorities.draw(20_000, torch.Generator().manual_seed(0))
    counts = np.bincount(items, minlength=6)
    assert chisquare(counts, 20_000 * priorities.probabilities.numpy()).pvalue > 1e-3


def test_importance_undoes_the_priorities() -> None:
    """With beta = 1 the weighted mean over draws is the plain mean over items, whatever the priorities are."""
    priorities = Priorities(3, exponent=1.0, beta=1.0)
    priorities.learn(torch.arange(3), torch.tensor([5.0, 1.0, 0.2]))
    value = torch.tensor([1.0, 10.0, 100.0])
    items, weights = priorities.draw(200_000, torch.Generator().manual_seed(1))
    weighted = float((weights * value[items]).sum() / weights.sum())
    assert weighted == pytest.approx(37.0, rel=0.03)
    assert float(weights.max()) == 1.0


def test_without_an_exponent_every_item_is_equally_likely() -> None:
    priorities = Priorities(2, exponent=0.0)
    priorities.learn(torch.tensor([0, 1]), torch.tensor([9.0, 0.0]))
    np.testing.assert_allclose(priorities.probabilities, [0.5, 0.5])
    assert float(priorities.values.min()) == LEAST


def test_a_batch_holds_all_transitions_of_its_levels_and_each_picture_once() -> None:
    batch = PrioritisedSampler(LOG, 2, seed=3).sample()
    levels = batch.group.unique().tolist()
    picture, after = there(batch.obs.picture), there(batch.next_obs.picture)
    cells = sum(MAZES[level].count for level in levels)
    assert len(there(batch.obs.pictures)) == cells
    assert len(batch.action) % (4 * cells) == 0 or len(levels) == 2
    for level in levels:
        assert int((batch.group == level).sum()) % (4 * MAZES[level].count) == 0
    assert bool((picture.bincount() >= 4).all())
    assert bool((after != picture).any())
    assert int(after.max()) < cells


def test_some_pictures_of_many_levels() -> None:
    returns = logged_returns(LOG, 0.99, -1.0)
    batch = PrioritisedSampler(LOG, 4, pictures=3, returns=returns).sample()
    assert len(batch.action) == 4 * 3 * 4
    assert len(there(batch.obs.pictures)) <= 12
    assert bool((there(batch.obs.picture).bincount() % 4 == 0).all())
    assert there(batch.returns).shape == batch.action.shape


def test_what_was_costly_comes_back() -> None:
    sampler = PrioritisedSampler(LOG, 1, exponent=1.0)
    for _ in range(60):
        batch = sampler.sample()
        there(batch.learned)(torch.where(batch.group == 2, 50.0, 0.1))
    drawn = [int(sampler.sample().group[0]) for _ in range(40)]
    assert drawn.count(2) > 30


def test_transitions_can_be_drawn_one_by_one() -> None:
    batch = PrioritisedSampler(LOG, 16, by_context=False).sample()
    assert batch.action.shape == there(batch.weight).shape == (16,)
    there(batch.learned)(torch.ones(16))


def test_a_resumed_sampler_draws_the_same() -> None:
    ours = PrioritisedSampler(LOG, 2, pictures=5, returns=logged_returns(LOG, 0.9), seed=1)
    for _ in range(3):
        batch = ours.sample()
        there(batch.learned)(torch.rand(len(batch.action), generator=torch.Generator().manual_seed(0)))
    other = PrioritisedSampler(LOG, 2, pictures=5, returns=logged_returns(LOG, 0.9), seed=9)
    other.load_state_dict(ours.state_dict())
    for _ in range(3):
        mine, theirs = ours.sample(), other.sample()
        assert torch.equal(there(mine.obs.pictures), there(theirs.obs.pictures))
        assert torch.equal(there(mine.weight), there(theirs.weight))
        there(mine.learned)(torch.full(mine.action.shape, 2.0))
        there(theirs.learned)(torch.full(theirs.action.shape, 2.0))


@pytest.mark.parametrize("wrong", [{"count": 0}, {"count": 2, "pictures": 0}, {"count": 2, "pictures": 3}])
def test_senseless_settings_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="PrioritisedSampler"):
        PrioritisedSampler(LOG, **wrong)
    with pytest.raises(ValueError, match="Fix: exponent"):
        Priorities(2, exponent=-1)


# ---------------------------------------------------------------------- returns


def test_logged_returns_are_those_of_shortest_paths() -> None:
    returns = logged_returns(LOG, 0.99, -1.0)
    row = 0
    for maze in MAZES:
        for cell in range(maze.count):
            for action in range(4):
                steps = 1 + maze.distance[maze.following[cell, action]]  # -1 a step, the last pays 10 - 1
                expected = sum(-(0.99**i) for i in range(steps)) + 0.99 ** (steps - 1) * 10
                assert returns[row] == pytest.approx(expected, abs=1e-4)
                row += 1


def test_where_the_log_reaches_no_end_there_is_no_return() -> None:
    pictures = np.arange(3 * 4, dtype=np.uint8).reshape(3, 2, 2, 1)
    data = Dataset.from_arrays(
        {"observation": np.array([0, 1, 2])},
        np.zeros(3, dtype=np.int64),
        np.zeros(3, dtype=np.float32),
        np.array([False, True, False]),
        np.array([True, False, True]),
        next_observations={"observation": np.array([1, 1, 2])},
        pictures={"observation": pictures},
    )
    np.testing.assert_allclose(logged_returns(data, 0.5, 1.0), [1.5, 1.0, np.nan])
    with pytest.raises(ValueError, match="lead to no end"):
        PrioritisedSampler(data, 1, by_context=False, returns=logged_returns(data, 0.5))
