"""`apev reproduce d4rl`: from a log to the table, in Hopper, whose untrained episodes are short."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tyro

import apev
from apev.agents import AnchoredSACConfig
from apev.cli import Command, main
from apev.data import Dataset
from apev.data.scores import normalised
from apev.envs.make import make
from apev.experiments.common.cells import cells
from apev.experiments.d4rl.evaluate import trace_of
from apev.experiments.d4rl.published import PAPER
from apev.experiments.d4rl.recipe import SIZES, configuration, data_used, edac_eta
from apev.experiments.d4rl.report import score_table, write_summary
from apev.files import read_json
from apev.rollout import Rollout

pytest.importorskip("mujoco", reason="pip install 'apev[mujoco]'")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    env, rng, rows = make("Hopper-v4"), np.random.default_rng(0), []
    for episode in range(40):
        obs, over = env.reset(seed=episode)[0], False
        while not over:
            action = rng.uniform(-1, 1, 3).astype(np.float32)
            after, reward, ended, cut, _ = env.step(action)
            rows.append((obs, action, reward, after, ended, cut and not ended))
            obs, over = after, ended or cut
    names = ("observations", "actions", "rewards", "next_observations", "terminated", "truncated")
    columns = dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True))
    path = tmp_path_factory.mktemp("log") / "data.npz"
    Dataset.from_arrays(**columns, source={"environment": "Hopper-v4"}).save(path)  # type: ignore[arg-type]
    (path.parent / "card.json").write_text('{"seed": 3}')
    return path


@pytest.fixture(scope="module")
def out(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    command(log, folder, "--algos", "bc", "ape-v", "--seeds", "0", "1", "--store", str(folder / "stored"))
    return folder


def command(log: Path, folder: Path, *more: str) -> None:
    task = ["--task", "hopper-random", "--scale", "smoke", "--data", str(log), "--out", str(folder), "--threads", "1"]
    main(["reproduce", "d4rl", *task, *more])


def test_the_summary_holds_last_and_best_scores_of_raw_episodes(out: Path) -> None:
    summary = json.loads((out / "hopper-random" / "summary.json").read_text())
    assert list(summary["algorithms"]) == ["bc", "ape-v"]
    assert summary["data"] == "another log"
    assert summary["log"]["card"] == {"seed": 3}
    for name, line in summary["algorithms"].items():
        assert line["seeds"] == 2
        assert line["updates"] == 40
        assert line["last"]["ci95"][0] <= line["last"]["score"] <= line["last"]["ci95"][1]
        runs = [out / "hopper-random" / "agents" / f"{name}-s{seed}" for seed in (0, 1)]
        raw = [json.loads(text) for run in runs for text in (run / "episodes.jsonl").read_text().splitlines()]
        returns = [one["return"] for one in raw if one["policy"] == name]
        assert line["last"]["score"] == pytest.approx(float(normalised("hopper-random", np.mean(returns))))
        curves = [[json.loads(t) for t in (run / "curves.jsonl").read_text().splitlines()] for run in runs]
        best = np.mean([max(c["return"] for c in curve) for curve in curves])
        assert line["best"]["score"] == pytest.approx(float(normalised("hopper-random", best)), abs=1e-3)
        late = normalised("hopper-random", [c["return"] for curve in curves for c in curve[-5:]])
        assert line["late"] == pytest.approx({"score": late.mean(), "min": late.min(), "max": late.max()})
    assert summary["algorithms"]["ape-v"]["published"] == 31.3
    behaviours = list(summary["policies"])
    assert behaviours[0] == "ape-v"
    assert [name for name in behaviours if "e_" in name] == [f"ape-v, e_{k} (n = {k + 2})" for k in range(3)]
    ways = ("forgetting", "Gaussian likelihood", "calibrated likelihood", "committed", "held")
    assert {"ape-v", *(f"ape-v, {way}" for way in ways)} == set(summary["beliefs"])
    assert {"ape-v, second episode", "ape-v, committed, second episode"} < set(behaviours)
    assert {f"ape-v{way}, fifth episode" for way in ("", ", held")} < set(behaviours)
    assert summary["meta"]["runs"]["ape-v-s1"]["command"].startswith("apev")


def test_stored_results_give_the_same_summary_without_the_runs(out: Path, tmp_path: Path) -> None:
    stored = json.loads((out / "stored" / "summary.json").read_text())
    assert stored == json.loads((out / "hopper-random" / "summary.json").read_text())
    assert not list((out / "stored").rglob("*.safetensors"))
    curves = [json.loads(line) for line in (out / "stored" / "curves.jsonl").read_text().splitlines()]
    assert all({"value", "value_boldest"} <= set(line["logged"]) for line in curves if line["algorithm"] == "ape-v")
    assert {path.name for path in (out / "stored" / "figures").iterdir()} == {
        "curves.svg",
        "members.svg",
        "belief.svg",
        "episode.svg",
    }
    page = tmp_path / "page.md"
    marker = f"<!-- scores: {(out / 'stored').as_posix()} -->"
    page.write_text(f"before\n{marker}\nold\n<!-- /scores -->\nafter\n")
    main(["report", str(out / "stored"), "--page", str(page)])
    text = page.read_text()
    assert "old" not in text
    assert f"| APE-V | {stored['algorithms']['ape-v']['last']['score']:.1f} |" in text
    assert text.endswith("<!-- /scores -->\nafter\n")


def small(log: Path, folder: Path, *algos: str) -> dict[str, Any]:
    """The summary of some updates at the scale of small logs."""
    named = folder / "hopper_random-v2.npz"  # a file says its name as D4RL writes it
    shutil.copy(log, named)
    task = ["--task", "hopper-random", "--scale", "rows10k", "--updates", "4", "--data", str(named), "--threads", "1"]
    main(["reproduce", "d4rl", *task, "--algos", *algos, "--out", str(folder)])
    summary: dict[str, Any] = json.loads((folder / "hopper-random" / "summary.json").read_text())
    return summary


def test_a_file_of_d4rl_is_called_by_its_name_and_its_rows(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "rows10k", replace(SIZES["rows10k"], episodes=1, curve_episodes=1))
    summary = small(log, tmp_path, "bc")
    rows = len(Dataset.load(log))
    assert summary["data"] == f"D4RL v2, {rows:,} rows"
    assert summary["title"] == f"hopper-random, D4RL v2, {rows:,} rows"
    assert score_table(summary)[0][5] == "published (all of D4RL)"


def test_the_default_is_a_row_beside_ape_v_on_sac_n(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "rows10k", replace(SIZES["rows10k"], episodes=1, curve_episodes=1))
    summary = small(log, tmp_path, "ape-v-td3-bc")
    assert list(summary["algorithms"]) == ["ape-v-td3-bc"]
    frozen = [name for name in summary["policies"] if ", e_" in name]
    assert frozen == ["ape-v-td3-bc, e_0 (n = 2)", "ape-v-td3-bc, e_1 (n = 4)"]
    assert "ape-v-td3-bc, fifth episode" in summary["policies"]
    trained = read_json(tmp_path / "hopper-random" / "agents" / "ape-v-td3-bc-s0" / "config.json")["agent_config"]
    default = apev.train(Dataset.load(log), updates=1, kinds=1).agent.config
    assert trained == json.loads(json.dumps(asdict(default)))


@pytest.mark.slow  # its many evaluations take a minute
def test_at_the_scale_of_small_logs_members_are_exactly_those_of_adapting_at_evaluation(log: Path, tmp_path: Path) -> None:
    summary = small(log, tmp_path, "ape-v", "ape-v-eval-only", "ape-v-printed")
    scores = {name: line["score"] for name, line in summary["policies"].items()}
    assert scores["ape-v, plain actors"] == scores["ape-v-eval-only"]
    for k, n in enumerate((1, 2, 4)):
        assert scores[f"ape-v, e_{k} (n = {n})"] == scores[f"ape-v-eval-only, e_{k} (n = {n})"]
    assert "ape-v-eval-only, plain actors" not in scores


def test_runs_are_added_to_what_is_stored_unless_the_log_is_another(out: Path, log: Path, tmp_path: Path) -> None:
    shutil.copytree(out / "stored", tmp_path / "stored")
    before = json.loads((out / "stored" / "summary.json").read_text())
    command(log, tmp_path / "more", "--algos", "iql", "bc", "--store", str(tmp_path / "stored"))
    after = json.loads((tmp_path / "stored" / "summary.json").read_text())
    assert list(after["algorithms"]) == ["bc", "iql", "ape-v"]
    assert after["algorithms"]["bc"] == before["algorithms"]["bc"]  # trained again with the same seed: the same, once
    assert [after[key] for key in ("beliefs", "policies")] == [before[key] for key in ("beliefs", "policies")]
    assert set(after["meta"]["runs"]) == {"bc-s0", "bc-s1", "ape-v-s0", "ape-v-s1", "iql-s0"}

    data = Dataset.load(log)
    other = tmp_path / "other.npz"
    data.split(0.5, 0)[0].save(other)
    with pytest.raises(SystemExit):
        command(other, tmp_path / "other", "--algos", "bc", "--store", str(tmp_path / "stored"))
    assert json.loads((tmp_path / "stored" / "summary.json").read_text()) == after
    with pytest.raises(SystemExit):  # nor do runs of two logs share a folder
        command(other, tmp_path / "more", "--algos", "sac")
    told = json.loads((tmp_path / "more" / "hopper-random" / "task.json").read_text())
    assert told["log"]["rows"] == len(data)


def test_finished_runs_are_not_repeated_and_others_join_the_table(out: Path, log: Path) -> None:
    weights = out / "hopper-random" / "agents" / "bc-s0" / "policy"
    before = {path: path.stat().st_mtime_ns for path in weights.iterdir()}
    command(log, out, "--algos", "bc", "iql")
    assert {path: path.stat().st_mtime_ns for path in weights.iterdir()} == before
    assert list(write_summary(out / "hopper-random")["algorithms"]) == ["bc", "iql", "ape-v"]


def test_a_finished_run_of_other_settings_is_not_passed_off_as_the_one_asked_for(
    out: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command(log, out, "--algos", "bc", "--updates", "20")
    assert "was finished after 40 updates, 20 are asked for" in " ".join(capsys.readouterr().err.split())


def test_a_run_shorter_than_the_first_evaluation_is_evaluated_at_its_end(log: Path, tmp_path: Path) -> None:
    command(log, tmp_path, "--algos", "bc", "--updates", "10")
    assert write_summary(tmp_path / "hopper-random")["algorithms"]["bc"]["updates"] == 10


def test_missing_data_says_how_to_make_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "d4rl", "--task", "walker2d-medium"])
    assert stop.value.code == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "apev collect Walker2d-v4 --kind medium" in told
    assert "walker2d_medium-v2.hdf5" in told


def test_published_settings() -> None:
    assert configuration("sac-n", "hopper-medium-replay", "paper").critics == 200
    assert configuration("sac-n", "hopper-random", "paper").critics == 500
    assert configuration("ape-v", "halfcheetah-medium", "paper").critics == 10
    assert [edac_eta("walker2d", kind) for kind in ("random", "medium", "medium-expert")] == [0, 1, 5]
    assert SIZES["paper"].schedule.updates == 3_000_000
    assert SIZES["cpu"].schedule.updates >= 100_000


def test_every_algorithm_built_on_sac_has_what_steadies_it_on_small_logs() -> None:
    steady = SIZES["rows10k"].sac
    assert {"layer_norm", "target_bounds", "actor_average", "near_log"} < set(steady)
    for algorithm in ("sac-n", "edac", "ape-v", "ape-v-eval-only", "ape-v-printed"):
        config = configuration(algorithm, "hopper-medium-replay", "rows10k")
        assert {name: getattr(config, name) for name in steady} == steady
        assert config.critics == 4
    assert isinstance(configuration("ape-v", "hopper-medium-replay", "rows10k"), AnchoredSACConfig)
    assert configuration("ape-v-printed", "hopper-medium-replay", "rows10k").surprise == "paper"


def test_what_data_was_used_is_told(log: Path) -> None:
    data = Dataset.load(log)
    assert data_used(data, "") == "another log"
    data.source["notes"] = ["made by D4RL's recipe with apev collect; not D4RL's own data"]
    assert data_used(data, "hopper-random-v2") == "D4RL-style"
    data.source.update(notes=[], format="d4rl", name="my-log")
    assert data_used(data, "my-log") == "another log"  # of the same layout
    assert data_used(data, "hopper-random-v2") == f"D4RL v2, {len(data):,} rows"  # not all of D4RL's million
    assert data_used(repeated(data, 9_000), "hopper-medium-replay-v2") == "D4RL v2, 10,000 rows"
    assert data_used(repeated(data, 400_000), "hopper-medium-replay-v2") == "D4RL"
    assert data_used(repeated(data, 400_000), "hopper-medium-v2") == "D4RL v2, 400,000 rows"


def repeated(data: Dataset, rows: int) -> Dataset:
    """A log of so many rows, each an episode."""
    index, every = np.arange(rows) % len(data), np.ones(rows, dtype=bool)
    observed = data.observations["observation"][index]
    return Dataset.from_arrays(observed, data.actions[index], data.rewards[index], terminated=every, truncated=~every)


def test_a_log_of_another_task_is_refused(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = Dataset.load(log)
    data.source["name"] = "hopper-medium-v2"
    data.save(tmp_path / "data.npz")
    with pytest.raises(SystemExit):
        command(tmp_path / "data.npz", tmp_path)
    assert "is a log of hopper-medium-v2, not of hopper-random" in " ".join(capsys.readouterr().err.split())


def test_a_trace_counts_members_of_running_episodes() -> None:
    result = Rollout.empty(2)
    result.lengths[:] = (1, 10)
    sure, unsure = [1.0, 0.0], [0.5, 0.5]
    result.beliefs = [np.array([unsure, unsure])] + [np.array([sure, unsure])] * 9 + [np.array([sure, sure])]
    trace = trace_of(result)
    assert trace["effective_members"]["1"] == {"effective": pytest.approx(1.5), "episodes": 2}
    assert trace["effective_members"]["10"] == {"effective": pytest.approx(1.0), "episodes": 1}
    assert trace["effective_members"]["last"]["effective"] == pytest.approx(1.0)
    assert trace["mean_belief_at_last"] == [1.0, 0.0]


def test_every_cell_of_the_papers_tables_has_a_command_that_parses(capsys: pytest.CaptureFixture[str]) -> None:
    listed = list(cells())
    assert len(listed) >= sum(len(row) for row in PAPER.values())
    for command in {command for _, command in listed}:
        words = shlex.split(command)
        assert words[0] == "apev"
        tyro.cli(Command, args=words[1:], config=(tyro.conf.OmitArgPrefixes,))
    main(["reproduce", "--list"])
    assert capsys.readouterr().out.count("apev reproduce") == len(listed)
