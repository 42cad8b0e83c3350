"""Only likely actions: what a cloning head forbids is never chosen, in acting and in targets (tables in place of networks)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from agent_contract import build, puzzle, sampler_of
from by_hand import linear
from tables import LAYOUT, STEPS, TABLE, TARGET, gradient, set_table, steps, uniform

from apev import belief as beliefs
from apev.agents import AGENTS, APEV, DQN, LCB, APEVConfig, DiscreteREM, DiscreteREMConfig, DQNConfig, LCBConfig
from apev.agents.discrete.base import QAgent
from apev.agents.registry import find
from apev.api import configure
from apev.data import Observations

CLONE = [[[0.5, 0.5], [0.9, 0.1]], [[0.2, 0.8], [0.5, 0.5]]]  # G_k(a | s): member 0 has hardly ever seen action 1 in state 1


def supported(agent: QAgent) -> Any:
    """The tables of other tests, and the cloning heads' own."""
    set_table(agent.net, TABLE)
    set_table(agent.target, TARGET)
    with torch.no_grad():
        for net in (agent.net, agent.target):
            assert net.cloning is not None
            linear(net.cloning.layers[0]).weight.copy_(torch.tensor(CLONE).log())
            linear(net.cloning.layers[0]).bias.zero_()
    return agent


def settings(**more: Any) -> dict[str, Any]:
    return {"members": 2, "gamma": 0.5, "hidden": (), "floor": 0.0, "support": 0.3} | more


def dqn(**more: Any) -> DQN:
    agent: DQN = supported(DQN(LAYOUT, DQNConfig(**settings(**more)), num_groups=2))
    return agent


def test_targets_take_the_best_of_the_likely_actions() -> None:
    """In s' = 1 member 0 may take action 0 alone: y_0 = 1 + .5 * 30 = 16; member 1 both: y_1 = 1 + .5 * 7."""
    agent = dqn()
    metrics = agent.update(steps(*STEPS))
    squares = 14**2 + 5**2 + 3.5**2 + 7**2
    cloning = -sum(math.log(p) for p in (0.5, 0.9, 0.8, 0.5))  # actions 1 and 0, of both members
    assert float(metrics["loss"]) == pytest.approx((squares + cloning) / 2 / 2)
    torch.testing.assert_close(gradient(agent), torch.tensor([[[0.0, -14], [5, 0]], [[0, -3.5], [7, 0]]]))
    # dL_G / d logit = G - 1 at the logged action, half a row each
    clone = torch.tensor([[[0.5, -0.5], [-0.1, 0.1]], [[0.2, -0.2], [-0.5, 0.5]]]) / 2
    torch.testing.assert_close(gradient(agent, "cloning"), clone)


def test_heads_clone_the_contexts_their_member_trains_on() -> None:
    agent = dqn(bootstrap=0.5)
    agent.trains_on.copy_(torch.tensor([[True, True], [True, False]]))
    agent.update(steps(*STEPS))
    assert bool((gradient(agent, "cloning")[1, 1] == 0).all())
    assert bool((gradient(agent, "cloning")[0, 1] != 0).all())


def test_surprise_is_that_of_likely_actions() -> None:
    agent, batch = dqn(), steps(*STEPS)  # online, s' = 1 is worth 3 to member 0, whose 4 is unlikely, and 5 to member 1
    expected = torch.tensor([[2 - (1 + 0.5 * 3), 1 - (1 + 0.5 * 5)], [3 - (-2.0), 5 - (-2.0)]])
    torch.testing.assert_close(agent.td_errors(batch, uniform(agent, batch)), expected)
    ape_v = supported(APEV(LAYOUT, APEVConfig(**settings()), num_groups=2))
    torch.testing.assert_close(ape_v.td_errors(batch, uniform(ape_v, batch)), expected)


def test_what_is_likely_under_a_belief_is_the_mixture_of_the_heads() -> None:
    agent = dqn()
    set_table(agent.net, [[[0, 0], [0, 9]], [[0, 0], [0, 9]]])  # action 1 is better in state 1
    obs = Observations(torch.eye(2)[[1, 1, 1]])
    log_belief = torch.tensor([[1.0, 1e-9], [0.7, 0.3], [0.5, 0.5]]).log()
    # of action 1: .1 : .9, .22 : .78 and .3 : .7; .3 of the larger is .27, .234 and .21
    assert agent.act(obs, log_belief).tolist() == [0, 0, 1]
    drawn = torch.stack([agent.act(obs, log_belief, greedy=False) for _ in range(50)])
    assert bool((drawn[:, :2] == 0).all())
    assert bool((drawn[:, 2] == 1).all())


@pytest.mark.parametrize("surprise", ["certain", "paper"])
def test_ape_v_expects_what_its_policy_may_do(surprise: str) -> None:
    agent = supported(APEV(LAYOUT, APEVConfig(**settings(surprise=surprise)), num_groups=2))
    q = torch.tensor([[[3.0, 4.0]] * 2, [[5.0, 9.0]] * 2])  # [K, B, A]: action 1 is better to both
    belief = torch.tensor([[0.7, 0.3], [0.5, 0.5]])
    log_clone = torch.tensor(CLONE)[:, 1:].expand(2, 2, 2).log()
    assert agent.next_value(q, belief, log_clone).tolist() == [[3.0, 4.0], [5.0, 9.0]]
    assert agent.next_value(q, belief, None).tolist() == [[4.0, 4.0], [9.0, 9.0]]
    metrics = agent.update(steps(*STEPS))
    assert math.isfinite(float(metrics["loss"]))
    assert bool((gradient(agent, "cloning") != 0).any())


def test_a_plain_target_of_ape_v_asks_the_members_own_head() -> None:
    agent = supported(APEV(LAYOUT, APEVConfig(**settings(evidence_share=0.0, bootstrap=1.0)), num_groups=2))
    agent.update(steps(*STEPS))
    torch.testing.assert_close(gradient(agent), torch.tensor([[[0.0, -14], [5, 0]], [[0, -3.5], [7, 0]]]))


def test_lcb_and_rem_maximise_over_likely_actions_too() -> None:
    q = torch.tensor([[[3.0, 4.0]], [[5.0, 9.0]]])
    belief, log_clone = torch.tensor([[0.7, 0.3]]), torch.tensor(CLONE)[:, 1:].log()
    bound = supported(LCB(LAYOUT, LCBConfig(**settings()), num_groups=2))
    assert bound.next_value(q, belief, log_clone).tolist() == [[3.0], [5.0]]
    mixture = supported(DiscreteREM(LAYOUT, DiscreteREMConfig(**settings()), num_groups=2))
    torch.testing.assert_close(mixture.next_value(q, belief, log_clone), torch.tensor([[0.7 * 3 + 0.3 * 5]]))


def test_the_heads_learn_nothing_into_the_encoders_and_all_of_it_is_deployed() -> None:
    data = puzzle("picture")
    agent = build("ape-v", {"members": 2, "support": 0.3}, data)
    batch = sampler_of(data).sample()
    features = agent.net.encode_rows(batch.obs, batch.shares_pictures)
    agent.with_cloning(torch.zeros(2, len(batch.action)), features, batch).sum().backward()
    assert all(p.grad is None for p in agent.net.encoder.parameters())
    assert all(p.grad is not None for p in agent.net.cloning.parameters())
    assert any(name.startswith("net.cloning.") for name in agent.policy_state())


@pytest.mark.parametrize("support", [0.05, 0.6, 1.0])
def test_no_chosen_action_is_unlikely(support: float) -> None:
    agent = build("dqn", {"members": 3, "support": support}, puzzle("vector"))
    with torch.no_grad():
        for p in agent.net.cloning.parameters():
            p.mul_(8)
    obs = Observations(torch.randn(400, 3))
    log_belief = beliefs.sample_dirichlet(1.0, 400, 3, agent.generator)
    likely = torch.einsum("bk,kba->ba", log_belief.exp(), agent.net.clone(None, obs.vector).exp())
    share = likely / likely.amax(-1, keepdim=True)
    for greedy in (True, False):
        chosen = agent.act(obs, log_belief, greedy)
        assert bool((share.gather(1, chosen[:, None]) >= support * 0.9999).all())


def test_users_get_support_unless_they_say_otherwise_and_stored_settings_stay() -> None:
    for name in ("ape-v", "dqn"):
        variant = find(name, discrete=True)
        assert configure(variant, {}).support == 0.3
        assert configure(variant, {"support": 0.0}) == variant.config()


def test_without_support_there_are_no_heads_and_shares_alone_are_accepted() -> None:
    assert DQN(LAYOUT, DQNConfig()).net.cloning is None
    for name in ("dqn", "ape-v", "lcb", "discrete-cql", "discrete-rem"):
        kind, config = AGENTS[name]
        for wrong in (-0.1, 1.1):
            with pytest.raises(ValueError, match=r"support is .*from 0 to 1"):
                kind(LAYOUT, config(support=wrong))
    for name in ("discrete-bc", "discrete-iql"):
        kind, config = AGENTS[name]
        with pytest.raises(ValueError, match=r"support is 0\.3\. Fix: leave it out"):
            kind(LAYOUT, config(support=0.3))
