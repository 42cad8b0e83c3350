"""Agents: each loss against numbers worked out by hand, and the contract that all of them keep."""

from __future__ import annotations

import math
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agent_contract import KINDS, AgentContract, build, puzzle, sampler_of
from by_hand import linear
from tables import LAYOUT, STEPS, TABLE, TARGET, gradient, set_table, steps, uniform
from torch import Tensor

from apev import belief as beliefs
from apev.agents import (
    AGENTS,
    APEV,
    DQN,
    LCB,
    APEVC51Config,
    APEVConfig,
    APEVSACConfig,
    C51Config,
    DQNConfig,
    LCBConfig,
)
from apev.agents.agent import in_todays_names
from apev.agents.discrete.base import QAgent
from apev.agents.distributional.base import CategoricalAgent
from apev.data import Batch, Observations
from apev.files import FileError, read_json, write_json
from apev.policy import Policy


class TestSingleDQN(AgentContract):
    agent = "dqn"
    settings = {"members": 1}  # noqa: RUF012


class TestDQN(AgentContract):
    agent = "dqn"
    settings = {"members": 5, "bootstrap": 0.8}  # noqa: RUF012


class TestLCB(AgentContract):
    agent = "lcb"
    settings = {"members": 3}  # noqa: RUF012


class TestAPEV(AgentContract):
    agent = "ape-v"
    settings = {"members": 3, "surprise": "certain", "bootstrap": 0.8}  # noqa: RUF012


class TestAPEVAsPrinted(AgentContract):
    agent = "ape-v"
    settings = {  # noqa: RUF012
        "members": 3,
        "surprise": "paper",
        "likelihood": "paper",
        "bootstrap": 1.0,
        "floor": 0.0,
    }


class TestAPEVWithWildcards(AgentContract):
    agent = "ape-v"
    settings = {"members": 3, "wildcards": 3, "prior_scale": 0.1}  # noqa: RUF012


class TestDQNOfLikelyActions(AgentContract):
    agent = "dqn"
    settings = {"members": 2, "support": 0.3}  # noqa: RUF012
    loss_falls = False


class TestAPEVOfLikelyActions(AgentContract):
    agent = "ape-v"
    settings = {"members": 3, "support": 0.3}  # noqa: RUF012
    loss_falls = False


class TestDiscreteBC(AgentContract):
    agent = "discrete-bc"
    imitates = True
    loss_falls = False


class TestDiscreteREM(AgentContract):
    agent = "discrete-rem"
    settings = {"members": 4}  # noqa: RUF012


class TestDiscreteCQL(AgentContract):
    agent = "discrete-cql"
    settings = {"conservative": 0.02}  # noqa: RUF012


class TestDiscreteIQL(AgentContract):
    agent = "discrete-iql"
    loss_falls = False


def test_every_agent_of_discrete_actions_keeps_the_contract() -> None:
    kept = {contract.agent for contract in AgentContract.__subclasses__() if hasattr(contract, "agent")}
    kept -= {name for name, (kind, _) in AGENTS.items() if issubclass(kind, CategoricalAgent)}  # theirs are in test_c51.py
    due = {name for name, (kind, _) in AGENTS.items() if issubclass(kind, QAgent)}
    assert kept == due


# ---------------------------------------------------------------------- losses, with tables in place of networks


def dqn(**settings: Any) -> DQN:
    fixed: dict[str, Any] = {"members": 2, "gamma": 0.5, "hidden": (), "floor": 0.0}
    agent = DQN(LAYOUT, DQNConfig(**(fixed | settings)), num_groups=2)
    set_table(agent.net, TABLE)
    set_table(agent.target, TARGET)
    return agent


def test_dqn_loss_by_hand() -> None:
    """y_0 = 1 + .5 * 40 = 21 and -2 (terminated); y_1 = 1 + .5 * 7 = 4.5 and -2. Errors -19, 5 and -3.5, 7."""
    agent = dqn()
    metrics = agent.update(steps(*STEPS))
    assert float(metrics["loss"]) == pytest.approx((19**2 + 5**2 + 3.5**2 + 7**2) / 2 / 2)
    assert float(metrics["value"]) == pytest.approx((2 + 3 + 1 + 5) / 4)
    torch.testing.assert_close(gradient(agent), torch.tensor([[[0.0, -19], [5, 0]], [[0, -3.5], [7, 0]]]))


def test_a_member_does_not_train_on_contexts_held_out_from_it() -> None:
    agent = dqn(bootstrap=0.5)
    agent.trains_on.copy_(torch.tensor([[True, True], [True, False]]))
    before = linear(agent.net.heads.layers[0]).weight.detach().clone()
    metrics = agent.update(steps(*STEPS))
    # A member sees half of the rows on average, so its mean over rows is divided by one half.
    assert float(metrics["loss"]) == pytest.approx((19**2 + 5**2 + 3.5**2) / (2 * 0.5) / 2)
    torch.testing.assert_close(gradient(agent), torch.tensor([[[0.0, -38], [10, 0]], [[0, -7], [0, 0]]]))
    after = linear(agent.net.heads.layers[0]).weight.detach()
    assert torch.equal(after[1, 1], before[1, 1])
    assert not torch.equal(after[0, 1], before[0, 1])


def test_masks_hold_out_the_asked_share_and_every_context_teaches_somebody() -> None:
    agent = DQN(LAYOUT, DQNConfig(members=4, bootstrap=0.7), num_groups=5000)
    assert float(agent.trains_on.float().mean()) == pytest.approx(0.7, abs=0.02)
    assert not torch.equal(agent.trains_on[:, 0], agent.trains_on[:, 1])
    assert bool(DQN(LAYOUT, DQNConfig(members=2, bootstrap=0.01), num_groups=500).trains_on.any(1).all())
    assert bool(DQN(LAYOUT, DQNConfig(members=2, bootstrap=1.0), num_groups=500).trains_on.all())


def test_the_target_network_moves_by_its_rate_and_gets_no_gradient() -> None:
    agent = dqn(target_rate=0.25, prior_scale=0.0)
    target, net = linear(agent.target.heads.layers[0]), linear(agent.net.heads.layers[0])
    old = target.weight.clone()
    agent.update(steps(*STEPS))
    new, online = target.weight, net.weight.detach()
    torch.testing.assert_close(new, 0.75 * old + 0.25 * online)
    # Nor a history: were each move recorded, memory would grow with every update.
    assert not any(p.requires_grad for p in agent.target.parameters())


def test_dqn_td_errors_by_hand() -> None:
    """Each member's own greedy next action, from the online network: s' = 1 is worth 4 to member 0 and 5 to member 1."""
    agent, batch = dqn(), steps(*STEPS)
    expected = torch.tensor([[2 - (1 + 0.5 * 4), 1 - (1 + 0.5 * 5)], [3 - (-2.0), 5 - (-2.0)]])
    torch.testing.assert_close(agent.td_errors(batch, uniform(agent, batch)), expected)


def test_the_policy_maximises_the_belief_weighted_mean() -> None:
    agent = dqn()
    set_table(agent.net, [[[4, 0], [0, 0]], [[0, 3], [0, 1]]])
    obs = Observations(torch.eye(2)[[0, 0, 0]])
    log_belief = torch.tensor([[0.5, 0.5], [0.4, 0.6], [0.45, 0.55]]).log()
    assert agent.act(obs, log_belief).tolist() == [0, 1, 0]  # 2 : 1.5, 1.6 : 1.8, 1.8 : 1.65


def test_sampled_actions_follow_the_softmax_and_come_from_the_agents_generator() -> None:
    agent = dqn(softness=0.5)
    set_table(agent.net, [[[0, math.log(3) / 2], [0, 0]]] * 2)
    obs, log_belief = Observations(torch.eye(2)[[0] * 4000]), beliefs.uniform(2, 4000)
    agent.generator.manual_seed(5)
    first = agent.act(obs, log_belief, greedy=False)
    assert float(first.float().mean()) == pytest.approx(0.75, abs=0.03)
    agent.generator.manual_seed(5)
    assert torch.equal(agent.act(obs, log_belief, greedy=False), first)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"members": 0}, "members is 0"),
        ({"softness": 0.0}, "softness is 0"),
        ({"bootstrap": 0.0}, "bootstrap is 0"),
        ({"bootstrap": 1.5}, r"share in \(0, 1\]"),
    ],
)
@pytest.mark.parametrize("name", ["ape-v", "dqn", "lcb"])
def test_impossible_settings_are_refused(name: str, settings: dict[str, Any], message: str) -> None:
    kind, config = AGENTS[name]
    with pytest.raises(ValueError, match=message):
        kind(LAYOUT, config(**settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"surprise": "nonsense"},
        {"likelihood": "nonsense"},
        {"concentration": 0.0},
        {"wildcards": -1},
        {"wildcard_weight": 0.0},
        {"floor": 0.5},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_a_setting_that_cannot_work_is_refused_before_training(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        APEV(LAYOUT, APEVConfig(**settings))


# ---------------------------------------------------------------------- LCB


def lcb(beta: float) -> LCB:
    agent = LCB(LAYOUT, LCBConfig(members=2, gamma=0.5, hidden=(), beta=beta), num_groups=1)
    set_table(agent.net, [[[0, 0], [10, 4]], [[0, 0], [0, 4]]])  # s = 1: means 5 and 4, but action 0 is disputed
    set_table(agent.target, [[[0, 0], [10, 4]], [[0, 0], [0, 4]]])
    return agent


@pytest.mark.parametrize(("beta", "action"), [(0.0, 0), (0.1, 0), (1.0, 1)])
def test_lcb_avoids_what_its_members_disagree_on(beta: float, action: int) -> None:
    agent = lcb(beta)
    certain = torch.tensor([[1.0, 0.0], [0.5, 0.5]]).clamp_min(1e-30).log()
    assert agent.act(Observations(torch.eye(2)[[1, 1]]), certain).tolist() == [action, action]  # whatever the belief


@pytest.mark.parametrize(("beta", "follow"), [(0.0, (10, 0)), (1.0, (4, 4))])
def test_lcb_members_learn_the_value_of_the_conservative_policy(beta: float, follow: tuple[float, float]) -> None:
    """y_k = 1 + .5 Q-_k(s', conservative action); DQN would take each member's own maximum, (10, 4)."""
    agent = lcb(beta)
    metrics = agent.update(steps((0, 0, 1.0, 1, 0)))
    assert float(metrics["loss"]) == pytest.approx(sum((1 + 0.5 * v) ** 2 for v in follow) / 2)


def test_lcb_td_errors_by_hand() -> None:
    agent, batch = lcb(1.0), steps((0, 0, 1.0, 1, 0), (0, 0, 1.0, 1, 1))
    errors = agent.td_errors(batch, uniform(agent, batch))
    torch.testing.assert_close(errors, torch.tensor([[-(1 + 5.0), -(1 + 2.0)], [-1.0, -1.0]]))


def test_lcb_of_one_member_is_dqn() -> None:
    agent = LCB(LAYOUT, LCBConfig(members=1, gamma=0.5, hidden=()), num_groups=1)
    set_table(agent.net, [[[0, 0], [1, 2]]])
    set_table(agent.target, [[[0, 0], [1, 2]]])
    assert agent.act(Observations(torch.eye(2)), beliefs.uniform(1, 2)).tolist() == [0, 1]
    assert float(agent.update(steps((0, 0, 1.0, 1, 0)))["loss"]) == pytest.approx(4.0)


# ---------------------------------------------------------------------- APE-V


def apev(**settings: Any) -> APEV:
    """Two members. Dirichlet(1e8) draws b = (1/2, 1/2) to four digits, so that numbers can be worked out by hand."""
    fixed: dict[str, Any] = {
        "members": 2,
        "gamma": 0.5,
        "hidden": (),
        "concentration": 1e8,
        "floor": 0.0,
        "likelihood": "paper",
    }
    fixed |= {"bootstrap": 1.0, "evidence_share": 0.0}
    agent = APEV(LAYOUT, APEVConfig(**(fixed | settings)), num_groups=1)
    set_table(agent.net, [[[1, 0], [2, 0]], [[3.5, 0], [0, 3]]])
    # The target at s' = 1: member 0 likes action 0, member 1 action 1. Member 0's values rise by 4 b_0.
    set_table(agent.target, [[[0, 0], [2, 0]], [[0, 0], [0, 3]]], [[[4, 4], [0, 0]], [[0, 0], [0, 0]]])
    return agent


ONE_STEP = (0, 0, 0.0, 1, 0)


def test_apev_as_printed_takes_the_next_value_at_the_new_belief() -> None:
    agent = apev(surprise="paper")
    # At b both terms mix to 1 + 1 : 1.5 + 1, so action 1 follows: V = (0 + 2, 3), errors 1 - 1 = 0 and 3.5 - 1.5 = 2.
    new = 1 / (1 + math.exp(-4))
    # At b' member 0 has .982: action 0 follows, V = (2 + 4 b'_0, 0).
    errors = [1 - 0.5 * (2 + 4 * new), 3.5 - 0.0]
    metrics = agent.update(steps(ONE_STEP))
    assert float(metrics["loss"]) == pytest.approx((errors[0] ** 2 + errors[1] ** 2) / 2, rel=1e-3)
    assert float(metrics["belief_moved"]) == pytest.approx(new - 0.5, rel=1e-3)
    # Gradient: 2 error at (s, a), and through the belief b at which Q is taken, but none through b' or the target.
    expected = torch.zeros(2, 4, 2)
    for k, error in enumerate(errors):
        expected[k, 0, 0] = 2 * error
        expected[k, 2:, 0] = 2 * error * 0.5
    torch.testing.assert_close(gradient(agent), expected, rtol=2e-3, atol=1e-3)
    assert not any(p.requires_grad for p in agent.target.parameters())


def test_apev_under_certainty_also_learns_each_members_own_value() -> None:
    agent = apev(surprise="certain")
    # Plain values: member 0 expects max(2, 0) = 2 after the step, y = 1, error 1 - 1 = 0. Member 1: 3.5 - 1.5 = 2.
    own = [0.0, 2.0]
    new = 1 / (1 + math.exp(-4))
    # At b' member 0 has .982: action 0 follows, V = (2 + (1 - b'_0) 4 b'_0, 0).
    errors = [1 - 0.5 * (2 + (1 - new) * 4 * new), 3.5 - 0.0]
    metrics = agent.update(steps(ONE_STEP))
    assert float(metrics["loss"]) == pytest.approx((sum(e**2 for e in own) + sum(e**2 for e in errors)) / 2, rel=1e-3)
    assert float(metrics["belief_moved"]) == pytest.approx(new - 0.5, abs=1e-3)
    plain, correction = torch.zeros(2, 2, 2), torch.zeros(2, 4, 2)
    for k in range(2):
        plain[k, 0, 0] = 2 * own[k]  # adaptive values never teach the plain ones
        correction[k, 0, 0] = 2 * errors[k] * 0.5  # 1 - b_k
        correction[k, 2:, 0] = 2 * errors[k] * 0.5 * 0.5
    torch.testing.assert_close(gradient(agent), plain, rtol=2e-3, atol=1e-2)
    torch.testing.assert_close(gradient(agent, "correction"), correction, rtol=2e-3, atol=1e-2)


def test_a_member_can_follow_its_own_best_action_instead_of_the_policys() -> None:
    q, belief = torch.tensor([[[1.0, 3.0]], [[8.0, 0.0]]]), torch.tensor([[0.5, 0.5]])  # the mean of both prefers action 0
    own, policy = (apev(surprise="paper", targets=word) for word in ("own", "policy"))
    torch.testing.assert_close(policy.next_value(q, belief, None), torch.tensor([[1.0], [8.0]]))
    torch.testing.assert_close(own.next_value(q, belief, None), torch.tensor([[3.0], [8.0]]))
    with pytest.raises(ValueError, match="Fix: 'policy' or 'own'"):
        apev(targets="both")


@pytest.mark.parametrize("surprise", ["certain", "paper"])
def test_termination_cuts_the_future_off_and_a_time_limit_does_not(surprise: str) -> None:
    agent = apev(surprise=surprise)
    metrics = agent.update(steps((0, 0, -2.0, 1, 1)))
    once = (1 + 2) ** 2 + (3.5 + 2) ** 2  # the errors are Q + 2 at every belief
    assert float(metrics["loss"]) == pytest.approx(once * (2 if surprise == "certain" else 1) / 2, rel=1e-3)
    batch = steps((0, 0, -2.0, 1, 1))
    torch.testing.assert_close(apev(surprise=surprise).td_errors(batch, uniform(agent, batch)), torch.tensor([[3.0, 5.5]]))


def test_apev_td_errors_by_hand() -> None:
    """All from the online network, where member 0's values rise by 4 b_0 and member 1's by 2 b_1."""
    table = [[[1, 0], [2, 0]], [[3.5, 0], [0, 3]]]
    by_belief = [[[4, 4], [0, 0]], [[0, 0], [2, 2]]]
    batch, log_belief = steps(ONE_STEP), torch.tensor([[0.75, 0.25]]).log()
    certain, printed = apev(surprise="certain"), apev(surprise="paper")
    for agent in (certain, printed):
        set_table(agent.net, table, by_belief)
    # Trusted alone a member follows its plain values: Q = 1, V = 2; Q = 3.5, V = 3. The current belief plays no part.
    torch.testing.assert_close(certain.td_errors(batch, log_belief), torch.tensor([[1 - 1.0, 3.5 - 1.5]]))
    # At b: mixed .75 (2 + 3) + .25 * .5 : .75 * 3 + .25 * 3.5, so action 0 follows: V = (5, .5); Q = (1 + 3, 3.5 + .5).
    torch.testing.assert_close(printed.td_errors(batch, log_belief), torch.tensor([[4 - 2.5, 4 - 0.25]]))


def test_apev_acts_on_values_at_its_belief() -> None:
    agent = apev()
    set_table(agent.net, [[[1, 0], [0, 0]]] * 2, [[[0, 0], [0, 6]]] * 2)  # action 1 gains (1 - b_k) 6 b_1
    log_belief = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
    assert agent.act(Observations(torch.eye(2)[[0, 0]]), log_belief).tolist() == [0, 1]


def test_beliefs_in_training_are_drawn_from_the_prior_and_floored() -> None:
    agent = apev(concentration=0.01, floor=0.05, surprise="paper")
    seen: list[Tensor] = []
    agent.net.register_forward_pre_hook(lambda _, args: seen.append(args[2]))
    agent.update(steps(*[ONE_STEP] * 500, group=[0] * 500))
    drawn = next(b for b in seen if b.ndim == 2)
    torch.testing.assert_close(drawn.sum(-1), torch.ones(500))
    assert float(drawn.min()) >= 0.05 - 1e-6
    assert float((drawn.max(-1).values > 0.94).float().mean()) > 0.9  # Dirichlet(.01) is nearly certain
    assert float(drawn[:, 0].mean()) == pytest.approx(0.5, abs=0.1)


def test_beliefs_from_evidence_are_what_other_steps_of_the_context_would_have_taught() -> None:
    agent = apev(surprise="certain", evidence_share=1.0, concentration=1.0)
    batch = steps((0, 0, 0, 1, 0), (0, 0, 0, 1, 0), (0, 0, 0, 1, 1), (0, 0, 0, 1, 0), group=[0, 0, 0, 1])
    errors = torch.tensor([[1.0, 0.0], [0.0, 2.0], [5.0, 0.0], [7.0, 0.0]])
    # Log-odds of member 0 after each set of steps an agent may have seen: never its own, nor an end, nor another context.
    # The last row's context shows nowhere else: it keeps the belief it was drawn with, which is another each time.
    possible = [{0.0, 4.0}, {0.0, -1.0}, {0.0, -1.0, 4.0, 3.0}]
    met: list[set[float]] = [set(), set(), set(), set()]
    for _ in range(100):
        drawn = agent.draw_beliefs(batch, errors)
        torch.testing.assert_close(drawn.exp().sum(-1), torch.ones(4))
        for seen, odds in zip(met, (drawn[:, 0] - drawn[:, 1]).tolist(), strict=True):
            seen.add(round(odds, 3))
    assert met[:3] == possible
    assert len(met[3]) > 90


def test_a_share_of_the_beliefs_comes_from_evidence() -> None:
    agent = apev(surprise="certain", evidence_share=0.25, concentration=1.0)
    batch = steps(*[ONE_STEP] * 1000, group=[0] * 1000)
    # Equal errors: evidence leads to the uniform belief.
    drawn = agent.draw_beliefs(batch, torch.ones(1000, 2))
    uniform = (drawn[:, 0] - drawn[:, 1]).abs() < 1e-6
    assert float(uniform.float().mean()) == pytest.approx(0.25, abs=0.05)
    assert float(drawn[~uniform].exp()[:, 0].std()) == pytest.approx(1 / math.sqrt(12), abs=0.02)  # Dirichlet(1) is flat


def test_scales_follow_the_errors_on_contexts_held_out_from_a_member() -> None:
    agent = apev(surprise="certain", likelihood="calibrated", bootstrap=0.5)
    agent.trains_on = torch.tensor([[True, False], [False, True]])
    errors = torch.tensor([[5.0, 3.0], [2.0, 7.0]])  # [rows, K]; row i is of context i
    weight, held_out = agent.row_weights(steps(ONE_STEP, ONE_STEP))
    torch.testing.assert_close(weight, torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    assert agent.scale.tolist() == [1.0, 1.0]  # asking who trains on what measures nothing
    for _ in range(600):
        agent.track_scale(errors.square(), held_out.T, 0.02)
    torch.testing.assert_close(agent.scale, torch.tensor([2.0, 3.0]), rtol=1e-3, atol=0)


def test_a_scale_stays_where_it_is_while_a_batch_says_nothing_about_it() -> None:
    """Member 0 trains on every context of these batches: nothing was held out, so nothing was measured."""
    agent = apev(surprise="certain", likelihood="calibrated", bootstrap=0.5)
    agent.trains_on = torch.tensor([[True, False], [True, False]])
    for _ in range(600):
        agent.track_scale(torch.full((2, 2), 4.0), agent.row_weights(steps(ONE_STEP, ONE_STEP))[1].T, 0.02)
    assert float(agent.scale[1]) == pytest.approx(2.0, rel=1e-3)
    assert float(agent.scale[0]) == 1.0


def test_wildcards_of_little_weight_come_last() -> None:
    config = APEVConfig(members=2, wildcards=2, wildcard_weight=0.1, hidden=(), floor=0.001)
    agent = APEV(LAYOUT, config, num_groups=1)
    for word in ("bayes", "commit", "hold"):
        np.testing.assert_allclose(Policy(agent, word).belief, np.array([1, 1, 0.1, 0.1]) / 2.2, rtol=1e-6)
    np.testing.assert_array_equal(Policy(agent, "uniform").belief, np.full(4, 0.25))
    as_others = APEV(LAYOUT, replace(config, wildcard_weight=1.0), num_groups=1)
    np.testing.assert_array_equal(Policy(as_others).belief, np.full(4, 0.25))


def test_beliefs_of_training_begin_where_episodes_do() -> None:
    config = APEVConfig(members=2, wildcards=1, wildcard_weight=0.1, hidden=(), floor=0.0, evidence_share=1.0)
    agent = APEV(LAYOUT, config, num_groups=1)
    rows = 400
    nothing = Batch(
        obs=Observations(torch.zeros(rows, 2)),
        action=torch.zeros(rows, dtype=torch.int64),
        reward=torch.zeros(rows),
        next_obs=Observations(torch.zeros(rows, 2)),
        terminated=torch.zeros(rows),
        group=torch.zeros(rows, dtype=torch.int64),
    )
    drawn = agent.draw_beliefs(nothing, torch.zeros(rows, 3)).exp()  # steps that surprise nobody say nothing
    torch.testing.assert_close(drawn, (torch.tensor([1, 1, 0.1]) / 2.1).expand(rows, 3))


def test_calibration_leaves_wildcards_the_scale_of_the_others() -> None:
    agent = APEV(LAYOUT, APEVConfig(members=2, wildcards=1, hidden=(), gamma=0.5, surprise="certain"), num_groups=1)
    set_table(agent.net, [[[3, 0], [0, 0]], [[1, 0], [0, 0]], [[99, 0], [0, 0]]])
    agent.calibrate([steps((0, 0, 0.0, 1, 1)), steps((0, 0, 0.0, 1, 0))])
    torch.testing.assert_close(agent.scale, torch.tensor([3.0, 1.0, math.sqrt(5)]))


@pytest.mark.parametrize("kind", KINDS)
def test_moving_to_the_device_it_is_on_changes_nothing(kind: str) -> None:
    agent = build("ape-v", {"members": 2}, puzzle(kind))
    optimizer, generator = agent.optimizer, agent.generator
    agent.update(sampler_of(puzzle(kind)).sample())
    agent.to_device("cpu")
    assert (agent.optimizer, agent.generator) == (optimizer, generator)


# ---------------------------------------------------------------------- names


def test_settings_of_an_older_file_are_read_under_todays_names() -> None:
    old: dict[str, Any] = {"alpha": 0.3, "surprise": "paper", "members": 4}
    assert in_todays_names(APEVConfig, old) == {"concentration": 0.3, "surprise": "paper", "members": 4}
    old = {"dirichlet": 0.02, "surprise": "certain"}
    assert in_todays_names(APEVSACConfig, old) == {"concentration": 0.02, "surprise": "certain"}
    old = {"surprise": "categorical", "prior_scale": 0.0}
    assert in_todays_names(C51Config, old) == {"judged_by": "categorical"}
    old = {"alpha": 1.0, "surprise": "error", "measured_at": "certain", "prior_scale": 0.0}
    renamed = {"concentration": 1.0, "judged_by": "error", "surprise": "certain"}
    assert in_todays_names(APEVC51Config, old) == renamed
    for config in (APEVConfig(), APEVSACConfig(), C51Config(), APEVC51Config(), LCBConfig()):
        assert in_todays_names(type(config), asdict(config)) == asdict(config)  # a file of today says what it means


@pytest.mark.parametrize(
    ("name", "kind", "old"),
    [
        ("ape-v", "vector", {"concentration": "alpha"}),
        ("ape-v-c51", "picture", {"concentration": "alpha", "judged_by": "surprise", "surprise": "measured_at"}),
        ("c51", "picture", {"judged_by": "surprise"}),
        ("ape-v-sac", "continuous", {"concentration": "dirichlet"}),
    ],
)
def test_a_policy_of_an_older_version_loads(name: str, kind: str, old: dict[str, str], tmp_path: Path) -> None:
    settings: dict[str, Any] = {"ape-v": {"members": 2, "concentration": 0.3}, "ape-v-sac": {"critics": 3}}
    agent = build(name, settings.get(name, {}), puzzle(kind))
    Policy(agent).save(tmp_path)
    about = read_json(tmp_path / "policy.json")
    about["config"] = {old.get(setting, setting): value for setting, value in about["config"].items()}
    if "c51" in name:
        about["config"]["prior_scale"] = 0.0  # it had one, which did nothing
    write_json(tmp_path / "policy.json", about, checksum=True)
    loaded = Policy.load(tmp_path).agent
    assert loaded.config == agent.config
    assert all(torch.equal(value, loaded.policy_state()[key]) for key, value in agent.policy_state().items())
    for wrong in ("nonsense", "RENAMED"):
        write_json(tmp_path / "policy.json", about | {"config": {wrong: {}}}, checksum=True)
        with pytest.raises(FileError, match=f"there is no '{wrong}'"):
            Policy.load(tmp_path)


def test_what_the_paper_prints_has_an_address() -> None:
    for config in (APEVConfig.paper(), APEVSACConfig.paper(), APEVC51Config.paper()):
        assert (config.surprise, config.likelihood, config.floor) == ("paper", "paper", 0.0)
    assert (APEVConfig.paper().gamma, APEVConfig.paper().bootstrap, APEVConfig.paper().evidence_share) == (0.98, 1.0, 0.0)
    concentrations = [config.paper().concentration for config in (APEVConfig, APEVSACConfig, APEVC51Config)]
    assert concentrations == [0.1, 0.01, 1.0]
    assert not APEVSACConfig.paper().target_floor
    # What APE-Vs share is called the same in all of them, and alpha is the entropy's weight alone.
    shared = set.intersection(*({f.name for f in fields(kind)} for kind in (APEVConfig, APEVSACConfig, APEVC51Config)))
    assert {"concentration", "surprise", "members", "likelihood", "floor", "gamma", "target_rate"} <= shared
    assert not any(f.name in ("alpha", "dirichlet", "measured_at") for _, kind in AGENTS.values() for f in fields(kind))


@pytest.mark.parametrize(("name", "kind"), [("dqn", "vector"), ("ape-v", "dict"), ("sac", "continuous")])
def test_rows_with_weights_are_refused_by_agents_that_would_not_heed_them(name: str, kind: str) -> None:
    batch = sampler_of(puzzle(kind)).sample()
    weighed = batch.prioritised(torch.ones(len(batch.reward)), None, lambda losses: None)
    with pytest.raises(ValueError, match=r"takes all rows alike.*Fix: Sampler"):
        build(name, {}, puzzle(kind)).update(weighed)


def test_questions_leave_an_agent_as_it_was() -> None:
    agent = apev(surprise="certain", likelihood="calibrated", bootstrap=0.5)
    batch = steps(*STEPS, group=[0, 0])
    before = {name: value.clone() for name, value in agent.state_dict().items()}
    errors = agent.td_errors(batch, uniform(agent, batch))
    agent.row_weights(batch)
    agent.draw_beliefs(batch, errors)
    careful = build("ape-v-sac", {"critics": 3}, puzzle("continuous"))
    kept = careful.scale.clone()
    careful.new_belief(careful.draw_belief(4), torch.randn(4, 2))
    assert torch.equal(careful.scale, kept)
    assert all(torch.equal(before[name], value) for name, value in agent.state_dict().items())
