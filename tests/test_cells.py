"""Many trainings as cells: on cores, on Ray; alone, side by side, stopped, failed, killed. The tensors are always the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from apev.cells import Cell, CellsError, run_cells, runner
from apev.cells.board import Board
from apev.cells.cell import WORK, Outcome
from apev.cli import main
from apev.data import Dataset
from apev.files import read_json, read_lines, read_tensors

QUIET = Console(quiet=True)
LONGEST = 600.0  # seconds, on a machine that others use: none of this takes one alone
SMALL: dict[str, Any] = {"algorithm": "bc", "updates": 30, "checkpoint_every": 10, "hidden": [16]}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Six short episodes."""
    rng, rows = np.random.default_rng(0), 60
    ends = np.arange(rows) % 10 == 9
    path = tmp_path_factory.mktemp("log") / "log.npz"
    given: dict[str, Any] = {
        "observations": rng.normal(size=(rows, 3)).astype(np.float32),
        "actions": rng.integers(2, size=rows),
    }
    made = Dataset.from_arrays(**given, rewards=rng.normal(size=rows), terminated=ends, truncated=np.zeros(rows, bool))
    made.save(path)
    return str(path)


def trainings(log: str, out: Path, count: int = 2, **changes: Any) -> list[Cell]:
    given = SMALL | {"data": log} | changes
    return [Cell(f"seed {seed}", "train", given | {"seed": seed}, out / f"seed-{seed}") for seed in range(count)]


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    found, _ = read_tensors(folder / "checkpoints" / "latest.safetensors")
    return found


def assert_same(one: Path, other: Path) -> None:
    """The same runs, bit for bit: weights, optimisers, generators, metrics."""
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in other.iterdir())
    for name in names:
        ours, theirs = tensors(one / name), tensors(other / name)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
        assert read_lines(one / name / "metrics.jsonl") == read_lines(other / name / "metrics.jsonl")
        assert (one / name / "policy" / "policy.json").exists()


@pytest.fixture(scope="module")
def alone(log: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trainings, one after another in this process."""
    out = tmp_path_factory.mktemp("alone")
    run_cells(trainings(log, out), jobs=1, threads=1, console=QUIET)
    return out


def test_cells_side_by_side_give_the_same_tensors(log: str, alone: Path, tmp_path: Path) -> None:
    run_cells(trainings(log, tmp_path), jobs=2, threads=1, console=QUIET)
    assert_same(alone, tmp_path)


def test_a_process_has_its_own_threads(log: str, tmp_path: Path) -> None:
    run_cells(trainings(log, tmp_path), jobs=2, threads=2, console=QUIET)
    assert [read_json(tmp_path / name / "config.json")["threads"] for name in ("seed-0", "seed-1")] == [2, 2]


def test_seeds_and_algorithms_of_train_go_to_their_own_folders(
    log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data", log, "--agent", "bc", "dqn", "--seeds", "0", "1", "--updates", "4", "--threads", "1"]
    printed = []
    for jobs in ("1", "2"):
        main(["train", *words, "--out", str(tmp_path / jobs), "--jobs", jobs])
        printed.append(capsys.readouterr().out.replace(str(tmp_path / jobs), "OUT"))
    assert printed[0] == printed[1]  # in the order of the cells, whichever ended first
    assert printed[0].count("trained: OUT/") == 4
    for name in ("bc", "dqn"):
        assert_same(tmp_path / "1" / name, tmp_path / "2" / name)
    with pytest.raises(SystemExit) as stop:
        main(["train", *words, "--out", str(tmp_path / "2")])
    assert stop.value.code == 2
    assert "--resume" in capsys.readouterr().err


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_cell_that_fails_is_told_of_at_the_end_and_the_others_finish(log: str, tmp_path: Path, jobs: int) -> None:
    cells = trainings(log, tmp_path, count=3)
    cells[0] = Cell("wrong", "train", cells[0].arguments | {"depth": 7}, cells[0].folder)
    finished: list[str] = []
    with pytest.raises(CellsError) as failed:
        run_cells(cells, jobs=jobs, threads=1, finished=lambda cell, _: finished.append(cell.name), console=QUIET)
    assert "1 of 3 failed" in str(failed.value)
    assert "wrong: there is no setting 'depth'. Fix" in str(failed.value)
    assert sorted(finished) == ["seed 1", "seed 2"]
    assert (tmp_path / "seed-2" / "policy" / "policy.json").exists()


def test_a_failed_cell_gives_exit_code_1(log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", log, "--agent", "bc", "dqn", "--updates", "4", "--threads", "1", "--jobs", "1"]
    (tmp_path / "bc").write_text("in the way of a folder")
    with pytest.raises(SystemExit) as stop:
        main(["train", *words, "--out", str(tmp_path)])
    assert stop.value.code == 1
    assert "1 of 2 failed" in capsys.readouterr().err
    assert (tmp_path / "dqn" / "policy" / "policy.json").exists()


# ---------------------------------------------------------------------- stopped and killed


LONG = ["--updates", "2000", "--checkpoint-every", "20", "--set", "hidden=16", "--threads", "1", "--seeds", "0", "1"]


@pytest.fixture(scope="module")
def undisturbed(log: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two long trainings that nobody stops."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    main(["train", "--data", log, "--agent", "bc", *LONG, "--out", str(out), "--jobs", "1"])
    return out


STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _none_is_left() -> Iterator[None]:
    """A command that outlives its test would keep the cores, and the cluster, from the next."""
    yield
    while STARTED:
        if (process := STARTED.pop()).poll() is None:
            process.kill()
            process.communicate()


def begin(log: str, out: Path, *words: str) -> subprocess.Popen[str]:
    """The command in a process of its own, when both trainings have a checkpoint."""
    command = [sys.executable, "-m", "apev.cli", "train", "--data", log, "--agent", "bc", *LONG, "--out", str(out), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    STARTED.append(process)
    wait_for(lambda: all((out / name / "checkpoints" / "latest.safetensors").exists() for name in ("seed-0", "seed-1")))
    return process


def wait_for(happens: Callable[[], bool], seconds: float = LONGEST) -> None:
    until = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < until
        time.sleep(0.01)


def finished(out: Path) -> int:
    return sum((out / name / "policy" / "policy.json").exists() for name in ("seed-0", "seed-1"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_saves_all_cells_and_resume_goes_on(log: str, undisturbed: Path, tmp_path: Path, number: int) -> None:
    process = begin(log, tmp_path / "out", "--jobs", "2")
    process.send_signal(number)
    _, told = process.communicate(timeout=LONGEST)
    assert process.returncode == 130, told
    assert "0 of 2 have finished, the others are saved" in " ".join(told.split())
    assert finished(tmp_path / "out") == 0
    main(["train", "--data", log, "--agent", "bc", *LONG, "--out", str(tmp_path / "out"), "--jobs", "1", "--resume"])
    assert_same(undisturbed, tmp_path / "out")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the process to kill in /proc")
def test_a_killed_process_fails_its_own_cell(log: str, undisturbed: Path, tmp_path: Path) -> None:
    process = begin(log, tmp_path / "out", "--jobs", "2")
    os.kill(children(process.pid)[0], signal.SIGKILL)
    _, told = process.communicate(timeout=LONGEST)
    assert process.returncode == 1, told
    assert "1 of 2 failed" in told
    assert "ended by SIGKILL" in told
    assert finished(tmp_path / "out") == 1
    main(["train", "--data", log, "--agent", "bc", *LONG, "--out", str(tmp_path / "out"), "--jobs", "1", "--resume"])
    assert_same(undisturbed, tmp_path / "out")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the processes in /proc")
def test_cells_of_a_killed_command_save_and_end(log: str, tmp_path: Path) -> None:
    process = begin(log, tmp_path / "out", "--jobs", "2")
    workers = children(process.pid)
    process.kill()
    process.communicate(timeout=LONGEST)
    assert len(workers) == 2
    wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    assert finished(tmp_path / "out") == 0


def children(process: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(words[1]) == process and words[0] != "Z":
            found.append(int(stat.parent.name))
    return found


# ---------------------------------------------------------------------- what is asked for


def test_more_threads_than_cores_are_warned_of(log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "cores", lambda: 2)
    for threads, told in ((1, False), (2, True)):
        console = Console(file=StringIO(), width=200)
        runner.warn([Cell("a", "train", {}, threads=threads)], 2, console)
        assert isinstance(console.file, StringIO)
        assert ("2 jobs with 2 threads each on 2 cores" in console.file.getvalue()) == told


def test_jobs_are_as_many_as_free_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [Cell(f"{number}", "train", {}) for number in range(6)]
    monkeypatch.setattr(runner, "cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for load, jobs in ((0.2, 6), (3.9, 4), (20.0, 1)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert runner.usual_jobs(cells, None) == jobs
    assert runner.usual_jobs(cells, 64) == 6
    assert runner.usual_jobs([replace(cell, device="cuda") for cell in cells], None) == 1
    assert [runner.shared_out(jobs) for jobs in (1, 3, 64)] == [8, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert runner.shared_out(2) == 3


@pytest.mark.parametrize("asked", [{"jobs": 0}, {"threads": 0}, {"jobs": 2, "ray": "local"}])
def test_what_makes_no_sense_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Fix"):
        run_cells([], **asked)


def test_a_cell_names_only_functions_of_ours() -> None:
    for place in WORK.values():
        module, _, function = place.partition(":")
        assert callable(getattr(import_module(module), function))
    with pytest.raises(KeyError):
        run_cells([Cell("no", "os.system", {"command": "true"})], jobs=1, console=QUIET)


def test_a_terminal_shows_a_bar_for_each_cell_that_runs() -> None:
    console = Console(file=StringIO(), force_terminal=True, width=100)
    with Board([Cell("seed 0", "train", {}), Cell("seed 1", "train", {})], console) as board:
        for number in (0, 1):
            board.hear(number, {"began": "begins"})
        board.hear(0, {"moved": ["looking for kinds", 3, 10]})
        board.hear(1, {"moved": ["bc", 7, 20]})
        board.hear(1, {"said": "a line [of text]"})
        board.bars.refresh()
        board.end(0, Outcome(seconds=65))
    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue()
    for words in ("cells", "seed 0 · looking for kinds", "seed 1 · bc", "7/20", "a line [of text]", "finished after 0:01:05"):
        assert words in shown


# ---------------------------------------------------------------------- Ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of two nodes here, one CPU each; the first also starts everything."""
    pytest.importorskip("ray", reason="needs the extra: pip install 'apev[ray]'")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 << 20}
        found = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
        found.add_node(**node)
        found.wait_for_nodes()
        yield found
        found.shutdown()  # type: ignore[no-untyped-call]


def test_a_node_that_dies_costs_nothing_but_time(log: str, undisturbed: Path, tmp_path: Path, cluster: Any) -> None:
    """Two trainings on two nodes, one of them killed in mid-training: the other takes over, and ends with the same bits."""
    process = begin(log, tmp_path / "out", "--ray", cluster.address)
    assert finished(tmp_path / "out") == 0
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    _, told = process.communicate(timeout=LONGEST)
    assert process.returncode == 0, told
    assert "begins again, from its last checkpoint" in told
    assert_same(undisturbed, tmp_path / "out")


def test_ray_tells_of_failures_and_stops_when_asked(log: str, undisturbed: Path, tmp_path: Path, cluster: Any) -> None:
    cells = trainings(log, tmp_path / "failed")
    cells[0] = replace(cells[0], arguments=cells[0].arguments | {"depth": 7})
    with pytest.raises(CellsError, match="seed 0: there is no setting"):
        run_cells(cells, ray=cluster.address, console=QUIET)
    assert (tmp_path / "failed" / "seed-1" / "policy" / "policy.json").exists()
    cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
    process = begin(log, tmp_path / "out", "--ray", cluster.address)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=LONGEST)
    assert process.returncode == 130, told
    assert "others are saved" in " ".join(told.split())
    assert finished(tmp_path / "out") == 0
    main(["train", "--data", log, "--agent", "bc", *LONG, "--out", str(tmp_path / "out"), "--jobs", "1", "--resume"])
    assert_same(undisturbed, tmp_path / "out")


def test_a_cluster_sorts_a_folder_of_parquet(tmp_path: Path, cluster: Any) -> None:
    pandas = pytest.importorskip("pandas", reason="pip install 'apev[tables]'")
    for package in ("pyarrow", "duckdb"):
        pytest.importorskip(package, reason="pip install 'apev[tables]'")
    rng, rows = np.random.default_rng(0), 400
    frame = pandas.DataFrame({"episode": np.arange(rows) // 10, "time": np.arange(rows), "x": rng.normal(size=rows)})
    frame["action"], frame["reward"] = rng.choice(["a", "b"], size=rows), frame["x"]
    frame = frame.sample(frac=1, random_state=0)
    (tmp_path / "big").mkdir()
    for number in range(4):
        frame.iloc[number::4].to_parquet(tmp_path / "big" / f"{number}.parquet")
    words = ["data", "convert", str(tmp_path / "big")]
    main([*words, str(tmp_path / "one.apev"), "--shard-rows", "100"])
    main([*words, str(tmp_path / "many.apev"), "--shard-rows", "100", "--ray", cluster.address])
    assert Dataset.load(tmp_path / "many.apev").digest == Dataset.load(tmp_path / "one.apev").digest


def test_no_cluster_is_told_of(log: str, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra: pip install 'apev[ray]'")
    with pytest.raises(ConnectionError, match=r"no cluster answers there\. Fix"):
        run_cells(trainings(log, tmp_path), ray="127.0.0.1:1", console=QUIET)


def test_a_missing_ray_says_how_to_install_it(log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'apev\[ray\]'"):
        run_cells(trainings(log, tmp_path), ray="local", console=QUIET)
