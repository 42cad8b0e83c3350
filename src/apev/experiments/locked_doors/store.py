"""Add what a run has found to a results folder: more seeds, more agents; what is stored there stays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apev.experiments.common.charts import write_figures
from apev.experiments.common.tables import AGAIN, read_jsonl, summarise
from apev.experiments.common.tables import stored as stored_file
from apev.experiments.locked_doors.failures import failures
from apev.experiments.locked_doors.page import write_report
from apev.experiments.locked_doors.paths import paths
from apev.experiments.locked_doors.rooms import Room
from apev.files import read_json, write_json, write_lines

SAME = ("train_images", "test_images", "starts", "batch_groups", "per_group", "schedule", "images")
"""Of a recipe: rooms and trainings that differ in these do not go into one table."""


def store(folder: Path, out: Path) -> dict[str, Any]:
    """Add the episodes and curves of `folder` to those in `out`, and summarise all of them; returns the summary."""
    recipe: dict[str, Any] = read_json(folder / "recipe.json", fix=AGAIN)
    summary: dict[str, Any] = read_json(folder / "summary.json", fix=AGAIN)
    lines = {name: _lines(folder, name) for name in ("episodes.jsonl", "curves.jsonl")}
    parts = [_part(summary)]
    if (out / "recipe.json").exists():
        before = read_json(out / "recipe.json", fix=AGAIN)
        if other := [name for name in SAME if before.get(name) != recipe.get(name)]:
            raise ValueError(f"{out} holds rooms of another recipe ({', '.join(other)} differ). Fix: name another folder.")
        recipe["agents"] = [*before["agents"], *(name for name in recipe["agents"] if name not in before["agents"])]
        recipe["configs"] = before["configs"] | recipe["configs"]
        told = read_json(out / "summary.json", fix=AGAIN)
        parts = [*told["meta"].get("parts", [_part(told)]), *parts]
        for name, new in lines.items():
            replaced = {_made_by(line) for line in new}
            lines[name] = sorted([line for line in _lines(out, name) if _made_by(line) not in replaced] + new, key=_made_by)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "recipe.json", recipe)
    write_lines(out / "episodes.jsonl.gz", lines["episodes.jsonl"])
    write_lines(out / "curves.jsonl", lines["curves.jsonl"])
    episodes = lines["episodes.jsonl"]
    summary |= {"policies": summarise(episodes), "paths": paths(episodes, Room()), "failures": failures(episodes)}
    summary["meta"] |= {"seeds": sorted({line["seed"] for line in episodes}), "parts": parts}
    write_json(out / "summary.json", summary)
    write_figures(out)
    write_report(out)
    return summary


def _lines(folder: Path, name: str) -> list[dict[str, Any]]:
    path = stored_file(folder, name)
    return [] if path is None else read_jsonl(path)


def _made_by(line: Mapping[str, Any]) -> tuple[int, str]:
    """Which of a table's parts a line is of."""
    return line["seed"], line["policy"]


def _part(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Where the numbers of one run come from."""
    meta = summary["meta"]
    names = ("seeds", "command", "commit", "trained_at_commit", "seconds", "seconds_are", "threads")
    return {name: meta[name] for name in names if name in meta} | {"policies": list(summary["policies"])}
