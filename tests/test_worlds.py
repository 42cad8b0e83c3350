"""Kinds of contexts: found without labels, told apart by what happens, and what agents make of them."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import apev
from apev.api import by_group, sampler_of_worlds
from apev.commands.data import KindsOf
from apev.data import Dataset
from apev.envs.fleet.customers import customers_log, exact_values
from apev.worlds.files import load as load_kinds
from apev.worlds.files import save as save_kinds
from apev.worlds.find import bounded, splits
from apev.worlds.regression import Sums, mixtures
from apev.worlds.rows import Rows

QUIET = Console(quiet=True)
VERDICTS = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "verdicts.py"))
walks, drives = VERDICTS["walks"], VERDICTS["drives"]


def pushers(contexts: int = 24, rows: int = 60, kinds: int = 2, seed: int = 0) -> tuple[Dataset, np.ndarray]:
    """Points on a line that are pushed: in half of the contexts the push counts the other way round."""
    rng = np.random.default_rng(seed)
    kind = rng.permutation(np.arange(contexts) % kinds)
    sign = np.where(kind == 1, -1.0, 1.0).repeat(rows)
    obs = rng.normal(size=(contexts * rows, 2)).astype(np.float32)
    push = rng.uniform(-1, 1, size=(contexts * rows, 1)).astype(np.float32)
    after = obs.copy()
    after[:, 0] += 0.1 * obs[:, 1]
    after[:, 1] += sign * push[:, 0] + rng.normal(0, 0.05, contexts * rows)
    last = np.tile(np.arange(rows) == rows - 1, contexts)
    log = Dataset.from_arrays(
        obs,
        push,
        -np.abs(after[:, 1]),
        np.zeros(len(obs), dtype=bool),
        last,
        next_observations=after.astype(np.float32),
        contexts=np.arange(contexts).repeat(rows),
        source={"observation_names": ["place", "speed"], "action_low": [-1.0], "action_high": [1.0]},
    )
    return log, kind


def regions(contexts: int = 120, rows: int = 60, seed: int = 0) -> Dataset:
    """One world, too winding for a small network, of which every context sees another part."""
    rng = np.random.default_rng(seed)
    context = np.arange(contexts).repeat(rows)
    obs = (rng.uniform(-2, 2, (contexts, 2))[context] + rng.normal(0, 0.4, (len(context), 2))).astype(np.float32)
    push = rng.uniform(-1, 1, (len(context), 1)).astype(np.float32)
    after = obs.copy()
    after[:, 0] += 0.3 * np.sin(4 * obs[:, 0]) * np.cos(4 * obs[:, 1]) + 0.1 * push[:, 0]
    after[:, 1] += 0.3 * np.cos(4 * obs[:, 0] + 1) + rng.normal(0, 0.01, len(context))
    last = np.tile(np.arange(rows) == rows - 1, contexts)
    none = np.zeros(len(obs), dtype=bool)
    return Dataset.from_arrays(obs, push, -np.abs(after[:, 1]), none, last, next_observations=after, contexts=context)


def same_sorting(found: np.ndarray, true: np.ndarray) -> float:
    """The share of contexts that two sortings into two kinds agree on, whatever they call them."""
    return float(max((found == true).mean(), (found == 1 - true).mean()))


@pytest.fixture(scope="module")
def fleet() -> tuple[Dataset, np.ndarray, apev.Kinds]:
    """A log of two kinds, its kinds, and what was found."""
    log, kind = pushers()
    return log, kind, apev.kinds(log, most=3, console=QUIET)


def test_two_kinds_are_found_without_labels(fleet: tuple[Dataset, np.ndarray, apev.Kinds]) -> None:
    _log, kind, found = fleet
    assert found.count == 2
    assert same_sorting(found.kind, kind) == 1.0
    assert found.columns[0][0] in ("speed", "reward")
    assert found.steps_to_95 <= 8
    assert found.pays
    assert "2 kinds of contexts" in found.in_words()
    assert "adapting can pay" in found.in_words()


def test_a_sorting_that_leaves_many_out_is_called_doubtful(fleet: tuple[Dataset, np.ndarray, apev.Kinds]) -> None:
    _, _, found = fleet
    assert "no good" not in found.in_words()
    left_out = np.where(np.arange(len(found.kind)) % 3 == 0, -1, found.kind)
    assert "so many fit no kind" in replace(found, kind=left_out).in_words()


def test_a_log_of_one_kind_is_of_one_kind() -> None:
    log, _ = pushers(kinds=1)
    found = apev.kinds(log, most=3, console=QUIET)
    assert found.count == 1
    assert found.models is None
    assert not found.pays
    assert found.in_words().startswith("one kind")
    assert "the usual one" not in found.in_words()


def test_contexts_that_visit_other_states_are_no_kinds() -> None:
    """A network for each region predicts better than one for all; but state and action say which region it is."""
    assert apev.kinds(regions(), most=3, console=QUIET).count == 1


@pytest.mark.parametrize("seed", [0, 1])
def test_rare_ends_are_no_kinds(seed: int) -> None:
    """One network is the best for everybody, and an end or two are foretold by chance: neither proves a kind."""
    found = apev.kinds(walks(1, episodes=100, steps=30, ends=True, seed=seed), most=3, console=QUIET)
    assert found.count == 1
    assert "of the rows have a reward that is not the usual one" in found.in_words()  # nothing shows, which proves little


def test_kinds_that_few_rows_tell_apart_are_kinds() -> None:
    """One row in fourteen tells them. In the others one model for all is a little more exact, which must not outweigh it."""
    found = apev.kinds(drives(), most=2, console=QUIET)
    assert sorted(found.sizes) == [20, 20]
    assert found.kind[::2].tolist() == [found.kind[0]] * 20


def test_every_kind_that_was_asked_for_has_a_context() -> None:
    found = apev.kinds(walks(3, episodes=30, steps=30, ends=True), count=4, console=QUIET)
    assert all((found.kind == kind).any() for kind in range(found.count))


def test_where_nothing_can_be_compared_the_verdict_says_so() -> None:
    log, kind = pushers(contexts=4)
    few = apev.kinds(log, console=QUIET)
    assert "the log has 4 contexts, and 6 are the least" in few.in_words()
    assert "othing hidden" not in few.in_words()
    assert not few.tried
    short, _ = pushers(contexts=40, rows=3)
    unnamed = replace(short, contexts=None)
    assert "0 of 40 contexts have 4 rows" in apev.kinds(short, console=QUIET).in_words()
    assert "--context" in apev.kinds(unnamed, console=QUIET).in_words()
    told = apev.kinds(log, count=2, console=QUIET)  # who knows the number need not have enough to prove it
    assert same_sorting(told.kind, kind) == 1.0
    with pytest.raises(ValueError, match="kinds=3 of 4 contexts"):
        apev.kinds(log, count=3, console=QUIET)


def test_the_number_of_kinds_can_be_given(fleet: tuple[Dataset, np.ndarray, apev.Kinds]) -> None:
    log, kind, _ = fleet
    assert apev.kinds(log, count=2, console=QUIET).count == 2
    assert apev.kinds(log, count=1, console=QUIET).count == 1
    labelled = apev.kinds(log, count=kind, console=QUIET)
    np.testing.assert_array_equal(labelled.kind, kind)


def test_beliefs_are_as_often_right_as_they_say(fleet: tuple[Dataset, np.ndarray, apev.Kinds]) -> None:
    _, _, found = fleet
    sure = [r for r in found.reliability if r.stated > 0.9]
    assert sure
    assert all(r.right > 0.85 for r in sure if r.beliefs > 20)


def test_models_tell_a_transition_of_one_kind_from_one_of_another(fleet: tuple[Dataset, np.ndarray, apev.Kinds]) -> None:
    log, _kind, found = fleet
    assert found.models is not None
    rows = Rows.of(log, found.models.units)
    told = rows.sums(found.models.of_rows(rows)).argmax(1).numpy()
    np.testing.assert_array_equal(told, found.kind)


def test_kinds_go_through_a_file(fleet: tuple[Dataset, np.ndarray, apev.Kinds], tmp_path: Path) -> None:
    _, _, found = fleet
    save_kinds(found, tmp_path)
    again = load_kinds(tmp_path)
    assert again.in_words() == found.in_words()
    np.testing.assert_array_equal(again.kind, found.kind)
    assert found.models is not None
    assert again.models is not None
    for name, value in found.models.state_dict().items():
        assert torch.equal(value, again.models.state_dict()[name])


def test_batches_have_a_block_a_kind_and_beliefs_from_earlier_rows(fleet: tuple[Dataset, np.ndarray, apev.Kinds]) -> None:
    log, _, found = fleet
    sampler = sampler_of_worlds(log, found, 256, "cpu", 0)
    batch = sampler.sample()
    kind = by_group(log, found)[batch.group]
    assert batch.blocks
    assert kind.tolist() == [0] * 128 + [1] * 128
    assert batch.log_belief is not None
    assert batch.next_log_belief is not None
    torch.testing.assert_close(batch.log_belief.exp().sum(-1), torch.ones(256))
    rows = torch.arange(256)
    right = batch.log_belief[rows, kind].exp()
    assert float(right.mean()) > 0.75  # some rows have seen nothing yet, the others know
    assert float(batch.next_log_belief[rows, kind].exp().mean()) > float(right.mean())


def test_the_agent_has_a_member_for_each_kind_and_knows_which_it_meets(
    fleet: tuple[Dataset, np.ndarray, apev.Kinds], tmp_path: Path
) -> None:
    log, kind, _ = fleet
    policy = apev.train(log, updates=20, kinds=kind.tolist(), hidden=(16,), out=tmp_path / "run", console=QUIET)
    assert policy.members == 2
    assert policy.agent.worlds is not None
    found = load_kinds(tmp_path / "run")
    for context in range(6):
        rows = np.flatnonzero(log.group == found.contexts[context])[:12]
        policy.reset()
        for row in rows:
            policy.act(log.observations["observation"][row])
            after = log.next_observations["observation"][row]
            policy.observe(float(log.rewards[row]), after, False, action=log.actions[row])
        assert policy.belief.argmax() == found.kind[context]
        assert policy.belief.max() > 0.9
    with pytest.raises(ValueError, match="no base"):
        apev.train(log, updates=1, base="dqn", console=QUIET)


def test_a_stopped_run_of_worlds_goes_on_bit_for_bit(fleet: tuple[Dataset, np.ndarray, apev.Kinds], tmp_path: Path) -> None:
    log, kind, _ = fleet
    settings: dict[str, Any] = {"hidden": (16,), "kinds": kind.tolist(), "console": QUIET}  # known: nothing to search
    apev.train(log, updates=12, out=tmp_path / "part", checkpoint_every=6, **settings)
    apev.train(log, updates=24, out=tmp_path / "part", resume=True, **settings)
    whole = apev.train(log, updates=24, out=tmp_path / "whole", **settings).agent.policy_state()
    part = apev.load(tmp_path / "part").agent.policy_state()
    assert all(torch.equal(value, part[name]) for name, value in whole.items())


def test_the_command_says_what_it_found(
    fleet: tuple[Dataset, np.ndarray, apev.Kinds], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, _, _ = fleet
    log.save(tmp_path / "log.npz")
    KindsOf(path=str(tmp_path / "log.npz"), most=2, json=True).run()
    told = json.loads(capsys.readouterr().out)
    assert told["kinds"] == 2
    assert told["adapting_can_pay"]
    assert sum(told["sizes"]) == 24


def test_a_mixture_of_regressions_sorts_exact_lines() -> None:
    generator = torch.Generator().manual_seed(0)
    kind = torch.arange(30) % 3
    x = torch.randn(300, 1, generator=generator)
    slopes = torch.tensor([-2.0, 0.0, 2.0])[kind].repeat_interleave(10)
    features = torch.cat([torch.ones(300, 1), x], 1)
    errors = slopes[:, None] * x + 0.1 * torch.randn(300, 1, generator=generator)
    context = torch.arange(30).repeat_interleave(10)
    found = mixtures(Sums.of(features, errors, context, 30), 6, torch.full((2,), 0.1), 4, generator)[3].share.argmax(1)
    for k in range(3):
        assert len(found[kind == k].unique()) == 1
    assert len(found.unique()) == 3


@pytest.mark.slow
def test_customers_are_worth_what_the_best_policy_without_labels_earns() -> None:
    log, _ = customers_log()
    policy = apev.train(log, updates=1500, console=QUIET)
    table = apev.evaluate(policy, "apev/Customers-v0", episodes=500, console=QUIET)
    values = exact_values()
    assert policy.members == 3
    assert (table["adaptive"].mean - values.blind) / (values.adaptive - values.blind) > 0.85
    assert table["average"].mean < values.blind + 1


def goals(contexts: int = 24, rows: int = 240, seed: int = 0) -> tuple[Dataset, np.ndarray]:
    """Points that jump about a square and are rewarded near one of its four corners, which is hidden: no linear matter."""
    rng = np.random.default_rng(seed)
    corner = np.array([[0.6, 0.6], [-0.6, 0.6], [-0.6, -0.6], [0.6, -0.6]], dtype=np.float32)
    kind = rng.permutation(np.arange(contexts) % 4)
    obs = rng.uniform(-1, 1, size=(contexts * rows, 2)).astype(np.float32)
    action = rng.uniform(-0.2, 0.2, size=obs.shape).astype(np.float32)
    after = obs + action
    near = np.linalg.norm(after - corner[kind.repeat(rows)], axis=1) < 0.35
    last = np.tile(np.arange(rows) % 40 == 39, contexts)
    log = Dataset.from_arrays(
        obs,
        action,
        near.astype(np.float32),
        np.zeros(len(obs), dtype=bool),
        last,
        next_observations=after,
        contexts=np.arange(contexts).repeat(rows),
        source={"action_low": [-0.2, -0.2], "action_high": [0.2, 0.2]},
    )
    return log, kind


@pytest.mark.slow
def test_kinds_that_differ_in_where_a_goal_is_are_found() -> None:
    log, kind = goals()
    found = apev.kinds(log, most=5, console=QUIET)
    assert found.count == 4
    shared = np.zeros((4, 4))
    np.add.at(shared, (kind, found.kind), 1)
    assert shared.max(1).sum() >= 0.95 * len(kind)


def test_rare_rewards_are_not_cut_off() -> None:
    rare = torch.zeros(400, 1)
    rare[::20] = 2.0
    assert float(bounded(rare).max()) > 1.0
    usual = torch.randn(400, 1, generator=torch.Generator().manual_seed(0))
    usual[0] = 1000.0
    assert float(bounded(usual).max()) < 200.0


def test_what_no_kind_explains_says_nothing_about_the_kind(fleet: tuple[Dataset, np.ndarray, apev.Kinds]) -> None:
    models = fleet[2].models
    assert models is not None
    known = torch.ones(1, len(models.sigma), dtype=torch.bool)
    lost = torch.stack([100 * models.sigma, 10_000 * models.sigma])[:, None]  # both kinds are far off, one a hundred times more
    told = models.evidence(lost, known)[:, 0]
    assert float((told[0] - told[1]).abs()) < 1e-3
    fits = torch.stack([0 * models.sigma, 100 * models.sigma])[:, None]
    told = models.evidence(fits, known)[:, 0]
    assert float(told[0] - told[1]) > 1.0


def test_every_fold_leaves_each_kind_contexts_to_learn_from() -> None:
    log, _ = pushers(contexts=40, rows=8, kinds=4)
    kind = torch.arange(4).repeat_interleave(10)
    for seed in range(5):
        held = torch.stack(splits(Rows.of(log), kind, torch.Generator().manual_seed(seed)))  # [folds, C]
        assert bool((held.sum(0) == 1).all())  # every context is held out once
        of_kinds = torch.stack([held[:, kind == k].sum(1) for k in range(4)])
        assert set(of_kinds.unique().tolist()) == {3, 4}
