"""What every agent must do, whatever it learns from: a new agent gets all these tests in three lines.

    class TestMine(AgentContract):
        agent = "mine"
        settings = {"members": 3}

The log is a small puzzle with a known answer. Discrete actions: the observation says which of three actions pays 1, the others
pay 0. Continuous ones (`ContinuousContract`): it says two numbers, and the reward falls with the action's distance from them.
An agent that only imitates is shown a log in which that is mostly done (`imitates = True`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from rich.console import Console

import apev
from apev.agents import AGENTS, Agent
from apev.data import Dataset, Layout, Sampler
from apev.loop import Schedule
from apev.loop import run as train
from apev.policy import Policy

KINDS = ("vector", "picture", "dict")
ACTIONS = 3
CONTEXTS = 24
BOUND = 2.0  # of continuous actions
SMALL = {"hidden": (32,), "features": 6, "lr": 5e-3}
SMALL_CONTINUOUS = {"hidden": (32, 32), "lr": 3e-3, "gamma": 0.5}
QUIET = Console(quiet=True)


def observation(kind: str, context: np.ndarray) -> Any:
    """What is seen in each context; context % 3 is the action that pays."""
    if kind == "continuous":
        return np.random.default_rng(1).uniform(-1, 1, size=(CONTEXTS, 3)).astype(np.float32)[context]
    answer = context % ACTIONS
    picture = np.random.default_rng(0).integers(40, size=(CONTEXTS, 8, 8, 3)).astype(np.uint8)[context]
    picture[np.arange(len(context)), :, :, answer] += 200
    vector = np.eye(ACTIONS, dtype=np.float32)[answer]
    return {"vector": vector, "picture": picture, "dict": {"image": picture, "hint": vector[:, ::-1].copy()}}[kind]


@cache
def puzzle(kind: str, imitates: bool = False) -> Dataset:
    """Every action in every context, the right one five times where it is to be imitated; an episode is one step."""
    if kind == "continuous":
        return continuous_puzzle(imitates)
    context, action = (part.flatten() for part in np.mgrid[:CONTEXTS, :ACTIONS])
    if imitates:
        context, action = (
            np.append(part, np.tile(right, 4)) for part, right in ((context, np.arange(24)), (action, np.arange(24) % 3))
        )
    paid = (action == context % ACTIONS).astype(np.float32)
    ended = np.ones(len(context), dtype=bool)
    return Dataset.from_arrays(observation(kind, context), action, paid, ended, ~ended, num_actions=ACTIONS)


def answer(obs: np.ndarray) -> np.ndarray:
    """The best continuous actions [n, 2]."""
    return np.stack([obs[:, 0], -obs[:, 1]], axis=1)


def continuous_puzzle(imitates: bool) -> Dataset:
    """Actions anywhere within the bounds, or near the best ones."""
    rng = np.random.default_rng(0)
    obs = rng.uniform(-1, 1, size=(600, 3)).astype(np.float32)
    actions = rng.uniform(-BOUND, BOUND, size=(600, 2)).astype(np.float32)
    if imitates:
        actions = answer(obs) + 0.3 * actions
    ended = np.ones(600, dtype=bool)
    source = {"action_low": [-BOUND] * 2, "action_high": [BOUND] * 2}
    return Dataset.from_arrays(obs, actions, -((actions - answer(obs)) ** 2).sum(1), ended, ~ended, source=source)


def config_of(name: str, settings: dict[str, Any], kind: str) -> Any:
    config = AGENTS[name][1]
    small = SMALL_CONTINUOUS if kind == "continuous" else SMALL
    return config(**(small | settings))


def build(name: str, settings: dict[str, Any], data: Dataset, seed: int = 0) -> Any:
    kind = "vector" if data.discrete else "continuous"
    return AGENTS[name][0].for_data(data, config_of(name, settings, kind), seed=seed)


def sampler_of(data: Dataset, agent: Agent | None = None) -> Sampler:
    """Where batches come from: of rows alone, or as this agent wants them."""
    make = Sampler if agent is None else agent.sampler
    return make(data, batch_groups=16, per_group=3, batch_size=48 if data.discrete else 128, seed=0)


@cache
def trained(
    name: str, settings: tuple[tuple[str, Any], ...], kind: str, updates: int = 100, imitates: bool = False
) -> tuple[Any, tuple[float, ...]]:
    """An agent after a short training, and its losses; made once for all tests (nobody may change it)."""
    data = puzzle(kind, imitates)
    agent = build(name, dict(settings), data)
    sampler = sampler_of(data, agent)
    metrics = [agent.update(sampler.sample()) for _ in range(updates)]
    return agent, tuple(float(m["loss"]) if "loss" in m else float(m["critic_loss"]) for m in metrics)


def play(policy: Policy, obs: Any, steps: int = 3) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Actions and beliefs of a few steps in front of `obs`; the rewards are not what anybody expects."""
    policy.agent.generator.manual_seed(3)  # TD errors of continuous actions are those of drawn ones
    policy.reset()
    actions, beliefs = [], []
    for step in range(steps):
        actions.append(policy.act(obs))
        policy.observe(np.full(len(actions[-1]), -1.0 - step), obs, np.zeros(len(actions[-1]), dtype=bool))
        beliefs.append(policy.belief)
    return actions, beliefs


class Killed(Exception):  # noqa: N818 (not an error)
    """What a killed run does not survive."""


def kill(agent: Agent, update: int) -> list[dict[str, Any]]:
    raise Killed


class AgentContract:
    """The battery; `agent` is a name in AGENTS, `settings` are fields of its configuration."""

    agent: ClassVar[str]
    settings: ClassVar[dict[str, Any]] = {}
    kinds: ClassVar[tuple[str, ...]] = KINDS
    updates: ClassVar[int] = 100
    imitates: ClassVar[bool] = False
    loss_falls: ClassVar[bool] = True  # to a third; false where a part of it cannot

    def __init_subclass__(cls) -> None:
        if "agent" in cls.__dict__:
            cls.pytestmark = [pytest.mark.parametrize("kind", cls.kinds)]  # type: ignore[attr-defined]

    def trained(self, kind: str) -> Any:
        return trained(self.agent, tuple(self.settings.items()), kind, self.updates, self.imitates)[0]

    def test_learns_the_puzzle(self, kind: str) -> None:
        agent, losses = trained(self.agent, tuple(self.settings.items()), kind, self.updates, self.imitates)
        assert np.isfinite(losses).all()
        context = np.arange(CONTEXTS)
        obs = observation(kind, context)
        actions = Policy(agent, "uniform").act(obs)
        if kind == "continuous":
            assert np.sqrt(((actions - answer(obs)) ** 2).mean()) < 0.35  # a random action is 1.3 away
            return
        assert (actions == context % ACTIONS).mean() > 0.9
        if self.loss_falls:
            assert np.mean(losses[-10:]) < 0.35 * np.mean(losses[:5])

    def test_acts_within_its_actions_greedily_or_not(self, kind: str) -> None:
        agent = build(self.agent, self.settings, puzzle(kind))
        obs = observation(kind, np.arange(CONTEXTS))
        obs = 50 * obs if kind == "continuous" else obs
        policy = Policy(agent)
        greedy = policy.act(obs)
        np.testing.assert_array_equal(policy.act(obs), greedy)
        sampled = np.stack([policy.act(obs, deterministic=False) for _ in range(10)])
        assert len(np.unique(sampled)) > 1
        if kind == "continuous":
            assert greedy.shape == (CONTEXTS, 2)
            assert max(np.abs(greedy).max(), np.abs(sampled).max()) <= BOUND
            assert Policy(agent).act(obs[0]).shape == (2,)
            return
        for actions in (greedy, sampled):
            assert actions.dtype.kind == "i"
            assert actions.min() >= 0
            assert actions.max() < ACTIONS

    def test_td_errors_are_one_a_row_and_member_and_carry_no_gradient(self, kind: str) -> None:
        agent = self.trained(kind)
        step = next(sampler_of(puzzle(kind)).iterate(10))
        errors = agent.td_errors(step, torch.full((10, agent.members), 1 / agent.members).log())
        assert errors.shape == (10, agent.members)
        assert bool(errors.isfinite().all())
        assert not errors.requires_grad

    def test_a_saved_policy_acts_and_believes_the_same(self, kind: str, tmp_path: Path) -> None:
        agent = self.trained(kind)
        obs = observation(kind, np.arange(9))
        before = play(Policy(agent), obs)
        Policy(agent).save(tmp_path / "policy")
        loaded = apev.load(tmp_path / "policy")
        assert loaded.agent.config == agent.config
        assert loaded.agent.layout == agent.layout
        for actions, expected in zip(play(loaded, obs), before, strict=True):
            np.testing.assert_array_equal(actions, expected)
        assert {p.name for p in (tmp_path / "policy").iterdir()} == {"policy.json", "weights.safetensors"}

    def test_a_resumed_run_equals_one_never_interrupted_to_the_bit(self, kind: str, tmp_path: Path) -> None:
        data = puzzle(kind)

        def run(folder: str, resume: bool = False, evaluator: Any = None) -> Agent:
            agent: Agent = build(self.agent, self.settings, data)
            how: dict[str, Any] = {"resume": resume, "evaluator": evaluator, "console": QUIET}
            train(agent, sampler_of(data, agent), tmp_path / folder, Schedule(8, 2, 5, 2), **how)
            return agent

        whole = run("whole")
        with pytest.raises(Killed):
            run("cut", evaluator=kill)  # at update 5, after the checkpoint at 4
        resumed = run("cut", resume=True)
        for (name, expected), value in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
            assert torch.equal(value, expected), name
        assert torch.equal(whole.generator.get_state(), resumed.generator.get_state())
        assert (tmp_path / "cut/metrics.jsonl").read_text() == (tmp_path / "whole/metrics.jsonl").read_text()

    def test_the_same_seed_gives_the_same_agent_and_another_seed_another(self, kind: str) -> None:
        one, same, other = (build(self.agent, self.settings, puzzle(kind), seed).state_dict() for seed in (1, 1, 2))
        assert all(torch.equal(one[name], same[name]) for name in one)
        assert not all(torch.equal(one[name], other[name]) for name in one)

    def test_the_belief_follows_the_evidence_or_stays_frozen(self, kind: str) -> None:
        agent = self.trained(kind)
        obs, K = observation(kind, np.arange(6)), agent.members
        _, beliefs = play(Policy(agent, "bayes"), obs)
        np.testing.assert_allclose(np.sum(beliefs, axis=-1), 1, rtol=1e-5)
        if K > 1:
            assert not np.allclose(beliefs[-1], 1 / K)
        frozen: dict[Any, np.ndarray] = {"uniform": np.full(K, 1 / K), f"member:{K - 1}": np.eye(K)[K - 1]}
        frozen[tuple(np.arange(1, K + 1) / 2)] = np.arange(1, K + 1) / np.arange(1, K + 1).sum()
        for adapt, expected in frozen.items():
            for belief in play(Policy(agent, adapt), obs)[1]:
                np.testing.assert_allclose(belief, np.tile(expected, (6, 1)), atol=1e-6)
        _, beliefs = play(Policy(agent, "random-member"), obs)
        np.testing.assert_array_equal(beliefs[0], beliefs[-1])
        np.testing.assert_allclose(beliefs[0].max(1), 1)

    def test_acting_and_measuring_change_no_parameter(self, kind: str) -> None:
        agent = self.trained(kind)
        before = {name: value.clone() for name, value in agent.state_dict().items()}
        play(Policy(agent), observation(kind, np.arange(6)))
        assert all(torch.equal(before[name], value) for name, value in agent.state_dict().items())

    def test_calibration_measures_a_positive_scale_a_member(self, kind: str) -> None:
        agent = build(self.agent, self.settings, puzzle(kind))
        agent.calibrate(sampler_of(puzzle(kind)).iterate(16))
        assert agent.scale.shape == (agent.members,)
        assert bool((agent.scale > 0).all())
        assert not bool((agent.scale == 1).any())

    def test_an_observation_of_another_shape_is_refused(self, kind: str) -> None:
        policy = Policy(self.trained(kind))
        obs = observation(kind, np.arange(4))
        if kind in ("vector", "continuous"):
            with pytest.raises(ValueError, match=r"width 2.*training data had 3"):
                policy.act(obs[:, :2])
        elif kind == "picture":
            with pytest.raises(ValueError, match=r"shape \(6, 8, 3\).*training data"):
                policy.act(obs[:, :6])
        else:
            with pytest.raises(ValueError, match="'hint' has width 1"):
                policy.act(obs | {"hint": obs["hint"][:, :1]})
            with pytest.raises(KeyError, match=r"observation lacks.*image"):
                policy.act({"hint": obs["hint"]})
            with pytest.raises(KeyError, match=r"observation lacks.*hint"):
                policy.act({"image": obs["image"]})
            with pytest.raises(TypeError, match=r"reads a dict with.*got ndarray"):
                policy.act(obs["image"])

    def test_a_batch_of_other_data_is_refused(self, kind: str) -> None:
        agent = build(self.agent, self.settings, puzzle(kind))
        good = sampler_of(puzzle(kind), agent).sample()
        wide = replace(good.obs, vector=torch.zeros(len(good.action), 9))
        with pytest.raises(ValueError, match=r"vector.*9|width 9"):
            agent.update(replace(good, obs=wide, next_obs=wide))
        fresh = AGENTS[self.agent][0](Layout.of(puzzle(kind)), config_of(self.agent, self.settings, kind))
        if kind == "continuous":
            with pytest.raises(ValueError, match=r"actions have shape \(7,\)"):
                fresh.update(replace(good, action=torch.zeros(len(good.action), 7)))
            return
        with pytest.raises(ValueError, match="num_groups"):
            fresh.update(good)


class ContinuousContract(AgentContract):
    """The same for agents of continuous actions."""

    kinds = ("continuous",)
    updates = 400
