"""What the README and the docs say is true: their code runs, their tables come from results/."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import apev
from apev.envs.fleet import exact_values
from apev.experiments.bases.report import markdown as bases_markdown
from apev.experiments.common.kinds import kind_of
from apev.experiments.common.tables import markdown_rows, markdown_table, read_folder
from apev.experiments.d4rl.report import markdown
from apev.experiments.fleet.report import markdown as fleet_markdown
from apev.experiments.procgen.report import BLOCKS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_first_example_runs_and_its_result_is_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert block is not None
    lines = [line for line in block[1].splitlines() if line.strip()]
    assert len(lines) <= 10
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(block[1], "README.md", "exec"), names)
    values, policies = exact_values(), {"apev": names["policy"], "bc": names["static"]}
    found = apev.evaluate(policies, "apev/Customers-v0", episodes=300)
    assert names["policy"].members == 3
    assert found["apev: adaptive"].mean >= 20  # the best without knowing earns 22.1
    assert found["apev: average"].mean <= values.blind + 1
    assert found["bc"].mean <= values.blind + 1


def test_the_three_numbers_are_the_stored_ones() -> None:
    def stored(name: str) -> Any:
        return json.loads((ROOT / "results" / name / "summary.json").read_text())

    rows = dict(re.findall(r"^\| (customers|half-cheetahs|hopper)[^|]*(\|.*)", README, re.MULTILINE))
    customers, cheetahs, hopper = (
        stored("fleet/customers"),
        stored("fleet/cheetah-wiring"),
        stored("d4rl-style/hopper-medium-replay"),
    )
    earned = (
        customers["policies"]["adaptive"]["return"],
        customers["exact"]["best blind"],
        customers["exact"]["best without knowing"],
    )
    assert rows["customers"].startswith("| **{:.1f}** | {:.1f} | {:.1f} |".format(*earned))
    returned = [cheetahs["policies"][name]["return"] for name in ("adaptive", "td3-bc", "knows the kind")]
    assert rows["half-cheetahs"].startswith("| **{:,.0f}** | {:.1f} | {:,.0f} |".format(*returned))
    assert cheetahs["best_blind"]["policy"] == "td3-bc"
    scores = [hopper["algorithms"][name]["by_seed"][seed] for name in ("ape-v", "sac-n") for seed in ("0", "1")]
    assert rows["hopper"].startswith("| **{:.1f}, {:.1f}** | {:.1f}, {:.1f} |".format(*scores))


def test_a_log_of_one_kind_is_served_too(tmp_path: Path) -> None:
    log = apev.Dataset.example("cartpole")
    policy = apev.train(log, "bc", updates=2000)
    found = apev.evaluate(policy, "CartPole-v1", episodes=20)
    assert found["policy"].mean >= 450
    assert found["the log"].mean < 300


OF_BENCHMARKS = ("results/benchmarks/latency.json", "results/fqe")  # their tables are looked at in test_benchmarks.py


@pytest.mark.parametrize("page", ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").glob("*.md"))])
def test_tables_are_those_of_the_stored_results(page: str) -> None:
    text = (ROOT / page).read_text()
    for block, folder, table in re.findall(rf"<!-- ({'|'.join(BLOCKS)}): (\S+) -->\n(.*?)<!-- /\1 -->", text, re.DOTALL):
        if folder in OF_BENCHMARKS:
            continue
        if kind_of(ROOT / folder) == "fleet":
            summary = json.loads((ROOT / folder / "summary.json").read_text())
            assert table == fleet_markdown(summary) + "\n", f"run: apev report {folder} --page {page}"
            continue
        if kind_of(ROOT / folder) == "bases":
            summary = json.loads((ROOT / folder / "summary.json").read_text())
            assert table == bases_markdown(summary), f"run: apev report {folder} --page {page}"
            continue
        results = read_folder(ROOT / folder)
        stored = (
            markdown_rows(BLOCKS[block](results)) if kind_of(ROOT / folder) == "procgen" else markdown_table(results.summary)
        )
        assert table == stored, f"run: apev report {folder} --page {page}"
    for folder, table in re.findall(r"<!-- scores: (\S+) -->\n(.*?)<!-- /scores -->", text, re.DOTALL):
        summary = json.loads((ROOT / folder / "summary.json").read_text())
        assert table == markdown(summary), f"run: apev report {folder} --page {page}"


@pytest.mark.parametrize("page", ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{page} links to {target}"


def test_the_cost_of_blocks_is_the_stored_one() -> None:
    page = (ROOT / "docs" / "data.md").read_text()
    stored = json.loads((ROOT / "results" / "benchmarks" / "blocks" / "cartpole.json").read_text())
    for algorithm, ways in stored["scores"].items():
        means = [f"{sum(ways[way]) / len(ways[way]):.0f}" for way in ("rows", "blocks", "part 16")]
        costs = [
            "{mean:.0f} ({low:.0f} to {high:.0f})".format(**stored["cost"][algorithm][way]).replace("-", "−")
            for way in ("blocks", "part 16")
        ]
        assert f"| {' | '.join([algorithm.upper(), *means, *costs])} |" in page
