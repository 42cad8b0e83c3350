"""Scores of continuous control: last and best, ours beside the paper's, each frozen member beside the adaptive policy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from apev.data.scores import normalised, reference
from apev.experiments.common.statistics import bootstrap_ci, interquartile_mean
from apev.experiments.common.tables import (
    AGAIN,
    NUMBER,
    Rows,
    check_lines,
    display_name,
    markdown_rows,
    read_jsonl,
    read_page,
)
from apev.experiments.d4rl.published import published
from apev.files import FileError, inside, read_json, reading, write_json, write_lines, write_text
from apev.terminal import markup

LATE = 5  # evaluations at the end of training, whose mean and range stand beside the last policy's score
INTERVALS = (
    "Intervals are over episodes of the trained policies: with fewer than three seeds they say nothing of another training."
    " How many members count is measured on the first seed."
)

Curves = dict[str, dict[int, list[dict[str, Any]]]]  # evaluations during training, by algorithm and seed
WIDE = 112  # characters a terminal needs for all columns of a table
ADAPT = ("ape-v-td3-bc", "ape-v-printed", "ape-v-no-floor", "ape-v-eval-only", "ape-v")
ORDER = ("bc", "td3-bc", "sac", "rem", "cql", "iql", "sac-n", "edac", *ADAPT)


def write_summary(folder: Path) -> dict[str, Any]:
    """Compute summary.json from every finished run in the folder (or from stored episodes and curves)."""
    about = read_task(folder)
    episodes, curves = read_runs(folder)
    runs = ({run_of(line) for line in episodes}, {(name, seed) for name, seeds in curves.items() for seed in seeds})
    if runs[0] != runs[1]:
        problem = f"its episodes and its curves are of different runs: {sorted(runs[0] ^ runs[1])}"
        raise FileError(folder, problem, "let `apev reproduce d4rl` finish, or copy the folder again")
    traced = {"beliefs": read_beliefs(folder), "meta": read_meta(folder)}
    with reading(folder / "episodes.jsonl", AGAIN):
        summary = {"kind": "d4rl"} | about | _numbers(about, episodes, curves) | traced
    write_json(folder / "summary.json", summary)
    return summary


def _numbers(about: Mapping[str, Any], episodes: list[dict[str, Any]], curves: Curves) -> dict[str, Any]:
    """What summary.json says of the scores."""
    task = about["task"]
    algorithms = {}
    for algorithm in [name for name in ORDER if any(line["algorithm"] == name for line in episodes)]:
        own = [line for line in episodes if line["algorithm"] == algorithm]
        by_seed = curves[algorithm]
        best = [max((line["returns"] for line in lines), key=np.mean) for lines in by_seed.values()]
        last = {s: [line["return"] for line in own if line["policy"] == algorithm and line["seed"] == s] for s in by_seed}
        algorithms[algorithm] = {
            "last": scores(task, list(last.values())),
            "best": scores(task, best),
            "late": late_scores(task, by_seed),
            "seeds": len(by_seed),
            "updates": min(lines[-1]["update"] for lines in by_seed.values()),
            "by_seed": {str(s): float(normalised(task, np.mean(r))) for s, r in last.items()},
            "published": published(task, algorithm),
        }
    behaviours: dict[str, list[dict[str, Any]]] = {}
    for line in episodes:
        if line["algorithm"].startswith("ape-v"):
            behaviours.setdefault(line["policy"], []).append(line)
    return {
        "title": f"{task}, {about['data']}" + (" data" if about["data"] in ("D4RL", "D4RL-style") else ""),
        "algorithms": algorithms,
        "policies": {name: scores(task, _by_seed(lines)) | _lengths(lines) for name, lines in behaviours.items()},
    }


def read_task(folder: Path) -> dict[str, Any]:
    """What task.json says of the task and its log."""
    path = inside(folder, "task.json")
    about: dict[str, Any] = read_json(path, fix=AGAIN)
    with reading(path, AGAIN):
        log, teacher = about["log"], (about["log"].get("card") or {}).get("teacher")
        numbers = [log["rows"], log["episodes"], *log["returns"].values(), *([teacher["last_return"]] if teacher else [])]
        if not all(isinstance(number, NUMBER) for number in numbers) or not isinstance(about["data"], str):
            raise ValueError("what it says of the log is no numbers")
        reference(about["task"])
    return about


def scores(task: str, returns_by_seed: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Mean normalised score with its interval, and the interquartile mean."""
    values = [normalised(task, returns) for returns in returns_by_seed]
    flat = np.concatenate(values)
    return {
        "score": float(flat.mean()),
        "ci95": [float(x) for x in bootstrap_ci(values)],
        "iqm": interquartile_mean(flat),
        "episodes": len(flat),
    }


def late_scores(task: str, curves: Mapping[int, Sequence[Mapping[str, Any]]]) -> dict[str, float]:
    """How much a policy changes from one evaluation to the next: mean and range of the last few, over all seeds."""
    values = [float(normalised(task, line["return"])) for lines in curves.values() for line in lines[-LATE:]]
    return {"score": float(np.mean(values)), "min": min(values), "max": max(values)}


def read_runs(folder: Path) -> tuple[list[dict[str, Any]], Curves]:
    """(final episodes of all runs, curves by algorithm and seed); of runs, or of a stored results folder."""
    episodes, lines = read_lines(folder)
    curves: Curves = {}
    for line in lines:
        curves.setdefault(line["algorithm"], {}).setdefault(line["seed"], []).append(line)
    return episodes, curves


def read_lines(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(final episodes, evaluations during training), each with its algorithm and seed, run by run."""
    if (folder / "agents").is_dir():
        runs = [path.parent for path in folder.glob("agents/*/episodes.jsonl")]
        episodes = [line for run in runs for line in _read_checked(run / "episodes.jsonl", EPISODE)]
        curves = [{"algorithm": run.name.rpartition("-s")[0]} | line for run in runs for line in read_curve(run)]
    else:
        episodes = _read_checked(inside(folder, "episodes.jsonl"), EPISODE)
        curves = _read_checked(inside(folder, "curves.jsonl"), {"algorithm": str} | EVALUATION)
    if not episodes:
        raise FileNotFoundError(f"{folder} holds no finished run. Fix: let `apev reproduce d4rl` train one.")
    return sorted(episodes, key=run_of), sorted(curves, key=run_of)


EPISODE: dict[str, Any] = {"algorithm": str, "policy": str, "seed": int, "return": NUMBER, "length": NUMBER}
EVALUATION: dict[str, Any] = {"seed": int, "update": NUMBER, "return": NUMBER, "returns": list}


def _read_checked(path: Path, kinds: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The lines of a file, each with entries of these kinds."""
    lines = read_jsonl(path)
    check_lines(path, lines, kinds)
    for number, line in enumerate(lines, start=1):
        returns = line.get("returns", [0.0])  # an evaluation's, one an episode
        if not returns or not all(isinstance(each, NUMBER) for each in returns):
            raise FileError(path, f"line {number} says returns {returns!r:.80}", AGAIN)
    return lines


def read_curve(run: Path) -> list[dict[str, Any]]:
    """Evaluations during training, each with what was logged of the training until then: its losses and values."""
    logged = [{"update": 0}, *_read_checked(run / "metrics.jsonl", {"update": NUMBER})]
    found = []
    for line in _read_checked(run / "curves.jsonl", EVALUATION):
        latest = [metrics for metrics in logged if metrics["update"] <= line["update"]][-1]
        with reading(run / "metrics.jsonl", AGAIN):
            numbers = {name: float(f"{value:.6g}") for name, value in latest.items() if name != "update"}
        found.append(line | {"logged": numbers})
    return found


def read_beliefs(folder: Path) -> dict[str, Any]:
    """What was traced of adapting beliefs, by policy, from the first seed that has it."""
    stored = folder / "beliefs.json"
    paths = [stored] if stored.exists() else sorted(folder.glob("agents/ape-v*/beliefs.json"), reverse=True)
    found: dict[str, Any] = {}
    for path in paths:
        traces = read_json(path, fix=AGAIN)
        with reading(path, AGAIN):
            for trace in traces.values():
                np.asarray(trace["curve"], dtype=float).reshape(-1, 2)
                np.asarray(trace.get("first_episode", []), dtype=float)
                [float(count["effective"]) for count in trace["effective_members"].values()]
        found |= traces
    return found


def read_meta(folder: Path) -> dict[str, Any]:
    """Command and commit of every run."""
    stored = folder / "meta.json"
    if stored.exists():
        found: dict[str, Any] = read_json(stored, fix=AGAIN)
        with reading(stored, AGAIN):
            if not all(isinstance(run, dict) for run in found.get("runs", {}).values()):
                raise ValueError("it does not tell of runs")
        return found
    runs = {}
    for path in sorted(folder.glob("agents/*/meta.json")):
        spent = path.parent / "run.json"
        runs[path.parent.name] = read_json(path) | (read_json(spent) if spent.exists() else {})
    return {"runs": runs}


def store(folder: Path, out: Path) -> None:
    """Add finished runs to a results folder: no weights, every episode. What it holds stays, unless trained again."""
    episodes, lines = read_lines(folder)
    beliefs, meta = read_beliefs(folder), read_meta(folder)
    if (out / "task.json").exists():
        check_same_log(read_json(folder / "task.json"), out)
        new = {run_of(line) for line in episodes}
        before = [[line for line in old if run_of(line) not in new] for old in read_lines(out)]
        episodes, lines = (sorted(old + more, key=run_of) for old, more in zip(before, (episodes, lines), strict=True))
        first: dict[str, tuple[str, int]] = {}  # traces are those of an algorithm's first seed
        for line in episodes:
            first.setdefault(line["policy"], run_of(line))
        beliefs |= {name: trace for name, trace in read_beliefs(out).items() if first[name] not in new}
        meta = {"runs": dict(sorted((read_meta(out)["runs"] | meta["runs"]).items()))}
    for name, content in (("episodes.jsonl", episodes), ("curves.jsonl", lines)):
        write_lines(out / name, content)
    write_text(out / "task.json", (folder / "task.json").read_text(encoding="utf-8"))
    write_json(out / "beliefs.json", beliefs)
    write_json(out / "meta.json", meta)


def run_of(line: Mapping[str, Any]) -> tuple[str, int]:
    """Which training a stored line is of: its algorithm and seed."""
    return line["algorithm"], line["seed"]


def check_same_log(about: Mapping[str, Any], out: Path) -> None:
    """Scores of policies that learned from different logs do not go into one table: `about` is what out/task.json says."""
    if not (out / "task.json").exists():
        return
    now, before = json.loads(json.dumps(about)), read_task(out)
    for one in (now, before):
        one["log"].pop("card", None)  # where the log comes from; what is in it are the other numbers
    if now != before:
        rows = [f"{one['log']['rows']:,} rows" for one in (before, now)]
        raise ValueError(
            f"{out} holds results on another log ({rows[0]}, now {rows[1]}). Fix: name another folder, or remove it."
        )


# ---------------------------------------------------------------------- what a person sees


def score_table(summary: Mapping[str, Any]) -> Rows:
    """Every algorithm: last and best scores, beside the published one."""
    other = "published (all of D4RL)" if summary["data"].startswith("D4RL v") else "published (D4RL)"
    rows = [["algorithm", "last", "95% interval", f"last {LATE} evaluations", "best", other, "seeds", "updates"]]
    for name, line in summary["algorithms"].items():
        low, high = line["last"]["ci95"]
        printed = line["published"]
        rows.append(
            [
                display_name(name),
                f"{line['last']['score']:.1f}",
                f"{low:.1f} – {high:.1f}",
                f"{line['late']['score']:.1f} ({line['late']['min']:.0f} to {line['late']['max']:.0f})",
                f"{line['best']['score']:.1f}",
                "–" if printed is None else f"{printed:g}",
                str(line["seeds"]),
                f"{line['updates']:,}",
            ]
        )
    return rows


def policy_table(summary: Mapping[str, Any]) -> Rows:
    """Adaptive agents with every behaviour of their belief: score, interval, effective members at some steps."""
    rows = [["belief", "score", "95% interval", "members at 10", "at 100", "at the end"]]
    for name, line in summary["policies"].items():
        algorithm, comma, behaviour = name.partition(",")
        low, high = line["ci95"]
        steps = summary["beliefs"].get(name, {}).get("effective_members", {})
        counts = [f"{steps[step]['effective']:.1f}" if step in steps else "–" for step in ("10", "100", "last")]
        rows.append([display_name(algorithm) + comma + behaviour, f"{line['score']:.1f}", f"{low:.1f} – {high:.1f}", *counts])
    return rows


def tables_of(summary: Mapping[str, Any]) -> list[Rows]:
    """Both tables; the first alone where no adaptive agent was trained."""
    return [score_table(summary), *([policy_table(summary)] if summary["policies"] else [])]


def print_scores(summary: Mapping[str, Any], console: Console | None = None) -> None:
    """The table, and that of every behaviour of the belief where an adaptive agent was trained; less in a narrow terminal."""
    console = console or Console()
    titles = (f"{summary['title']}: normalised scores", "Every behaviour of the belief")
    for title, (heading, *rows) in zip(titles, tables_of(summary), strict=False):
        dropped = () if console.width >= WIDE else (f"last {LATE} evaluations", "seeds")
        shown = [i for i, head in enumerate(heading) if head not in dropped]
        table = Table(title=markup(title), header_style="bold", box=box.SIMPLE, padding=(0, 1, 0, 0))
        for i in shown:
            head = heading[i].partition(" (")[0]
            table.add_column(head, justify="right" if i else "left", no_wrap=bool(i))
        for row in rows:
            table.add_row(*(markup(row[i]) for i in shown), style="bold" if row[0] == "APE-V" else None)
        console.print(table)
    console.print(INTERVALS, style="dim")


def markdown(summary: Mapping[str, Any]) -> str:
    """Both tables for a Markdown page."""
    return "\n".join([*map(markdown_rows, tables_of(summary)), f"{INTERVALS}\n"])


def fill_scores(page: Path, folder: Path) -> None:
    """Refresh the tables between `<!-- scores: FOLDER -->` and `<!-- /scores -->`."""
    path = folder / "summary.json"
    summary = read_json(path, fix=AGAIN)
    start, end = f"<!-- scores: {folder.as_posix()} -->", "<!-- /scores -->"
    text = read_page(page)
    if start not in text:
        raise ValueError(f"{page} has no line {start!r}. Fix: add it, and {end!r} after it.")
    before, _, rest = text.partition(start)
    with reading(path, AGAIN):
        tables = markdown(summary)
    write_text(page, before + start + "\n" + tables + end + rest.partition(end)[2])


def _by_seed(lines: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    seeds: dict[int, list[float]] = {}
    for line in lines:
        seeds.setdefault(line["seed"], []).append(line["return"])
    return list(seeds.values())


def _lengths(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {"mean_steps": float(np.mean([line["length"] for line in lines]))}
