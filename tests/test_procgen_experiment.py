import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from apev.agents import APEVC51Config
from apev.cli import main
from apev.experiments.procgen import recipe as procgen
from apev.experiments.procgen import scales
from apev.experiments.procgen.episodes import ends_in_loop, is_confined, walk_untaught
from apev.experiments.procgen.log import make_mazes
from apev.experiments.procgen.maze import Mode
from apev.experiments.procgen.report import BLOCKS, NAMES, fill_mazes, idea_rows, summarise_mazes, table_rows

QUIET = Console(quiet=True)
RECIPE = replace(scales.RECIPES["smoke"], test_levels=2, seen_levels=1, horizon=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("procgen") / "easy-5"
    procgen.run(out, RECIPE, mode="easy", levels=5, meta={"scale": "smoke"}, console=QUIET)
    return out


def test_a_run_writes_what_the_table_needs(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    for policy in NAMES:
        for split, episodes in (("train", 1), ("test", 2)):
            found = summary["policies"][policy][split]
            assert found["episodes"] == episodes
            assert 0 <= found["ci95"][0] <= found["success"] <= found["ci95"][1] <= 1
    assert set(procgen.POLICIES) < set(summary["policies"])
    assert summary["meta"]["scale"] == "smoke"
    rows = table_rows(summary)
    assert [row[0] for row in rows[1:]] == list(NAMES.values())
    assert len(table_rows(summary, ablation=True)) == 1 + len(procgen.POLICIES) - 5


def test_a_page_shows_replays_and_tables(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert "maze-board" in page
    assert '"trusted"' in page
    assert "Depth-first search" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_a_finished_seed_is_not_done_again(folder: Path) -> None:
    before = (folder / "agents" / "ensemble-0" / "metrics.jsonl").stat().st_mtime_ns
    procgen.run(folder, RECIPE, mode="easy", levels=5, resume=True, console=QUIET)
    assert (folder / "agents" / "ensemble-0" / "metrics.jsonl").stat().st_mtime_ns == before
    with pytest.raises(FileExistsError, match="--resume"):
        procgen.run(folder, RECIPE, mode="easy", levels=5, console=QUIET)
    with pytest.raises(ValueError, match="another recipe"):
        procgen.run(folder, replace(RECIPE, batch=3), mode="easy", levels=5, resume=True, console=QUIET)


def test_an_interrupted_walk_goes_on_where_it_was(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procgen, "CHUNK", 1)
    out, walk = tmp_path / "easy-5", procgen.walk
    walked: list[Any] = []

    def until_the_third(agents: Any, env: Any, *rest: Any, **more: Any) -> Any:
        if len(walked) == 2:
            raise KeyboardInterrupt
        walked.append(env)
        return walk(agents, env, *rest, **more)

    def counted(*given: Any, **more: Any) -> Any:
        walked.append(0)
        return walk(*given, **more)

    shutil.copytree(folder / "agents", out / "agents")
    again: dict[str, Any] = {"mode": "easy", "levels": 5, "resume": True, "console": QUIET}
    monkeypatch.setattr(procgen, "walk", until_the_third)
    with pytest.raises(KeyboardInterrupt):
        procgen.run(out, RECIPE, **again)
    monkeypatch.setattr(procgen, "walk", counted)
    procgen.run(out, RECIPE, **again)
    assert len(walked) == 3  # two test levels and one of training, each once
    assert [path.name for path in (out / "seeds").iterdir()] == ["0.json"]
    whole = tmp_path / "whole"
    shutil.copytree(folder / "agents", whole / "agents")
    procgen.run(whole, RECIPE, **again)
    assert (
        json.loads((out / "seeds/0.json").read_text())["episodes"]
        == json.loads((whole / "seeds/0.json").read_text())["episodes"]
    )


def test_report_is_remade_and_fills_a_page(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    name = folder.as_posix()
    page.write_text("".join(f"<!-- {block}: {name} -->\nold\n<!-- /{block} -->\n" for block in BLOCKS))
    main(["report", str(folder), "--page", str(page)])
    text = page.read_text()
    assert "old" not in text
    assert "| APE-V, printed filter |" in text
    assert "report.html" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no block"):
        fill_mazes(Path(__file__), folder)


def test_hard_mazes_are_enlarged_at_cpu_scale_only() -> None:
    cases: list[tuple[scales.Scale, Mode, int | None]]
    cases = [("cpu", "hard", 104), ("cpu", "easy", None), ("paper", "hard", None), ("smoke", "hard", None)]
    for scale, mode, side in cases:
        recipe = scales.recipe_of(scale, mode)
        assert {recipe.configs[name].enlarged for name in recipe.agents} == {side}
    assert scales.recipe_of("cpu", "hard").configs["published"].enlarged is None


def test_depth_is_an_option_of_every_scale() -> None:
    for recipe in scales.RECIPES.values():
        assert set(recipe.agents) <= set(scales.CONFIGS)
    paper = scales.RECIPES["paper"].configs["ape-v"]
    assert isinstance(paper, APEVC51Config)
    assert (paper.backup_depth, paper.lr, paper.concentration, paper.members) == (1, 6.25e-5, 1.0, 2)
    assert (paper.low, paper.high, paper.atoms, paper.gamma, paper.reward_shift) == (-31, 9, 81, 0.99, -1)


# ---------------------------------------------------------------------- episodes


def test_loops_are_found_whatever_their_length() -> None:
    steps = np.arange(300)
    ways = np.stack([steps % 2, steps % 50, steps % 51, steps, np.zeros(300)], 1).astype(np.int64)
    assert ends_in_loop(ways).tolist() == [True, True, False, False, True]
    assert is_confined(ways).tolist() == [True, False, False, False, True]
    assert not ends_in_loop(ways[:60]).any()


def test_depth_first_search_finds_and_never_sees_a_cell_more_than_it_must() -> None:
    mazes = make_mazes(0, 30, "easy")
    found = list(walk_untaught("dfs", mazes, 0, "test"))
    assert all(line["success"] for line in found)
    assert all(line["distance"] <= line["length"] <= 2 * maze.count for line, maze in zip(found, mazes, strict=True))
    walked = list(walk_untaught("random-walk", mazes, 0, "test"))
    assert 0.3 < np.mean([line["success"] for line in walked]) < 0.8


def test_ideas_are_compared_in_the_same_levels_and_seeds() -> None:
    def line(policy: str, seed: int, level: int, success: bool, length: int, split: str = "test") -> dict[str, object]:
        return {"policy": policy, "seed": seed, "level": level, "success": success, "length": length, "split": split}

    lines = [line("average", s, n, n < 6, 100) for s in (0, 1) for n in range(10)]
    lines += [line("eight views, frozen", s, n, n < 8, 90) for s in (0, 1) for n in range(10)]
    lines += [line("eight views, frozen", 0, 99, False, 500)]  # walked by one of them only
    lines += [line("eight views, frozen", 0, 1, False, 500, split="train")]
    heading, row = idea_rows(lines)
    assert len(heading) == len(row)
    assert row[:2] == ["eight views", "+0.200"]
    assert row[3:] == ["-10", "-10 to -10"]
    low, high = (float(x) for x in row[2].split(" to "))
    assert 0 <= low < 0.2 < high <= 0.6


def test_failures_in_a_loop_are_counted_among_failures() -> None:
    line = {"policy": "single", "split": "test", "seed": 0, "length": 500, "size": 9, "distance": 30, "confined": False}
    lines = [line | {"level": i, "success": i < 2, "loop": i == 2} for i in range(4)]
    found = summarise_mazes(lines)["single"]["test"]
    assert found["success"] == 0.5
    assert found["failed_in_loop"] == 0.5
    assert list(found["by_distance"]) == ["21-40"]
    assert list(found["by_size"]) == ["9-13"]
