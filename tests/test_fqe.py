"""Fitted Q evaluation: values against exact ones, beliefs against the deployed filter's, honesty about what is not known."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from known_policies import Known, always, myopic, myopic_value, tabular_log
from rich.console import Console

import apev
from apev.bayes.evaluate import evaluate_belief, evaluate_markov
from apev.bayes.mdp import Posterior
from apev.bayes.random_worlds import random_posterior
from apev.cli import main
from apev.data import Dataset
from apev.data.batch import Batch
from apev.envs.fleet.customers import OFFERS, VISITS, customers_log, exact_values
from apev.policy import Policy
from apev.valuation.coverage import Tried
from apev.valuation.held import hold
from apev.valuation.problem import kinds_of_contexts, resamples
from apev.worlds.models import WorldModels
from apev.worlds.rows import Units

QUIET = Console(quiet=True)


def test_customers_are_worth_what_they_are_worth_exactly() -> None:
    log = customers_log(600, seed=1)[0]
    found = apev.fqe({"blind": always(log, 0), "adapts": myopic(log)}, log, updates=400, kinds=1, console=QUIET)
    assert found.gamma == 1
    assert found.unit() == "returns of an episode"
    blind, adapts = found["blind"], found["adapts"]
    assert blind.value.low <= exact_values().blind <= blind.value.high
    assert adapts.value.low <= myopic_value() <= adapts.value.high
    assert adapts.value.high - adapts.value.low < 8
    assert found.logged.low <= exact_values().uniform <= found.logged.high
    assert adapts.gain is not None
    assert adapts.frozen is not None
    assert adapts.gain.value == pytest.approx(adapts.value.value - adapts.frozen.value)
    assert adapts.gain.low > 0
    assert "adapting pays" in adapts.verdict
    assert blind.gain is None
    assert blind.verdict == ""
    assert [row.name for row in found.ranked()] == ["adapts", "blind"]


def test_tabular_worlds_are_worth_what_they_are_worth_exactly() -> None:
    drawn = random_posterior(np.random.default_rng(5), states=4, actions=2, hypotheses=2, kind="eliminating", gamma=0.8)
    worlds = Posterior(drawn.mdps)
    log = tabular_log(worlds, episodes=250, length=12, seed=0)
    best = np.stack([mdp.expected_reward for mdp in worlds.mdps])  # [K, S, A]: greedy for the next reward
    table = torch.from_numpy(best).float()

    def evidence(step: Batch) -> torch.Tensor:
        state, after = step.obs.vector.argmax(1), step.next_obs.vector.argmax(1)
        rows = zip(state.tolist(), step.action.tolist(), step.reward.tolist(), after.tolist(), strict=True)
        told = [worlds.likelihood(s, a, round(r, 6), s_next, False) for s, a, r, s_next in rows]
        return torch.from_numpy(np.stack(told)).float().clamp_min(1e-9).log()

    def choose(obs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bk,bka->ba", weights, table[:, obs.argmax(1)].transpose(0, 1)).argmax(1)

    def acts(states: Any, beliefs: Any, time: int) -> np.ndarray:
        return np.asarray(np.einsum("nk,kna->na", beliefs, best[:, states]).argmax(1))

    adaptive = Policy(Known(log, choose, evidence, members=2, gamma=0.8))
    static = best.mean(0).argmax(1)
    found = apev.fqe({"adaptive": adaptive}, log, updates=400, kinds=1, console=QUIET)
    row = found["adaptive"]
    assert found.gamma == 0.8
    assert row.value.low <= evaluate_belief(worlds, acts).mean <= row.value.high
    assert row.frozen is not None
    assert row.frozen.low <= evaluate_markov(worlds, static).mean <= row.frozen.high


def test_the_same_seed_gives_the_same_numbers_and_the_policy_is_left_alone() -> None:
    log = customers_log(40, seed=2)[0]
    policy = myopic(log)
    before = policy.state.log_belief.clone()
    first, again = (apev.fqe(policy, log, updates=20, kinds=1, console=QUIET).as_json() for _ in range(2))
    other = apev.fqe(policy, log, updates=20, kinds=1, seed=1, console=QUIET).as_json()
    assert first == again
    assert first != other
    assert torch.equal(policy.state.log_belief, before)
    json.dumps(first)


@pytest.mark.parametrize("name", ["dqn", "bc-stacked", "bc-gru"])
def test_what_is_held_is_what_the_deployed_policy_would_hold(name: str) -> None:
    log = customers_log(30, seed=3)[0]
    settings: dict[str, Any] = {"members": 3} if name == "dqn" else {}
    policy = apev.train(log, name, updates=5, kinds=1, console=QUIET, **settings)
    rows = np.flatnonzero(log.usable)
    found = hold(policy, log, rows)
    for episode in range(3):
        policy.reset()
        for row in np.flatnonzero(log.episodes == episode):
            action = policy.act(log.observations["observation"][row])
            assert int(found.action[0, row]) == action
            if name == "dqn":
                assert found.held[0, row, :3].numpy() == pytest.approx(policy.belief, abs=1e-5)
            else:
                assert policy.state.history is not None
                assert found.held[0, row].numpy() == pytest.approx(policy.state.history[0].numpy(), abs=1e-5)
            after = {key: column[row] for key, column in log.next_observations.items()}["observation"]
            policy.observe(log.rewards[row], after, log.terminated[row], action=log.actions[row])
    assert len(found.held) > 1  # other passes begin anew in between
    assert not torch.equal(found.held[0], found.held[1])


def test_masks_decide_what_is_believed_along_the_log() -> None:
    log = customers_log(30, seed=3)[0]
    allowed = np.random.default_rng(0).random((len(log), log.num_actions or 0)) < 0.5
    allowed[np.arange(len(log)), log.actions] = True
    log = replace(log, action_masks=allowed)
    policy = apev.train(log, "dqn", updates=5, members=3, kinds=1, console=QUIET)
    found = hold(policy, log, np.flatnonzero(log.usable))
    rows = np.flatnonzero(log.usable & (log.episodes < 3))
    for row in rows:
        if row == 0 or log.episodes[row] != log.episodes[row - 1]:
            policy.reset()
        action = policy.act(log.observations["observation"][row], mask=allowed[row])
        assert int(found.action[0, row]) == action
        assert found.held[0, row, :3].numpy() == pytest.approx(policy.belief, abs=1e-5)
        after = {key: column[row] for key, column in log.next_observations.items()}["observation"]
        following = None if log.terminated[row] else allowed[row + 1]
        policy.observe(log.rewards[row], after, log.terminated[row], action=log.actions[row], mask=following)


def test_a_belief_that_is_kept_goes_on_in_the_next_episode_of_a_context() -> None:
    log = customers_log(20, seed=4)[0]
    log = replace(log, contexts=log.episodes // 2)
    rows = np.flatnonzero(log.usable)
    kept, fresh = (hold(myopic(log), log, rows, keep_belief=keep) for keep in (True, False))
    second = VISITS  # the first row of the second episode, which is of the same context
    assert torch.equal(kept.held[0, second], kept.next_held[0, second - 1])
    assert fresh.held[0, second, :3].tolist() == pytest.approx([1 / 3] * 3)


def test_actions_that_the_log_hardly_takes_are_named() -> None:
    log = customers_log(200, seed=5)[0]
    taken = log.actions != OFFERS.index("nothing")
    part = Dataset.from_arrays(
        log.observations["observation"][taken],
        log.actions[taken],
        log.rewards[taken],
        log.terminated[taken],
        np.zeros(int(taken.sum()), bool),
        episodes=log.episodes[taken],
        num_actions=4,
    )
    found = apev.fqe({"never": always(part, 3), "often": always(part, 0)}, part, updates=20, kinds=1, console=QUIET)
    assert found["never"].coverage.little_known > 0.9
    assert "do not trust this number" in " ".join(found.lines())
    assert found["often"].coverage.trusted
    assert found["often"].coverage.typical == pytest.approx(1 / 3, abs=0.05)


def test_continuous_actions_far_from_all_logged_ones_are_little_known() -> None:
    rng = torch.Generator().manual_seed(0)
    state = torch.randn(800, 2, generator=rng)
    action = state.sum(1, keepdim=True).tanh() + 0.1 * torch.randn(800, 1, generator=rng)
    tried = Tried(state, action, 0, seed=0)
    assert tried.coverage(action).little_known < 0.06
    assert tried.coverage(state.sum(1, keepdim=True).tanh()).little_known < 0.06
    assert tried.coverage(action + 3).little_known > 0.95


def test_kinds_are_read_only_where_whole_contexts_show_them() -> None:
    log = customers_log(50, seed=6)[0]
    rows = np.flatnonzero(log.usable)

    class Told(WorldModels):
        firmness = 1.0

        def log_likelihood(self, step: Batch) -> torch.Tensor:
            sign = (step.group % 2 * 2.0 - 1) * self.firmness
            return torch.stack([-sign, sign], 1)

    models = Told(2, Units(7, 5, 4))
    kind, sure = kinds_of_contexts(log, rows, models)
    assert kind is not None
    assert kind.tolist() == (log.group[rows] % 2).tolist()
    models.firmness = 0.01
    kind, sure = kinds_of_contexts(log, rows, models)
    assert kind is None
    assert sure < 0.6


def test_resamples_draw_whole_contexts() -> None:
    owner = np.repeat(np.arange(10), 3)
    weight = resamples(owner, 5, seed=0)
    assert weight.sum(1).tolist() == [30.0] * 5
    assert torch.equal(weight[:, ::3], weight[:, 1::3])


def test_what_cannot_be_valued_is_refused() -> None:
    log, other = customers_log(20, seed=0)[0], Dataset.example("pendulum")
    with pytest.raises(ValueError, match="depend on more than state and belief"):
        apev.fqe(myopic(log).with_adapt("commit"), log, console=QUIET)
    with pytest.raises(ValueError, match="Fix: the log it was trained on"):
        apev.fqe(myopic(log), other, console=QUIET)
    with pytest.raises(ValueError, match="gamma is 2"):
        apev.fqe(myopic(log), log, gamma=2, kinds=1, console=QUIET)
    with pytest.raises(ValueError, match="at least 2"):
        apev.fqe(myopic(log), log, members=1, kinds=1, console=QUIET)


def test_the_command_prints_a_narrow_table_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = customers_log(40, seed=0)[0]
    log.save(tmp_path / "log.npz")
    for name in ("bc", "cql"):
        apev.train(log, name, updates=3, out=tmp_path / name, console=QUIET)
    runs = [str(tmp_path / "bc"), str(tmp_path / "cql"), "--data", str(tmp_path / "log.npz"), "--updates", "20"]
    monkeypatch.setenv("COLUMNS", "60")
    main(["fqe", *runs, "--kinds", "1"])
    shown = capsys.readouterr().out
    assert {"bc", "cql", "the log"} <= {line.split("  ")[0].strip() for line in shown.splitlines()}
    assert max(len(line) for line in shown.splitlines()) <= 60
    main(["fqe", *runs, "--kinds", "1", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert {row["policy"] for row in told["policies"]} == {"bc", "cql"}
    assert told["logged_return"] == pytest.approx(float(log.episode_returns().mean()))


def test_time_limits_count_as_ends_where_nothing_is_discounted() -> None:
    worlds = random_posterior(np.random.default_rng(1), hypotheses=1, gamma=0.9)
    log = tabular_log(worlds, episodes=120, length=6, seed=0)
    policy = always(log, 0)
    found = apev.fqe(policy, log, gamma=1, updates=200, kinds=1, console=QUIET)
    exact = evaluate_markov(Posterior([replace(worlds.mdps[0], gamma=1.0)]), np.zeros(4, int), horizon=6).mean
    assert found.timed
    assert found.rows[0].value.low <= exact <= found.rows[0].value.high


@pytest.mark.slow
def test_the_benchmark_ends_with_its_rank_correlation(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "benchmarks" / "fqe.py"
    tiny = ["--world", "customers", "--policies", "2", "--episodes", "4", "--updates", "8", "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, str(script), *tiny], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["worlds"]["customers"]["policies"] == 2
    assert (tmp_path / "customers.json").exists()


def test_policies_with_a_history_are_not_to_be_trusted() -> None:
    log = customers_log(30, seed=3)[0]
    policy = apev.train(log, "bc-stacked", updates=3, console=QUIET)
    found = apev.fqe({"stacked": policy, "blind": always(log, 0)}, log, updates=8, kinds=1, console=QUIET)
    assert not found["stacked"].trusted
    assert found["blind"].trusted
    assert any(line.startswith("stacked: it was valued along the log's histories") for line in found.lines())
