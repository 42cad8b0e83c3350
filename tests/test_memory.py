from typing import Any

import numpy as np
import pytest
import torch

from apev.agents import C51, C51Config
from apev.behaviour import Adapt
from apev.data.batch import Observations
from apev.experiments.procgen.log import log_mazes, make_mazes
from apev.experiments.procgen.world import BatchedMaze
from apev.memory import Memory, keys_of
from apev.policy import Policy
from apev.rollout import rollout

SMALL = [maze for maze in make_mazes(0, 60, "easy") if maze.size <= 5][:5]


def same(q: torch.Tensor, episodes: torch.Tensor) -> torch.Tensor:
    """One member: its values are the policy's."""
    return q[0]


def test_values_by_hand() -> None:
    """Three states in a row, 0 - 1 - 2; actions: left, right. The member thinks highly of going right from 1, wrongly."""
    memory = Memory(episodes=1, actions=2, members=1, gamma=0.5, shift=-1.0)
    a, b = 1, 2  # keys
    yes, no = torch.tensor([True]), torch.tensor([False])

    def step(key: int, q: list[float], action: int, after: int, reward: float = 0.0) -> Any:
        memory.see([key], torch.tensor([[q]]))
        before = memory.values(same)[0].tolist()
        memory.learn(torch.tensor([action]), torch.tensor([reward]), [after], no, yes)
        return before

    assert step(a, [3.0, 8.0], 1, b) == [3.0, 8.0]  # nothing is known: the member's own values
    assert step(b, [1.0, 9.0], 1, b) == [1.0, 9.0]  # a wall
    memory.see([b], torch.tensor([[[1.0, 9.0]]]))
    # At b: left is untried (1). Right led to b itself: -1 + V(b) / 2 = -1 + 1 / 2, with V(b) = 1.
    assert memory.values(same)[0].tolist() == [1.0, -0.5]
    assert step(b, [1.0, 9.0], 0, a, reward=2.0) == [1.0, -0.5]
    # At a: left is untried (3), right leads to b, which now leads back at best: V(b) = 2 - 1 + V(a) / 2 = 2.5, V(a) = 3.
    memory.see([a], torch.tensor([[[3.0, 8.0]]]))
    np.testing.assert_allclose(memory.values(same)[0], [3.0, -1 + 0.5 * 2.5])


def test_an_end_is_worth_its_reward() -> None:
    memory = Memory(1, 2, 1, gamma=0.9)
    memory.see([7], torch.tensor([[[0.0, 0.0]]]))
    memory.learn(torch.tensor([1]), torch.tensor([5.0]), [8], torch.tensor([True]), torch.tensor([True]))
    assert bool(memory.over[0])
    memory.forget(0)
    memory.see([7], torch.tensor([[[1.0, 2.0]]]))
    assert memory.values(same)[0].tolist() == [1.0, 2.0]  # a new episode knows nothing


def test_the_same_observation_has_the_same_key() -> None:
    pictures = torch.randint(255, (6, 3, 8, 8), dtype=torch.uint8)
    pictures[4] = pictures[1]
    cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    keys = keys_of(Observations(torch.zeros(6, 0), pictures, torch.arange(6)), cache)
    alone = keys_of(Observations(torch.zeros(1, 0), pictures[1:2].clone(), torch.zeros(1, dtype=torch.int64)), {})
    assert keys[1] == keys[4] == alone[0]
    assert len(set(keys)) == 5
    vectors = torch.tensor([[0.1, 2.0], [0.1, 2.0], [0.1, 2.0001]])
    one, two, three = keys_of(Observations(vectors), {})
    assert one == two != three


def test_zero_is_one_state_whichever_its_sign() -> None:
    still, backwards, moving = keys_of(Observations(torch.tensor([[0.0, 1.0], [-0.0, 1.0], [-0.1, 1.0]])), {})
    assert still == backwards != moving


@pytest.mark.parametrize("adapt", ["uniform", "bayes"])
def test_who_remembers_finds_the_cheese_whatever_the_networks_believe(adapt: Adapt) -> None:
    """Untrained networks walk into walls and in circles; with a memory they search until they find."""
    data = log_mazes(SMALL[:1], "simple")
    agent = C51.for_data(data, C51Config(features=16), seed=1)
    env = BatchedMaze(SMALL, horizon=120)
    assert not rollout(Policy(agent, adapt), env).success.all()
    found = rollout(Policy(agent, adapt, remember=True), env)
    assert found.success.all()


def test_many_episodes_are_remembered_apart() -> None:
    data = log_mazes(SMALL[:1], "simple")
    agent = C51.for_data(data, C51Config(features=16), seed=1)
    together = rollout(Policy(agent, "uniform", remember=True), BatchedMaze(SMALL, horizon=120))
    for i, maze in enumerate(SMALL):
        alone = rollout(Policy(agent, "uniform", remember=True), BatchedMaze([maze], horizon=120))
        assert alone.lengths[0] == together.lengths[i]


def test_memory_needs_values() -> None:
    from apev.agents import SAC, SACConfig
    from apev.data.batch import Layout

    layout = Layout((("observation", 2),), None, None, 0, True, (-1.0,), (1.0,))
    with pytest.raises(ValueError, match="Fix: an agent of the DQN family"):
        Policy(SAC(layout, SACConfig(hidden=(4,))), remember=True)
