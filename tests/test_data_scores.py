"""Normalised scores: D4RL's references by every name they go by."""

from __future__ import annotations

import numpy as np
import pytest

from apev.data import Dataset
from apev.data.scores import counts_up, episode_scores, normalise, normalised, of_source, reference

HALFCHEETAH = (-280.178953, 12135.0)


@pytest.mark.parametrize(
    ("name", "pair"),
    [
        ("halfcheetah-medium-v2", HALFCHEETAH),
        ("halfcheetah-full-replay-v1", HALFCHEETAH),
        ("halfcheetah_medium_replay-v2", HALFCHEETAH),
        ("HalfCheetah-v4", HALFCHEETAH),
        ("mujoco/halfcheetah/expert-v0", HALFCHEETAH),
        ("hopper-random-v0", (-20.272305, 3234.3)),
        ("walker2d-medium-expert", (1.629008, 4592.3)),
        ("mujoco/ant/simple-v0", (-325.6, 3879.7)),
        ("pen-human-v1", (96.262799, 3076.8331017826877)),
        ("maze2d-large-dense-v1", (30.569041, 303.4857382709002)),
        ("antmaze-large-diverse-v2", (0.0, 1.0)),
        ("kitchen-mixed-v0", (0.0, 4.0)),
    ],
)
def test_references(name: str, pair: tuple[float, float]) -> None:
    assert reference(name) == pair
    np.testing.assert_allclose(normalised(name, pair), [0, 100])


@pytest.mark.parametrize("name", ["mujoco/humanoid/expert-v0", "hopper-human-v0", "pendulum-random", "", "D4RL/door/human-v2"])
def test_an_unknown_name_is_told(name: str) -> None:
    with pytest.raises(ValueError, match=r"no reference scores for .*Fix"):
        normalised(name, 1.0)


def test_a_score_of_the_literature() -> None:
    assert float(normalised("hopper-medium-replay-v2", 3234.3)) == 100
    np.testing.assert_allclose(normalised("halfcheetah-medium-v2", 6000.0), 50.584, atol=1e-3)
    assert normalised("hopper-medium-v2", np.zeros((2, 3))).shape == (2, 3)


def test_a_data_set_uses_its_own_references_then_its_name_then_its_environment() -> None:
    assert of_source({"reference": [1, 3], "name": "hopper-medium-v2"}) == (1.0, 3.0)
    assert of_source({"name": "mine", "environment": "HalfCheetah-v5"}) == HALFCHEETAH
    assert of_source({"name": "mine"}) is None
    assert of_source({}) is None
    assert normalise(2.0, (1.0, 3.0)) == 50


def log(rewards: list[list[float]], **source: object) -> Dataset:
    """Episodes with these rewards."""
    flat = np.concatenate(rewards).astype(np.float32)
    ends = np.zeros(len(flat), dtype=bool)
    ends[np.cumsum([len(part) for part in rewards]) - 1] = True
    return Dataset.from_arrays(np.zeros((len(flat), 1)), np.zeros((len(flat), 1)), flat, ends, ends & False, source=source)


def test_a_kitchens_log_that_counts_what_is_done_is_scored_by_its_highest_count() -> None:
    so_far = log([[0, 1, 1, 1, 2, 2], [0, 0, 1, 1], [0, 0, 0], [3, 3, 2, 2, 3]], name="kitchen-mixed-v0")
    assert counts_up(so_far)
    np.testing.assert_allclose(episode_scores(so_far), [50, 25, 0, 75])  # type: ignore[arg-type]
    minari = log([[0, 1, 1, 2]], name="D4RL/kitchen/mixed-v2", environment="FrankaKitchen-v1", reference=[0.0, 4.0])
    np.testing.assert_allclose(episode_scores(minari), [50])  # type: ignore[arg-type]


def test_a_kitchens_log_that_rewards_a_subtask_once_is_scored_by_the_sum() -> None:
    once = log([[0, 1, 0, 0, 1, 1], [0, 0, 2, 0], [0, 0, 0], [1, 0, 1, 0, 1, 0, 1]], name="kitchen-mixed-v0")
    assert not counts_up(once)
    np.testing.assert_allclose(episode_scores(once), [75, 50, 0, 100])  # type: ignore[arg-type]
    returns = log([[0, 1, 1, 2]], name="D4RL/kitchen/mixed-v2", reference=[0.0, 600.0])  # references of summed rewards
    np.testing.assert_allclose(episode_scores(returns), [100 * 4 / 600])  # type: ignore[arg-type]


def test_other_logs_are_scored_by_the_sum() -> None:
    np.testing.assert_allclose(episode_scores(log([[1, 1, 1]], name="maze2d-open-v0")), normalised("maze2d-open-v0", [3.0]))  # type: ignore[arg-type]
    assert episode_scores(log([[1, 1, 1]], name="mine")) is None
