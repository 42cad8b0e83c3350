"""Soft actor-critic and APE-V on it: one battery for every agent of continuous actions, and losses worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import apev
from apev.agents import APEVSAC, REGISTRY, SAC, Agent, APEVSACConfig, SACConfig
from apev.agents.sac import squash
from apev.data import Batch, Dataset, Layout, Observations, Sampler
from apev.ensemble import EnsembleLinear, EnsembleMLP, Groups
from apev.policy import Policy
from apev.train import Schedule, train

SMALL = {"hidden": (32, 32), "lr": 3e-3, "gamma": 0.5, "target_rate": 0.05}
AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "SAC": ("sac", {}),
    "SAC-N": ("sac", {"critics": 4}),
    "APE-V": ("ape-v-sac", {"critics": 4, "members": 3}),
}
QUIET = Console(quiet=True)
each = pytest.mark.parametrize("name", AGENTS)


@cache
def puzzle(bound: float = 2.0) -> Dataset:
    """One-step episodes: the reward falls with the distance of the two actions from what the observation says."""
    rng = np.random.default_rng(0)
    obs = rng.uniform(-1, 1, size=(600, 3)).astype(np.float32)
    actions = rng.uniform(-bound, bound, size=(600, 2)).astype(np.float32)
    best = bound * np.stack([obs[:, 0], -obs[:, 1]], axis=1) / 2
    ended = np.ones(600, dtype=bool)
    source = {"action_low": [-bound] * 2, "action_high": [bound] * 2}
    return Dataset.from_arrays(obs, actions, -((actions - best) ** 2).sum(1), ended, ~ended, source=source)


def build(name: str, seed: int = 0) -> Agent:
    kind, config = REGISTRY[AGENTS[name][0]]
    return kind.for_data(puzzle(), config(**(SMALL | AGENTS[name][1])), seed=seed)


def sampler() -> Sampler:
    return Sampler(puzzle(), batch_size=128, seed=0)


@cache
def trained(name: str) -> Agent:
    agent, batches = build(name), sampler()
    for _ in range(400):
        agent.update(batches.sample())
    return agent


def play(policy: Policy, obs: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    policy.reset(num_envs=len(obs))
    actions, beliefs = [], []
    for step in range(3):
        actions.append(policy.act(obs))
        policy.observe(np.full(len(obs), -1.0 - step), obs, np.zeros(len(obs), dtype=bool))
        beliefs.append(policy.belief)
    return actions, beliefs


OBS = np.random.default_rng(1).uniform(-1, 1, size=(40, 3)).astype(np.float32)


def test_every_agent_of_continuous_actions_is_in_the_battery() -> None:
    assert {registered for registered, _ in AGENTS.values()} == {
        n for n, (kind, _) in REGISTRY.items() if issubclass(kind, SAC)
    }


@each
def test_learns_the_puzzle(name: str) -> None:
    actions = Policy(trained(name), False).act(OBS)
    best = np.stack([OBS[:, 0], -OBS[:, 1]], axis=1)
    assert np.sqrt(((actions - best) ** 2).mean()) < 0.35  # a random action is 1.3 away


@each
def test_acts_within_the_bounds_of_the_log(name: str) -> None:
    policy = Policy(build(name))
    greedy = policy.act(50 * OBS)
    np.testing.assert_array_equal(policy.act(50 * OBS), greedy)
    drawn = policy.act(50 * OBS, deterministic=False)
    assert greedy.shape == drawn.shape == (40, 2)
    assert max(np.abs(greedy).max(), np.abs(drawn).max()) <= 2
    assert not np.allclose(greedy, drawn)
    one = Policy(build(name))
    assert one.act(OBS[0]).shape == (2,)
    one.observe(0.0, OBS[1], False, action=np.zeros(2))
    assert one.belief.shape == (one.members,)


@each
def test_a_saved_policy_acts_and_believes_the_same(name: str, tmp_path: Path) -> None:
    agent = trained(name)
    agent.generator.manual_seed(3)
    before = play(Policy(agent), OBS)
    loaded = apev.load(Policy(agent).save(tmp_path / "policy"))
    assert (loaded.agent.config, loaded.agent.layout) == (agent.config, agent.layout)
    loaded.agent.generator.manual_seed(3)
    for mine, expected in zip(play(loaded, OBS), before, strict=True):
        np.testing.assert_array_equal(mine, expected)


@each
def test_a_resumed_run_equals_one_never_interrupted_to_the_bit(name: str, tmp_path: Path) -> None:
    def run(folder: str, updates: int, resume: bool = False) -> Agent:
        agent = build(name)
        train(agent, sampler(), tmp_path / folder, Schedule(updates, 2, 0, 2), resume=resume, console=QUIET)
        return agent

    whole = run("whole", 8)
    run("cut", 4)
    resumed = run("cut", 8, resume=True)
    for (key, expected), value in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(value, expected), key
    assert torch.equal(whole.generator.get_state(), resumed.generator.get_state())


@each
def test_the_belief_follows_the_evidence_or_stays_frozen(name: str) -> None:
    agent = trained(name)
    _, beliefs = play(Policy(agent), OBS)
    np.testing.assert_allclose(np.sum(beliefs, axis=-1), 1, rtol=1e-5)
    if agent.members > 1:
        assert not np.allclose(beliefs[-1], 1 / agent.members)
    _, frozen = play(Policy(agent, False), OBS)
    np.testing.assert_allclose(frozen[-1], 1 / agent.members, rtol=1e-6)


@each
def test_a_batch_of_other_data_is_refused(name: str) -> None:
    good = sampler().sample()
    wide = Observations(torch.zeros(128, 9))
    with pytest.raises(ValueError, match="width 9"):
        build(name).update(replace(good, obs=wide, next_obs=wide))


@each
def test_calibration_measures_a_positive_scale_a_member(name: str) -> None:
    agent = build(name)
    agent.calibrate(sampler().iterate(200))
    assert agent.scale.shape == (agent.members,)
    assert bool((agent.scale > 0).all())


def test_discrete_actions_pictures_and_impossible_members_are_refused() -> None:
    discrete = Layout((("observation", 2),), None, None, 3, True)
    with pytest.raises(ValueError, match=r"continuous actions\. Fix"):
        SAC(discrete, SACConfig())
    pictured = Layout((), "image", (3, 8, 8), 0, True, (-1.0,), (1.0,))
    with pytest.raises(ValueError, match="vectors, not the picture 'image'"):
        SAC(pictured, SACConfig())
    plain = Layout((("observation", 2),), None, None, 0, True, (-1.0,), (1.0,))
    for critics, members in ((2, 0), (4, 1), (4, 4)):
        with pytest.raises(ValueError, match="Fix: at least 3 critics"):
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


def linear(layer: Any) -> EnsembleLinear:
    assert isinstance(layer, EnsembleLinear)
    return layer


def one_state(agent: SAC, values: list[list[float]]) -> None:
    """Without hidden layers: Q_jk(s, b, a) = values[j][k] + a, and a nearly certain action 0 of every actor."""
    with torch.no_grad():
        for net in (agent.critics, agent.target):
            layer = linear(net.layers[0])
            layer.weight.zero_()
            layer.weight[:, 1] = 1.0  # input 1 is the action
            layer.bias.copy_(torch.tensor(values)[:, None])
        actor = linear(agent.actors.net.layers[0])
        actor.weight.zero_()
        actor.bias.zero_()
        actor.bias[..., 1] = -20.0  # clamped to exp(-5)
    agent.log_alpha.data.fill_(math.log(0.1))


PLAIN = Layout((("observation", 1),), None, None, 0, True, (-1.0,), (1.0,))


def step(reward: float, terminated: float, rows: int = 1) -> Batch:
    obs = Observations(torch.ones(rows, 1))
    zeros = torch.zeros(rows, dtype=torch.int64)
    return Batch(obs, torch.full((rows, 1), 0.5), torch.full((rows,), reward), obs, torch.full((rows,), terminated), zeros)


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
    agent = APEVSAC(PLAIN, APEVSACConfig(critics=3, gamma=0.0, hidden=(), floor=0.0, dirichlet=1e4))
    one_state(agent, [[1.0, 9.0], [2.0, 7.0], [0.0, 8.0]])  # members over the first 2 and all 3 critics
    q = torch.tensor([[[1.0], [2.0], [0.0]], [[9.0], [7.0], [8.0]]])
    torch.testing.assert_close(agent.smallest(q), torch.tensor([[1.0], [7.0]]))
    loss = float(agent.update(step(3.0, 0.0, rows=50))["critic_loss"])  # critic 3 does not count for member 1
    errors = [1.5 - 3, 2.5 - 3, 9.5 - 3, 7.5 - 3, 8.5 - 3]
    assert loss == pytest.approx(sum(e * e for e in errors) / 5, rel=1e-4)


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
    new = agent.new_belief(
        step(0.5, 0.0), agent.values(agent.critics, torch.ones(1, 1), torch.full((1, 1), 0.5), flat.exp()), flat
    )
    torch.testing.assert_close(new, torch.tensor([[1.0, math.exp(-4)]]) / (1 + math.exp(-4)))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
@settings(deadline=None, max_examples=60)
def test_groups_ask_every_row_of_its_own_network(index: list[int]) -> None:
    torch.manual_seed(0)
    net, rows = EnsembleMLP(5, 3, (4,), 2), torch.randn(len(index), 3)
    groups = Groups.of(torch.tensor(index), 5)
    everything = net(rows.expand(5, -1, -1))
    torch.testing.assert_close(groups.join(net(groups.split(rows))), everything[torch.tensor(index), torch.arange(len(index))])
    assert groups.slots.shape[1] == max(index.count(g) for g in range(5))
