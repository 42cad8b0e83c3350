"""Figures and the page of a robot's results: scores, learning curves, whom the belief trusts and how sure it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from apev.data.scores import normalised
from apev.experiments.common.charts import Series, bar_chart, line_chart, stacked_chart
from apev.experiments.common.html import escaped, figure, header, html_table, made, section, whole_page
from apev.experiments.common.tables import AGAIN, Rows, display_name
from apev.experiments.d4rl.report import (
    INTERVALS,
    Curves,
    fill_scores,
    policy_table,
    print_scores,
    read_runs,
    score_table,
    write_summary,
)
from apev.files import reading, write_text

LEAD = (
    "How pessimistic should a robot be about what nobody has tried? APE-V trains agents from bold to careful at once, believes "
    "in all of them at first, and finds out while it walks whose expectations hold."
)
FILES = {"curves": "curves.jsonl", "members": "episodes.jsonl", "belief": "beliefs.json", "episode": "beliefs.json"}
Draw = Callable[[int, str], str]  # (width, title) -> SVG


def show(folder: Path, page: Path | None) -> None:
    """Print the scores, write the page, and refresh a Markdown page."""
    print_scores(write_scores(folder))
    print(folder / "report.html")
    if page is not None:
        fill_scores(page, folder)


def write_scores(folder: Path) -> dict[str, Any]:
    """Write summary.json, figures/*.svg and report.html of a folder of `apev reproduce d4rl`; returns the summary."""
    summary = write_summary(folder)
    curves = read_runs(folder)[1]
    with reading(folder / "curves.jsonl", AGAIN):
        charts = score_charts(summary, curves)
    for name, (heading, _, draw) in charts.items():
        with reading(folder / FILES[name], AGAIN):
            svg = draw(720, f"{summary['task']}: {heading[0].lower()}{heading[1:]}")
        write_text(folder / "figures" / f"{name}.svg", svg)
    with reading(folder / "summary.json", AGAIN):
        page = render(summary, charts)
    write_text(folder / "report.html", page)
    return summary


def score_charts(summary: Mapping[str, Any], curves: Curves) -> dict[str, tuple[str, str, Draw]]:
    """{file: (heading, what it shows, how to draw it)} of what the folder holds."""
    charts: dict[str, tuple[str, str, Draw]] = {}
    lines = curve_lines(summary["task"], curves)
    if lines:
        note = "Evaluations during training. The band runs from the worst seed to the best." if _many(curves) else ""
        charts["curves"] = (
            "Learning curves",
            note or "Evaluations during training, one training each.",
            lambda width, title: line_chart(
                lines, x_label="updates", y_label="normalised score", title=title, unit=False, width=width
            ),
        )
    own = {name: line for name, line in summary["policies"].items() if name.split(",")[0] == "ape-v"}
    if own:
        bars = [(short(name), line["score"], *line["ci95"]) for name, line in own.items()]
        sac_n = summary["algorithms"].get("sac-n")
        bars += [("sac-n", sac_n["last"]["score"], *sac_n["last"]["ci95"])] if sac_n else []
        charts["members"] = (
            "Frozen members and the adaptive policy",
            "The paper’s figure: e_k trusts member k from the first step to the last, which takes its minimum over n critics.",
            lambda width, title: bar_chart(bars, x_label="normalised score", title=title, unit=False, width=width),
        )
    traces = {name: trace for name, trace in summary["beliefs"].items() if name.split(",")[0] == "ape-v"}
    if traces:
        sure = [Series(short(name), *zip(*trace["curve"][::5], strict=True)) for name, trace in traces.items()]
        charts["belief"] = (
            "How sure it is",
            "Members that still count, exp(entropy) of the belief: the mean over episodes.",
            lambda width, title: line_chart(
                sure, x_label="step of the episode", y_label="members that count", title=title, unit=False, width=width
            ),
        )
    episode = traces.get("ape-v", {}).get("first_episode", [])
    if len(episode) > 1:  # not over within ten steps
        labels = [short(name) for name in own if "e_" in name]
        charts["episode"] = (
            "Whom it believes",
            "The belief in each member through one episode, looked at every ten steps.",
            lambda width, title: stacked_chart(
                episode, labels, every=10, x_label="step of the episode", y_label="belief", title=title, width=width
            ),
        )
    return charts


def curve_lines(task: str, curves: Curves) -> list[Series]:
    """Each algorithm's mean over seeds at the updates they share, from the worst to the best."""
    lines = []
    for algorithm, seeds in curves.items():
        x = sorted(set.intersection(*({line["update"] for line in part} for part in seeds.values())))
        at = [
            [normalised(task, np.mean(line["returns"])) for p in seeds.values() for line in p if line["update"] == u] for u in x
        ]
        mean, low, high = ([float(f(v)) for v in at] for f in (np.mean, np.min, np.max))
        lines.append(Series(algorithm, x, mean, low, high))
    return lines


def render(summary: Mapping[str, Any], charts: Mapping[str, tuple[str, str, Draw]]) -> str:
    """The page as a string."""
    drawn = {name: figure(name, heading, note, lambda w, d=draw: d(w, "")) for name, (heading, note, draw) in charts.items()}  # type: ignore[misc]
    part = summary["data"].startswith("D4RL v")
    other = " on all of D4RL’s rows, for orientation only" if part else " on D4RL’s own log, another than this one"
    published = "" if summary["data"] == "D4RL" else other
    note = (
        "0 is a random policy, 100 an expert. Last: the policy at the end of training. Best: the best evaluation during "
        f"training, which nobody without a simulator could have picked. Published: the printed scores{published}. {INTERVALS}"
    )
    sections = [
        header(summary["title"], LEAD, _headline(summary)),
        section("scores", "Scores", note, html_table(score_table(summary), hero="APE-V")),
        drawn.pop("curves", ""),
    ]
    if summary["policies"]:
        counts = "Members that still count, exp(entropy) of the belief, at the 10th, 100th and last step."
        sections.append(section("policies", "Every behaviour of the belief", counts, html_table(policy_table(summary))))
    sections += [*drawn.values(), section("log", "The log", "", html_table(log_table(summary)))]
    runs = summary["meta"].get("runs", {})
    if runs:
        table = [["training", "commit", "updates", "scale", "command"]]
        table += [[name, *(_shown(run.get(key)) for key in table[0][1:])] for name, run in runs.items()]
        sections.append(section("made", "How it was made", "", html_table(table, wrap=True)))
    else:
        sections.append(made({}))
    return whole_page(summary["title"], sections)


def log_table(summary: Mapping[str, Any]) -> Rows:
    """What the policies learned from."""
    log = summary["log"]
    rows = [["", summary["data"]], ["rows", f"{log['rows']:,}"], ["episodes", f"{log['episodes']:,}"]]
    rows += [[f"return, {name}", f"{value:,.0f}"] for name, value in log["returns"].items()]
    teacher = (log.get("card") or {}).get("teacher")
    return rows + ([["return of the agent that logged it, at the end", f"{teacher['last_return']:,.0f}"]] if teacher else [])


def short(policy: str) -> str:
    """A behaviour of APE-V's belief without the name they share."""
    return policy.removeprefix("ape-v, ")


def _headline(summary: Mapping[str, Any]) -> str:
    items = ""
    for name in ("ape-v", "sac-n"):
        line = summary["algorithms"].get(name)
        if line is not None:
            low, high = line["last"]["ci95"]
            hero = ' class="hero"' if name == "ape-v" else ""
            items += (
                f"<li{hero}><b>{line['last']['score']:.1f}</b>{escaped(display_name(name))}"
                f"<br>95% interval {low:.1f} – {high:.1f}</li>"
            )
    return f'<ul class="headline">{items}</ul>' if items else ""


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _many(curves: Curves) -> bool:
    return any(len(seeds) > 1 for seeds in curves.values())
