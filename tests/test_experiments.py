"""Locked Doors end to end: every file of a results folder, and that its numbers say what happened."""

from __future__ import annotations

import base64
import gzip
import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agent_contract import QUIET
from by_hand import linear
from PIL import Image

import apev
from apev.agents import APEV, APEVConfig, DQNConfig
from apev.cli import main
from apev.data import Dataset
from apev.envs import ImageSet, Room, collect, load_images
from apev.experiments.common import provenance
from apev.experiments.locked_doors import ablation
from apev.experiments.locked_doors import recipe as locked_doors
from apev.experiments.locked_doors.episodes import TestEpisodes, oracle_rollout
from apev.experiments.locked_doors.failures import failures
from apev.experiments.locked_doors.paths import paths
from apev.experiments.locked_doors.recipe import limited, member_doors
from apev.experiments.locked_doors.rooms import MOVES
from apev.experiments.locked_doors.scales import RECIPES, Recipe
from apev.experiments.locked_doors.store import store
from apev.loop import Schedule

IMAGES = load_images()
SMOKE = RECIPES["smoke"]
NAMES = {"oracle", "ape-v", "ape-v-eval-only", "random-member", "average", "single", "lcb"}


def read_lines(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smoke run of the command line."""
    out = tmp_path_factory.mktemp("results") / "doors"
    words = ["reproduce", "locked-doors", "--scale", "smoke", "--threads", "1", "--out", str(out)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["apev", *words])
        main(words)
    return out


@pytest.fixture(scope="module")
def summary(results: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((results / "summary.json").read_text())
    return found


@pytest.fixture(scope="module")
def episodes(results: Path) -> list[dict[str, Any]]:
    return read_lines(results / "episodes.jsonl.gz")


# ---------------------------------------------------------------------- the results folder


def test_a_results_folder_is_complete(results: Path) -> None:
    names = {path.name for path in results.iterdir()}
    assert names >= {"summary.json", "episodes.jsonl.gz", "curves.jsonl", "replays.json", "report.html", "figures"}
    assert [path.suffix for path in (results / "figures").iterdir()].count(".svg") >= 2
    assert not list(results.rglob("*.tmp"))


def test_summary_has_every_policy_with_every_number(summary: dict[str, Any]) -> None:
    policies = summary["policies"]
    assert set(policies) >= NAMES
    assert next(iter(policies)) == "oracle"
    for name, numbers in policies.items():
        assert set(numbers) >= {"success", "ci95", "episodes", "mean_length", "mean_return", "stalled", "seeds"}, name
        low, high = numbers["ci95"]
        assert 0 <= low <= numbers["success"] <= high <= 1
        assert 0 <= numbers["stalled"] <= 1
        assert (numbers["episodes"], numbers["seeds"]) == ((SMOKE.test_images or 0) * SMOKE.starts, 1)
    assert policies["oracle"]["success"] == 1


def test_summary_says_where_its_numbers_come_from(summary: dict[str, Any], results: Path) -> None:
    meta = summary["meta"]
    assert set(meta) >= {"command", "commit", "version", "seeds", "scale", "train_images", "test_images", "updates", "seconds"}
    assert meta["command"].startswith("apev reproduce locked-doors --scale smoke")
    assert (meta["seeds"], meta["scale"], meta["updates"]) == ([0], "smoke", SMOKE.schedule.updates)
    assert (meta["train_images"], meta["test_images"]) == (SMOKE.train_images, SMOKE.test_images)
    assert "mini" in meta["images"]
    assert isinstance(summary["title"], str)
    assert isinstance(summary["members"], int)
    for name in ("summary.json", "report.html", "replays.json"):
        assert str(results.parent) not in (results / name).read_text(), f"{name} names a folder of this machine"


def test_every_policy_walks_the_same_episodes(episodes: list[dict[str, Any]], summary: dict[str, Any]) -> None:
    by_policy: dict[str, list[tuple[int, ...]]] = {}
    for line in episodes:
        by_policy.setdefault(line["policy"], []).append((line["seed"], line["episode"], line["picture"], line["label"]))
    assert set(by_policy) == set(summary["policies"])
    assert all(rows == by_policy["oracle"] for rows in by_policy.values())
    test_labels = limited(IMAGES, SMOKE).test_labels
    assert [row[3] for row in by_policy["oracle"]] == [int(test_labels[row[2]]) for row in by_policy["oracle"]]


def test_episodes_obey_the_rules_of_the_room(episodes: list[dict[str, Any]]) -> None:
    for line in episodes:
        assert 1 <= line["length"] <= 50
        assert line["return"] == -(line["length"] - line["success"])  # -1 a step, 0 for the one that leaves
        assert line["success"] or line["length"] == 50
        assert not (line["success"] and line["stalled"])
        if line["policy"] == "oracle":
            assert line["members_correct"] is None
        else:
            assert 0 <= line["members_correct"] <= line["members"]


def test_summary_is_computed_from_the_episodes(episodes: list[dict[str, Any]], summary: dict[str, Any]) -> None:
    for name, numbers in summary["policies"].items():
        mine = [line for line in episodes if line["policy"] == name]
        assert numbers["success"] == pytest.approx(np.mean([line["success"] for line in mine]))
        assert numbers["mean_length"] == pytest.approx(np.mean([line["length"] for line in mine]))
        assert numbers["mean_return"] == pytest.approx(np.mean([line["return"] for line in mine]))
        assert numbers["stalled"] == pytest.approx(np.mean([line["stalled"] for line in mine]))


def test_curves_follow_training(results: Path) -> None:
    curves = read_lines(results / "curves.jsonl")
    every, last = SMOKE.schedule.eval_every, SMOKE.schedule.updates
    for policy in ("ape-v", "average", "lcb", "ape-v-eval-only"):
        assert [line["update"] for line in curves if line["policy"] == policy] == list(range(every, last + 1, every))
    assert all(0 <= line["success"] <= 1 and line["episodes"] == SMOKE.eval_images and line["seed"] == 0 for line in curves)


def test_replays_can_be_walked_again(results: Path) -> None:
    stored = json.loads((results / "replays.json").read_text())
    room = Room()
    assert stored["room"] == {"size": 9, "doors": room.door_cells.tolist(), "actions": ["up", "right", "down", "left"]}
    assert stored["classes"] == ["airplane", "automobile", "ship", "truck"]
    assert {replay["policy"] for replay in stored["replays"]} >= {"ape-v"}
    for replay in stored["replays"]:
        picture = Image.open(io.BytesIO(base64.b64decode(replay["picture"])))
        assert (picture.size, picture.format) == ((32, 32), "PNG")
        first, *steps = replay["steps"]
        assert (first["action"], first["event"]) == (None, "start")
        before = first
        for step in steps:
            x, y, exited, bumped = room.step(before["x"], before["y"], step["action"], replay["label"])
            assert (step["x"], step["y"]) == (int(x), int(y))
            assert step["event"] == ("exit" if exited else "bump" if bumped else "move")
            before = step
        assert replay["success"] == (replay["steps"][-1]["event"] == "exit")
        for step in replay["steps"]:
            assert sum(step["belief"]) == pytest.approx(1, abs=1e-3)
            by_door = np.bincount(replay["member_doors"], weights=step["belief"], minlength=4)
            np.testing.assert_allclose(step["doors"], by_door, atol=1e-3)
            assert step["doors"][step["believed_door"]] == max(step["doors"])


def test_report_makes_the_page_again(results: Path, summary: dict[str, Any]) -> None:
    (results / "report.html").rename(results / "old.html")
    main(["report", str(results)])
    page = (results / "report.html").read_text()
    assert page == (results / "old.html").read_text()
    assert f"{summary['policies']['ape-v']['success']:.3f}" in page


def test_a_finished_run_is_neither_overwritten_nor_trained_again(results: Path, summary: dict[str, Any]) -> None:
    checkpoint = results / "agents/ape-v-0/checkpoints/latest.safetensors"
    before = checkpoint.stat().st_mtime_ns
    words = ["reproduce", "locked-doors", "--scale", "smoke", "--threads", "1", "--out", str(results)]
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    main([*words, "--resume"])
    assert checkpoint.stat().st_mtime_ns == before
    assert json.loads((results / "summary.json").read_text())["policies"] == summary["policies"]


# ---------------------------------------------------------------------- its parts

SMALL: dict[str, Any] = {"members": 2, "hidden": (8,), "features": 4}
TINY = Recipe(
    train_images=16,
    test_images=8,
    eval_images=8,
    batch_groups=4,
    per_group=4,
    held_out=0.25,
    schedule=Schedule(updates=4, log_every=2, eval_every=2, checkpoint_every=2),
    agents=("ensemble", "ape-v"),
    configs={"ensemble": DQNConfig(**SMALL), "ape-v": APEVConfig(**SMALL, wildcards=2)},
)


def test_an_interrupted_experiment_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash in the second agent: the first is not trained again, and the result is that of an undisturbed run."""
    whole = locked_doors.run(tmp_path / "whole", IMAGES, TINY, console=QUIET)
    trained: list[str] = []

    def train(log: Any, *, out: Path, **options: Any) -> Any:
        trained.append(out.name)
        if trained == ["ensemble-0", "ape-v-0"]:
            raise KeyboardInterrupt
        return apev.train(log, out=out, **options)

    monkeypatch.setattr(locked_doors, "train", train)
    with pytest.raises(KeyboardInterrupt):
        locked_doors.run(tmp_path / "cut", IMAGES, TINY, console=QUIET)
    resumed = locked_doors.run(tmp_path / "cut", IMAGES, TINY, resume=True, console=QUIET)
    assert trained == ["ensemble-0", "ape-v-0", "ape-v-0"]
    assert resumed["policies"] == whole["policies"]
    for name in ("curves.jsonl", "replays.json"):
        assert (tmp_path / "cut" / name).read_text() == (tmp_path / "whole" / name).read_text()


def test_seeds_differ_in_everything_but_the_images(tmp_path: Path) -> None:
    recipe = replace(TINY, agents=("ape-v",))
    summary = locked_doors.run(tmp_path / "out", IMAGES, recipe, seeds=(0, 1), console=QUIET)
    assert summary["meta"]["seeds"] == [0, 1]
    assert summary["policies"]["ape-v"]["episodes"] == 16
    assert summary["policies"]["ape-v"]["seeds"] == 2
    assert "average" not in summary["policies"]  # no ensemble was trained
    oracle = [line for line in read_lines(tmp_path / "out/episodes.jsonl.gz") if line["policy"] == "oracle"]
    lengths = [[line["length"] for line in oracle if line["seed"] == seed] for seed in (0, 1)]
    assert lengths[0] != lengths[1]


def test_a_recipe_without_learning_curves_runs(tmp_path: Path) -> None:
    recipe = replace(TINY, agents=("ape-v",), schedule=Schedule(updates=2, log_every=2, eval_every=0, checkpoint_every=2))
    assert "ape-v" in locked_doors.run(tmp_path / "out", IMAGES, recipe, console=QUIET)["policies"]


def test_limited_images_keep_the_classes_balanced() -> None:
    few = limited(IMAGES, Recipe(train_images=40, test_images=8))
    assert np.bincount(few.train_labels, minlength=4).tolist() == [10] * 4
    assert np.bincount(few.test_labels, minlength=4).tolist() == [2] * 4
    for image, label in zip(few.test_images, few.test_labels, strict=True):
        row = np.flatnonzero((IMAGES.test_images == image).all((1, 2, 3)))[0]
        assert IMAGES.test_labels[row] == label
    whole = limited(IMAGES, Recipe())
    assert len(whole.train_labels) == len(IMAGES.train_labels)
    assert len(limited(IMAGES, Recipe(test_images=10**9)).test_labels) == len(IMAGES.test_labels)


def test_test_episodes_show_every_image_from_the_same_starts_at_every_reset() -> None:
    chosen = TestEpisodes(IMAGES.test_images[:6], IMAGES.test_labels[:6], 3, seed=1, room=Room())
    assert np.bincount(chosen.picture).tolist() == [3] * 6
    first = chosen.reset()
    chosen.step(np.zeros(18, dtype=np.int64))
    again = chosen.reset()
    np.testing.assert_array_equal(first["position"], again["position"])
    other = TestEpisodes(IMAGES.test_images[:6], IMAGES.test_labels[:6], 3, seed=2, room=Room())
    assert not np.array_equal(first["position"], other.reset()["position"])


def test_episodes_say_which_doors_were_tried_and_when() -> None:
    chosen = TestEpisodes(IMAGES.test_images[:1], np.array([1]), 1, seed=0, room=Room())  # door 1, on the right, opens
    chosen.positions[:] = [[4, 1]]
    chosen.reset()
    for action in [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 1, 1]:  # up to door 0, pushed twice; on to door 1, out
        chosen.step(np.array([action]))
    assert chosen.tries(0) == [[0, 2], [1, 12]]
    line = {"policy": "average", "start": [4, 1], "tries": chosen.tries(0)}
    found = paths([line, line | {"tries": [[2, 10]]}, line | {"tries": []}], Room())["average"]
    assert found == {"rooms": 2, "near_first": 0.5, "detour": 1.0, "second_tried": 1, "between": 10.0}


def test_failures_say_whether_anybody_knew() -> None:
    line = {"policy": "average", "success": False, "members_correct": 0, "stalled": True}
    others = [line | {"members_correct": 2}, line | {"members_correct": 1, "stalled": False}, line | {"success": True}]
    found = failures([line, *others, line | {"policy": "oracle", "members_correct": None}])
    assert found == {"average": {"rooms": 4, "none_right": 1, "stalled": 1, "out_of_time": 1}}


def test_the_oracle_always_gets_out_in_the_steps_it_expects() -> None:
    few = limited(IMAGES, Recipe(test_images=200))
    chosen = TestEpisodes(few.test_images, few.test_labels, 1, seed=0, room=Room())
    result = oracle_rollout(chosen)
    assert result.success.all()
    np.testing.assert_array_equal(result.returns, 1.0 - result.lengths)
    reached = np.abs(chosen.room.door_cells[few.test_labels[chosen.picture]] - chosen.positions).sum(1) + 1
    assert (result.lengths >= reached).all()
    assert result.lengths.max() > reached.max()  # it does not see the photograph, and so tries wrong doors too


def test_member_doors_are_the_doors_members_value_when_trusted_alone() -> None:
    columns = collect(limited(IMAGES, TINY), Room(), 1, seed=0)
    dataset = Dataset.from_arrays(**columns, num_actions=4)
    recipe = replace(TINY, configs={"ape-v": APEVConfig(members=3, hidden=(), features=4)})
    agent = APEV.for_data(dataset, recipe.config("ape-v"))
    layer = linear(agent.net.heads.layers[0])
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.zero_()
        for member, door in enumerate((2, 0, 3)):
            layer.bias[member, 0, door] = 1.0
            # Where another member is trusted, this one would say door 1: it must be asked under its own certainty.
            layer.weight[member, -3 + (member + 1) % 3, 1] = 9.0
    np.testing.assert_array_equal(member_doors(agent, IMAGES.test_images[:5], Room()), np.repeat([[2], [0], [3]], 5, axis=1))


def test_the_log_shows_no_test_image() -> None:
    few = limited(IMAGES, TINY)
    pictures = Dataset.from_arrays(**collect(few, Room(), 1, seed=0), num_actions=4).pictures
    assert pictures is not None
    assert len(pictures) == 16
    assert not any((IMAGES.test_images == picture).all((1, 2, 3)).any() for picture in pictures)


def test_moves_are_those_replays_speak_of() -> None:
    assert MOVES.tolist() == [[0, -1], [1, 0], [0, 1], [-1, 0]]


# ---------------------------------------------------------------------- stored results


def test_more_seeds_and_agents_are_added_to_a_stored_folder(tmp_path: Path) -> None:
    first = replace(TINY, agents=("ensemble",))
    runs = {"first": (first, (0,)), "second": (TINY, (1,)), "again": (first, (0,))}
    for name, (recipe, seeds) in runs.items():
        locked_doors.run(tmp_path / name, IMAGES, recipe, seeds=seeds, console=QUIET)
        summary = store(tmp_path / name, tmp_path / "stored")
    alone = json.loads((tmp_path / "first" / "summary.json").read_text())["policies"]["average"]
    assert summary["meta"]["seeds"] == [0, 1]
    assert [part["seeds"] for part in summary["meta"]["parts"]] == [[0], [1], [0]]
    assert summary["policies"]["average"]["episodes"] == 2 * alone["episodes"]  # seed 0 took its own place
    assert summary["policies"]["ape-v"]["seeds"] == 1
    assert set(summary["paths"]) <= set(summary["policies"])
    assert json.loads((tmp_path / "stored" / "recipe.json").read_text())["agents"] == ["ensemble", "ape-v"]
    assert (tmp_path / "stored" / "report.html").exists()
    locked_doors.run(tmp_path / "other", IMAGES, replace(first, per_group=2), console=QUIET)
    with pytest.raises(ValueError, match="per_group differ"):
        store(tmp_path / "other", tmp_path / "stored")


# ---------------------------------------------------------------------- ablation and provenance


def test_ablation_trains_each_variant_beside_the_plain_ensemble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variants = {"ape-v-printed": APEVConfig(**SMALL, surprise="paper"), "+ masks": APEVConfig(**SMALL, wildcards=1)}
    ensembles = {"ensemble": DQNConfig(**SMALL), "ensemble with masks": DQNConfig(**SMALL, bootstrap=0.5)}
    monkeypatch.setattr(ablation, "VARIANTS", variants)
    monkeypatch.setattr(ablation, "ENSEMBLES", ensembles)
    few = limited(IMAGES, TINY)
    images = ImageSet(few.train_images, few.train_labels, few.test_images, few.test_labels)
    given: dict[str, Any] = {"seeds": (0,), "updates": 4, "train_images": 16, "console": QUIET}
    plain = {"oracle", "ape-v-eval-only", "ape-v-eval-only-committed", "random-member-step", "average", "single"}
    first = ablation.run_ablation(tmp_path / "out", images, agents=("ensemble",), **given)
    assert set(first["policies"]) == plain
    summary = ablation.run_ablation(tmp_path / "out", images, resume=True, **given)  # goes on with the others
    masked = {"+ masks, belief frozen", "eval only with masks", "eval only with masks, committed", "average with masks"}
    assert set(summary["policies"]) == plain | masked | set(variants) | {f"{name}, committed" for name in variants}
    assert summary["policies"]["average"] == first["policies"]["average"]
    assert summary["meta"]["scale"] == "ablation"
    with pytest.raises(ValueError, match="Fix: one of 'ensemble'"):
        ablation.run_ablation(tmp_path / "out", images, agents=("+ magic",), resume=True, **given)


def test_every_variant_is_a_different_recipe() -> None:
    assert len(set(ablation.VARIANTS.values())) == len(ablation.VARIANTS)


@pytest.mark.parametrize("form", [["--out", "{}"], ["--out={}"]], ids=["two words", "one word"])
def test_provenance_keeps_the_command_but_no_folder_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: list[str]
) -> None:
    words = [word.format(tmp_path / "my results") for word in form]
    monkeypatch.setattr(sys, "argv", ["apev", "demo", *words])
    command = provenance.provenance()["command"]
    assert command.startswith("apev demo ")
    assert "--out" in command
    assert "my results" in command
    assert str(tmp_path) not in command
    assert "'" in command  # quoted, so that it can be pasted


def test_provenance_outside_a_checkout_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "apev").mkdir()
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "apev" / "provenance.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert provenance.commit() == "unknown"
