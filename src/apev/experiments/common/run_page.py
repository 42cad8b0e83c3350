"""The page of a user's own run: its returns, its learning curves, and how its belief moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from apev.evaluation import Evaluation
from apev.experiments.common.charts import Series, line_chart
from apev.experiments.common.html import figure, header, html_table, left_out, made, section, whole_page
from apev.files import FileError, inside, read_json, read_lines, reading, write_text

AGAIN = "evaluate the run again (`apev evaluate RUN`)"
LARGEST = 1e30  # of a number in a chart
SHOWN_MEMBERS = 8
SHOWN = ("loss", "critic_loss", "actor_loss", "value")  # of the metrics, those that say how training went


def holds_run(folder: Path) -> bool:
    """Whether this is a run folder of `apev train`."""
    return (folder / "config.json").exists() and (folder / "metrics.jsonl").exists()


def read_evaluation(folder: Path) -> Evaluation | None:
    """What `apev evaluate` kept of a run; None if it was not evaluated."""
    if not (folder / "episodes.jsonl").exists():
        return None
    path = inside(folder, "episodes.jsonl")
    beliefs = folder / "beliefs.jsonl"
    with reading(path, AGAIN):
        records = read_lines(path)
        lines = read_lines(inside(folder, "beliefs.jsonl")) if beliefs.exists() else []
        return Evaluation.of_records(folder.name, records, {str(line["policy"]): line["belief"] for line in lines})


def write_run(folder: Path) -> tuple[Evaluation | None, Path]:
    """Make report.html of a run folder; returns its table and the page."""
    found = read_evaluation(folder)
    about = read_json(inside(folder, "config.json"))
    sections = [header(f"{folder.name}: {about.get('agent', 'a run')}", _lead(found), "")]
    if found is not None:
        rows = [["policy", "return", "95% interval", "steps", "episodes"]]
        for row in found.rows:
            steps = "" if row.length is None else f"{row.length:,.1f}"
            rows.append([row.name, f"{row.mean:,.1f}", f"{row.low:,.1f} to {row.high:,.1f}", steps, f"{row.episodes:,}"])
        sections.append(section("returns", "Returns", "Every row plays the same episodes.", html_table(rows, hero="adaptive")))
        sections += [_belief(name, trace) for name, trace in found.traces.items() if len(trace) > 1]
    else:
        sections.append(left_out("returns", "Returns", "Not evaluated yet: `apev evaluate RUN --env ID`."))
    sections += _curves(folder)
    settings = {key: value for key, value in about.items() if not isinstance(value, dict)}
    sections.append(made(settings | dict(about.get("schedule", {}) if isinstance(about.get("schedule"), dict) else {})))
    page = folder / "report.html"
    write_text(page, whole_page(folder.name, sections))
    return found, page


def _lead(found: Evaluation | None) -> str:
    if found is None:
        return "A training that was not evaluated yet."
    rows = {row.name: row for row in found.rows}
    log = f" The log itself returned {rows['the log'].mean:,.1f}." if "the log" in rows else ""
    if "adaptive" in rows and "average" in rows:
        ours, flat = rows["adaptive"], rows["average"]
        return f"Adapting it returns {ours.mean:,.1f} an episode, averaging its members {flat.mean:,.1f}.{log}"
    return f"It returns {found.rows[0].mean:,.1f} an episode.{log}" if found.rows else "Nothing was evaluated."


def _belief(name: str, trace: Any) -> str:
    """The belief through one episode, a line a member."""
    with reading("beliefs.jsonl", AGAIN):
        weights = np.asarray(trace, dtype=np.float64)
        if weights.ndim != 2 or not np.isfinite(weights).all():
            raise FileError("beliefs.jsonl", "holds no belief of steps and members", AGAIN)
    steps = np.unique(np.linspace(0, len(weights) - 1, 200).astype(int))
    most = np.argsort(-weights.max(0))[:SHOWN_MEMBERS]
    series = [Series(f"member {k}", steps.tolist(), weights[steps, k].tolist()) for k in sorted(most)]
    note = "The weight of each member, step by step, in the first episode."

    def draw(width: int) -> str:
        return line_chart(series, x_label="step", y_label="belief", width=width)

    return figure(f"belief {name}", f"The belief: {name}", note, draw)


def _curves(folder: Path) -> list[str]:
    """Returns while training, where there was an environment, and what the log itself said of learning."""
    found = []
    if (folder / "curves.jsonl").exists():
        lines = [line for line in read_lines(inside(folder, "curves.jsonl")) if _plotted(line, "return")]
        if lines:
            returns = Series("adaptive", [line["update"] for line in lines], [line["return"] for line in lines])
            found.append(_chart("curve", "Return while training", "Mean over a few episodes.", [returns], "return"))
    metrics = read_lines(inside(folder, "metrics.jsonl"))
    for name in SHOWN:
        lines = [line for line in metrics if _plotted(line, name)]
        if len(lines) > 1:
            series = Series(name, [line["update"] for line in lines], [line[name] for line in lines])
            found.append(_chart(name, name.replace("_", " ").capitalize(), "Mean since the last line.", [series], name))
    return found


def _plotted(line: dict[str, Any], name: str) -> bool:
    """Whether a line has a point to draw: an update and a number, both of a size that a chart can hold."""
    return all(isinstance(line.get(key), int | float) and abs(line[key]) < LARGEST for key in ("update", name))


def _chart(name: str, heading: str, note: str, series: list[Series], label: str) -> str:
    def draw(width: int) -> str:
        return line_chart(series, x_label="update", y_label=label, width=width, unit=False)

    return figure(name, heading, note, draw)
