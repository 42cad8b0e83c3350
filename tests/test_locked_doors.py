"""Locked Doors: the rules, the environment and its batched twin, the oracle, the logged data, the pictures."""

from __future__ import annotations

import itertools
import time
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from apev.envs import BatchedLockedDoors, ImageSet, LockedDoorsEnv, OraclePolicy, Room, collect, load_images
from apev.experiments.locked_doors.render import filmstrip, render_room

UP, RIGHT, DOWN, LEFT = range(4)


@pytest.fixture(scope="module")
def images() -> ImageSet:
    return load_images()


def picture_of(images: ImageSet, label: int) -> int:
    return int(np.flatnonzero(images.test_labels == label)[0])


# ---- the rules


def test_moves_bumps_and_exits() -> None:
    room = Room()
    assert room.door_cells.tolist() == [[4, 0], [8, 4], [4, 8], [0, 4]]
    cases = [  # x, y, action, unlocked door -> x, y, exited, bumped
        (3, 3, UP, 0, 3, 2, False, False),
        (3, 3, RIGHT, 0, 4, 3, False, False),
        (3, 3, DOWN, 0, 3, 4, False, False),
        (3, 3, LEFT, 0, 2, 3, False, False),
        (3, 0, UP, 0, 3, 0, False, True),  # a wall beside the door
        (4, 0, UP, 0, 4, 0, True, False),
        (4, 0, UP, 1, 4, 0, False, True),  # locked
        (4, 0, RIGHT, 0, 5, 0, False, False),
        (8, 4, RIGHT, 1, 8, 4, True, False),
        (4, 8, DOWN, 2, 4, 8, True, False),
        (0, 4, LEFT, 3, 0, 4, True, False),
        (0, 4, LEFT, 2, 0, 4, False, True),
        (0, 0, LEFT, 3, 0, 0, False, True),
    ]
    columns = np.array(cases).T
    result = room.step(*columns[:4])
    np.testing.assert_array_equal(np.array(result), columns[4:])
    assert room.steps_to_leave(4, 4).tolist() == [5, 5, 5, 5]
    assert room.steps_to_leave(4, 0).tolist() == [1, 9, 9, 9]
    with pytest.raises(ValueError, match="at least 3 cells"):
        Room(size=2)


def test_gymnasium_accepts_it_without_a_warning() -> None:
    env = gymnasium.make("apev/LockedDoors-v0", render_mode="rgb_array", disable_env_checker=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    env.close()


def test_an_episode_with_a_wrong_door(images: ImageSet) -> None:
    env = LockedDoorsEnv(images)
    obs, info = env.reset(seed=1, options={"picture": picture_of(images, 2), "position": (1, 4)})
    assert info["label"] == 2
    np.testing.assert_allclose(info["oracle_belief"], 0.25)
    np.testing.assert_array_equal(obs["image"], images.test_images[info["picture"]])
    assert np.flatnonzero(obs["position"]).tolist() == [1, 9 + 4]

    env.step(LEFT)
    _, reward, terminated, truncated, info = env.step(LEFT)  # against the truck's door
    assert (reward, terminated, truncated, info["bumped"], info["success"]) == (-1, False, False, True, False)
    np.testing.assert_allclose(info["oracle_belief"], [1 / 3, 1 / 3, 1 / 3, 0])
    for action in [RIGHT] * 4 + [DOWN] * 4:
        _, reward, terminated, _, info = env.step(action)
        assert (reward, terminated) == (-1, False)
    _, reward, terminated, truncated, info = env.step(DOWN)
    assert (reward, terminated, truncated, info["success"]) == (0, True, False, True)
    assert info["oracle_belief"].tolist() == [0, 0, 1, 0]
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(DOWN)


def test_time_runs_out_at_the_horizon(images: ImageSet) -> None:
    env = LockedDoorsEnv(images, horizon=5)
    env.reset(options={"position": (0, 0)})
    ends = [env.step(UP)[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]
    env.reset(options={"picture": picture_of(images, 0), "position": (4, 4)})
    assert [env.step(UP)[2:4] for _ in range(5)][-1] == (True, False)  # out on the last step: no time limit met


def test_the_posterior_starts_from_the_given_prior(images: ImageSet) -> None:
    env = LockedDoorsEnv(images, door_prior=[0.5, 0.3, 0.2, 0.0])
    env.reset(options={"picture": picture_of(images, 3), "position": (4, 0)})
    info = env.step(UP)[4]
    np.testing.assert_allclose(info["oracle_belief"], [0, 0.6, 0.4, 0])
    for action in [DOWN] * 4 + [RIGHT] * 5 + [LEFT] * 4 + [DOWN] * 5:
        info = env.step(action)[4]
    assert info["oracle_belief"].tolist() == [0, 0, 0, 1]  # the prior was wrong: only the excluded door is left


def test_mistakes_are_named(images: ImageSet) -> None:
    env = LockedDoorsEnv(images)
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(0)
    env.reset()
    with pytest.raises(ValueError, match="action must be 0"):
        env.step(4)
    with pytest.raises(ValueError, match="picture 200 is not one of the 200"):
        env.reset(options={"picture": 200})
    with pytest.raises(ValueError, match="outside a room"):
        env.reset(options={"position": (9, 0)})
    with pytest.raises(ValueError, match="is not known"):
        env.reset(options={"image": 3})
    with pytest.raises(ValueError, match="door_prior"):
        LockedDoorsEnv(images, door_prior=[1.0, 1.0])
    with pytest.raises(ValueError, match='"train" or "test"'):
        LockedDoorsEnv(images, split="validation")
    rooms = BatchedLockedDoors(images.test_images, images.test_labels, 3)
    with pytest.raises(RuntimeError, match="reset"):
        rooms.step([0, 0, 0])
    rooms.reset()
    with pytest.raises(ValueError, match="actions: need whole numbers of shape"):
        rooms.step([0, 0])
    with pytest.raises(ValueError, match="actions: need numbers from 0 to 3"):
        rooms.step([0, 0, 4])
    with pytest.raises(ValueError, match="picture: need numbers from 0 to 199"):
        rooms.reset(picture=[0, 1, 200])


# ---- the batched twin


@pytest.mark.parametrize("size", [5, 6])
def test_many_rooms_behave_like_one(images: ImageSet, size: int) -> None:
    rng = np.random.default_rng(size)
    B, prior = 60, [0.4, 0.3, 0.2, 0.1]
    rooms = BatchedLockedDoors(images.test_images, images.test_labels, B, Room(size, 50), door_prior=prior)
    picture, positions = rng.integers(200, size=B), rng.integers(size, size=(B, 2))
    obs = rooms.reset(picture, positions)
    envs = [LockedDoorsEnv(images, size=size, door_prior=prior) for _ in range(B)]
    alive = np.ones(B, dtype=bool)
    for i, env in enumerate(envs):
        single, _ = env.reset(options={"picture": int(picture[i]), "position": tuple(positions[i])})
        np.testing.assert_array_equal(single["position"], obs["position"][i])
        np.testing.assert_array_equal(single["image"], rooms.pictures[obs["image"][i]])
    exits = 0
    for _ in range(52):
        # mostly towards some door, so that doors are tried; the rest at random
        actions = np.where(rng.random(B) < 0.8, np.arange(B) // 15, rng.integers(4, size=B))
        before = obs
        obs, reward, terminated, truncated, info = rooms.step(actions)
        np.testing.assert_array_equal(info["active"], alive)
        for i, env in enumerate(envs):
            if not alive[i]:
                assert reward[i] == 0
                assert terminated[i] or truncated[i]
                np.testing.assert_array_equal(obs["position"][i], before["position"][i])
                continue
            single, r, term, trunc, one = env.step(int(actions[i]))
            assert (r, term, trunc) == (reward[i], terminated[i], truncated[i])
            np.testing.assert_array_equal(single["position"], obs["position"][i])
            for key in ("success", "bumped", "label", "picture"):
                assert one[key] == info[key][i]
            np.testing.assert_allclose(one["oracle_belief"], info["oracle_belief"][i])
        alive = ~(terminated | truncated)
        exits = int(terminated.sum())
    assert 5 < exits < 55  # both endings were met
    assert not alive.any()


def test_random_starts_cover_the_room_and_follow_the_seed(images: ImageSet) -> None:
    def starts(seed: int) -> dict[str, Any]:
        return BatchedLockedDoors(images.test_images, images.test_labels, 5000, seed=seed).reset()

    obs = starts(3)
    assert obs["position"].dtype == np.float32
    assert np.all(obs["position"].sum(0) > 5000 / 9 * 0.7)
    assert len(np.unique(obs["image"])) == 200
    np.testing.assert_array_equal(obs["image"], starts(3)["image"])
    assert np.any(obs["image"] != starts(4)["image"])


# ---- the oracle


@pytest.mark.parametrize("prior", [None, [0.55, 0.05, 0.3, 0.1], [0.0, 0.5, 0.5, 0.0]])
def test_the_oracle_leaves_every_room_as_fast_as_it_predicts(prior: list[float] | None) -> None:
    room = Room()
    grid = np.array(list(itertools.product(range(9), range(9), range(4))))  # every start, every unlocked door
    rooms = BatchedLockedDoors(np.zeros((4, 32, 32, 3), np.uint8), range(4), len(grid), room, door_prior=prior)
    oracle = OraclePolicy(room, prior)
    rooms.reset(grid[:, 2], grid[:, :2])
    lengths = np.zeros(len(grid))
    belief = None
    for _ in range(50):
        by_belief = oracle.act(rooms.x, rooms.y, belief=belief)
        if prior is None or min(prior) > 0:  # an impossible door is no tried door: only then may they differ
            by_tries = oracle.act(rooms.x, rooms.y, rooms.tried)
            np.testing.assert_array_equal(by_belief[~rooms.terminated], by_tries[~rooms.terminated])
        _, _, _, _, info = rooms.step(by_belief)
        belief = info["oracle_belief"]
        lengths += info["active"]
    assert info["success"].all()
    weights = np.full(4, 0.25) if prior is None else np.array(prior)
    mean = (lengths.reshape(81, 4) * weights).sum(1)
    np.testing.assert_allclose(mean, oracle.expected_steps(grid[::4, 0], grid[::4, 1]))


def test_no_plan_of_single_steps_beats_the_oracle() -> None:
    """Value iteration over (cell, doors not refuted) with the four actions knows nothing of orders of doors."""
    room, prior = Room(size=5), np.array([0.5, 0.1, 0.3, 0.1])
    y, x, S = np.meshgrid(range(5), range(5), range(1, 16), indexing="ij")
    value = np.zeros((5, 5, 16))  # [y, x, S]
    mass = np.array([sum(prior[d] for d in range(4) if s >> d & 1) for s in range(16)])
    for _ in range(200):
        options = []
        for action in range(4):
            next_x, next_y, _, _ = room.step(x, y, action, -9)
            push = (room.door_tried(x, y, action) >= 0) & (S >> action & 1 == 1)
            after = np.where(push, S & ~(1 << action), S)
            stay = np.where(push, 1 - prior[action] / mass[S], 1.0)
            options.append(1 + stay * value[next_y, next_x, after])
        value[:, :, 1:] = np.min(options, axis=0)
    oracle = OraclePolicy(room, prior.tolist())
    tried = np.stack([S >> d & 1 == 0 for d in range(4)], axis=-1)
    np.testing.assert_allclose(oracle.expected_steps(x, y, tried), value[:, :, 1:])


# ---- logged data


@pytest.fixture(scope="module")
def columns(images: ImageSet) -> dict[str, Any]:
    return collect(images, Room(), episodes_per_image=2, seed=5)


def test_logged_transitions_obey_the_rules(images: ImageSet, columns: dict[str, Any]) -> None:
    room, obs, after = Room(), columns["observations"], columns["next_observations"]
    assert obs["position"].dtype == np.uint8
    assert columns["pictures"]["image"] is images.train_images  # test images are never logged
    x, y = obs["position"][:, :9].argmax(1), obs["position"][:, 9:].argmax(1)
    door = images.train_labels[obs["image"]]
    next_x, next_y, exited, _ = room.step(x, y, columns["actions"], door)
    np.testing.assert_array_equal(room.one_hot(next_x, next_y), after["position"])
    np.testing.assert_array_equal(obs["image"], after["image"])
    np.testing.assert_array_equal(exited, columns["terminated"])
    np.testing.assert_array_equal(columns["rewards"], np.where(exited, 0, -1))


def test_logged_episodes_are_whole_and_in_order(columns: dict[str, Any]) -> None:
    episodes, obs = columns["episodes"], columns["observations"]
    ids, first, lengths = np.unique(episodes, return_index=True, return_counts=True)
    assert ids.tolist() == list(range(2000))
    assert np.all(np.diff(episodes) >= 0)
    np.testing.assert_array_equal(obs["image"][first], np.arange(2000) // 2)
    same = episodes[1:] == episodes[:-1]
    np.testing.assert_array_equal(obs["position"][1:][same], columns["next_observations"]["position"][:-1][same])
    np.testing.assert_array_equal(obs["image"][1:][same], obs["image"][:-1][same])
    last = first + lengths - 1
    assert np.all(columns["terminated"][last] ^ columns["truncated"][last])
    assert columns["terminated"].sum() + columns["truncated"].sum() == 2000
    assert np.all(lengths[columns["truncated"][last]] == 50)


def test_the_behaviour_tries_doors_often_and_in_no_preferred_order(images: ImageSet, columns: dict[str, Any]) -> None:
    room, position = Room(), columns["observations"]["position"]
    pushed = room.door_tried(position[:, :9].argmax(1), position[:, 9:].argmax(1), columns["actions"])
    assert 0.08 < np.mean(pushed >= 0) < 0.3
    _, first_try = np.unique(columns["episodes"][pushed >= 0], return_index=True)
    share = np.bincount(pushed[pushed >= 0][first_try], minlength=4) / len(first_try)
    np.testing.assert_allclose(share, 0.25, atol=0.04)
    label = images.train_labels[columns["observations"]["image"]][pushed >= 0][first_try]
    assert abs(np.mean(label == pushed[pushed >= 0][first_try]) - 0.25) < 0.04  # it cannot see the photograph


def test_without_noise_every_step_has_a_purpose(images: ImageSet) -> None:
    quiet = collect(images, Room(), 1, seed=0, noise=0.0, rattle=0.0, wander=0.0, target="untried")
    assert quiet["terminated"].sum() == 1000  # four doors fit into the horizon
    room, position = Room(), quiet["observations"]["position"]
    pushed = room.door_tried(position[:, :9].argmax(1), position[:, 9:].argmax(1), quiet["actions"])
    tries = np.stack([quiet["episodes"][pushed >= 0], pushed[pushed >= 0]])
    assert len(np.unique(tries, axis=1).T) == tries.shape[1]  # no door twice
    assert quiet["episodes"].size < 1000 * 40


def test_the_same_seed_logs_the_same_data(images: ImageSet, columns: dict[str, Any]) -> None:
    again = collect(images, Room(), episodes_per_image=2, seed=5)
    np.testing.assert_array_equal(again["actions"], columns["actions"])
    other = collect(images, Room(), episodes_per_image=2, seed=6)
    assert other["actions"].shape != columns["actions"].shape or np.any(other["actions"] != columns["actions"])
    with pytest.raises(ValueError, match="target must be"):
        collect(images, target="best")
    with pytest.raises(ValueError, match="noise"):
        collect(images, noise=2.0)


def test_twenty_thousand_images_take_seconds(images: ImageSet) -> None:
    many = ImageSet(np.zeros((20_000, 32, 32, 3), np.uint8), np.arange(20_000) % 4, images.test_images, images.test_labels)
    start = time.perf_counter()
    assert collect(many, Room(), 2, seed=0)["episodes"][-1] == 39_999
    assert time.perf_counter() - start < 20  # under 2 s on a free core


# ---- pictures for people


@pytest.mark.parametrize("size_px", [200, 480, 1000])
def test_frames_show_what_changes(images: ImageSet, size_px: int) -> None:
    room, photo = Room(), images.test_images[0]

    def frame(**changes: Any) -> np.ndarray:
        return render_room(room, 4, 4, photo, class_names=images.classes, size_px=size_px, **changes)

    plain = frame()
    assert plain.dtype == np.uint8
    assert plain.shape == (size_px, round(size_px * 1.52), 3)
    changes: list[dict[str, Any]] = [
        {"trail": [(2, 4), (3, 4), (4, 4)]},
        {"tried": [True, False, False, False]},
        {"door": 1},
        {"belief_doors": [0.1, 0.2, 0.3, 0.4]},
        {"believed_door": 3},
        {"caption": "thinking"},
    ]
    seen = [plain] + [frame(**change) for change in changes]
    for a, b in itertools.combinations(seen, 2):
        assert np.any(a != b)


def test_a_locked_door_turns_red_and_an_open_one_green(images: ImageSet) -> None:
    def of_colour(frame: np.ndarray, colour: tuple[int, int, int]) -> int:
        room_part = frame[:, :480].astype(int)
        return int((np.abs(room_part - colour).sum(-1) < 40).sum())

    env = LockedDoorsEnv(images, render_mode="rgb_array")
    env.reset(options={"picture": picture_of(images, 0), "position": (0, 4)})
    red, green = (214, 60, 52), (86, 172, 84)
    before = env.render()
    env.step(LEFT)
    bumped = env.render()
    for action in [RIGHT] * 4 + [UP] * 5:
        env.step(action)
    out = env.render()
    assert before is not None and bumped is not None and out is not None  # noqa: PT018
    assert of_colour(before, red) < 20 < of_colour(bumped, red)
    assert of_colour(bumped, green) < 20 < of_colour(out, green)


def test_a_filmstrip_joins_frames(images: ImageSet) -> None:
    frames = [render_room(Room(), x, 4, images.test_images[0], class_names=images.classes, size_px=200) for x in (1, 5)]
    strip = filmstrip(frames, ["here", "there, with a caption so long that it needs more than a single line of text"])
    assert strip.shape[1] > 2 * frames[0].shape[1]
    assert strip.shape[0] > frames[0].shape[0]
    with pytest.raises(ValueError, match="one caption a frame"):
        filmstrip(frames, ["only one"])
    with pytest.raises(ValueError, match="same size"):
        filmstrip([frames[0], frames[1][:100]], ["a", "b"])
