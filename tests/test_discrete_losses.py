"""BC, CQL, REM and IQL of discrete actions: each loss against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tables import LAYOUT, STEPS, TABLE, TARGET, gradient, set_table, steps, uniform

from apev.agents import (
    DiscreteBC,
    DiscreteBCConfig,
    DiscreteCQL,
    DiscreteCQLConfig,
    DiscreteIQL,
    DiscreteIQLConfig,
    DiscreteREM,
    DiscreteREMConfig,
    find,
)
from apev.agents.discrete.base import QAgent

SMALL: dict[str, Any] = {"gamma": 0.5, "hidden": (), "floor": 0.0}


def with_tables(agent: QAgent, table: Any, target: Any) -> QAgent:
    set_table(agent.net, table)
    set_table(agent.target, target)
    return agent


def test_cloning_is_cross_entropy() -> None:
    agent = with_tables(DiscreteBC(LAYOUT, DiscreteBCConfig(**SMALL), num_groups=2), TABLE[:1], TARGET[:1])
    metrics = agent.update(steps(*STEPS))  # logits 1, 2 with action 1 and 3, 4 with action 0
    first, second = math.log(1 + math.exp(-1)), math.log(1 + math.e)
    assert float(metrics["loss"]) == pytest.approx((first + second) / 2)
    assert agent.td_errors(steps(*STEPS), uniform(agent, steps(*STEPS))).tolist() == [[0.0], [0.0]]


def test_cql_adds_how_far_all_actions_lie_above_the_logged_one() -> None:
    config = DiscreteCQLConfig(members=2, conservative=3.0, **SMALL)
    agent = with_tables(DiscreteCQL(LAYOUT, config, num_groups=2), TABLE, TARGET)
    metrics = agent.update(steps(*STEPS))
    squares = 19**2 + 5**2 + 3.5**2 + 7**2  # as for DQN
    # the log's action stands against the other: (2, 1), (3, 4), (1, 0), (5, 2)
    gaps = sum(math.log(1 + math.exp(other - own)) for own, other in ((2, 1), (3, 4), (1, 0), (5, 2)))
    assert float(metrics["loss"]) == pytest.approx((squares + 3.0 * gaps) / 2 / 2)


def test_rem_mixes_values_and_targets_alike_and_acts_on_the_mean() -> None:
    agent = with_tables(DiscreteREM(LAYOUT, DiscreteREMConfig(members=2, **SMALL), num_groups=2), TABLE, TARGET)
    generator = torch.Generator().manual_seed(1)  # the agent's own, for seed 0
    u = torch.rand(2, generator=generator)
    w0, w1 = (u / u.sum()).tolist()
    first = (2 * w0 + 1 * w1) - (1 + 0.5 * max(30 * w0 + 7 * w1, 40 * w0 + 6 * w1))
    second = (3 * w0 + 5 * w1) - (-2)
    metrics = agent.update(steps(*STEPS))
    assert float(metrics["loss"]) * 2 == pytest.approx((first**2 + second**2) / 2, rel=1e-5)
    expected = torch.tensor([[[0, first * w0], [second * w0, 0]], [[0, first * w1], [second * w1, 0]]])
    torch.testing.assert_close(gradient(agent), expected)
    set_table(agent.net, [[[4, 0], [0, 0]], [[0, 3], [0, 1]]])
    certain = torch.tensor([[1e-9, 1.0]]).log()  # the belief in member 1 plays no part
    assert agent.act(steps((0, 0, 0.0, 0, 0)).obs, certain).tolist() == [0]


def implicit(**settings: Any) -> QAgent:
    """Two critics, then logits and V: V(0) = 1, V(1) = 2; the target's critics give min Q(0, 1) = 2, min Q(1, 0) = 1."""
    table = [[[1, 2, 0], [3, 4, 0]], [[0, 1, 0], [5, 2, 0]], [[0, 1, 1], [2, 0, 2]]]
    target = [[[9, 2, 0], [1, 9, 0]], [[9, 3, 0], [4, 9, 0]], [[9, 9, 9], [9, 9, 9]]]
    config = DiscreteIQLConfig(**(SMALL | {"beta": 1.0} | settings))
    return with_tables(DiscreteIQL(LAYOUT, config, num_groups=2), table, target)


def test_iql_backs_up_the_state_value_and_weighs_cloning_by_the_advantage() -> None:
    agent, batch = implicit(), steps(*STEPS)
    errors = agent.td_errors(batch, uniform(agent, batch))  # y = 1 + .5 * V(1) = 2 and -2
    torch.testing.assert_close(errors, torch.tensor([[1 - 2.0], [3 + 2.0]]))
    metrics = {name: float(value) for name, value in agent.update(batch).items()}
    critics = [(2 - 2) ** 2 + (1 - 2) ** 2, (3 + 2) ** 2 + (5 + 2) ** 2]
    assert metrics["critic_loss"] == pytest.approx(sum(critics) / 2 / 2)
    values = [0.7 * (2 - 1) ** 2, 0.3 * (1 - 2) ** 2]
    assert metrics["value_loss"] == pytest.approx(sum(values) / 2)
    weights = [math.e, math.exp(-1)]
    actors = [weights[0] * math.log(1 + math.exp(-1)), weights[1] * math.log(1 + math.exp(-2))]
    assert metrics["weight"] == pytest.approx(sum(weights) / 2)
    assert metrics["actor_loss"] == pytest.approx(sum(actors) / 2)
    assert metrics["loss"] == pytest.approx((sum(critics) + sum(values) + sum(actors)) / 2)
    assert float(implicit(beta=1000.0).update(batch)["weight"]) == pytest.approx(100 / 2)


def test_iql_acts_on_its_policy_not_on_its_critics() -> None:
    agent = implicit()
    assert agent.act(steps(*STEPS).obs, torch.zeros(2, 1)).tolist() == [1, 0]


def test_the_log_decides_which_version_is_trained() -> None:
    assert find("iql", discrete=True).stored == "discrete-iql"
    assert find("iql", discrete=False).stored == "iql"
    assert find("ape-v", discrete=False).stored == "td3-bc"
    assert find("ape-v", discrete=False, base="sac-n").stored == "ape-v-sac"
    with pytest.raises(ValueError, match=r"edac does not learn from discrete actions.*Fix: pick one of ape-v, dqn"):
        find("edac", discrete=True)


def test_impossible_settings_are_refused() -> None:
    for settings in ({"expectile": 1.0}, {"critics": 0}, {"members": 2}):
        with pytest.raises(ValueError, match="Fix: 1 member"):
            DiscreteIQL(LAYOUT, DiscreteIQLConfig(**settings))
