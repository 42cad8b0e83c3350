import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from apev.envs import load_images
from apev.experiments.common.kinds import show
from apev.experiments.locked_doors.scales import Recipe

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(BENCHMARKS / name), *words], capture_output=True, text=True, timeout=120)


def test_locked_doors_ends_with_its_two_numbers() -> None:
    tiny = ["--rounds", "1", "--updates", "2", "--threads", "1", "--batch-images", "2", "--per-image", "4"]
    done = run("locked_doors.py", "--agent", "ape-v", *tiny)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert list(answer)[:2] == ["speedup", "peak_share"]
    assert answer["speedup"] > 0
    assert 0 < answer["peak_share"] < 1
    assert answer["transitions_per_second"].keys() == {"ape-v"}
    assert answer["threads"] == 1


def test_maze_ends_with_its_three_numbers() -> None:
    tiny = ["--renderer", "simple", "--mode", "easy", "--levels", "2", "--rounds", "1", "--updates", "1", "--threads", "1"]
    done = run("maze.py", *tiny, "--batch-levels", "1", "--batch-rows", "2")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert list(answer)[:3] == ["speedup", "peak_share", "ms_per_level"]
    assert answer["speedup"] > 0
    assert answer["ms_per_level"] > 0


def test_out_of_memory_ends_with_its_ratio(tmp_path: Path) -> None:
    tiny = ["--gb", "0.02", "--limit-gb", "1", "--batches", "10", "--rounds", "1", "--memory-rows", "2000"]
    done = run("out_of_memory.py", *tiny, "--folder", str(tmp_path / "data"))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["mapped_vs_memory"] > 0
    assert list((tmp_path / "data").iterdir()) == []


def test_sac_n_times_every_contestant_of_ours() -> None:
    name = "APE-V, 9 members, shared"
    words = [sys.executable, str(BENCHMARKS / "sac_n.py"), "--work", name, "1"]
    done = subprocess.run(words, input="1\n2\n", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [float(line) > 0 for line in done.stdout.splitlines()] == [True, True]


def test_worlds_ends_with_its_exponents() -> None:
    done = run("worlds.py", "--rows", "600", "1200", "--kinds", "2", "3", "--most", "2")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["rows_per_second"] > 0
    assert {"exponent_rows", "exponent_kinds"} <= answer.keys()


def test_an_update_of_ape_v_stays_short_to_read(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(BENCHMARKS / "reading.py"), run_name="__main__")
    found = json.loads(capsys.readouterr().out)
    most = {"ape-v on DQN": (21, 6), "ape-v on SAC": (26, 6)}
    assert found.keys() == most.keys()
    for name, part in found.items():
        assert (part["functions"], part["files"]) <= most[name], f"{name} takes more to follow: {part['read']}"
    assert found["ape-v on DQN"]["read"]["agents/discrete/apev.py"][0] == "APEV.update"


def test_latency_times_what_it_names() -> None:
    words = [sys.executable, str(BENCHMARKS / "latency.py"), "--work", "torch", "ape-v, 2 members, continuous"]
    done = subprocess.run(words, input="1\n3\n", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer.keys() for answer in answers] == [{"act", "act, cpu", "observe", "observe, cpu"}] * 2
    assert all(0 < seconds < 1 for answer in answers for seconds in answer.values())


@pytest.mark.parametrize(
    ("program", "page", "words"),
    [
        ("latency.py", "deploying.md", ["--written", "--out", "results/benchmarks/latency.json"]),
        ("fqe.py", "offline-choice.md", ["--summary", "--out", "results/fqe"]),
    ],
)
def test_a_page_has_the_stored_numbers(
    program: str, page: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, again = BENCHMARKS.parent, tmp_path / page
    for name in ("fqe", "benchmarks"):
        shutil.copytree(root / "results" / name, tmp_path / "results" / name)
    stored = (root / "docs" / page).read_text(encoding="utf-8")
    again.write_text(re.sub(r"(?m)^\|.*\n", "", stored), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [program, *words, "--page", page])
    runpy.run_path(str(BENCHMARKS / program), run_name="__main__")
    begin, end = f"<!-- table: {words[-1]} -->", "<!-- /table -->"
    of_stored, of_again = (text.split(begin)[1].split(end)[0] for text in (stored, again.read_text(encoding="utf-8")))
    assert of_again == of_stored
    assert of_again.count("\n|") >= 6


def test_cells_ends_with_trainings_an_hour() -> None:
    done = run("cells.py", "--ways", "2 jobs", "--cells", "2", "--updates", "2", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["trainings_per_hour"].keys() == {"2 jobs"}
    assert all(value > 0 for value in answer["trainings_per_hour"].values())


def test_blocks_are_compared_seed_by_seed(tmp_path: Path) -> None:
    words = ["--algorithms", "bc", "--ways", "rows", "part 16", "--updates", "2", "--episodes", "1"]
    done = run("blocks.py", *words, "--seeds", "0", "1", "--out", str(tmp_path / "found.json"))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    rows, parts = (answer["scores"]["bc"][way] for way in ("rows", "part 16"))
    assert len(rows) == len(parts) == 2
    assert abs(answer["cost"]["bc"]["part 16"]["mean"] - (sum(rows) - sum(parts)) / 2) < 1e-2
    assert json.loads((tmp_path / "found.json").read_text())["scores"] == answer["scores"]
    done = run("blocks.py", "--ways", "blocks")
    assert done.returncode != 0
    assert "Fix: rows" in done.stderr


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("locked_doors.py", ["--rounds", "0"], "--rounds is 0. Fix"),
        ("maze.py", ["--rounds", "0"], "--rounds is 0. Fix"),
        ("out_of_memory.py", ["--gb", "0"], "Fix"),
        ("sac_n.py", ["--rounds", "0"], "--rounds 0 --updates 10. Fix"),
        ("latency.py", ["--rounds", "0"], "--rounds 0 --calls 200. Fix"),
        ("cells.py", ["--rounds", "0"], "Fix"),
    ],
)
def test_a_senseless_option_is_named(name: str, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, *words])
    with pytest.raises(SystemExit) as stop:  # with words, which end a program with exit code 1
        runpy.run_path(str(BENCHMARKS / name), run_name="__main__")
    assert said in str(stop.value.code)


def test_trials_of_a_base_become_a_table_of_their_late_evaluations(tmp_path: Path) -> None:
    for name, low, high in (("cpu scale", 0.5, 1.5), ("norm, bounds, averaged", 30.0, 36.0)):
        late = {"mean": (low + high) / 2, "min": low, "max": high}
        trial = {"task": "hopper-medium", "candidate": name, "late": late}
        (tmp_path / f"{name}.json").write_text(json.dumps(trial))
    page = tmp_path / "page.md"
    page.write_text(f"before\n<!-- base: {tmp_path.as_posix()} -->\nold\n<!-- /base -->\nafter\n")
    done = run("d4rl_base.py", "--out", str(tmp_path), "--page", str(page))
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert "| cpu scale | 1.0 (0 to 2) |" in text
    assert "| norm, bounds, averaged | 33.0 (30 to 36) |" in text
    assert "old" not in text
    assert text.endswith("<!-- /base -->\nafter\n")


def test_a_log_without_a_name_of_d4rls_is_no_base(tmp_path: Path) -> None:
    done = run("d4rl_base.py", str(tmp_path / "mine.npz"))
    assert done.returncode != 0
    assert "name it as D4RL does" in done.stderr


def test_betas_are_tried_on_photographs_that_are_not_trained_on(tmp_path: Path) -> None:
    few = ["--betas", ".1", "--updates", "2", "--tested", "8", "--train-images", "40", "--runs", str(tmp_path)]
    done = run("lcb_beta.py", *few)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["best"], answer["photographs"]) == ("0.1", 8)
    images = load_images()
    others = runpy.run_path(str(BENCHMARKS / "lcb_beta.py"))["unseen"](images, Recipe(train_images=40), 8)
    assert len(others.train_images) == 40
    assert not {one.tobytes() for one in others.test_images} & {one.tobytes() for one in others.train_images}
    assert {one.tobytes() for one in others.test_images} < {one.tobytes() for one in images.train_images}


def test_bases_keeps_episodes_and_says_by_how_much_we_lead(tmp_path: Path) -> None:
    tiny = ["--logs", "cartpole", "--updates", "2", "--episodes", "2", "--kinds", "1", "--seeds", "0", "--out", str(tmp_path)]
    done = run("bases.py", *tiny)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    found = answer["logs"]["cartpole"]
    assert found["lead"]["return"] == found["ape-v"]["return"] - found["bc"]["return"]
    assert found["updates"] == [2]
    assert run("bases.py", *tiny).stdout.count("seed 0") == 0  # nothing is repeated
    show(tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["logs"] == answer["logs"]
