"""The fleet's table: what each policy returns, how much of the gap between blind and knowing it recovers, the worst kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from apev.agents import ALGORITHMS
from apev.data.scores import ROBOTS
from apev.experiments.common.tables import AGAIN, Rows, fill_table, markdown_rows, read_jsonl, stored
from apev.experiments.fleet.figures import label
from apev.experiments.fleet.page import write_page
from apev.experiments.fleet.worlds import WORLDS, World
from apev.files import read_json, reading, write_json, write_lines, write_text
from apev.terminal import markup

ORDER = (
    "knows the kind",
    "labels given",
    "adaptive",
    "adaptive, episode",
    "adaptive, forgetting",
    "adaptive, td",
    "adaptive, both",
    "adaptive, committed",
    "adaptive, held",
    "as printed",
)
DRAWS = 4000
BELIEVING = ("adaptive", "labels")  # rows that tell when the belief was sure


def write_summary(folder: Path, meta: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Compute summary.json from the files in the folder; `meta` names the world where there is no summary yet."""
    old = read_json(folder / "summary.json") if (folder / "summary.json").exists() else {}
    path = stored(folder, "episodes.jsonl") or folder / "episodes.jsonl"
    episodes = read_jsonl(path)
    found = read_jsonl(folder / "worlds.jsonl") if (folder / "worlds.jsonl").exists() else []
    made = read_jsonl(folder / "made.jsonl") if (folder / "made.jsonl").exists() else []
    with reading(path, AGAIN):
        world = WORLDS[(old or dict(meta or {}))["world"]]
        summary = {"kind": "fleet", "world": world.name, "title": world.title} | numbers(world, episodes, found)
    with reading(folder / "made.jsonl", AGAIN):
        told = dict(meta) if meta is not None else old.get("meta", {})
        summary["meta"] = told | (how_made(made) | {"seeds": sorted({int(line["seed"]) for line in episodes})} if made else {})
    write_json(folder / "summary.json", summary)
    return summary


def how_made(made: list[dict[str, Any]]) -> dict[str, Any]:
    """Of trainings and rollouts, which may be of several commands and commits: all of them, and those of each run."""
    runs: dict[str, dict[str, Any]] = {}
    for line in made:
        name = f"{line['cell']}-s{line['seed']}" if "seed" in line else str(line["cell"])
        own = runs.setdefault(name, {"commits": [], "seconds": 0.0, "test_seconds": 0.0})
        own["test_seconds" if "rows" in line else "seconds"] += float(line["seconds"])
        own |= {key: line[key] for key in ("updates", "steps") if key in line}
        if line["commit"] not in own["commits"]:
            own["commits"].append(line["commit"])
    versions = {key: made[-1][key] for key in ("version", "python", "torch", "numpy")}
    commands, commits = (list(dict.fromkeys(str(line[key]) for line in made)) for key in ("command", "commit"))
    seconds = round(sum(float(line["seconds"]) for line in made))
    told: dict[str, Any] = {"command": " && ".join(commands), "commit": ", ".join(commits), "seconds": seconds}
    return told | versions | {"runs": runs}


def numbers(world: World, episodes: list[dict[str, Any]], found: list[dict[str, Any]]) -> dict[str, Any]:
    """What summary.json says."""
    names = sorted({line["policy"] for line in episodes}, key=lambda name: (rank(name), name))
    policies = {name: policy_numbers(name, [line for line in episodes if line["policy"] == name]) for name in names}
    means = {name: float(row["return"]) for name, row in policies.items()}
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
    summary: dict[str, Any] = {
        "worlds": worlds,
        "policies": policies,
        "recovered": recovered,
        "best_blind": {"policy": max(blind, key=lambda name: blind[name]) if blind else None, "return": best_blind},
        "exact": dict(world.exact),
    }
    if world.gate is not None and best_blind is not None and "knows the kind" in means:
        low, high = ROBOTS["halfcheetah"]
        points = 100 * (means["knows the kind"] - best_blind) / (high - low)
        summary["gate"] = {"needed": world.gate, "points": points, "met": points >= world.gate}
    return summary


def policy_numbers(name: str, own: list[dict[str, Any]]) -> dict[str, Any]:
    """What is said of a policy, from its episodes."""
    seeds = by_seed(own)
    kinds = {k: float(np.mean([o["return"] for o in own if o["kind"] == k])) for k in sorted({o["kind"] for o in own})}
    row: dict[str, Any] = {
        "return": float(np.mean([np.mean(list(returns.values())) for returns in seeds.values()])),
        "ci95": list(interval(seeds)),
        "worst_kind": min(kinds.values()),
        "by_kind": kinds,
        "seeds": len(seeds),
        "episodes": len(own),
    }
    for key in ("return_after", "right"):
        values = [float(line[key]) for line in own if key in line]
        if values and (key != "right" or name.startswith(BELIEVING)):
            row[key] = float(np.mean(values))
    for key in ("steps_to_95", "steps_to_95_after"):
        steps = [np.inf if line[key] is None else line[key] for line in own if key in line]
        if steps and name.startswith(BELIEVING):
            median = float(np.median(steps))
            row[key] = None if np.isinf(median) else median
    return row


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
    draws = np.zeros(DRAWS)
    for _ in returns:
        drawn = rng.integers(len(returns), size=DRAWS)
        for seed, own in enumerate(returns):
            episodes = rng.integers(len(own), size=(int((drawn == seed).sum()), len(own)))
            draws[drawn == seed] += own[episodes].mean(1) / len(returns)
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def rank(name: str) -> int:
    """Where a row stands."""
    places = [place for place, start in enumerate(ORDER) if name.startswith(start)]
    return places[-1] if places else 20 if name.split(", ")[0] in ALGORITHMS else 15


def table(summary: Mapping[str, Any], width: int = 1000) -> Table:
    """For a terminal of so many characters; a narrow one does without the columns that tell least."""
    shown = Table(title=markup(summary["title"]), box=box.SIMPLE, padding=(0, 1, 0, 0), header_style="bold")
    every = rows(summary)
    wide = {column[0]: max(map(len, column)) + 2 for column in zip(*every, strict=True)}
    for name in LEAST_TOLD:
        if sum(wide.values()) > width:
            wide.pop(name, None)
    heading, *body = ([cell for name, cell in zip(every[0], row, strict=True) if name in wide] for row in every)
    shown.add_column(heading[0], no_wrap=True)
    for name in heading[1:]:
        shown.add_column(name, justify="right", no_wrap=True)
    for row in body:
        shown.add_row(*map(markup, row))
    return shown


# {key of a policy's numbers: its column}; columns that no policy has anything for are left out
MORE = {
    "return_after": "return after",
    "steps_to_95": "steps to 95%",
    "steps_to_95_after": "steps after",
    "right": "right at the end",
    "seeds": "seeds",
}
LEAST_TOLD = ("seeds", "right at the end", "worst kind", "95% interval", "steps to 95%", "recovered")


def rows(summary: Mapping[str, Any]) -> Rows:
    """Every policy, and what is known exactly."""
    heading, *policies = policy_rows(summary)
    exact = [[f"exact: {name}", f"{value:.1f}", *[""] * (len(heading) - 2)] for name, value in summary["exact"].items()]
    return [heading, *policies, *exact]


def policy_rows(summary: Mapping[str, Any]) -> Rows:
    """The heading, and a line a policy."""
    policies = summary["policies"].values()
    more = [key for key in MORE if key == "steps_to_95" or any(key in row for row in policies)]
    if len({row["seeds"] for row in policies}) == 1:  # said once, beside the table
        more.remove("seeds")
    heading = ["policy", "return", "95% interval", "recovered", "worst kind", *(MORE[key] for key in more)]
    return [heading, *(cells_of(name, row, summary, more) for name, row in summary["policies"].items())]


def cells_of(name: str, row: Mapping[str, Any], summary: Mapping[str, Any], more: Sequence[str]) -> list[str]:
    """One line of the table."""
    recovered = summary["recovered"].get(name)
    low, high = row["ci95"]
    digits = 0 if abs(row["return"]) >= 100 else 1
    numbers = [f"{row['return']:,.{digits}f}", f"{low:,.{digits}f} to {high:,.{digits}f}"]
    numbers += ["" if recovered is None else f"{recovered:.2f}", f"{row['worst_kind']:,.{digits}f}"]
    for key in more:
        value = row.get(key, "")
        if value == "" or value is None:
            numbers.append("" if value == "" else "never")
        else:
            numbers.append(f"{value:.0%}" if key == "right" else f"{value:,.{digits if key == 'return_after' else 0}f}")
    return [label(name), *numbers]


def markdown(summary: Mapping[str, Any]) -> str:
    """For a page of the docs."""
    return markdown_rows(policy_rows(summary)).rstrip("\n")


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
    console.print(table(summary, console.width))
    console.print(found_in_words(summary))
    if "gate" in summary:
        gate = summary["gate"]
        needed = f"{gate['needed']:g} were asked for: {'met' if gate['met'] else 'not met'}"
        console.print(f"knowing the kind is worth {gate['points']:.1f} normalised points; {needed}")
    print(write_page(folder, summary, rows(summary)))
    if page is not None:
        fill_table(page, folder, markdown(summary) + "\n")


STORED = (
    "worlds.jsonl",
    "made.jsonl",
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
