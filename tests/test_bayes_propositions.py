"""Propositions 5.1 to 5.3 and the surrogate, measured; and the benchmark of the solver."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from apev.bayes import (
    belief_suffices,
    build_graph,
    measure_surrogate,
    policy_gradient,
    random_posterior,
    solve,
    value_recursion,
)
from apev.bayes.propositions import best_history_policy, gradients, recursion_residuals, search_histories
from apev.experiments.theory.chain import chain

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "bayes.py"


def test_state_and_belief_suffice() -> None:
    found = belief_suffices(problems=6, seed=3)
    assert found.worst_gap_enumerated < 1e-9
    assert found.worst_gap_tree < 1e-9
    assert found.policies_tried > 500


def test_brute_force_finds_what_it_should() -> None:
    """Two steps of the chain with n = 1: right, then left if that was wrong. One pays 1, the other 1 + 1."""
    value, policies = best_history_policy(chain(1), horizon=2)
    assert value == pytest.approx(-1.5)
    assert policies == 2**3  # at the start, at the left end, at the right end
    assert search_histories(chain(1), horizon=2) == pytest.approx(-1.5)
    assert solve(chain(1), horizon=2).value == pytest.approx(-1.5)


def test_the_gradient_is_that_of_the_belief_weighted_values() -> None:
    found = policy_gradient(problems=8, seed=1)
    assert found.worst_error < 1e-6
    assert found.median_error_unweighted > 0.01  # the weights b(h) matter


def test_the_gradient_equals_a_finite_difference() -> None:
    rng = np.random.default_rng(4)
    posterior = random_posterior(rng, states=2, hypotheses=2, kind="eliminating")
    theta = torch.from_numpy(rng.normal(size=(2, 2, 3)))
    autograd, formula, _ = gradients(posterior, theta)

    from apev.bayes import evaluate_belief

    def objective(parameters: np.ndarray) -> float:
        def policy(states: np.ndarray, beliefs: np.ndarray, time: int) -> np.ndarray:
            logits = np.einsum("nai,ni->na", parameters[states], np.concatenate([np.ones((len(states), 1)), beliefs], 1))
            weights = np.exp(logits)
            normed: np.ndarray = weights / weights.sum(1, keepdims=True)
            return normed

        return evaluate_belief(posterior, policy).mean

    step = np.zeros((2, 2, 3))
    step[0, 1, 2] = 1e-5
    slope = (objective(theta.numpy() + step) - objective(theta.numpy() - step)) / 2e-5
    assert float(formula[0, 1, 2]) == pytest.approx(slope, abs=1e-7)
    assert float(autograd[0, 1, 2]) == pytest.approx(slope, abs=1e-7)


def test_the_values_obey_the_recursion_with_the_updated_belief_only() -> None:
    found = value_recursion(problems=8, seed=2)
    assert found.worst_with_updated < 1e-9
    assert found.worst_with_old > 0.1
    assert found.share_wrong_with_old > 0.05


def test_a_policy_that_ignores_its_belief_obeys_both_recursions() -> None:
    rng = np.random.default_rng(0)
    graph = build_graph(random_posterior(rng, kind="eliminating"), everywhere=True)
    assert len(graph) == len(graph.beliefs) * 4  # every belief in every state
    pi = rng.dirichlet(np.ones(2), size=4)[graph.states]
    with_updated, with_old = recursion_residuals(graph, pi)
    assert with_updated.max() < 1e-9
    assert with_old.max() < 1e-9


def test_the_surrogate_in_certain_worlds_never_ranks_the_truth_below() -> None:
    for about in ("moves", "rewards", "both"):
        found = measure_surrogate("certain", about, "alone", problems=10)
        assert found.truth_error < 1e-9
        assert found.pairs_right == pytest.approx(1 - found.pairs_tied / 2)
        assert found.steps > 20
    assert measure_surrogate("certain", "rewards", "alone", problems=10).pairs_tied == 0  # a reward is seen at once


def test_the_printed_surrogate_makes_the_truth_pay_and_the_updated_one_does_not() -> None:
    printed = measure_surrogate("certain", "both", "printed", problems=20)
    updated = measure_surrogate("certain", "both", "updated", problems=20)
    assert printed.truth_error > 0.05
    assert updated.truth_error < 1e-9
    assert updated.pairs_right > printed.pairs_right


def test_noise_misleads_the_surrogate() -> None:
    noisy = measure_surrogate("noisy", "moves", problems=10)
    certain = measure_surrogate("certain", "moves", problems=10)
    assert noisy.pairs_right < certain.pairs_right - 0.1
    assert noisy.belief_surrogate < noisy.belief_exact
    assert -1 <= noisy.rank_correlation <= 1


def test_what_the_surrogate_cannot_be_asked_is_named() -> None:
    with pytest.raises(ValueError, match=r"noisy worlds.*Fix: members='alone'"):
        measure_surrogate("noisy", members="printed")
    with pytest.raises(ValueError, match=r"members 'best'. Fix"):
        measure_surrogate(members="best")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"kind 'odd'.*Fix"):
        random_posterior(np.random.default_rng(0), kind="odd")  # type: ignore[arg-type]


def run_benchmark(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(BENCHMARK), *words], capture_output=True, text=True, timeout=120)


def test_the_benchmark_ends_with_its_number_and_writes_its_files(tmp_path: Path) -> None:
    done = run_benchmark(
        *["--sides", "5", "8", "--hypotheses", "2", "4", "--rounds", "1", "--fit-from", "10", "--out", str(tmp_path)]
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer.keys() == {"growth_exponent"}
    stored = json.loads((tmp_path / "bayes.json").read_text())
    assert stored["growth_exponent"] == answer["growth_exponent"]
    assert {p["family"] for p in stored["points"]} == {"goals", "blockades", "slippery"}
    assert (tmp_path / "bayes.svg").read_text().startswith("<svg")


def test_the_benchmark_names_a_senseless_option() -> None:
    done = run_benchmark("--hypotheses", "3")
    assert done.returncode != 0
    assert "--hypotheses is (3,). Fix" in done.stderr
