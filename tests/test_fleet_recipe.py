"""The recipe of a fleet: what is rolled out, what is noted of it, and that a table says where it is from."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apev.api import train
from apev.cli import main
from apev.envs.fleet.pendulum import pendulum_log
from apev.experiments.fleet.kinds_page import write_picture
from apev.experiments.fleet.recipe import cells, run
from apev.experiments.fleet.report import numbers, policy_rows, show, store, write_summary
from apev.experiments.fleet.rows import knowing, lines_of, played
from apev.experiments.fleet.teachers import best_policy, taught_log, teach, teacher_folder
from apev.experiments.fleet.worlds import WORLDS, World
from apev.files import read_lines
from apev.rollout import Rollout
from apev.worlds import kinds

ROWS = 20  # of a tiny episode


def small() -> World:
    """Pendulums, with a log and episodes that take no time."""
    world = replace(WORLDS["pendulum"].sized(2, 1), life=(1, 2), settings={"max_episode_steps": ROWS})
    return replace(world, log=lambda _, seed: pendulum_log(machines=6, episodes=1, seed=seed))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with some rows of two seeds, made by two commands."""
    out = tmp_path_factory.mktemp("fleet") / "pendulum"
    run(small(), out, data=None, seeds=(0,), only=("ape-v-labelled", "td3-bc", "bc-gru"))
    run(small(), out, data=None, seeds=(1,), only=("td3-bc",))
    return out


def test_rows_of_every_agent_are_there_once(done: Path) -> None:
    lines = read_lines(done / "episodes.jsonl")
    rows = [(line["policy"], line["seed"], line["kind"]) for line in lines]
    first = {"labels given", "knows the kind", "td3-bc", "bc-gru", "bc-gru, episode 2"}
    assert set(rows) == {(row, 0, kind) for row in first for kind in (0, 1)} | {("td3-bc", 1, 0), ("td3-bc", 1, 1)}
    assert len(rows) == len(set(rows))
    run(small(), done, data=None, seeds=(0,), only=("ape-v-labelled", "td3-bc"))
    assert read_lines(done / "episodes.jsonl") == lines  # nothing is repeated
    given = next(line for line in lines if line["policy"] == "labels given")
    assert {"steps_to_95", "right", "sure_of"} <= given.keys()
    assert "steps_to_95" not in next(line for line in lines if line["policy"] == "knows the kind")


def test_a_table_says_where_it_is_from(done: Path, tmp_path: Path) -> None:
    made = read_lines(done / "made.jsonl")
    for i, line in enumerate(made):
        line |= {"commit": f"c{i // 3}", "command": f"apev reproduce fleet --seeds {line['seed']}"}
    (done / "made.jsonl").write_text("".join(json.dumps(line) + "\n" for line in made))
    summary = write_summary(done, {"world": "pendulum"})
    meta = summary["meta"]
    assert meta["seeds"] == [0, 1]
    assert meta["command"] == "apev reproduce fleet --seeds 0 && apev reproduce fleet --seeds 1"
    assert meta["commit"].startswith("c0, c1")
    assert meta["runs"]["td3-bc-s1"]["updates"] == 2
    heading, *lines = policy_rows(summary)  # rows of different numbers of seeds say how many
    assert heading[-1] == "seeds"
    assert {line[0]: line[-1] for line in lines} == {name: "2" if name == "TD3+BC" else "1" for name in (ln[0] for ln in lines)}
    assert set(meta["runs"]) == {"ape-v-labelled-s0", "td3-bc-s0", "bc-gru-s0", "td3-bc-s1"}
    show(done)
    store(done, tmp_path / "kept")
    show(tmp_path / "kept")
    assert json.loads((tmp_path / "kept" / "summary.json").read_text())["meta"] == meta


def test_beliefs_are_kept_over_a_life(tmp_path: Path) -> None:
    log, labels = pendulum_log(machines=6, episodes=1)
    train(log, "ape-v", out=tmp_path, updates=2, kinds=labels.tolist())
    batch, kind = small().batch(1, 0)
    first, second = played("adaptive", tmp_path, life=(1, 2)).roll(batch, kind)
    np.testing.assert_allclose(first.beliefs[0], 0.5)
    np.testing.assert_array_equal(second.beliefs[0], first.beliefs[-1])
    assert played("adaptive", tmp_path, life=(1, 5)).rows == ("adaptive", "adaptive, episode 5")


def test_a_change_in_mid_episode_is_told_of_apart() -> None:
    rolled = Rollout.empty(2)
    rolled.lengths[:], rolled.returns[:] = 4, 10.0
    rolled.rewards = [np.array([1.0, 1.0]), np.array([1.0, 1.0]), np.array([3.0, 4.0]), np.array([5.0, 4.0])]
    sure, other = [0.98, 0.02], [0.02, 0.98]
    changes = [[0.5, 0.5], sure, sure, [0.4, 0.6], other]
    stays = [[0.5, 0.5], [0.6, 0.4], sure, sure, sure]
    rolled.beliefs = [np.array(pair) for pair in zip(changes, stays, strict=True)]
    first, second = lines_of(rolled, np.array([0, 0]), (0, 1), change_at=2)
    assert (first["return_after"], first["steps_to_95"], first["steps_to_95_after"]) == (8.0, 1, 2)
    assert (second["steps_to_95"], second["steps_to_95_after"]) == (2, None)
    whole = next(lines_of(rolled, np.array([1, 0]), (0, 1)))
    assert (whole["steps_to_95"], whole["right"]) == (4, True)


def test_who_knows_the_kind_follows_a_change(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    from apev.data import Dataset
    from apev.envs.fleet.wiring import wired

    rng = np.random.default_rng(0)
    ends = np.arange(160) % 20 == 19
    seen = rng.normal(size=(161, 17)).astype(np.float32)
    actions = rng.uniform(-1, 1, (160, 6)).astype(np.float32)
    log, labels = wired(
        Dataset.from_arrays(
            seen[:-1], actions, rng.normal(size=160).astype(np.float32), ends & False, ends, next_observations=seen[1:]
        ),
        robots=8,
    )
    train(log, "ape-v", out=tmp_path, updates=2, kinds=labels.tolist())
    world = replace(WORLDS["rewired"], settings={"rewire_at": 5, "max_episode_steps": 10}, change_at=5)
    batch, kind = world.batch(1, 0)
    (rolled,) = knowing(tmp_path, labels, 5).roll(batch, kind)
    (stays,) = knowing(tmp_path, labels).roll(batch, kind)
    acted, blind = np.stack(rolled.actions), np.stack(stays.actions)
    np.testing.assert_array_equal(acted[:6], blind[:6])
    assert (acted[6] != blind[6]).any(axis=1).all()


def test_worlds_train_what_they_say() -> None:
    assert [cell.name for cell in cells(WORLDS["unseen-wiring"])] == ["ape-v", "bc", "iql", "td3-bc"]
    every = {cell.name for cell in cells(WORLDS["worn-joint"])}
    assert every >= {"ape-v", "ape-v-labelled", "ape-v-printed", "sac-n", "bc-stacked", "iql-stacked", "bc-gru", "iql-gru"}
    with pytest.raises(ValueError, match="no such agent"):
        run(small(), Path("nowhere"), data=None, seeds=(0,), only=("sacn",))


def test_rewired_robots_train_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = replace(small(), agents_of="cheetah-wiring")
    run(world, tmp_path / "rewired", data=None, seeds=(0,))
    assert "ape-v is left out" in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.rglob("policy.json"))


@pytest.mark.parametrize(("knows", "met"), [(1800.0, False), (2000.0, True)])
def test_the_gate_is_in_normalised_points(knows: float, met: bool) -> None:
    returns = {"knows the kind": knows, "bc": 0.0, "td3-bc": 100.0}
    lines: list[dict[str, Any]] = [
        {"policy": name, "seed": 0, "kind": 0, "episode": 0, "return": value} for name, value in returns.items()
    ]
    gate = numbers(WORLDS["worn-joint"], lines, [])["gate"]
    assert gate["met"] is met
    assert gate["points"] == pytest.approx(100 * (knows - 100) / (12135 + 280.178953))


def test_teachers_go_on_and_act_on_every_robot(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    assert teach(tmp_path, 30, limit=10)
    assert not teach(tmp_path, 30, limit=10)  # they are there
    assert best_policy(teacher_folder(tmp_path, 2), 30) is not None
    assert best_policy(teacher_folder(tmp_path, 2), 6000) is None  # not for so long
    log, labels = taught_log(tmp_path, 0, robots=6, steps=5)
    assert sorted(labels.tolist()) == [0, 0, 1, 1, 2, 2]
    assert len(log) == 6 * 3 * 5
    again, same = taught_log(tmp_path, 0)
    assert again.digest == log.digest
    np.testing.assert_array_equal(same, labels)


def test_kinds_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.npz"
    log, labels = pendulum_log(machines=6, episodes=1)
    log.save(path)
    found = kinds(log, count=labels)
    assert len(found.traces) == 6
    for kind, belief in found.traces:
        assert labels.tolist().count(kind) == 3
        assert belief[0] == pytest.approx(0.5)
    write_picture(tmp_path / "kinds.svg", found, "<b>log.npz")
    write_picture(tmp_path / "kinds.html", found, "<b>log.npz")
    told = " ".join(ET.parse(tmp_path / "kinds.svg").getroot().itertext())
    for said in ("Kinds in <b>log.npz", "kind 1: 3", "How soon is it known?", "What tells them apart?"):
        assert said in told
    page = (tmp_path / "kinds.html").read_text()
    assert "How soon is it known?" in page
    assert "<b>log" not in page
    with pytest.raises(SystemExit):
        main(["data", "kinds", str(path), "--picture", str(tmp_path / "kinds.png")])
    assert "end the name with one of them" in " ".join(capsys.readouterr().err.split())
