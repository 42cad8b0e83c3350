"""`apev reproduce theory`: its files, its claims, its exit code; and what docs/theory.md says is what was stored."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apev.bayes import best_markov, evaluate_markov, solve
from apev.cells import run_cells
from apev.cli import main
from apev.envs import OraclePolicy, Room
from apev.experiments.theory import recipe as theory
from apev.experiments.theory.chain import chain, walk_values
from apev.experiments.theory.charts import lane_points
from apev.experiments.theory.claims import make_claims
from apev.experiments.theory.exact import chain_rows, shortest_round_trip
from apev.experiments.theory.learned import Task, learn
from apev.experiments.theory.report import TABLES, fill_blocks, markdown_block, read_theory
from apev.experiments.theory.worlds import WORLDS, chain_world, doors_world

ROOT = Path(__file__).parent.parent
STORED = ROOT / "results" / "theory"
TINY = theory.Size(chain=(2, 3), problems=1, surrogate_problems=3, boxes=20, restarts=0, seeds=(0, 1, 2), updates=3, days=20)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int | str | None]:
    """A whole run of the command at a tiny size, and its exit code."""
    out = tmp_path_factory.mktemp("theory")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(theory.SIZES, "smoke", TINY)
        with pytest.raises(SystemExit) as stop:
            main(["reproduce", "theory", "--scale", "smoke", "--jobs", "1", "--out", str(out)])
    return out, stop.value.code


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    return read_theory(STORED)


def test_a_run_writes_its_claims_figures_and_page(finished: tuple[Path, int]) -> None:
    out, _ = finished
    summary = json.loads((out / "summary.json").read_text())
    assert len(summary["claims"]) > 15
    for claim in summary["claims"]:
        assert claim.keys() == {"statement", "expected", "measured", "holds"}
        assert isinstance(claim["holds"], bool)
        assert all(isinstance(claim[key], str) and claim[key] for key in ("statement", "expected", "measured"))
    assert {"command", "commit", "seeds", "seconds"} <= summary["meta"].keys()
    for name in ("city.svg", "chain.svg", "surrogate.svg"):
        assert (out / name).read_text().startswith("<svg")
    page = (out / "report.html").read_text()
    assert "{{" not in page
    assert all(f'id="{name}"' in page for name in ("city", "claims", "optimality", "chain", "surrogate", "made"))


def test_untrained_agents_fail_their_claims_and_the_command_says_so(finished: tuple[Path, int]) -> None:
    out, code = finished
    assert code == 1
    claims = {c["statement"]: c["holds"] for c in json.loads((out / "summary.json").read_text())["claims"]}
    assert not all(holds for statement, holds in claims.items() if "learned" in statement)
    assert all(holds for statement, holds in claims.items() if "Theorem" in statement or "Proposition" in statement)


def test_a_run_with_all_claims_held_exits_with_0(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(theory, "run", lambda *_, **__: {"claims": [{"holds": True}]})
    main(["reproduce", "theory", "--out", str(tmp_path)])


def test_no_jobs_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "theory", "--jobs", "0", "--out", str(tmp_path)])
    assert stop.value.code == 2
    assert "Fix" in capsys.readouterr().err


def test_cells_give_the_same_in_other_processes() -> None:
    work = [cell for cell in theory.cells(TINY) if cell.name in ("city", "learned city, ape-v, seed 0")]
    alone, apart = (run_cells(work, jobs=jobs) for jobs in (1, 2))
    assert len(work) == 2
    assert alone == apart


def test_the_report_is_made_again_from_the_stored_file(
    finished: tuple[Path, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = finished
    (tmp_path / "summary.json").write_text((out / "summary.json").read_text())
    (tmp_path / "page.md").write_text("before\n<!-- theory: chain -->\nold\n<!-- /theory -->\nafter\n")
    main(["report", str(tmp_path), "--page", str(tmp_path / "page.md")])
    assert "claims do not hold" in capsys.readouterr().out
    assert (tmp_path / "report.html").read_text() == (out / "report.html").read_text()
    text = (tmp_path / "page.md").read_text()
    assert "old" not in text
    assert "| 2 | -4.00 | -11.66 |" in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    (tmp_path / "page.md").write_text("no block")
    with pytest.raises(ValueError, match="Fix"):
        fill_blocks(tmp_path / "page.md", tmp_path)
    with pytest.raises(ValueError, match="Fix"):
        markdown_block("nothing", read_theory(tmp_path))


# ---------------------------------------------------------------------- claims follow from the data


def worsen_chain(d: dict[str, Any]) -> None:
    d["chain"][-1]["adaptive"] -= 1e-6


def worsen_markov(d: dict[str, Any]) -> None:
    d["chain"][0]["random_best"] = d["chain"][0]["markov"] + 1e-3


def worsen_gradient(d: dict[str, Any]) -> None:
    d["propositions"]["5.2"]["worst_error"] = 1e-5


def worsen_city(d: dict[str, Any]) -> None:
    d["city"]["learned"]["ape-v"]["ci95"][1] = d["city"]["learned"]["lcb"]["ci95"][0]


def worsen_seed(d: dict[str, Any]) -> None:
    d["city"]["learned"]["ape-v"]["arrived"]["3"][1] = False


def worsen_share(d: dict[str, Any]) -> None:
    d["bayes_optimality"][0]["share"] = -0.01


@pytest.mark.parametrize(
    "worsen", [worsen_chain, worsen_markov, worsen_gradient, worsen_city, worsen_seed, worsen_share], ids=lambda f: f.__name__
)
def test_a_claim_falls_with_its_number(stored: dict[str, Any], worsen: Any) -> None:
    before = [claim.holds for claim in make_claims(stored)]
    data = copy.deepcopy(stored)
    worsen(data)
    after = [claim.holds for claim in make_claims(data)]
    assert sum(before) - sum(after) == 1


def test_the_reported_markov_policy_beats_a_random_search() -> None:
    (row,) = chain_rows([3], draws=50)
    result = best_markov(chain(3), restarts=1)
    right = np.random.default_rng(5).random((200, 7))
    assert walk_values(right).max() <= result.value + 1e-9
    assert row["random_best"] <= row["markov"]
    assert row["adaptive"] == pytest.approx(-6, abs=1e-9)


def test_random_walks_on_the_chain_are_worth_what_elimination_says() -> None:
    right = 1 / (1 + np.exp(-np.random.default_rng(1).normal(size=(6, 41))))
    exact = [evaluate_markov(chain(20), np.stack([1 - p, p], 1)).mean for p in right]
    np.testing.assert_allclose(walk_values(right), exact, rtol=1e-8)


def test_round_trips_take_two_n_squared_at_the_coin() -> None:
    assert shortest_round_trip(5, 1, seed=0) == pytest.approx(50)
    assert shortest_round_trip(5, 500, seed=0) == pytest.approx(50)


# ---------------------------------------------------------------------- the worlds


def test_the_room_without_a_photograph_is_the_oracles() -> None:
    room = Room(size=5)
    y, x = np.divmod(np.arange(25), 5)
    # Leaving is free, and a step of the oracle's count.
    assert solve(doors_world(room).posterior).value == pytest.approx(-(OraclePolicy(room).expected_steps(x, y) - 1).mean())


@pytest.mark.parametrize("name", WORLDS)
def test_logs_name_contexts_and_keep_the_hypothesis_to_themselves(name: str) -> None:
    world = WORLDS[name]()
    log = world.log(0)
    assert log["observations"].shape[1] == world.features.shape[1]
    assert len(np.unique(log["contexts"])) >= 100
    assert log["terminated"].sum() > 200
    assert world.agents["ape-v"].wildcards == len(world.posterior)  # type: ignore[attr-defined]


def test_an_agent_learns_the_chain() -> None:
    """A smaller chain than the stored one's, and fewer updates: far better than any Markov policy all the same."""
    result = learn(Task("chain", "ape-v", 0, 150))
    assert result["value"] > -30  # the best Markov policy gets -46, Bayes-optimal is -8
    assert chain_world().horizon == 200


def test_lanes_keep_to_their_side_and_cross_where_they_turn() -> None:
    assert lane_points([(0, 0), (10, 0), (10, 10)], 2) == [(0, 2), (8, 2), (8, 10)]
    assert lane_points([(0, 0), (10, 0), (0, 0)], 2) == [(0, 2), (10, 2), (10, -2), (0, -2)]
    assert lane_points([(3, 3)], 2) == [(3, 3)]


# ---------------------------------------------------------------------- what is stored and quoted


def test_the_stored_run_holds_every_claim(stored: dict[str, Any]) -> None:
    assert [c["statement"] for c in stored["claims"] if not c["holds"]] == []
    assert stored["meta"]["seeds"] == [0, 1, 2, 3, 4]
    assert stored["meta"]["command"].startswith("apev reproduce theory")
    assert stored["meta"]["commit"]
    assert [row["n"] for row in stored["chain"]] == list(range(2, 65))


def test_the_docs_quote_the_stored_run(stored: dict[str, Any]) -> None:
    text = (ROOT / "docs" / "theory.md").read_text()
    found = re.findall(r"<!-- theory: (\w+) -->\n(.*?)<!-- /theory -->", text, re.DOTALL)
    assert {name for name, _ in found} == set(TABLES)
    for name, table in found:
        assert table == markdown_block(name, stored), "run: apev report results/theory --page docs/theory.md"
