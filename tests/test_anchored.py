"""What steadies SAC where a log is small, and APE-V whose members are SAC-n agents exactly: worked out by hand."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import PLAIN, linear, one_state, step
from torch import Tensor

from apev.agents import EDAC, SAC, AnchoredAPEVSAC, AnchoredSACConfig, EDACConfig, SACConfig
from apev.agents.continuous.anchored import AnchoredActors
from apev.data import Dataset, Layout, Observations
from apev.data.batch import Batch
from apev.nn.ensemble import NormedMLP
from apev.policy import Policy

WIDE = Layout((("observation", 3),), None, None, 0, True, (-1.0,) * 2, (1.0,) * 2)
STEADY: dict[str, Any] = {"layer_norm": True, "target_bounds": True, "actor_average": 0.25, "near_log": 0.4}


def rows(count: int, seed: int = 0) -> Batch:
    torch.manual_seed(seed)
    obs, following = Observations(torch.randn(count, 3)), Observations(torch.randn(count, 3))
    zeros = torch.zeros(count, dtype=torch.int64)
    ended = (torch.rand(count) < 0.2).float()
    return Batch(obs, torch.rand(count, 2) * 2 - 1, torch.randn(count), following, ended, zeros)


def small_log() -> Dataset:
    columns = {"observations": np.zeros((4, 1)), "actions": np.zeros((4, 1)), "rewards": np.array([-1.0, -2.0, 4.0, 6.0])}
    ends = np.array([False, True, False, True])
    return Dataset.from_arrays(**columns, terminated=ends, truncated=np.zeros(4, dtype=bool))  # type: ignore[arg-type]


def randomised(agent: SAC) -> SAC:
    """Weights that are not those of a start."""
    torch.manual_seed(7)
    with torch.no_grad():
        for p in agent.parameters():
            p.normal_(0, 0.3)
    agent.log_alpha.data.fill_(-1.0)
    return agent


def same_noise(*agents: SAC) -> None:
    """Every draw of a shape [..., A] is the same numbers row by row, whichever member draws."""
    torch.manual_seed(3)
    fixed = torch.randn(64, 2)
    for agent in agents:
        agent.noise = lambda like, generator=None: fixed[: like.shape[-2]].expand(like.shape)  # type: ignore[method-assign]


# ---------------------------------------------------------------------- what steadies SAC


def test_without_the_new_settings_nothing_is_added() -> None:
    new = {"layer_norm": False, "target_bounds": False, "actor_average": 0.0, "near_log": 0.0}
    assert {field.name: field.default for field in fields(SACConfig) if field.name in new} == new
    agent = SAC(PLAIN, SACConfig(hidden=(8,)))
    assert agent.deployed_actors is agent.actors
    assert {name.partition(".")[0] for name in agent.state_dict()} == {
        "actors", "critics", "target", "log_alpha", "counts", "scale"
    }  # fmt: skip


def test_targets_stay_within_what_the_logs_rewards_allow() -> None:
    for value, expected in ((-99.0, -2.0), (99.0, 7.0)):  # -2 in the second row; 4 + .5 * 6 from the third
        agent = SAC.for_data(small_log(), SACConfig(critics=2, gamma=0.5, hidden=(), target_bounds=True))
        assert (float(agent.lowest), float(agent.highest)) == (-2.0, 7.0)
        one_state(agent, [[value], [value]])  # and .5 more for the logged action
        loss, _ = agent.critic_loss(step(0.0, 0.0), None)
        assert float(loss.detach()) == pytest.approx(2 * (value + 0.5 - expected) ** 2, rel=1e-5)


def test_the_slow_actors_are_deployed_and_follow_the_trained_ones() -> None:
    agent = SAC(WIDE, SACConfig(hidden=(8,), actor_average=0.25, lr=0.1), seed=1)
    first = [p.clone() for p in agent.actors.parameters()]
    agent.update(rows(16))
    for slow, fast, start in zip(agent.deployed_actors.parameters(), agent.actors.parameters(), first, strict=True):
        torch.testing.assert_close(slow, start + 0.25 * (fast - start))
    obs = Observations(torch.randn(5, 3))
    torch.testing.assert_close(agent.act(obs, torch.zeros(5, 1)), agent.deployed_actors(obs.vector)[0].tanh())
    other = SAC(WIDE, agent.config, seed=2)
    other.load_policy_state(agent.policy_state())
    torch.testing.assert_close(other.act(obs, torch.zeros(5, 1)), agent.act(obs, torch.zeros(5, 1)))


def test_values_are_divided_by_their_size_where_actors_stay_near_the_log() -> None:
    agent = SAC(PLAIN, SACConfig(critics=1, hidden=(), near_log=0.4))
    value, action = torch.tensor([-3.0, 5.0]), torch.tensor([[0.5], [0.1]])  # logged: .5 in both rows
    loss = agent.near(torch.tensor(8.0), value, action, step(0.0, 0.0, rows=2))
    assert float(loss) == pytest.approx(8 / 4 + 0.4 * (0.0 + 0.16) / 2)


def test_the_gradient_through_normed_critics_is_that_of_the_smallest() -> None:
    agent = randomised(SAC(WIDE, SACConfig(critics=5, hidden=(16, 16), layer_norm=True)))
    assert isinstance(agent.critics, NormedMLP)
    obs, action = torch.randn(40, 3), torch.rand(40, 2, requires_grad=True)
    value = agent.policy_value(obs, action, None)
    slow = action.detach().clone().requires_grad_()
    expected = agent.values(agent.critics, obs, slow)[0].amin(0)
    torch.testing.assert_close(value, expected)
    (gradient,) = torch.autograd.grad(value.sum(), action, retain_graph=True)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), slow)[0])
    value.sum().backward()
    assert all(p.grad is None for p in agent.critics.parameters())


def test_edac_tells_normed_critics_apart_by_their_gradients() -> None:
    agent = randomised(EDAC(WIDE, EDACConfig(critics=3, hidden=(16,), layer_norm=True)))
    assert isinstance(agent, EDAC)
    obs, action = torch.randn(20, 3), torch.rand(20, 2, requires_grad=True)
    q = agent.values(agent.critics, obs, action)[0]  # [N, B]
    slopes = [torch.autograd.grad(one.sum(), action, retain_graph=True)[0] for one in q]
    unit = torch.stack([slope / slope.norm(dim=-1, keepdim=True) for slope in slopes])
    cosines = torch.einsum("iba,jba->bij", unit, unit)
    expected = (cosines.sum((1, 2)) - 3).mean() / 2
    likeness = agent.likeness(obs, action.detach())
    torch.testing.assert_close(likeness, expected, rtol=1e-4, atol=1e-5)
    likeness.backward()
    assert all(p.grad is not None for p in list(agent.critics.parameters())[:1])


def test_settings_without_sense_are_refused() -> None:
    for config in (SACConfig(actor_average=1.5), SACConfig(near_log=-1.0)):
        with pytest.raises(ValueError, match="Fix:"):
            SAC(PLAIN, config)
    for anchored in (AnchoredSACConfig(shared=True), AnchoredSACConfig(surprise="paper")):
        with pytest.raises(ValueError, match="networks of their own"):
            AnchoredAPEVSAC(PLAIN, anchored)


# ---------------------------------------------------------------------- anchored members


def anchored(**settings: Any) -> AnchoredAPEVSAC:
    given: dict[str, Any] = {"critics": 4, "fewest": 1, "members": 3, "hidden": (16,)} | settings
    return AnchoredAPEVSAC(WIDE, AnchoredSACConfig(**given), seed=1)


def alone(agent: AnchoredAPEVSAC, k: int) -> SAC:
    """The SAC-n_k agent with member k's weights."""
    c = agent.config
    given = {f.name: getattr(c, f.name) for f in fields(SACConfig) if f.name != "critics"}
    one, own = SAC(WIDE, SACConfig(critics=agent.n[k], **given)), agent.owner == k
    pairs = [(one.actors.net, agent.actors.net, torch.tensor([k]))]
    pairs += [(getattr(one, net), getattr(agent, net), own.nonzero()[:, 0]) for net in ("critics", "target")]
    if c.actor_average:
        pairs.append((one.deployed_actors.net, agent.deployed_actors.net, torch.tensor([k])))
    with torch.no_grad():
        for small, large, members in pairs:
            for p, q in zip(small.parameters(), large.parameters(), strict=True):
                p.copy_(q[members])
        one.log_alpha.copy_(agent.log_alpha[k : k + 1])
    return one


def differentiate(agent: SAC, batch: Batch) -> None:
    """Leave the gradients of one update, and take no step."""
    agent.descend = lambda loss: loss.backward()  # type: ignore[method-assign]
    agent.update(batch)


@pytest.mark.parametrize("settings", [{}, STEADY])
def test_a_member_trusted_alone_is_the_sac_n_agent(settings: dict[str, Any]) -> None:
    agent, batch = anchored(**settings), rows(32)
    randomised(agent)
    singles = [alone(agent, k) for k in range(3)]
    same_noise(agent, *singles)
    obs = Observations(torch.randn(6, 3))
    errors = agent.td_errors(batch, torch.full((32, 3), 1 / 3).log())
    for k, one in enumerate(singles):
        corner = torch.eye(3)[k].clamp_min(1e-30).log()
        torch.testing.assert_close(errors[:, k : k + 1], one.td_errors(batch, torch.zeros(32, 1)))
        torch.testing.assert_close(agent.act(obs, corner.expand(6, 3)), one.act(obs, torch.zeros(6, 1)))
        torch.testing.assert_close(agent.act(obs, corner.expand(6, 3), greedy=False), one.act(obs, torch.zeros(6, 1), False))
    differentiate(agent, batch)
    for k, one in enumerate(singles):
        differentiate(one, batch)
        own = (agent.owner == k).nonzero()[:, 0]
        for p, q in zip(one.critics.parameters(), agent.critics.parameters(), strict=True):
            torch.testing.assert_close(p.grad, grad(q)[own], rtol=1e-4, atol=1e-5)
        for p, q in zip(one.actors.net.parameters(), agent.actors.net.parameters(), strict=True):
            torch.testing.assert_close(p.grad, grad(q)[[k]], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(grad(one.log_alpha), grad(agent.log_alpha)[[k]])


def grad(p: Any) -> Tensor:
    assert p.grad is not None
    return p.grad  # type: ignore[no-any-return]


def test_training_without_doubt_trains_the_same_members_bit_for_bit() -> None:
    taught, untaught = anchored(**STEADY), anchored(eval_only=True, **STEADY)
    for seed in range(4):
        taught.update(rows(32, seed))
        untaught.update(rows(32, seed))
    before, after = untaught.state_dict(), taught.state_dict()
    doubts = [name for name in before if "shifts" in name or "correction" in name]
    assert len(doubts) == 4 * 4  # of two layers with biases: those of the actors and of values, and their slow copies
    assert all(torch.equal(before[name], after[name]) for name in before if name not in doubts)
    assert not any(torch.equal(before[name], after[name]) for name in doubts if "layers.0.bias" not in name)


def test_what_doubt_learns_reaches_no_plain_weight() -> None:
    agent, batch = anchored(), rows(32)
    randomised(agent)
    _, errors, q, _ = agent.plain_loss(batch)
    agent.doubt_loss(batch, errors, q)[0].backward()
    actors = agent.actors
    assert isinstance(actors, AnchoredActors)
    assert all(p.grad is None for part in (agent.critics, actors.net) for p in part.parameters())
    assert agent.log_alpha.grad is None
    assert all(grad(p).abs().sum() > 0 for part in (agent.correction, actors.shifts) for p in part.parameters())


def test_values_and_actions_move_by_as_much_as_the_belief_doubts() -> None:
    agent = AnchoredAPEVSAC(PLAIN, AnchoredSACConfig(critics=2, fewest=1, members=2, hidden=(), gamma=0.5))
    one_state(agent, [[1.0], [3.0], [2.0]])  # the bold member's critic, the careful one's two; actions are 0
    actors = agent.actors
    assert isinstance(actors, AnchoredActors)
    with torch.no_grad():
        for net in (agent.correction, agent.correction_target):
            linear(net.layers[0]).weight.zero_()
            linear(net.layers[0]).bias.copy_(torch.tensor([10.0, 20.0])[:, None, None])
        linear(actors.shifts.layers[0]).bias.fill_(0.4)
    agent.log_alpha.data.fill_(-30.0)
    agent.noise = lambda like, generator=None: torch.zeros(like.shape)  # type: ignore[method-assign]
    belief = torch.tensor([[0.75, 0.25]])
    obs, logged = torch.ones(1, 1), torch.full((1, 1), 0.5)
    assert agent.doubts(agent.correction, obs, logged, belief)[:, 0].tolist() == [2.5, 15.0]
    bold, careful = np.tanh(0.25 * 0.4), np.tanh(0.75 * 0.4)
    torch.testing.assert_close(agent.act(Observations(obs), belief.log()), torch.full((1, 1), float(bold)))
    mixed = agent.act_average(Observations(obs), belief.log())
    torch.testing.assert_close(mixed, torch.full((1, 1), float(0.75 * bold + 0.25 * careful)))
    value = agent.policy_value(obs, logged, belief)  # 1.5 + 2.5 and min(3.5, 2.5) + 15, each with its weight
    torch.testing.assert_close(value, torch.tensor([0.75 * 4.0 + 0.25 * 17.5]))

    agent.draw_belief = lambda rows: torch.tensor([[1.0, 1e-30]]).log()  # type: ignore[method-assign]
    agent.new_belief = lambda log_belief, errors: log_belief  # type: ignore[method-assign]
    _, errors, q, _ = agent.plain_loss(step(0.0, 0.0))
    torch.testing.assert_close(q, torch.tensor([[1.5], [2.5]]))
    torch.testing.assert_close(errors, torch.tensor([[1.5 - 0.5 * 1.0, 2.5 - 0.5 * 2.0]]))
    loss, _ = agent.doubt_loss(step(0.0, 0.0), errors, q)
    # Sure of the bold member its value is the plain one: 1.5 against .5 * 1. The careful one's has all its correction: 22.5
    # against .5 * (2 + 20). The shift's loss is the bold member's value of its own action, 1, taken off.
    torch.testing.assert_close(loss.detach(), torch.tensor((1.5 - 0.5) ** 2 + (22.5 - 11.0) ** 2 - 1.0))


def test_a_policy_keeps_its_shifts_and_its_slow_actors_through_a_file(tmp_path: Path) -> None:
    agent = anchored(**STEADY)
    for seed in range(3):
        agent.update(rows(32, seed))
    obs = torch.randn(4, 3).numpy()
    policy = Policy(agent)
    policy.save(tmp_path / "policy")
    policy.reset(num_envs=4)
    again = Policy.load(tmp_path / "policy")
    again.reset(num_envs=4)
    np.testing.assert_allclose(policy.act(obs), again.act(obs))
