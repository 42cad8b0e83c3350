"""City navigation: the map, its two worlds, the log, and thousands of days at once."""

from __future__ import annotations

import numpy as np
import pytest

from apev.bayes import best_markov, solve
from apev.data import Dataset
from apev.experiments.theory.batch import TabularBatch
from apev.experiments.theory.city import BLOCKED, OPEN, City, collect_drives

UP, RIGHT, DOWN, LEFT = range(4)


def drive(city: City, world: int, actions: list[int]) -> tuple[list[tuple[int, int]], bool]:
    """The cells passed, and whether the destination was reached."""
    day = TabularBatch(city.posterior, [world], city.features, city.horizon)
    day.reset()
    cells, ended = [tuple(city.cells[day.state[0]])], np.array([False])
    for action in actions:
        _, reward, ended, _, info = day.step(np.array([action]))
        assert reward[0] == -1
        assert info["success"][0] == ended[0]
        cells.append(tuple(city.cells[day.state[0]]))
    return [(int(x), int(y)) for x, y in cells], bool(ended[0])


def test_the_side_street_is_short_when_it_is_open() -> None:
    city = City(width=7, height=5, depth=2)
    cells, arrived = drive(city, OPEN, [RIGHT] * 6)
    assert arrived
    assert cells == [(x, 4) for x in range(7)]


def test_a_blockade_changes_nothing_but_the_clock() -> None:
    city = City(width=7, height=5, depth=2)
    cells, arrived = drive(city, BLOCKED, [RIGHT] * 5)
    assert not arrived
    assert cells == [(0, 4), (1, 4), (2, 4), (2, 4), (2, 4), (2, 4)]
    cells, arrived = drive(city, BLOCKED, [UP] * 4 + [RIGHT] * 6 + [DOWN] * 4)
    assert arrived
    assert drive(city, BLOCKED, [DOWN, LEFT])[0] == [(0, 4)] * 3  # buildings


def test_exact_values_of_the_three_ways() -> None:
    """Wide road 14 steps; side street 6; two in, one refused, two back, 14 around: 19 on a blocked day."""
    city = City(width=7, height=5, depth=2, open_share=0.6)
    assert solve(city.posterior).value == pytest.approx(-(0.6 * 6 + 0.4 * 19), abs=1e-9)
    assert best_markov(city.posterior, restarts=2).value >= -14 - 1e-6
    assert city.distances(False)[city.home] == 6
    assert city.distances(True)[city.home] == 14
    assert city.distances(False, wide_only=True)[city.home] == 14


def test_the_log_is_mostly_wide_road_and_a_day_stays_as_it_is() -> None:
    city = City()
    columns = collect_drives(city, days=60, seed=1)
    data = Dataset.from_arrays(**columns)
    assert data.num_groups == 60
    place = data.observations["observation"].argmax(1)
    assert 0.02 < city.side_street[place].mean() < 0.35
    push = (place == city.state(city.depth, city.height - 1)) & (data.actions == RIGHT)
    passed = data.next_observations["observation"].argmax(1)[push] == city.barrier
    for day in np.unique(data.group[push]):
        here = data.group[push] == day
        assert len(set(passed[here].tolist())) == 1, f"day {day} is both open and blocked"
    assert 0.3 < len(np.unique(data.group[push][passed])) / len(np.unique(data.group[push])) < 0.9
    assert (data.rewards == -1).all()
    assert data.terminated.sum() > 0.8 * data.num_episodes


def test_the_log_is_the_same_for_the_same_seed() -> None:
    one, two, other = (collect_drives(City(), days=5, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one["actions"], two["actions"])
    assert len(one["actions"]) != len(other["actions"]) or (one["actions"] != other["actions"]).any()


@pytest.mark.parametrize("bad", [{"width": 3}, {"height": 2}, {"depth": 0}, {"depth": 6}, {"open_share": 1.0}])
def test_impossible_cities_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="Fix"):
        City(**bad)  # type: ignore[arg-type]
