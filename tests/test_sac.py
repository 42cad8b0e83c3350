"""Soft actor-critic and APE-V on it: one battery for every agent of continuous actions, and losses worked out by hand."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from agent_contract import ContinuousContract
from by_hand import PLAIN, linear, one_state, step
from torch.utils._python_dispatch import TorchDispatchMode

from apev.agents import AGENTS, APEVSAC, SAC, APEVSACConfig, SACConfig
from apev.agents.continuous.apev import LEAST_TRUSTED, SCALE_RATE
from apev.agents.continuous.base import ContinuousAgent
from apev.agents.continuous.sac import squash
from apev.belief import BeliefFilter
from apev.data import Dataset, Layout, Observations
from apev.data.batch import Batch
from apev.nn import kernels

STEADY: dict[str, Any] = {"layer_norm": True, "target_bounds": True, "actor_average": 0.1}


class TestBC(ContinuousContract):
    agent = "bc"
    imitates = True


class TestSAC(ContinuousContract):
    agent = "sac"
    settings = {"target_rate": 0.05}  # noqa: RUF012


class TestSACN(ContinuousContract):
    agent = "sac"
    settings = {"critics": 4, "target_rate": 0.05}  # noqa: RUF012


class TestEDAC(ContinuousContract):
    agent = "edac"
    settings = {"critics": 4, "target_rate": 0.05}  # noqa: RUF012


class TestREM(ContinuousContract):
    agent = "rem"
    settings = {"critics": 4, "target_rate": 0.05}  # noqa: RUF012


class TestCQL(ContinuousContract):
    agent = "cql"
    settings = {"conservative": 0.5, "actor_lr": 3e-3, "target_rate": 0.05}  # noqa: RUF012


class TestIQL(ContinuousContract):
    agent = "iql"
    settings = {"target_rate": 0.05}  # noqa: RUF012


class TestTD3BC(ContinuousContract):
    agent = "td3-bc"
    settings = {"target_rate": 0.05}  # noqa: RUF012


class TestTD3BCOfSeveralMembers(ContinuousContract):
    agent = "td3-bc"
    settings = {"members": 3, "target_rate": 0.05}  # noqa: RUF012


class TestSteadySACN(ContinuousContract):
    agent = "sac"
    settings = {"critics": 4, "target_rate": 0.05, "near_log": 0.02, **STEADY}  # noqa: RUF012


class TestSteadyEDAC(ContinuousContract):
    agent = "edac"
    settings = {"critics": 4, "target_rate": 0.05, **STEADY}  # noqa: RUF012


class TestSteadyAPEV(ContinuousContract):
    agent = "ape-v-sac"
    settings = {"critics": 4, "members": 3, "target_rate": 0.05, **STEADY}  # noqa: RUF012


class TestAnchoredAPEV(ContinuousContract):
    agent = "ape-v-sac-anchored"
    settings = {"critics": 4, "members": 3, "target_rate": 0.05}  # noqa: RUF012


class TestSteadyAnchoredAPEV(ContinuousContract):
    agent = "ape-v-sac-anchored"
    settings = {"critics": 4, "fewest": 1, "members": 3, "target_rate": 0.05, **STEADY}  # noqa: RUF012


class TestAPEV(ContinuousContract):
    agent = "ape-v-sac"
    settings = {"critics": 4, "members": 3, "target_rate": 0.05}  # noqa: RUF012


class TestAPEVOfSeparateWeights(ContinuousContract):
    agent = "ape-v-sac"
    settings = {"critics": 4, "members": 3, "target_rate": 0.05, "shared": False}  # noqa: RUF012


def test_every_agent_of_continuous_actions_keeps_the_contract() -> None:
    assert {contract.agent for contract in ContinuousContract.__subclasses__()} == {
        name for name, (kind, _) in AGENTS.items() if issubclass(kind, ContinuousAgent)
    }


def test_discrete_actions_pictures_and_impossible_members_are_refused() -> None:
    discrete = Layout((("observation", 2),), None, None, 3, True)
    with pytest.raises(ValueError, match=r"continuous actions\. Fix"):
        SAC(discrete, SACConfig())
    pictured = Layout((), "image", (3, 8, 8), 0, True, (-1.0,), (1.0,))
    with pytest.raises(ValueError, match="continuous actions from pictures, and 'image' is one"):
        SAC(pictured, SACConfig())
    plain = Layout((("observation", 2),), None, None, 0, True, (-1.0,), (1.0,))
    for critics, members in ((2, 0), (4, 1), (4, 4)):
        with pytest.raises(ValueError, match="Fix: at least 2 members"):
            APEVSAC(plain, APEVSACConfig(critics=critics, members=members))
    with pytest.raises(ValueError, match="at least 1"):
        SAC(plain, SACConfig(critics=0))


def test_members_are_spread_from_two_critics_to_all() -> None:
    assert APEVSAC.sizes(APEVSACConfig(critics=10)) == (2, 3, 4, 5, 6, 7, 8, 9, 10)
    assert APEVSAC.sizes(APEVSACConfig(critics=50, members=4)) == (2, 18, 34, 50)


# ---------------------------------------------------------------------- by hand


def test_log_probability_is_that_of_a_squashed_gaussian() -> None:
    mean, std, noise = torch.tensor([[0.3, -1.0]]), torch.tensor([[0.5, 2.0]]), torch.tensor([[0.7, -0.2]])
    action, log_prob = squash(mean, std, noise)
    normal = torch.distributions.Normal(mean, std)
    expected = torch.distributions.TransformedDistribution(normal, [torch.distributions.TanhTransform()]).log_prob(action)
    torch.testing.assert_close(log_prob, expected.sum(-1), rtol=1e-4, atol=1e-4)


def test_critics_learn_one_target_of_their_minimum_and_termination_cuts_it() -> None:
    agent = SAC(PLAIN, SACConfig(critics=3, gamma=0.5, hidden=()))
    one_state(agent, [[1.0], [2.0], [4.0]])
    # Q(s, .5) = 1.5, 2.5, 4.5; the target's smallest at a' ~ 0 is 1, and its entropy bonus .1 * (5 - .919 - noise^2 / 2 ...)
    ended = float(agent.update(step(-1.0, 1.0, rows=4000))["critic_loss"])
    assert ended == pytest.approx((2.5**2 + 3.5**2 + 5.5**2) / 3, rel=1e-3)
    agent = SAC(PLAIN, SACConfig(critics=3, gamma=0.5, hidden=()))
    one_state(agent, [[1.0], [2.0], [4.0]])
    going_on = agent.update(step(-1.0, 0.0, rows=4000))
    entropy = -(5 - 0.5 * math.log(2 * math.pi) - 0.5)  # of a Gaussian with deviation exp(-5), tanh hardly bends it
    y = -1 + 0.5 * (1 + 0.1 * entropy)
    assert float(going_on["entropy"]) == pytest.approx(entropy, abs=0.05)
    assert float(going_on["critic_loss"]) == pytest.approx(sum((q - y) ** 2 for q in (1.5, 2.5, 4.5)) / 3, rel=0.01)
    assert float(going_on["value"]) == pytest.approx(1.0, abs=0.01)


def test_each_member_has_its_own_minimum_and_target() -> None:
    agent = APEVSAC(PLAIN, APEVSACConfig(critics=3, gamma=0.0, hidden=(), concentration=1e4))
    one_state(agent, [[1.0, 9.0], [2.0, 7.0], [0.0, 8.0]])  # members over the first 2 and all 3 critics
    q = torch.tensor([[[1.0], [2.0], [0.0]], [[9.0], [7.0], [8.0]]])
    torch.testing.assert_close(agent.reduce(q), torch.tensor([[1.0], [7.0]]))
    loss = float(agent.update(step(3.0, 0.0, rows=50))["critic_loss"])  # critic 3 does not count for member 1
    errors = [1.5 - 3, 2.5 - 3, 9.5 - 3, 7.5 - 3, 8.5 - 3]
    assert loss == pytest.approx(sum(e * e for e in errors) / 5, rel=1e-4)


def test_members_learn_at_every_belief_or_trained_without_doubt_in_their_own_corner() -> None:
    bold, careful = 0.5**2 + 0.7**2, 1.5**2 + 1.2**2 + 1.4**2
    for eval_only, expected in ((False, bold + careful), (True, careful)):
        agent = APEVSAC(PLAIN, APEVSACConfig(critics=3, gamma=0.0, hidden=(), eval_only=eval_only))
        one_state(agent, [[0.0, 1.0], [0.2, 0.7], [0.0, 0.9]])  # values .5 more: errors .5 and .7; 1.5, 1.2 and 1.4
        loss, _ = agent.critic_loss(step(0.0, 0.0), torch.tensor([[0.0, 1.0]]).log())
        assert float(loss.detach()) == pytest.approx(expected, rel=1e-4)


def test_no_target_is_lower_than_the_lowest_return_in_the_log() -> None:
    columns = {"observations": np.zeros((4, 1)), "actions": np.zeros((4, 1)), "rewards": np.array([-1.0, -2.0, 4.0, -5.0])}
    ends = np.array([False, True, False, True])
    data = Dataset.from_arrays(**columns, terminated=ends, truncated=~ends & False)  # type: ignore[arg-type]
    for held, lowest in ((True, -5.0), (False, -math.inf)):
        config = APEVSACConfig(critics=3, gamma=0.5, hidden=(), target_floor=held)
        agent = APEVSAC.for_data(data, config)
        assert float(agent.lowest) == lowest
        one_state(agent, [[-99.0, -99.0]] * 3)  # -98.5 for the logged action, -99 for the actors'
        loss, _ = agent.critic_loss(step(0.0, 0.0), torch.tensor([[0.0, 1.0]]).log())
        target = -5.0 if held else 0.5 * -99.0  # and some entropy
        assert float(loss.detach()) == pytest.approx(5 * (-98.5 - target) ** 2, rel=0.01)


def test_metrics_are_numbers_where_nobody_trusts_a_member() -> None:
    agent = APEVSAC(PLAIN, APEVSACConfig(critics=9, hidden=(8,)), seed=1)
    metrics = agent.update(step(0.5, 0.0, rows=1))  # one belief, eight members
    assert all(math.isfinite(float(value)) for value in metrics.values())


def test_scales_of_training_are_those_of_errors_where_a_member_is_trusted() -> None:
    agent = APEVSAC(PLAIN, APEVSACConfig(critics=3, gamma=0.0, hidden=(), likelihood="gaussian"))
    one_state(agent, [[1.0, 9.0], [2.0, 7.0], [0.0, 8.0]])
    agent.scale.fill_(1.0)
    agent.critic_loss(step(3.0, 0.0, rows=2), torch.tensor([[1.0, 0.0], [0.0, 1.0]]).log())
    torch.testing.assert_close(agent.scale, torch.tensor([0.99 + 0.01 * 1.5**2, 0.99 + 0.01 * 4.5**2]).sqrt())


def test_members_of_separate_weights_ask_their_own_networks_only() -> None:
    agent = APEVSAC(PLAIN, APEVSACConfig(critics=3, gamma=0.0, hidden=(), concentration=1e4, shared=False))
    one_state(agent, [[1.0], [2.0], [9.0], [7.0], [8.0]])  # two networks of member 1, three of member 2
    q = agent.values(agent.critics, torch.ones(1, 1), torch.zeros(1, 1), torch.full((1, 2), 0.5))
    torch.testing.assert_close(agent.reduce(q), torch.tensor([[1.0], [7.0]]))
    loss = float(agent.update(step(3.0, 0.0, rows=50))["critic_loss"])
    errors = [1.5 - 3, 2.5 - 3, 9.5 - 3, 7.5 - 3, 8.5 - 3]
    assert loss == pytest.approx(sum(e * e for e in errors) / 5, rel=1e-4)


@pytest.mark.parametrize("shared", [True, False])
def test_trusting_one_member_the_policy_is_judged_by_its_minimum(shared: bool) -> None:
    torch.manual_seed(0)
    layout = Layout((("observation", 3),), None, None, 0, True, (-1.0,) * 2, (1.0,) * 2)
    agent = APEVSAC(layout, APEVSACConfig(critics=4, hidden=(16,), shared=shared))
    for p in agent.critics.parameters():
        p.data.normal_(0, 0.4)
    obs, action, member = torch.randn(60, 3), torch.rand(60, 2), torch.arange(60) % 3
    belief = torch.nn.functional.one_hot(member, 3).float()
    expected = agent.reduce(agent.values(agent.critics, obs, action, belief))[member, torch.arange(60)]
    torch.testing.assert_close(agent.policy_value(obs, action, belief), expected)


def test_the_actors_gradient_is_that_of_the_smallest_critic_and_reaches_no_critic() -> None:
    torch.manual_seed(0)
    layout = Layout((("observation", 3),), None, None, 0, True, (-1.0,) * 2, (1.0,) * 2)
    agent = SAC(layout, SACConfig(critics=5, hidden=(16, 16)))
    for p in agent.critics.parameters():
        p.data.normal_(0, 0.4)
    obs, action = torch.randn(64, 3), torch.rand(64, 2, requires_grad=True)
    value = agent.policy_value(obs, action, None)
    (gradient,) = torch.autograd.grad(value.sum(), action, retain_graph=True)
    slow = action.detach().clone().requires_grad_()
    expected = agent.values(agent.critics, obs, slow, None)[0].amin(0)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), slow)[0])
    value.sum().backward()
    assert all(p.grad is None for p in agent.critics.parameters())


def test_beliefs_move_towards_the_member_that_was_less_surprised() -> None:
    agent = APEVSAC(PLAIN, APEVSACConfig(critics=3, gamma=0.0, hidden=(), likelihood="paper", floor=0.0))
    one_state(agent, [[0.0, 2.0]] * 3)
    flat = torch.full((1, 2), 0.5).log()
    errors = agent.td_errors(step(0.5, 0.0), flat)  # Q = .5 and 2.5
    torch.testing.assert_close(errors, torch.tensor([[0.0, 2.0]]))
    torch.testing.assert_close(agent.new_belief(flat, errors).exp(), torch.tensor([[1.0, math.exp(-4)]]) / (1 + math.exp(-4)))


def test_surprise_is_the_error_that_critics_are_trained_on() -> None:
    agent = SAC(PLAIN, SACConfig(critics=1, hidden=(8,)), seed=2)  # a new agent's target is its critic
    before = agent.generator.get_state()
    errors = agent.td_errors(step(0.5, 0.0, rows=20), torch.zeros(20, 1))
    agent.generator.set_state(before)
    loss, _ = agent.critic_loss(step(0.5, 0.0, rows=20), None)
    torch.testing.assert_close(errors.square().mean(), loss.detach())


@pytest.mark.parametrize("shared", [True, False])
def test_under_certainty_each_member_is_measured_where_it_is_trusted_alone(shared: bool) -> None:
    torch.manual_seed(0)
    config = APEVSACConfig(critics=4, hidden=(8,), floor=0.0, shared=shared)
    certain, printed = (APEVSAC(PLAIN, replace(config, surprise=kind), seed=1) for kind in ("certain", "paper"))
    with torch.no_grad():
        for p in certain.parameters():
            p.normal_(0, 0.5)
        actor = linear(certain.actors.net.layers[-1])
        actor.weight[..., 1:] = 0
        actor.bias[..., 1:] = -20.0  # actors without noise: deviations are clamped to exp(-5)
        certain.log_alpha.fill_(-30.0)
    printed.load_policy_state(certain.policy_state())
    errors = certain.td_errors(step(0.5, 0.0), torch.full((1, 3), 1 / 3).log())
    for k in range(3):
        at_corner = printed.td_errors(step(0.5, 0.0), torch.eye(3)[k : k + 1].log())
        torch.testing.assert_close(errors[:, k], at_corner[:, k], atol=0.03, rtol=0)


def test_each_actor_comes_to_its_own_entropy() -> None:
    agent = APEVSAC(PLAIN, APEVSACConfig(critics=4, hidden=(), lr=0.01), seed=1)
    with torch.no_grad():
        actor = linear(agent.actors.net.layers[0])
        actor.weight.zero_()
        actor.bias.zero_()
        actor.bias[0, 0, 1] = -4.0  # one actor is nearly certain of its action, the others are not
    for _ in range(5):
        agent.update(step(0.5, 1.0, rows=60))
    assert agent.log_alpha[0] > 0
    assert (agent.log_alpha[1:] < 0).all()


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows ask all networks, as they do where counting them would make the processor wait for a GPU."""
    monkeypatch.setattr(kernels, "asks_all", lambda device: True)
    monkeypatch.setattr(BeliefFilter, "__post_init__", lambda self: None)  # it looks at scales on a CPU only


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(
    "agent", [SAC(PLAIN, SACConfig(critics=3, hidden=(8,))), APEVSAC(PLAIN, APEVSACConfig(critics=4, hidden=(8,)))]
)
def test_no_update_waits_for_the_device(agent: SAC) -> None:
    """Nothing that happens in an update depends on a number read back, or on a shape that numbers decide."""

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            assert function.overloadpacket.__name__ not in (
                "_local_scalar_dense",
                "nonzero",
                "bincount",
                "unique",
                "multinomial",
            )
            return function(*args, **(kwargs or {}))

    batch = step(0.5, 0.0)
    agent.update(batch)  # Adam makes its state
    with Watch():  # type: ignore[no-untyped-call]
        agent.update(batch)


def test_members_trained_as_if_certain_see_corners_that_do_not_move() -> None:
    agent = APEVSAC(PLAIN, APEVSACConfig(critics=4, hidden=(8,), eval_only=True, floor=0.001))
    drawn = agent.draw_belief(300)
    torch.testing.assert_close(drawn.exp().amax(-1), torch.ones(300))
    assert set(drawn.argmax(-1).tolist()) == {0, 1, 2}
    agent.critic_loss(step(0.5, 0.0), torch.eye(3)[1:2].log())[0].backward()
    heads = linear(agent.critics.layers[-1]).bias.grad
    assert heads is not None
    assert (heads[:, 0] != 0).tolist() == [[False, True, False]] * 3 + [[False] * 3]  # the member of three critics, alone


def test_members_that_are_kinds_learn_from_their_own_block_at_the_beliefs_of_the_log() -> None:
    agent = APEVSAC(PLAIN, APEVSACConfig(critics=2, fewest=2, members=3, hidden=(8,)))
    assert agent.n == (2, 2, 2)
    one, beliefs = step(0.5, 0.0), torch.tensor([[0.7, 0.2, 0.1]]).log()
    three = Batch(
        obs=replace(one.obs, vector=one.obs.vector.repeat(3, 1)),
        action=one.action.repeat(3, 1),
        reward=torch.tensor([0.0, 0.0, 5.0]),
        next_obs=replace(one.next_obs, vector=one.next_obs.vector.repeat(3, 1)),
        terminated=torch.ones(3),
        group=torch.arange(3),
        blocks=True,
        log_belief=beliefs.repeat(3, 1),
        next_log_belief=beliefs.repeat(3, 1),
    )
    with torch.no_grad():
        q = agent.values(agent.critics, three.obs.vector, agent.to_unit(three.action), beliefs.exp().repeat(3, 1))  # [K, N, B]
    own = torch.stack([(q[k, :, k] - three.reward[k]).square().sum() for k in range(3)])  # episodes end: the target is r
    loss, _ = agent.critic_loss(three, three.log_belief)
    torch.testing.assert_close(loss, own.sum())
    before = {name: value.clone() for name, value in agent.state_dict().items()}
    agent.update(three)
    assert any(not torch.equal(before[name], value) for name, value in agent.state_dict().items())


def test_beliefs_of_training_stay_in_their_corner_whatever_one_step_shows() -> None:
    agent = APEVSAC(PLAIN, APEVSACConfig(critics=4, hidden=(8,)), seed=1)
    agent.scale.fill_(1.0)
    drawn = agent.draw_belief(3000)
    errors = torch.tensor([30.0, 0.0, 0.0]).expand(3000, 3)  # the boldest member is thirty scales off, the others are right
    agent.track_scale(agent.filter.squares(errors), drawn.exp().clamp_min(LEAST_TRUSTED), SCALE_RATE)
    moved = agent.new_belief(drawn, errors).exp()
    assert (moved.argmax(-1) != drawn.argmax(-1)).float().mean() < 0.1
    assert agent.scale[0] < 2
    torch.testing.assert_close(moved.sum(-1), torch.ones(3000))


def test_of_members_believed_in_alike_the_most_careful_acts() -> None:
    layout = Layout((("observation", 2),), None, None, 0, bare=True, action_low=(-1.0,), action_high=(1.0,))
    agent = APEVSAC(layout, APEVSACConfig(critics=4, hidden=(8,)), seed=1)  # members of 2, 3 and 4 critics
    with torch.no_grad():
        for p in agent.actors.parameters():
            p.normal_()
    obs = Observations(torch.randn(5, 2))
    alone = [agent.act(obs, (torch.eye(3)[k] + 1e-9).log().expand(5, 3)) for k in range(3)]
    torch.testing.assert_close(agent.act(obs, torch.full((5, 3), 1 / 3).log()), alone[2])
    torch.testing.assert_close(agent.act(obs, torch.tensor([0.4, 0.4, 0.2]).log().expand(5, 3)), alone[1])
    assert not torch.allclose(alone[1], alone[2])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler: g++ is not installed")
def test_compiled_networks_learn_what_plain_ones_do() -> None:
    plain, compiled = (APEVSAC(PLAIN, APEVSACConfig(critics=4, hidden=(8, 8)), seed=3) for _ in range(2))
    compiled.compile_networks()
    for _ in range(3):
        plain.update(step(0.5, 0.0))
        compiled.update(step(0.5, 0.0))
    torch.testing.assert_close(compiled.state_dict(), plain.state_dict(), rtol=1e-3, atol=1e-5)
