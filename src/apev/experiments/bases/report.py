"""What the episodes of `benchmarks/bases.py` say: for each log the returns of each algorithm, and APE-V's lead over BC."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from apev.agents import ALGORITHMS
from apev.experiments.common.provenance import provenance
from apev.experiments.common.tables import AGAIN, Rows, fill_table, markdown_rows
from apev.files import read_json, read_lines, reading, write_json
from apev.terminal import markup

DRAWS = 4000
OURS, CLONING = "ape-v", "bc"


def write_summary(folder: Path, *, made: bool = False) -> dict[str, Any]:
    """Compute summary.json from the episodes; where they were `made` just now, say by which command."""
    path = folder / "episodes.jsonl"
    old = read_json(folder / "summary.json", fix=AGAIN) if (folder / "summary.json").exists() else {}
    with reading(path, AGAIN):
        lines = list(read_lines(path))
        names = dict.fromkeys(str(line["log"]) for line in lines)
        logs = {name: of_log([line for line in lines if line["log"] == name]) for name in names}
        meta = dict(old.get("meta", {}))
        if made:
            now = provenance()
            commands = [*filter(None, str(meta.get("command", "")).split(" && ")), now["command"]]
            meta |= now | {"command": " && ".join(dict.fromkeys(commands))}
        meta["commits"] = sorted({line["commit"] for line in lines})
    summary = {"kind": "bases", "logs": logs, "meta": meta}
    write_json(folder / "summary.json", summary)
    return summary


def of_log(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What is said of one log."""
    by = by_algorithm(lines, "returns")
    found: dict[str, Any] = {
        "logged": float(lines[0]["logged"]["mean"]),
        "updates": sorted({int(line["updates"]) for line in lines}),
        "kinds": sorted({int(line["kinds"]) for line in lines if line["algorithm"] == OURS}),
    }
    drawn = {name: means(seeds) for name, seeds in by.items()}
    for name, seeds in by.items():
        mean = float(np.mean([np.mean(returns) for returns in seeds.values()]))
        found[name] = {"return": mean, "ci95": quantiles(drawn[name]), "seeds": sorted(seeds)}
    if {OURS, CLONING} <= drawn.keys():
        found["lead"] = lead(by)
        if all("discounted" in line for line in lines):  # not in what was stored before it was measured
            found["lead discounted"] = lead(by_algorithm(lines, "discounted")) | {"discount": lines[0]["discount"]}
    return found


def by_algorithm(lines: list[dict[str, Any]], column: str) -> dict[str, dict[int, list[float]]]:
    """A column of the episodes by algorithm and seed; algorithms are compared on the same seeds."""
    names = sorted({line["algorithm"] for line in lines})
    by = {name: {int(line["seed"]): line[column] for line in lines if line["algorithm"] == name} for name in names}
    shared = set.intersection(*(set(seeds) for seeds in by.values()))
    return {name: {seed: seeds[seed] for seed in sorted(shared)} for name, seeds in by.items()} if shared else by


def lead(by: Mapping[str, Mapping[int, list[float]]]) -> dict[str, Any]:
    """By how much APE-V is above cloning, and whether it is surely below."""
    drawn = means(by[OURS]) - means(by[CLONING])
    mean = {name: float(np.mean([np.mean(values) for values in by[name].values()])) for name in (OURS, CLONING)}
    interval = quantiles(drawn)
    return {"return": mean[OURS] - mean[CLONING], "ci95": interval, "below": interval[1] < 0}


def means(seeds: Mapping[int, list[float]]) -> np.ndarray:
    """[DRAWS] means of resampled seeds, and of episodes resampled in each."""
    rng, returns = np.random.default_rng(0), [np.array(values) for values in seeds.values()]
    picked = rng.integers(len(returns), size=(DRAWS, len(returns)))
    return np.array([np.mean([rng.choice(returns[s], len(returns[s])).mean() for s in row]) for row in picked])


def quantiles(draws: np.ndarray) -> list[float]:
    """The middle 95%."""
    return [float(q) for q in np.quantile(draws, [0.025, 0.975])]


def rows(summary: Mapping[str, Any]) -> Rows:
    """A line a log."""
    heading = ["log", "its returns", *(f"{ALGORITHMS[name].label} (95%)" for name in (CLONING, OURS)), "lead (95%)"]
    leads = ["lead"]
    if any("lead discounted" in told for told in summary["logs"].values()):
        heading, leads = [*heading, "lead, discounted (95%)"], [*leads, "lead discounted"]
    found = [[*heading, "updates", "seeds"]]
    for name, told in summary["logs"].items():
        line = [name, _number(told["logged"])]
        for part in (CLONING, OURS, *leads):
            line.append(_with_interval(told[part]) if part in told else "")
        line.append(", ".join(f"{updates:,}" for updates in told["updates"]))
        line.append(str(min(len(told[part]["seeds"]) for part in (CLONING, OURS) if part in told)))
        found.append(line)
    return found


def _with_interval(told: Mapping[str, Any]) -> str:
    low, high = told["ci95"]
    return f"{_number(told['return'])} ({_number(low)} to {_number(high)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"


def markdown(summary: Mapping[str, Any]) -> str:
    """For a page of the docs."""
    return markdown_rows(rows(summary))


def show(folder: Path, page: Path | None = None) -> None:
    """Print the table of a folder; fill the Markdown page that quotes it."""
    summary = write_summary(folder)
    heading, *body = rows(summary)
    table = Table(title="APE-V with default settings, beside cloning", box=box.SIMPLE, header_style="bold")
    for number, name in enumerate(heading):
        table.add_column(name, justify="right" if number else "left", overflow="fold")  # a name that is cut off names nothing
    for line in body:
        table.add_row(*map(markup, line))
    Console(highlight=False).print(table)
    if page is not None:
        fill_table(page, folder, markdown(summary))
