import hashlib
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from narrow import there

import apev.envs  # noqa: F401 (registers the environments)
from apev.commands.collect_maze import CollectMaze
from apev.experiments.procgen.log import TEST_LEVELS, log_mazes, make_mazes
from apev.experiments.procgen.maze import ACTIONS, CHEESE, HORIZON, MOVES, WORLD, Mode, make_maze
from apev.experiments.procgen.pictures import SIDE, SimpleRenderer, make_renderer
from apev.experiments.procgen.world import BatchedMaze, MazeEnv

# Digests of levels 0 to 99 that were equal to Procgen's when they were taken: they hold where Procgen is not installed.
DIGESTS = {"easy": "b5f8b11ac39cbd93", "hard": "03b08ba52194284f"}

levels = st.integers(0, 2**31 - 1)
modes = st.sampled_from(sorted(WORLD))


def digest(mode: Mode) -> str:
    found = hashlib.sha256()
    for level in range(100):
        maze = make_maze(level, mode)
        found.update(maze.grid.tobytes() + bytes(maze.goal))
    return found.hexdigest()[:16]


@pytest.mark.parametrize("mode", sorted(WORLD))
def test_layouts_are_those_of_procgen(mode: Mode) -> None:
    assert digest(mode) == DIGESTS[mode]


@settings(deadline=None, max_examples=40)
@given(levels, modes)
def test_a_maze_is_a_tree_in_the_middle_of_the_board(level: int, mode: Mode) -> None:
    maze = make_maze(level, mode)
    steps = maze.following != np.arange(maze.count)[:, None]
    doors = maze.distance[-1] == 0
    from_goal = int((maze.following == maze.count).sum())
    assert doors
    assert steps.sum() + from_goal == 2 * maze.count  # every passage is walked from both ends: cells - 1 passages
    assert maze.distance.max() < len(maze.cells)  # the cheese is reached from everywhere
    assert maze.size % 2 == 1
    assert 3 <= maze.size <= WORLD[mode]
    edge = np.flatnonzero(maze.grid.any(0))
    assert (edge[0], edge[-1]) == (maze.margin, maze.margin + maze.size - 1)
    assert tuple(maze.cells[maze.start]) == (maze.margin, maze.margin) != maze.goal


@settings(deadline=None, max_examples=20)
@given(levels, modes)
def test_distances_fall_by_one_along_the_best_step_and_by_no_more(level: int, mode: Mode) -> None:
    maze = make_maze(level, mode)
    after = maze.distance[maze.following]
    np.testing.assert_array_equal(after.min(1), maze.distance[:-1] - 1)
    assert (np.abs(after - maze.distance[:-1, None]) <= 1).all()


def test_steps_go_where_their_names_say() -> None:
    maze = make_maze(3, "hard")
    assert ACTIONS == ("left", "down", "up", "right")
    for cell in range(maze.count):
        for action in range(4):
            x, y = maze.cells[cell] + MOVES[action]
            inside = 0 <= x < len(maze.grid) and 0 <= y < len(maze.grid)
            expected = maze.numbers[y, x] if inside and maze.grid[y, x] else cell
            assert maze.following[cell, action] == expected


@pytest.mark.parametrize(("level", "mode"), [(-1, "easy"), (2**31, "hard"), (0, "extreme")])
def test_a_senseless_level_is_named(level: int, mode: Mode) -> None:
    with pytest.raises(ValueError, match="Fix"):
        make_maze(level, mode)


# ---------------------------------------------------------------------- pictures


def test_our_pictures_differ_where_the_mouse_is_and_where_it_looks() -> None:
    maze = make_maze(5, "hard")
    both = np.repeat(maze.cells[:-1], 2, axis=0), np.tile([False, True], maze.count)
    shown = SimpleRenderer().pictures(maze, *both)
    assert shown.shape == (2 * maze.count, SIDE, SIDE, 3)
    assert shown.dtype == np.uint8
    assert len(np.unique(shown.reshape(len(shown), -1), axis=0)) == len(shown)
    moved = (shown[0] != shown[1]).any(-1)
    assert 0 < moved.sum() <= 12


def test_our_pictures_have_the_maze_the_right_way_up() -> None:
    maze = make_maze(3, "easy")
    x, y = maze.cells[0]
    with_mouse = SimpleRenderer().pictures(maze, maze.cells[:1], np.array([False]))[0]
    world = len(maze.grid)
    for cx in range(world):
        for cy in range(world):
            pixel = with_mouse[SIDE - 1 - int((cy + 0.5) * SIDE / world), int((cx + 0.5) * SIDE / world)]
            is_wall = tuple(pixel) == (200, 150, 100)
            assert is_wall == (not maze.grid[cy, cx]), (cx, cy, x, y)


def test_an_unknown_renderer_is_named() -> None:
    with pytest.raises(ValueError, match="Fix: 'procgen' or 'simple'"):
        make_renderer("blender", "easy")  # type: ignore[arg-type]


# ---------------------------------------------------------------------- environments


def test_gymnasium_accepts_the_environment() -> None:
    env = gymnasium.make("apev/Maze-v0", mode="easy", num_levels=5)
    check_env(env.unwrapped, skip_render_check=True)


def test_an_episode_ends_with_the_cheese() -> None:
    env = MazeEnv("easy")
    obs, info = env.reset(options={"level": 7})
    total = 0.0
    while info["distance"]:
        best = int(env.maze.distance[env.maze.following[env.cell]].argmin())
        obs, reward, ended, cut, info = env.step(best)
        total += reward
    assert (total, ended, cut, info["success"]) == (CHEESE, True, False, True)
    assert obs.shape == (SIDE, SIDE, 3)
    with pytest.raises(RuntimeError, match="reset"):
        env.step(0)


def test_many_mazes_step_as_one_does() -> None:
    mazes = make_mazes(0, 6, "easy")
    batch, rng = BatchedMaze(mazes, copies=2), np.random.default_rng(0)
    seen = batch.reset()
    envs = [MazeEnv("easy") for _ in range(batch.num_envs)]
    for env, obs, which in zip(envs, batch.pictures[seen], batch.which, strict=True):
        np.testing.assert_array_equal(env.reset(options={"level": mazes[which].level})[0], obs)
    over = np.zeros(batch.num_envs, dtype=bool)
    for _ in range(60):
        actions = rng.integers(4, size=batch.num_envs)
        seen, reward, ended, cut, info = batch.step(actions)
        np.testing.assert_array_equal(info["active"], ~over)
        for i in np.flatnonzero(~over):
            picture, paid, found, stopped, _ = envs[i].step(int(actions[i]))
            assert (paid, found, stopped) == (reward[i], ended[i], cut[i])
            if not found:
                np.testing.assert_array_equal(picture, batch.pictures[seen[i]])
        over |= ended | cut
        assert not reward[over & ~info["active"]].any()
    assert over.any()


def test_time_is_up_after_the_horizon() -> None:
    batch = BatchedMaze(make_mazes(0, 3, "easy"), horizon=5)
    batch.reset()
    for step in range(1, 6):
        _, _, ended, cut, _ = batch.step(np.zeros(3, dtype=np.int64))
        assert (cut == (~ended & (step == 5))).all()
    assert HORIZON == 500


@pytest.mark.parametrize("actions", [np.zeros(2, dtype=int), np.full(3, 4), np.full(3, -1), np.zeros(3)])
def test_senseless_actions_are_named(actions: np.ndarray) -> None:
    batch = BatchedMaze(make_mazes(0, 3, "easy"))
    batch.reset()
    with pytest.raises(ValueError, match="actions: need"):
        batch.step(actions)


# ---------------------------------------------------------------------- the log


def test_the_log_holds_every_step_from_every_cell_once() -> None:
    mazes = make_mazes(0, 5, "easy")
    data = log_mazes(mazes, "simple")
    counts = [maze.count for maze in mazes]
    assert len(data) == 4 * sum(counts)
    assert len(there(data.pictures)) == sum(counts)
    assert data.num_groups == 5
    np.testing.assert_array_equal(np.bincount(data.group), 4 * np.array(counts))
    assert data.usable.all()
    np.testing.assert_array_equal(data.rewards == CHEESE, data.terminated)
    first = np.cumsum([0, *counts])
    now, after = data.observations["observation"], data.next_observations["observation"]
    for number, maze in enumerate(mazes):
        rows = data.group == number
        cell, then, action = now[rows] - first[number], after[rows] - first[number], data.actions[rows]
        expected = maze.following[cell, action]
        ends = expected == maze.count
        np.testing.assert_array_equal(data.terminated[rows], ends)
        np.testing.assert_array_equal(then[~ends], expected[~ends])


def test_the_log_shows_both_gazes_about_equally_often() -> None:
    mazes = make_mazes(0, 20, "easy")
    data = log_mazes(mazes, "simple", seed=1)
    right = SimpleRenderer().pictures(mazes[0], mazes[0].cells[:-1], np.zeros(mazes[0].count, dtype=bool))
    same = (there(data.pictures)[: mazes[0].count] == right).all((1, 2, 3))
    assert 0.2 < same.mean() < 0.8


def test_collect_writes_a_file_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    CollectMaze(out=tmp_path / "maze.npz", levels=3, mode="easy", renderer="simple").run()
    from apev.data import Dataset

    data = Dataset.load(tmp_path / "maze.npz")
    assert data.num_groups == 3
    assert f"{len(data):,} transitions" in capsys.readouterr().out
    with pytest.raises(ValueError, match="Fix: at least 1"):
        CollectMaze(levels=0, renderer="simple").run()


def test_test_levels_are_not_training_levels() -> None:
    assert TEST_LEVELS > 100_000


def test_mazes_are_logged_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from apev.cli import main
    from apev.data import Dataset

    main(["collect", "maze", "--levels", "3", "--mode", "easy", "--renderer", "simple", "--out", str(tmp_path / "log.npz")])
    told = capsys.readouterr().out
    log = Dataset.load(tmp_path / "log.npz")
    assert f"{len(log):,} transitions" in told
    assert log.num_actions == 4
    assert len(set(log.group)) == 3
