"""Agents that keep a history of the episode: BC and IQL on stacked steps and with a GRU.

The world of these tests has two kinds. Which one an episode is shows in its first reward, +1 or -1, and nowhere else that is
seen; from the second step on one action is right in the one kind and wrong in the other.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from agent_contract import QUIET, AgentContract, Killed, kill

import apev
from apev.agents import AGENTS, ALGORITHMS, find
from apev.agents.history.base import HistoryAgent
from apev.api import Extras
from apev.data import Dataset, Sampler
from apev.data.history import HistorySampler, WindowSampler
from apev.experiments.common.charts import COLOURS
from apev.loop import Schedule
from apev.policy import Policy

STEPS = 5
RIGHT = 0.7  # the right continuous action, with the sign of the kind
NAMES = ("bc-stacked", "iql-stacked", "bc-gru", "iql-gru")
KINDS = tuple((name, discrete) for name in NAMES for discrete in (True, False))
SMALL: dict[str, Any] = {"hidden": (32,), "lr": 5e-3}


class HistoryContract(AgentContract):
    kinds = ("vector",)
    loss_falls = False


class ContinuousHistoryContract(AgentContract):
    kinds = ("continuous",)
    updates = 400


class TestStackedDiscreteBC(HistoryContract):
    agent = "discrete-bc-stacked"
    imitates = True


class TestStackedDiscreteIQL(HistoryContract):
    agent = "discrete-iql-stacked"


class TestGRUDiscreteBC(HistoryContract):
    agent = "discrete-bc-gru"
    imitates = True


class TestGRUDiscreteIQL(HistoryContract):
    agent = "discrete-iql-gru"


class TestStackedBC(ContinuousHistoryContract):
    agent = "bc-stacked"
    imitates = True


class TestStackedIQL(ContinuousHistoryContract):
    agent = "iql-stacked"
    settings: ClassVar[dict[str, Any]] = {"target_rate": 0.05}


class TestGRUBC(ContinuousHistoryContract):
    agent = "bc-gru"
    imitates = True


class TestGRUIQL(ContinuousHistoryContract):
    agent = "iql-gru"
    settings: ClassVar[dict[str, Any]] = {"target_rate": 0.05}


def test_every_agent_with_a_history_keeps_the_contract() -> None:
    tested = {c.agent for kind in (HistoryContract, ContinuousHistoryContract) for c in kind.__subclasses__()}
    assert tested == {name for name, (kind, _) in AGENTS.items() if issubclass(kind, HistoryAgent)}


# ---------------------------------------------------------------------- the world of two kinds


def seen(step: int, rng: np.random.Generator, n: int) -> np.ndarray:
    """The clock and a number that means nothing."""
    return np.stack([np.full(n, step / STEPS), rng.normal(size=n)], 1).astype(np.float32)


def paid(step: int, action: np.ndarray, sign: np.ndarray) -> np.ndarray:
    """The kind at first, then 1 for the right action; less for the distance from it where actions are continuous."""
    if step == 0:
        return sign.astype(np.float32)
    right = sign * (2 * action - 1) > 0 if action.ndim == 1 else 1 - np.abs(action[:, 0] - RIGHT * sign)
    return right.astype(np.float32)


@cache
def log_of(imitates: bool, discrete: bool, episodes: int = 1000, unit: float = 1.0) -> Dataset:
    """Episodes of a player who knows the kind, or who plays at random."""
    rng = np.random.default_rng(0)
    sign = rng.choice([-1, 1], size=episodes)
    rows = []
    for step in range(STEPS):
        played = sign if imitates and step else rng.choice([-1, 1], size=episodes)
        action = (played + 1) // 2 if discrete else (RIGHT * played + 0.1 * rng.normal(size=episodes))[:, None].clip(-1, 1)
        rows.append((seen(step, rng, episodes), action, paid(step, action, sign), np.full(episodes, step == STEPS - 1)))
    columns = (np.stack(part, 1) for part in zip(*rows, strict=True))
    obs, action, reward, ended = (column.reshape(-1, *column.shape[2:]) for column in columns)
    bounds = {} if discrete else {"action_low": [-1.0], "action_high": [1.0]}
    return Dataset.from_arrays(unit * obs, action, unit * reward, ended, ended & False, source=bounds)


@cache
def trained(name: str, discrete: bool, updates: int = 300, unit: float = 1.0) -> Policy:
    """A policy after a short training; nobody may change its weights."""
    settings: dict[str, Any] = dict(SMALL)
    if name.endswith("gru"):
        settings["state"] = 16
    if name.startswith("iql"):
        settings |= {"gamma": 0.5, "target_rate": 0.05}
    log = log_of(name.startswith("bc"), discrete, unit=unit)
    return apev.train(log, name, updates=updates, batch_size=128, console=QUIET, **settings)


def fresh(name: str, discrete: bool) -> Policy:
    return trained(name, discrete).with_adapt("bayes")


def play(policy: Policy, sign: np.ndarray, steps: int = STEPS) -> np.ndarray:
    """Rewards [n, steps] of an episode in each of n environments."""
    rng, rewards = np.random.default_rng(1), []
    obs = seen(0, rng, len(sign))
    policy.reset(num_envs=len(sign))
    for step in range(steps):
        rewards.append(paid(step, policy.act(obs), sign))
        obs = seen(step + 1, rng, len(sign))
        policy.observe(rewards[-1], obs, np.full(len(sign), step == STEPS - 1))
    return np.stack(rewards, 1)


SIGNS = np.array([1, -1] * 20)


@pytest.mark.parametrize(("name", "discrete"), KINDS)
def test_a_history_finds_the_kind_in_the_first_reward(name: str, discrete: bool) -> None:
    assert play(trained(name, discrete), SIGNS)[:, 1:].mean() > 0.85


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("name", ["bc", "iql"])
def test_without_a_history_there_is_nothing_to_find(name: str, discrete: bool) -> None:
    assert play(trained(name, discrete), SIGNS)[:, 1:].mean() < 0.6


@pytest.mark.parametrize("name", NAMES)
def test_what_a_belief_does_has_no_part_in_it(name: str) -> None:
    assert play(trained(name, True).with_adapt("uniform"), SIGNS)[:, 1:].mean() > 0.85


# ---------------------------------------------------------------------- deployment


@pytest.mark.parametrize(("name", "discrete"), KINDS)
def test_a_saved_policy_plays_the_same_episodes(name: str, discrete: bool, tmp_path: Path) -> None:
    trained(name, discrete).save(tmp_path)
    np.testing.assert_array_equal(play(apev.load(tmp_path), SIGNS), play(fresh(name, discrete), SIGNS))


@pytest.mark.parametrize(("name", "discrete"), KINDS)
def test_many_environments_at_once_are_as_one_after_another(name: str, discrete: bool) -> None:
    rng, policies = np.random.default_rng(0), [fresh(name, discrete) for _ in range(3)]
    together = fresh(name, discrete)
    together.reset(num_envs=3)
    for step in range(8):
        obs, reward = seen(step, rng, 3), rng.normal(size=3)
        actions = together.act(obs)
        np.testing.assert_allclose(actions, [policy.act(row) for policy, row in zip(policies, obs, strict=True)], atol=1e-5)
        after = seen(step + 1, rng, 3)
        together.observe(reward, after, np.zeros(3, dtype=bool))
        for policy, paid_now, row in zip(policies, reward, after, strict=True):
            policy.observe(paid_now, row, False)


def walk(policy: Policy, steps: int, **how: Any) -> None:
    """A few steps in three environments, the same whenever it is called."""
    rng = np.random.default_rng(5)
    for step in range(steps):
        policy.act(seen(step, rng, 3))
        policy.observe(rng.normal(size=3), seen(step + 1, rng, 3), np.zeros(3, dtype=bool), **how)


def history(policy: Policy) -> torch.Tensor:
    assert policy.state.history is not None
    return policy.state.history


@pytest.mark.parametrize(("name", "discrete"), KINDS)
def test_a_masked_reset_empties_the_history_of_these_rows(name: str, discrete: bool) -> None:
    policy = fresh(name, discrete)
    policy.reset(num_envs=3)
    walk(policy, 3)
    before = history(policy).clone()
    assert bool((before != 0).any(1).all())
    policy.reset([False, True, False])
    assert torch.equal(history(policy)[[0, 2]], before[[0, 2]])
    assert not bool(history(policy)[1].any())
    policy.reset([True, True, True], keep_belief=True)
    assert torch.equal(history(policy)[[0, 2]], before[[0, 2]])


@pytest.mark.parametrize("name", ["bc-stacked", "bc-gru"])
def test_a_new_episode_begins_empty_unless_the_world_stays_the_same(name: str) -> None:
    policy, obs = fresh(name, True), seen(2, np.random.default_rng(0), 2)
    sign = np.array([1, -1])
    play(policy, sign, steps=2)
    end = history(policy).clone()
    policy.reset(keep_belief=True)
    np.testing.assert_array_equal(policy.act(obs), (sign + 1) // 2)  # it knows from what came before
    assert torch.equal(history(policy), end)
    policy.reset()
    policy.act(obs)
    assert not bool(history(policy).any())


@pytest.mark.parametrize(("name", "discrete"), KINDS)
def test_the_executed_action_is_taken_in_where_it_was_used(name: str, discrete: bool) -> None:
    rng = np.random.default_rng(0)
    obs, after = seen(0, rng, 2), seen(1, rng, 2)
    one, two, three = (fresh(name, discrete) for _ in range(3))
    chosen = one.act(obs)
    other = 1 - chosen if discrete else -chosen
    for policy, given in ((one, None), (two, other), (three, chosen)):
        policy.reset(num_envs=2)
        policy.act(obs)
        policy.observe([0.5, 0.5], after, [False, False], action=given, active=[True, False])
    assert torch.equal(history(one), history(three))
    assert not torch.equal(history(one)[0], history(two)[0])
    assert not bool(history(one)[1].any())  # not active: nothing happened there


def test_a_step_that_is_refused_leaves_the_history_as_it_was() -> None:
    policy = fresh("bc-gru", True)
    policy.reset(num_envs=3)
    walk(policy, 2)
    before = history(policy).clone()
    obs = seen(2, np.random.default_rng(0), 3)
    policy.act(obs)
    with pytest.raises(ValueError, match="reward holds a number that is NaN"):
        policy.observe([0.0, np.nan, 0.0], obs, [False] * 3)
    assert torch.equal(history(policy), before)


def test_agents_without_a_history_keep_none() -> None:
    policy = fresh("bc", True)
    play(policy, SIGNS)
    assert policy.state.history is None


# ---------------------------------------------------------------------- training


@pytest.mark.parametrize(("name", "discrete"), KINDS)
def test_a_resumed_run_equals_one_never_interrupted_to_the_bit(name: str, discrete: bool, tmp_path: Path) -> None:
    log = log_of(name.startswith("bc"), discrete)

    def run(folder: str, resume: bool = False, evaluator: Any = None) -> Policy:
        extras = Extras(evaluator=evaluator, schedule=Schedule(8, 2, 5, 2))
        return apev.train(log, name, out=tmp_path / folder, resume=resume, extras=extras, console=QUIET, **SMALL)

    whole = run("whole")
    with pytest.raises(Killed):
        run("cut", evaluator=kill)  # at update 5, after the checkpoint at 4
    resumed = run("cut", resume=True)
    for key, expected in whole.agent.state_dict().items():
        assert torch.equal(resumed.agent.state_dict()[key], expected), key
    assert (tmp_path / "cut/metrics.jsonl").read_text() == (tmp_path / "whole/metrics.jsonl").read_text()


@pytest.mark.parametrize(("name", "discrete"), KINDS)
def test_training_reads_what_deployment_reads(name: str, discrete: bool) -> None:
    """Step by step through an episode of the log, the algorithm reads the very vectors that it was trained on."""
    log, agent = log_of(True, discrete), trained(name, discrete).agent
    assert isinstance(agent, HistoryAgent)
    rows = torch.arange(3 * STEPS)
    sampler = agent.sampler(log)
    assert isinstance(sampler, HistorySampler)
    batch = sampler.batch(rows)
    if isinstance(sampler, WindowSampler):
        episodes = torch.ones(len(rows), dtype=torch.bool)
        batch = type(batch)(**vars(batch) | {"window": STEPS, "counted": episodes})
    learned = agent.recall_past(batch)  # type: ignore[arg-type]
    for episode in range(3):
        kept = agent.start_history(1)
        for row in range(episode * STEPS, (episode + 1) * STEPS):
            step = Sampler(log).batch(torch.tensor([row]))
            obs = type(step.obs)(step.obs.vector, history=kept)
            torch.testing.assert_close(agent.recall(obs).vector[0], learned.obs.vector[row])
            kept = agent.take_in(kept, type(step)(**vars(step) | {"obs": obs}))
            if getattr(agent, "looks_ahead", True):
                after = type(obs)(step.next_obs.vector, history=kept)
                torch.testing.assert_close(agent.recall(after).vector[0], learned.next_obs.vector[row])


@pytest.mark.parametrize(("name", "discrete"), [("iql-stacked", True), ("iql-gru", False)])
def test_the_unit_of_observations_and_rewards_does_not_matter(name: str, discrete: bool) -> None:
    one, thousand = (trained(name, discrete, 10, unit).agent.state_dict() for unit in (1.0, 1024.0))
    for key in one:
        if key.startswith(("inner", "gru")):
            torch.testing.assert_close(one[key], thousand[key], atol=1e-4, rtol=1e-3)


def test_return_range_scales_what_iql_learns_from() -> None:
    log, agent = log_of(False, False), AGENTS["iql-gru"]
    scaled: Any = agent[0].for_data(log, agent[1](return_range=10.0))
    spread = np.ptp(log.episode_returns()) / float(scaled.reward_deviation)
    assert float(scaled.inner.reward_scale) == pytest.approx(10 / spread, rel=1e-5)


# ---------------------------------------------------------------------- refusals, names


def test_impossible_settings_and_other_batches_are_refused() -> None:
    log = log_of(True, True)
    with pytest.raises(ValueError, match=r"steps is 0. Fix: at least 1"):
        apev.train(log, "bc-stacked", steps=0, console=QUIET)
    with pytest.raises(ValueError, match=r"window 0. Fix: at least 1"):
        apev.train(log, "bc-gru", window=0, console=QUIET)
    picture = np.zeros((6, 8, 8, 3), dtype=np.uint8)
    ended = np.ones(6, dtype=bool)
    shown = Dataset.from_arrays(picture, np.arange(6) % 2, np.ones(6), ended, ~ended)
    with pytest.raises(ValueError, match="reads vectors, not the picture"):
        apev.train(shown, "iql-gru", console=QUIET)
    stacked, gru = (find(name, discrete=True) for name in ("bc-stacked", "bc-gru"))
    with pytest.raises(ValueError, match=r"steps before each row. Fix: .*agent.sampler"):
        stacked.agent.for_data(log, stacked.config()).update(Sampler(log).sample())
    with pytest.raises(ValueError, match=r"windows of episodes. Fix: .*agent.sampler"):
        gru.agent.for_data(log, gru.config()).update(HistorySampler(log, steps=1).sample())
    with pytest.raises(ValueError, match="needs continuous actions"):
        AGENTS["iql-gru"][0].for_data(log, AGENTS["iql-gru"][1]())
    with pytest.raises(ValueError, match="remember=True needs values"):
        Policy(trained("bc-gru", True).agent, remember=True)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("name", NAMES)
def test_their_colours_are_their_own_and_can_be_seen(name: str) -> None:
    colour = ALGORITHMS[name].colour
    assert colour not in [*COLOURS.values(), *(a.colour for a in ALGORITHMS.values() if a.name != name)]
    for card in ("#ffffff", "#191c24"):
        light, dark = sorted((luminance(colour), luminance(card)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3
