"""Parity with the real Procgen: `make procgen && pytest -m procgen`."""

from collections.abc import Iterator

import numpy as np
import pytest
from narrow import there

from apev.experiments.procgen.engine import INSTALL, ProcgenMaze, installed
from apev.experiments.procgen.log import log_mazes, make_mazes
from apev.experiments.procgen.maze import CHEESE, WORLD, make_maze
from apev.experiments.procgen.pictures import make_renderer
from apev.experiments.procgen.world import BatchedMaze, MazeEnv

pytestmark = [
    pytest.mark.procgen,
    pytest.mark.skipif(not installed(), reason=f"Procgen is not installed: {INSTALL}"),
]

MODES = sorted(WORLD)


@pytest.fixture(scope="module", params=MODES)
def real(request: pytest.FixtureRequest) -> Iterator[ProcgenMaze]:
    env = ProcgenMaze(request.param)
    yield env
    env.close()


def test_layouts_are_equal_on_a_thousand_levels(real: ProcgenMaze) -> None:
    for level in [*range(900), *range(10**6, 10**6 + 95), 2**31 - 2, 123_456_789, 10**9, 77_777_777, 2**30]:
        real.load(level)
        theirs, ours = real.maze, make_maze(level, real.mode)
        np.testing.assert_array_equal(theirs.grid, ours.grid, err_msg=f"level {level}")
        assert theirs.goal == ours.goal, level
        assert real.position == tuple(ours.cells[ours.start]), level


def test_a_level_changed_in_place_is_the_level_of_a_fresh_environment(real: ProcgenMaze) -> None:
    for level in (3, 41):
        real.load(level)
        fresh = ProcgenMaze(real.mode, level)
        np.testing.assert_array_equal(real.picture(), fresh.picture())
        fresh.close()


def test_random_walks_agree_in_everything(real: ProcgenMaze) -> None:
    """Pictures, rewards and ends of our environment with real pixels are those of Procgen's own steps."""
    rng = np.random.default_rng(0)
    for level in range(12):
        env = MazeEnv(real.mode, renderer="procgen")
        picture, _ = env.reset(options={"level": level})
        walker = ProcgenMaze(real.mode, level)
        np.testing.assert_array_equal(picture, walker.picture())
        ended = False
        for _ in range(120):
            action = int(rng.integers(4))
            theirs, paid, ended = walker.step(action)
            ours, reward, found, cut, info = env.step(action)
            assert (reward, found) == (paid, ended)
            if ended:
                assert paid == CHEESE
                break
            np.testing.assert_array_equal(ours, theirs)
            assert walker.position == info["position"]
            assert not cut
        walker.close()


def test_time_is_up_at_the_same_step(real: ProcgenMaze) -> None:
    walker = ProcgenMaze(real.mode, 0)
    env = MazeEnv(real.mode)
    env.reset(options={"level": 0})
    for step in range(1, 501):
        _, paid, ended = walker.step(0)
        _, _, found, cut, _ = env.step(0)
        assert not found
        assert not paid
        assert ended == cut == (step == 500), step
    walker.close()


def test_logged_pictures_and_steps_are_those_of_the_real_environment(real: ProcgenMaze) -> None:
    """Put the mouse into a cell as the log says, take the step, and look: position and end as logged."""
    mazes = make_mazes(20, 4, real.mode)
    data = log_mazes(mazes, "procgen")
    rows = np.random.default_rng(1).choice(len(data), 60, replace=False)
    now, after = data.observations["observation"], data.next_observations["observation"]
    first = np.cumsum([0] + [maze.count for maze in mazes])
    for row in rows:
        maze, at = mazes[data.group[row]], first[data.group[row]]
        real.load(maze.level)
        x, y = maze.cells[now[row] - at]
        looks = [bool((real.picture_at(x, y, left) == there(data.pictures)[now[row]]).all()) for left in (False, True)]
        assert any(looks)
        _, paid, ended = real.step(int(data.actions[row]))
        assert (paid, ended) == (data.rewards[row], data.terminated[row])
        if not ended:
            assert real.position == tuple(maze.cells[after[row] - at])


def test_a_turn_of_the_mouse_changes_a_few_pixels(real: ProcgenMaze) -> None:
    real.load(9)
    maze = real.maze
    shown = make_renderer("procgen", real.mode).pictures(maze, maze.cells[[0, 0]], np.array([False, True]))
    assert 1 <= (shown[0] != shown[1]).any(-1).sum() <= 12


def test_many_real_mazes_show_what_each_shows(real: ProcgenMaze) -> None:
    mazes = make_mazes(5, 2, real.mode)
    batch = BatchedMaze(mazes, "procgen")
    seen = batch.reset()
    for maze, picture in zip(mazes, batch.pictures[seen], strict=True):
        real.load(maze.level)
        np.testing.assert_array_equal(real.picture(), picture)


def test_a_maze_of_another_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="Fix: make one for its mode"):
        make_renderer("procgen", "easy").pictures(make_maze(0, "hard"), np.array([[0, 0]]), np.array([False]))
