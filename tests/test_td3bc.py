"""TD3+BC of several members: losses worked out by hand, members that learn from rows of their own, and what policies do."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from agent_contract import continuous_puzzle, sampler_of
from by_hand import PLAIN, linear, step

from apev.agents import BC, SAC, TD3BC, BCConfig, SACConfig, TD3BCConfig
from apev.agents.continuous import td3bc
from apev.belief import one_hot
from apev.data import Batch, Dataset, Observations
from apev.data.by_kind import KindSampler
from apev.data.returns import returns_to_go
from apev.policy import Policy


def by_hand(values: list[float], actions: list[float], **settings: Any) -> TD3BC:
    """Without hidden layers: critic j says values[j] + a, actor k does actions[k], in every state."""
    agent = TD3BC(PLAIN, TD3BCConfig(hidden=(), gamma=0.5, **settings))
    with torch.no_grad():
        for critics, actors in ((agent.critics, agent.actors), (agent.target, agent.slow_actors)):
            critic, actor = linear(critics.layers[0]), linear(actors.layers[0])
            critic.weight.zero_()
            critic.weight[:, 1] = 1.0  # input 1 is the action
            critic.bias.copy_(torch.tensor(values)[:, None, None])
            actor.weight.zero_()
            actor.bias.copy_(torch.tensor(actions).atanh()[:, None, None])
    return agent


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No noise in targets."""
    monkeypatch.setattr(td3bc, "TARGET_NOISE", 0.0)


@pytest.mark.usefixtures("quiet")
def test_critics_learn_the_smallest_of_their_members_next_values() -> None:
    agent = by_hand([1.0, 3.0], [0.25])
    loss = agent.update(step(-1.0, 0.0))["critic_loss"]  # y = -1 + .5 (1 + .25); Q_j(s, .5) = 1.5 and 3.5
    assert float(loss) == pytest.approx(((1.5 + 0.375) ** 2 + (3.5 + 0.375) ** 2) / 2)
    ended = by_hand([1.0, 3.0], [0.25]).update(step(-1.0, 1.0))["critic_loss"]  # y = -1
    assert float(ended) == pytest.approx((2.5**2 + 4.5**2) / 2)


@pytest.mark.usefixtures("quiet")
def test_members_differ_by_how_many_critics_they_ask() -> None:
    agent = by_hand([1.0, 3.0, -2.0, 5.0, 6.0, 7.0], [0.25, -0.5], members=2, careful=4)
    assert agent.n == (2, 4)
    errors = agent.td_errors(step(-1.0, 0.0), torch.zeros(1, 2))
    # member 0: 1.5 - (-1 + .5 * 1.25); member 1: -1.5 - (-1 + .5 * -2.5)
    assert errors.tolist() == [pytest.approx([1.5 + 0.375, -1.5 + 2.25])]
    loss = 6 * float(agent.update(step(-1.0, 0.0))["critic_loss"])
    first = (1.5 + 0.375) ** 2 + (3.5 + 0.375) ** 2
    assert loss == pytest.approx(first + sum((q + 0.5 + 2.25) ** 2 for q in (-2, 5, 6, 7)))


def test_noise_in_targets_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TD3BC, "noise", lambda self, like, generator=None: torch.full_like(like, 1e3))
    agent = by_hand([1.0, 3.0], [0.25])
    assert float(agent.update(step(0.0, 0.0))["critic_loss"]) == pytest.approx((0.625**2 + 2.625**2) / 2)  # y = .5 * 1.75
    agent = by_hand([1.0, 3.0], [0.75])  # no further than the largest action, 1
    assert float(agent.update(step(0.0, 0.0))["critic_loss"]) == pytest.approx((0.5**2 + 2.5**2) / 2)


def test_actors_weigh_closeness_to_the_log_against_the_value_in_its_own_unit() -> None:
    agent = by_hand([1.0, 3.0], [0.25], towards_value=2.0)
    obs, action = torch.ones(1, 1, 1), torch.full((1, 1, 1), 0.5)
    loss = agent.actor_loss(obs, action)
    assert float(loss.detach()) == pytest.approx(0.25**2 - 2.0)  # Q / |Q| is 1
    (slope,) = torch.autograd.grad(loss.sum(), linear(agent.actors.layers[0]).bias)
    by_action = -2 * 0.25 - 2.0 / 1.25  # of (pi - .5)^2 - 2 (1 + pi) / 1.25
    assert float(slope) == pytest.approx(by_action * (1 - 0.25**2), rel=1e-5)
    louder = by_hand([1000.0, 3000.0], [0.25], towards_value=2.0)
    with torch.no_grad():
        linear(louder.critics.layers[0]).weight[:, 1] = 1000.0
    assert float(louder.actor_loss(obs, action).detach()) == pytest.approx(0.25**2 - 2.0)


def test_actors_train_no_critic_and_learn_every_second_time() -> None:
    agent = by_hand([1.0, 3.0], [0.25])
    agent.actor_loss(torch.ones(1, 1, 1), torch.ones(1, 1, 1)).sum().backward()
    assert all(p.grad is None for p in agent.critics.parameters())
    bias, moved = linear(agent.actors.layers[0]).bias, []
    for _ in range(4):
        before = bias.detach().clone()
        agent.update(step(0.0, 0.0))
        moved.append(not torch.equal(before, bias))
    assert moved == [True, False, True, False]


@pytest.mark.usefixtures("quiet")
def test_no_target_is_beyond_what_the_log_can_return() -> None:
    ends = np.array([False, True, False, True])
    log = Dataset.from_arrays(np.zeros((4, 1)), np.full((4, 1), 0.5), [-1.0, -2.0, 4.0, 1.0], ends, ends & False)
    agent = TD3BC.for_data(log, TD3BCConfig(hidden=(), gamma=0.5))
    assert (float(agent.lowest), float(agent.highest)) == (-2, 4.5)
    for value, target in ((100.0, 4.5), (-100.0, -2.0)):
        with torch.no_grad():
            for net in (agent.critics, agent.target):
                linear(net.layers[0]).weight.zero_()
                linear(net.layers[0]).bias.fill_(value)
        assert float(agent.update(step(0.0, 0.0))["critic_loss"]) == pytest.approx((value - target) ** 2, rel=1e-4)


@pytest.mark.usefixtures("quiet")
def test_a_share_of_the_target_is_what_the_log_went_on_to_earn() -> None:
    agent = by_hand([1.0, 3.0], [0.25], returns_share=0.1)
    batch = replace(step(-1.0, 0.0), returns=torch.tensor([5.0]))
    target = 0.9 * -0.375 + 0.1 * 5.0  # y as above, and G
    loss = float(agent.update(batch)["critic_loss"])
    assert loss == pytest.approx(((1.5 - target) ** 2 + (3.5 - target) ** 2) / 2)
    with pytest.raises(ValueError, match=r"returns_share needs returns.*Fix"):
        agent.update(step(-1.0, 0.0))


def test_returns_in_batches_are_those_of_their_rows() -> None:
    ends, cuts = np.array([0, 0, 1, 0, 0], dtype=bool), np.array([0, 0, 0, 0, 1], dtype=bool)
    obs = np.arange(5.0)[:, None]
    log = Dataset.from_arrays(obs, np.full((5, 1), 0.5), [1.0, 2.0, 4.0, 3.0, 5.0], ends, cuts, next_observations=obs + 1)
    # The second episode was cut off: with a discount of .5 it goes on as in its last two steps, with 4 a step, worth 8.
    expected = [3.0, 4.0, 4.0, 3.0 + 0.5 * 9.0, 9.0]
    np.testing.assert_allclose(returns_to_go(log, 0.5), expected)
    agent = TD3BC.for_data(log, TD3BCConfig(gamma=0.5, returns_share=0.1))
    batch = agent.sampler(log, batch_size=64).sample()
    assert batch.returns is not None
    np.testing.assert_allclose(batch.returns, np.array(expected)[batch.obs.vector[:, 0].int()])
    assert TD3BC.for_data(log, TD3BCConfig()).sampler(log).sample().returns is None
    kinds = KindSampler(log, np.array([1, 0]), batch_size=2, returns=agent.returns_of(log)).sample()
    assert kinds.returns is not None
    assert float(kinds.returns[0]) in expected[3:]


def two_blocks(rows: int = 32) -> tuple[Batch, Batch, Batch]:
    """A batch of two blocks, and each of them alone."""
    sampler = sampler_of(continuous_puzzle(False))
    both = replace(sampler.batch(torch.arange(2 * rows)), blocks=True)
    return both, sampler.batch(torch.arange(rows)), sampler.batch(torch.arange(rows, 2 * rows))


@pytest.mark.usefixtures("quiet")
def test_members_of_their_own_blocks_learn_as_agents_that_see_nothing_else() -> None:
    log, single = continuous_puzzle(False), TD3BCConfig(hidden=(16, 16), gamma=0.5)
    together = TD3BC.for_data(log, replace(single, members=2, careful=2), seed=1)
    alone = [TD3BC.for_data(log, single) for _ in range(2)]
    for k, agent in enumerate(alone):
        for mine, theirs, n in ((agent.actors, together.actors, 1), (agent.critics, together.critics, 2)):
            for own, shared in zip(mine.parameters(), theirs.parameters(), strict=True):
                own.data.copy_(shared.data[n * k : n * k + n])
        agent.slow_actors.load_state_dict(agent.actors.state_dict())
        agent.target.load_state_dict(agent.critics.state_dict())
    both, *each = two_blocks()
    for _ in range(5):
        together.update(both)
        for agent, block in zip(alone, each, strict=True):
            agent.update(block)
    for k, agent in enumerate(alone):
        for name in ("actors", "slow_actors", "critics", "target"):
            for own, shared in zip(
                agent.get_submodule(name).parameters(), together.get_submodule(name).parameters(), strict=True
            ):
                n = len(own)
                torch.testing.assert_close(own, shared[n * k : n * k + n])
    step = each[0]
    errors = torch.cat([agent.td_errors(step, torch.zeros(32, 1)) for agent in alone], 1)
    torch.testing.assert_close(together.td_errors(step, torch.zeros(32, 2)), errors)


def test_blocks_that_fit_nobody_are_refused() -> None:
    both, *_ = two_blocks()
    log = continuous_puzzle(False)
    for members, careful in ((3, 2), (2, 4)):
        with pytest.raises(ValueError, match=r"equal blocks.*Fix"):
            TD3BC.for_data(log, TD3BCConfig(members=members, careful=careful)).update(both)
    with pytest.raises(ValueError, match="a block for each"):
        SAC.for_data(log, SACConfig()).update(both)
    with pytest.raises(ValueError, match="a block for each"):
        BC.for_data(log, BCConfig()).update(both)
    assert both.to(torch.device("meta")).blocks


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"returns_share is 2.*Fix"):
        TD3BC(PLAIN, TD3BCConfig(returns_share=2.0))
    wrong = (TD3BCConfig(members=0), TD3BCConfig(critics=0), TD3BCConfig(members=2, careful=1), TD3BCConfig(towards_value=-1))
    for config in wrong:
        with pytest.raises(ValueError, match="Fix"):
            TD3BC(PLAIN, config)
    assert TD3BC.sizes(TD3BCConfig(members=3, critics=2, careful=10)) == (2, 6, 10)
    assert TD3BC.sizes(TD3BCConfig(critics=3)) == (3,)


def test_the_most_believed_actor_acts_and_the_average_is_weighted() -> None:
    agent = by_hand([0.0] * 4, [0.25, -0.5], members=2, careful=2)
    obs = Observations(torch.ones(2, 1))
    belief = torch.tensor([[0.6, 0.4], [0.2, 0.8]]).log()
    assert agent.act(obs, belief)[:, 0].tolist() == pytest.approx([0.25, -0.5])
    assert agent.act_average(obs, belief)[:, 0].tolist() == pytest.approx([0.6 * 0.25 - 0.2, 0.05 - 0.4])
    many = Observations(torch.ones(4000, 1))
    generator = torch.Generator().manual_seed(0)
    drawn = agent.act(many, belief[:1].expand(4000, -1), greedy=False, generator=generator)
    assert float(drawn.mean()) == pytest.approx(0.6 * 0.25 - 0.2, abs=0.02)
    certain = agent.act(many, one_hot(torch.ones(4000, dtype=torch.int64), 2), greedy=False, generator=generator)
    assert float(certain.std()) == pytest.approx(0.1, rel=0.1)
    disturbed = agent.act_average(many, belief[:1].expand(4000, -1), greedy=False, generator=generator)
    assert float(disturbed.std()) == pytest.approx(0.1, rel=0.1)


def test_observations_are_normalised_by_the_log_and_policies_know_how() -> None:
    rows = np.array([[0.0, 100.0, 7.0], [2.0, 300.0, 7.0]])  # the last one never changes
    log = Dataset.from_arrays(rows, np.array([[0.5], [-0.5]]), [0.0, 1.0], [True, True], [False, False])
    agent = TD3BC.for_data(log, TD3BCConfig(hidden=(4,)))
    assert agent.normalise(torch.tensor([[4.0, 100.0, 8.0]])).tolist() == [[3.0, -1.0, 1.0]]
    copy = TD3BC(agent.layout, agent.config, seed=5)
    copy.load_policy_state(agent.policy_state())
    assert torch.equal(linear(copy.actors.layers[0]).weight, linear(agent.slow_actors.layers[0]).weight)
    obs = np.array([[1.0, 50.0, 7.0]], dtype=np.float32)
    np.testing.assert_array_equal(Policy(copy).act(obs), Policy(agent).act(obs))
    assert math.isinf(float(copy.highest))  # a deployed policy learns nothing
