import json
import subprocess
import sys
from pathlib import Path

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


def test_locked_doors_names_a_senseless_option() -> None:
    done = run("locked_doors.py", "--rounds", "0")
    assert done.returncode != 0
    assert "--rounds is 0. Fix" in done.stderr


def test_maze_ends_with_its_three_numbers() -> None:
    tiny = ["--renderer", "simple", "--mode", "easy", "--levels", "2", "--rounds", "1", "--updates", "1", "--threads", "1"]
    done = run("maze.py", *tiny, "--batch-levels", "1", "--batch-rows", "2")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert list(answer)[:3] == ["speedup", "peak_share", "ms_per_level"]
    assert answer["speedup"] > 0
    assert answer["ms_per_level"] > 0


def test_maze_names_a_senseless_option() -> None:
    done = run("maze.py", "--rounds", "0")
    assert done.returncode != 0
    assert "--rounds is 0. Fix" in done.stderr


def test_out_of_memory_ends_with_its_ratio(tmp_path: Path) -> None:
    tiny = ["--gb", "0.02", "--limit-gb", "1", "--batches", "10", "--rounds", "1", "--memory-rows", "2000"]
    done = run("out_of_memory.py", *tiny, "--folder", str(tmp_path / "data"))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["mapped_vs_memory"] > 0
    assert list((tmp_path / "data").iterdir()) == []


def test_out_of_memory_names_a_senseless_option() -> None:
    done = run("out_of_memory.py", "--gb", "0")
    assert done.returncode != 0
    assert "Fix" in done.stderr


def test_sac_n_names_a_senseless_option() -> None:
    done = run("sac_n.py", "--rounds", "0")
    assert done.returncode != 0
    assert "--rounds 0 --updates 10. Fix" in done.stderr


def test_sac_n_times_every_contestant_of_ours() -> None:
    name = "APE-V, 9 members, shared"
    words = [sys.executable, str(BENCHMARKS / "sac_n.py"), "--work", name, "1"]
    done = subprocess.run(words, input="1\n2\n", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [float(line) > 0 for line in done.stdout.splitlines()] == [True, True]


def test_worlds_ends_with_its_exponents() -> None:
    done = run("worlds.py", "--rows", "1200", "2400", "--kinds", "2", "3", "--most", "2")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["rows_per_second"] > 0
    assert {"exponent_rows", "exponent_kinds"} <= answer.keys()


def test_an_update_of_ape_v_stays_short_to_read() -> None:
    done = run("reading.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    most = {"ape-v on DQN": (22, 6), "ape-v on SAC": (29, 6)}
    assert found.keys() == most.keys()
    for name, part in found.items():
        assert (part["functions"], part["files"]) <= most[name], f"{name} takes more to follow: {part['read']}"
    assert found["ape-v on DQN"]["read"]["agents/discrete/apev.py"][0] == "APEV.update"


def test_latency_times_what_it_names() -> None:
    words = [sys.executable, str(BENCHMARKS / "latency.py"), "--work", "torch", "ape-v, 2 members, continuous"]
    done = subprocess.run(words, input="1\n3\n", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer.keys() for answer in answers] == [{"act", "observe"}] * 2
    assert all(0 < seconds < 1 for answer in answers for seconds in answer.values())


def test_latency_names_a_senseless_option() -> None:
    done = run("latency.py", "--rounds", "0")
    assert done.returncode != 0
    assert "--rounds 0 --calls 200. Fix" in done.stderr


def test_cells_ends_with_trainings_an_hour() -> None:
    done = run("cells.py", "--ways", "one process", "2 jobs", "--cells", "2", "--updates", "2", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["trainings_per_hour"].keys() == {"one process", "2 jobs"}
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


def test_cells_names_a_senseless_option() -> None:
    done = run("cells.py", "--rounds", "0")
    assert done.returncode != 0
    assert "Fix" in done.stderr
