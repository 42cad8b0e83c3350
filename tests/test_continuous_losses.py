"""BC, IQL, EDAC, REM and CQL: each loss against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from by_hand import PLAIN, linear, one_state, step

from apev.agents import BC, CQL, EDAC, IQL, REM, BCConfig, CQLConfig, EDACConfig, IQLConfig, REMConfig
from apev.agents.continuous.bc import GaussianActor
from apev.data import Dataset, Layout
from apev.loop import set_lr

# log N(.5; .25, .5), half a deviation from the middle
LOG_LIKELIHOOD = -0.5 * 0.5**2 - math.log(0.5) - 0.5 * math.log(2 * math.pi)


def fix_actor(actor: GaussianActor) -> None:
    """Mean .25 and deviation .5, whatever the state."""
    with torch.no_grad():
        linear(actor.net.layers[0]).weight.zero_()
        linear(actor.net.layers[0]).bias.fill_(math.atanh(0.25))
        actor.log_std.fill_(math.log(0.5))


def test_cloning_maximises_the_likelihood_of_a_gaussian_around_tanh() -> None:
    agent = BC(PLAIN, BCConfig(hidden=(), lr=0.1))
    fix_actor(agent.actor)
    metrics = agent.update(step(0.0, 0.0))
    assert float(metrics["loss"]) == pytest.approx(-LOG_LIKELIHOOD, rel=1e-5)
    assert float(agent.actor(torch.ones(1, 1))[0].detach()) > 0.25  # towards the logged .5
    assert float(agent.td_errors(step(7.0, 0.0), torch.zeros(1, 1))) == 0


def implicit(beta: float = 3.0) -> IQL:
    """Q_j(s, .5) = 1.5 and 3.5, V(s) = 2."""
    agent = IQL(PLAIN, IQLConfig(hidden=(), gamma=0.5, beta=beta))
    fix_actor(agent.actor)
    with torch.no_grad():
        for net in (agent.critics, agent.target):
            linear(net.layers[0]).weight.zero_()
            linear(net.layers[0]).weight[:, 1] = 1.0
            linear(net.layers[0]).bias.copy_(torch.tensor([1.0, 3.0])[:, None, None])
        linear(agent.value.layers[0]).weight.zero_()
        linear(agent.value.layers[0]).bias.fill_(2.0)
    return agent


def test_iql_backs_up_the_state_value_and_weighs_cloning_by_the_advantage() -> None:
    agent = implicit()
    assert float(agent.td_errors(step(-1.0, 0.0), torch.zeros(1, 1))) == pytest.approx(1.5)  # y = -1 + .5 * 2 = 0
    metrics = {name: float(value) for name, value in agent.update(step(-1.0, 0.0)).items()}
    assert metrics["critic_loss"] == pytest.approx((1.5**2 + 3.5**2) / 2)
    assert metrics["value_loss"] == pytest.approx(0.3 * 0.5**2)  # the advantage 1.5 - 2 is negative: weight 1 - .7
    assert metrics["weight"] == pytest.approx(math.exp(-1.5))
    assert metrics["actor_loss"] == pytest.approx(-math.exp(-1.5) * LOG_LIKELIHOOD, rel=1e-5)
    ended = implicit().update(step(-1.0, 1.0))  # y = -1
    assert float(ended["critic_loss"]) == pytest.approx((2.5**2 + 4.5**2) / 2)


def test_iql_cuts_weights_off_and_gives_good_actions_the_larger_share() -> None:
    agent = implicit(beta=100.0)
    linear(agent.value.layers[0]).bias.data.fill_(1.0)  # advantage .5
    metrics = agent.update(step(-1.0, 1.0))
    assert float(metrics["weight"]) == 100
    assert float(metrics["value_loss"]) == pytest.approx(0.7 * 0.5**2)


def test_iql_scales_rewards_by_the_range_of_the_logs_returns() -> None:
    rewards, ends = [1.0, 2.0, 1.0, 1.0], np.array([False, True, False, True])  # returns 3 and 2
    log = Dataset.from_arrays(np.zeros((4, 1)), np.full((4, 1), 0.5), rewards, ends, ends & False)
    assert float(IQL.for_data(log, IQLConfig(return_range=1000)).reward_scale) == 1000
    assert float(IQL.for_data(log, IQLConfig()).reward_scale) == 1
    agent = IQL.for_data(log, IQLConfig(return_range=1000, hidden=()))
    errors = agent.td_errors(step(1.0, 1.0), torch.zeros(1, 1))
    assert float(errors) == pytest.approx(-1000, abs=3)
    copy = IQL(agent.layout, agent.config)
    copy.load_policy_state(agent.policy_state())
    assert float(copy.reward_scale) == 1000


def test_only_iqls_actor_slows_down_by_itself() -> None:
    agent = IQL(PLAIN, IQLConfig(lr=1e-3))
    for done, expected in ((0.0, 1e-3), (0.5, 5e-4), (1.0, 0.0)):
        set_lr(agent, done, decay=False)
        assert [group["lr"] for group in agent.optimizer.param_groups] == pytest.approx([1e-3, expected])
    set_lr(agent, 1.0, decay=True)
    assert agent.optimizer.param_groups[0]["lr"] == pytest.approx(5e-5)


def test_edac_sums_the_cosines_between_gradients_of_different_critics() -> None:
    layout = Layout((("observation", 1),), None, None, 0, True, (-1.0,) * 2, (1.0,) * 2)
    agent = EDAC(layout, EDACConfig(critics=3, hidden=(), eta=2.0))
    with torch.no_grad():  # gradients by the action: (1, 0), (0, 2), (3, 4); cosines 0, .6, .8
        linear(agent.critics.layers[0]).weight[:, 1:, 0] = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]])
    likeness = agent.likeness(torch.ones(5, 1), torch.zeros(5, 2))
    assert float(likeness.detach()) == pytest.approx(2 * (0.6 + 0.8) / 2)
    likeness.backward()
    gradient = linear(agent.critics.layers[0]).weight.grad
    assert gradient is not None
    assert float(gradient[0, 1:].norm()) > 0  # it teaches the critics to differ


def test_edac_adds_likeness_to_what_sac_n_learns() -> None:
    agent = EDAC(PLAIN, EDACConfig(critics=3, hidden=(), gamma=0.0, eta=2.0))
    one_state(agent, [[1.0], [2.0], [4.0]])  # with one action, gradients that agree have cosine 1: 6 pairs / (N - 1)
    loss, metrics = agent.critic_loss(step(-1.0, 0.0), None)
    assert float(metrics["likeness"]) == pytest.approx(3)
    assert float(loss.detach()) == pytest.approx(2.5**2 + 3.5**2 + 5.5**2 + 2.0 * 3, rel=1e-5)


def test_rem_mixes_values_and_targets_alike() -> None:
    agent = REM(PLAIN, REMConfig(critics=2, hidden=(), gamma=1.0))
    one_state(agent, [[1.0], [3.0]])
    agent.log_alpha.data.fill_(-30.0)
    # Q_j(s, .5) - Q-_j(s, 0) = .5 for both critics, so for every mixture if it is the same on both sides
    metrics = agent.update(step(-1.0, 0.0, rows=4000))
    assert float(metrics["critic_loss"]) == pytest.approx(1.5**2, rel=1e-3)
    assert float(metrics["value"]) == pytest.approx(2.0, abs=1e-3)  # the mean, no minimum
    ended = [one_mixture(seed) for seed in range(5)]
    assert all(2.5**2 < loss < 4.5**2 for loss in ended)
    assert len(set(ended)) == 5


def one_mixture(seed: int) -> float:
    agent = REM(PLAIN, REMConfig(critics=2, hidden=()), seed=seed)
    one_state(agent, [[1.0], [3.0]])
    return float(agent.update(step(-1.0, 1.0))["critic_loss"])


def conservative() -> CQL:
    """Q_j(s, a) = 1 + a and 2 + a; actions of the actor spread over all of (-1, 1)."""
    agent = CQL(PLAIN, CQLConfig(hidden=(), gamma=0.5, samples=400, conservative=3.0))
    one_state(agent, [[1.0], [2.0]])
    with torch.no_grad():
        linear(agent.actors.net.layers[0]).bias[..., 1] = math.log(0.87)
    return agent


def test_cql_measures_how_far_all_actions_lie_above_the_logged_one() -> None:
    agent = conservative()
    # log of the integral of exp(v + a) over (-1, 1) is v + log(e - 1/e); 1200 draws count as often; the log's is v + .5
    expected = math.log(1200) + math.log(math.e - 1 / math.e) - 0.5
    assert float(agent.gap(step(0.0, 0.0, rows=200)).detach()) == pytest.approx(2 * expected, abs=0.05)


def test_cql_has_no_entropy_in_its_target_and_a_slower_actor() -> None:
    agent = conservative()
    with torch.no_grad():
        linear(agent.actors.net.layers[0]).bias[..., 1] = -20.0
    agent.log_alpha.data.fill_(5.0)
    y = -1 + 0.5 * 1.0
    loss, metrics = agent.critic_loss(step(-1.0, 0.0, rows=1000), None)
    squared = (1.5 - y) ** 2 + (2.5 - y) ** 2
    assert float(metrics["critic_loss"]) == pytest.approx(squared / 2, rel=1e-2)
    assert float(loss.detach()) == pytest.approx(squared + 3.0 * 2 * float(metrics["gap"]), rel=1e-2)
    assert [group["lr"] for group in agent.optimizer.param_groups] == [3e-4, 1e-4]


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="Fix: at least 2"):
        EDAC(PLAIN, EDACConfig(critics=1))
    with pytest.raises(ValueError, match="samples is 0"):
        CQL(PLAIN, CQLConfig(samples=0))
    with pytest.raises(ValueError, match="an expectile inside"):
        IQL(PLAIN, IQLConfig(expectile=1.0))
