"""The fleet's table: what each policy returns, how much of the gap between blind and knowing it recovers, the worst kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from apev.agents import ALGORITHMS
from apev.experiments.common.tables import AGAIN, Rows, fill_table, read_jsonl, stored
from apev.experiments.fleet.figures import label
from apev.experiments.fleet.page import write_page
from apev.experiments.fleet.worlds import WORLDS, World
from apev.files import read_json, reading, write_json, write_lines, write_text
from apev.terminal import markup

ORDER = ("knows the kind", "labels given", "adaptive", "adaptive, td", "adaptive, both", "adaptive, committed", "as printed")
DRAWS = 4000


def write_summary(folder: Path, meta: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Compute summary.json from the episodes in the folder."""
    old = read_json(folder / "summary.json") if (folder / "summary.json").exists() else {}
    path = stored(folder, "episodes.jsonl") or folder / "episodes.jsonl"
    episodes = read_jsonl(path)
    found = read_jsonl(folder / "worlds.jsonl") if (folder / "worlds.jsonl").exists() else []
    with reading(path, AGAIN):
        world = WORLDS[(old or dict(meta or {}))["world"]]
        summary = {"kind": "fleet", "world": world.name, "title": world.title} | numbers(world, episodes, found)
    summary["meta"] = dict(meta) if meta is not None else old.get("meta", {})
    write_json(folder / "summary.json", summary)
    return summary


def numbers(world: World, episodes: list[dict[str, Any]], found: list[dict[str, Any]]) -> dict[str, Any]:
    """What summary.json says."""
    names = sorted({line["policy"] for line in episodes}, key=lambda name: (rank(name), name))
    by_policy = {name: by_seed([line for line in episodes if line["policy"] == name]) for name in names}
    means = {name: float(np.mean([np.mean(list(r.values())) for r in seeds.values()])) for name, seeds in by_policy.items()}
    policies = {}
    for name in names:
        own = [line for line in episodes if line["policy"] == name]
        low, high = interval(by_policy[name])
        kinds = {k: np.mean([line["return"] for line in own if line["kind"] == k]) for k in sorted({o["kind"] for o in own})}
        kinds = {k: float(mean) for k, mean in kinds.items()}
        policies[name] = {"return": means[name], "ci95": [low, high], "worst_kind": min(kinds.values()), "by_kind": kinds}
        policies[name] |= {"seeds": len(by_policy[name]), "episodes": len(own)}
        steps = [np.inf if line["steps_to_95"] is None else line["steps_to_95"] for line in own if "steps_to_95" in line]
        if steps and name.startswith(("adaptive", "labels")):
            median = float(np.median(steps))
            policies[name]["steps_to_95"] = None if np.isinf(median) else median
    blind = {name: means[name] for name in world.static if name in means}
    best_blind = max([*blind.values(), *(world.exact[key] for key in ("best blind",) if key in world.exact)], default=None)
    ceiling = world.exact.get("best without knowing", means.get("knows the kind"))
    recovered: dict[str, float] = {}
    if best_blind is not None and ceiling is not None and ceiling > best_blind:
        recovered = {name: (mean - best_blind) / (ceiling - best_blind) for name, mean in means.items()}
    worlds = {}
    if found:
        worlds = {
            "found": float(np.median([line["kinds"] for line in found])),
            "true": found[0]["true"],
            "agreement": float(np.mean([line["agreement"] for line in found])),
            "steps_to_95": policies.get("adaptive", {}).get("steps_to_95"),
            "by_seed": found,
        }
    return {
        "worlds": worlds,
        "policies": policies,
        "recovered": recovered,
        "best_blind": {"policy": max(blind, key=lambda name: blind[name]) if blind else None, "return": best_blind},
        "exact": dict(world.exact),
    }


def by_seed(lines: list[dict[str, Any]]) -> dict[int, dict[int, float]]:
    """{seed: {episode: return}}."""
    found: dict[int, dict[int, float]] = {}
    for line in lines:
        found.setdefault(line["seed"], {})[line["episode"]] = float(line["return"])
    return found


def interval(seeds: Mapping[int, Mapping[int, float]]) -> tuple[float, float]:
    """95% of the mean: seeds are drawn, then episodes of each."""
    rng = np.random.default_rng(0)
    returns = [np.array(list(episodes.values())) for episodes in seeds.values()]
    draws = np.array(
        [
            np.mean([rng.choice(returns[s], len(returns[s])).mean() for s in rng.integers(len(returns), size=len(returns))])
            for _ in range(DRAWS)
        ]
    )
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def rank(name: str) -> int:
    """Where a row stands."""
    for place, start in enumerate(ORDER):
        if name == start:
            return place
    return 20 if name in ALGORITHMS else 10


def table(summary: Mapping[str, Any]) -> Table:
    """For a terminal."""
    shown = Table(title=markup(summary["title"]), box=box.SIMPLE, padding=(0, 1, 0, 0), header_style="bold")
    shown.add_column("policy")
    heading, *body = rows(summary)
    for name in heading[1:]:
        shown.add_column(name, justify="right", no_wrap=True)
    for name, *cells in body:
        shown.add_row(markup(name), *cells)
    return shown


def rows(summary: Mapping[str, Any]) -> Rows:
    """Every policy, and what is known exactly."""
    heading = ["policy", "return", "95% interval", "recovered", "worst kind", "steps to 95%"]
    policies = [cells_of(name, row, summary) for name, row in summary["policies"].items()]
    exact = [[f"exact: {name}", f"{value:.1f}", *[""] * (len(heading) - 2)] for name, value in summary["exact"].items()]
    return [heading, *policies, *exact]


def cells_of(name: str, row: Mapping[str, Any], summary: Mapping[str, Any]) -> list[str]:
    """One line of the table."""
    recovered = summary["recovered"].get(name)
    steps = row.get("steps_to_95", "")
    low, high = row["ci95"]
    digits = 0 if abs(row["return"]) >= 100 else 1
    numbers = [f"{row['return']:,.{digits}f}", f"{low:,.{digits}f} to {high:,.{digits}f}"]
    numbers += ["" if recovered is None else f"{recovered:.2f}", f"{row['worst_kind']:,.{digits}f}"]
    return [label(name), *numbers, "never" if steps is None else f"{steps:.0f}" if steps != "" else ""]


def markdown(summary: Mapping[str, Any]) -> str:
    """For a page of the docs."""
    head = ["policy", "return", "95% interval", "recovered", "worst kind", "steps to 95%"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    lines += ["| " + " | ".join(cells_of(name, row, summary)) + " |" for name, row in summary["policies"].items()]
    return "\n".join(lines)


def found_in_words(summary: Mapping[str, Any]) -> str:
    """What was found of the kinds."""
    worlds = summary["worlds"]
    if not worlds:
        return ""
    counts = ", ".join(str(line["kinds"]) for line in worlds["by_seed"])
    return f"kinds found: {counts} (true: {worlds['true']}); contexts assigned right, of what can be: {worlds['agreement']:.1%}"


def show(folder: Path, page: Path | None = None) -> None:
    """Print the table of a folder, write its page and figures; fill the Markdown page that quotes it."""
    summary = write_summary(folder)
    console = Console(highlight=False)
    console.print(table(summary))
    console.print(found_in_words(summary))
    print(write_page(folder, summary, rows(summary)))
    if page is not None:
        fill_table(page, folder, markdown(summary) + "\n")


STORED = (
    "worlds.jsonl",
    "traces.json",
    "summary.json",
    "report.html",
    "figures/returns.svg",
    "figures/finds_out.svg",
)


def store(folder: Path, to: Path) -> None:
    """Copy what a table is made of, without weights; episodes are packed."""
    to.mkdir(parents=True, exist_ok=True)
    write_lines(to / "episodes.jsonl.gz", read_jsonl(folder / "episodes.jsonl"))
    for name in STORED:
        if (folder / name).exists():
            write_text(to / name, (folder / name).read_text(encoding="utf-8"))
