"""What people see of `apev reproduce procgen`: the table with the paper's numbers beside, and a page with replays."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from apev.experiments.common.html import asset, embed, escaped, header, html_table, left_out, made, section, whole_page
from apev.experiments.common.statistics import paired_difference, success_interval
from apev.experiments.common.tables import Record, Results, Rows, markdown_rows, read_folder, read_page
from apev.files import write_text
from apev.terminal import markup

NAMES = {
    "ape-v-best": "Average ensemble, eight views, belief and memory",
    "ape-v": "APE-V, printed filter",
    "single": "Single network",
    "conservative": "Conservative (LCB) ensemble",
    "average": "Average ensemble",
    "random-walk": "Random walk",
    "dfs": "Depth-first search, sees walls",
}
"""The rows of the main table, in order; all others are the ablation's."""

PAPER = {
    200: {"single": (0.96, 0.24), "conservative": (0.96, 0.23), "ape-v": (0.97, 0.31)},
    1000: {"single": (0.93, 0.75), "conservative": (0.93, 0.75), "ape-v": (0.92, 0.79)},
}
"""The paper's Table 2, (train, test); its mode is not given, its number of transitions fits hard."""

IDEAS = (
    ("our network and loss, and symmetries", "average", "published network and loss, average"),
    ("the printed filter over APE-V's two members", "ape-v", "ape-v, frozen"),
    ("a calibrated belief over the average's two members", "average, adapting", "average"),
    ("eight views", "eight views, frozen", "average"),
    ("a belief over eight views", "eight views, adapting", "eight views, frozen"),
    ("a random member a step instead of that belief", "eight views, random member a step", "eight views, adapting"),
    ("drawn actions instead of that belief", "eight views, frozen, drawn", "eight views, adapting"),
    ("that belief, where actions are drawn", "eight views, adapting, drawn", "eight views, frozen, drawn"),
    ("memory", "memory, eight views, frozen", "eight views, frozen"),
    ("a belief, where there is memory", "ape-v-best", "memory, eight views, frozen"),
    ("training, where there is memory", "memory, eight views, frozen", "memory, untrained networks"),
)
"""What each idea brings: its name, a policy that has it, and the same one without."""

DISTANCES = ((1, 10), (11, 20), (21, 40), (41, 10_000))
SIZES = ((3, 7), (9, 13), (15, 19), (21, 25))
LEAD = (
    "A mouse looks for cheese in mazes it has never seen. Its networks have only learned from logs of other mazes, and some of "
    "what they expect of this one is wrong. Where its steps lead changes whom it believes, and the first row remembers them. "
    "The second table takes that apart: memory alone is a search that needs no learning; networks say where to search first."
)


def summarise_mazes(episodes: Iterable[Record]) -> dict[str, dict[str, Any]]:
    """The "policies" of `summary.json`: by policy and split (train, test) success with its interval, loops, kinds of mazes."""
    parts: dict[tuple[str, str], list[Record]] = {}
    for row in episodes:
        parts.setdefault((str(row["policy"]), str(row["split"])), []).append(row)
    names = [*NAMES, *(name for name, _ in parts if name not in NAMES)]
    policies: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(names):
        for split in ("train", "test"):
            if (name, split) in parts:
                policies.setdefault(name, {})[split] = _numbers(parts[name, split])
    return policies


def _numbers(rows: list[Record]) -> dict[str, Any]:
    failed = [r for r in rows if not r["success"]]
    return _success(rows) | {
        "mean_length": float(np.mean([r["length"] for r in rows])),
        "failed_in_loop": float(np.mean([r["loop"] for r in failed])) if failed else None,
        "failed_confined": float(np.mean([r["confined"] for r in failed])) if failed else None,
        "by_size": _by(rows, "size", SIZES),
        "by_distance": _by(rows, "distance", DISTANCES),
        "seeds": len({r["seed"] for r in rows}),
    }


def _by(rows: list[Record], key: str, bins: Iterable[tuple[int, int]]) -> dict[str, dict[str, Any]]:
    found = {}
    for low, high in bins:
        some = [r for r in rows if low <= r[key] <= high]
        if some:
            found[f"{low}-{high}" if high < 10_000 else f"{low}+"] = _success(some)
    return found


def _success(rows: list[Record]) -> dict[str, Any]:
    seeds = sorted({int(r["seed"]) for r in rows})
    by_seed = [[r for r in rows if r["seed"] == seed] for seed in seeds]
    low, high = success_interval(
        [[float(r["success"]) for r in part] for part in by_seed], [[int(r["level"]) for r in part] for part in by_seed]
    )
    mean = float(np.mean([bool(r["success"]) for r in rows]))
    return {"success": mean, "ci95": [low, high], "episodes": len(rows)}


# ---------------------------------------------------------------------- the table


def show(folder: Path, page: Path | None) -> None:
    """Print the tables, write the page, and refresh a Markdown page."""
    print_mazes(read_folder(folder).summary)
    print(write_mazes(folder))
    if page is not None:
        fill_mazes(page, folder)


HEADING = [
    "policy",
    "test success",
    "95% interval",
    "mean steps",
    "train success",
    "failures in a loop",
    "confined",
    "paper, mode unknown",
]


def table_rows(summary: Mapping[str, Any], ablation: bool = False) -> Rows:
    """The main table, or the ablation's, as text; the first row is the heading. Paper: its test success (and train)."""
    paper = PAPER.get(summary["mazes"]["levels"], {})
    rows = [HEADING if not ablation else HEADING[:4] + HEADING[5:7]]
    for name, parts in summary["policies"].items():
        if (name in NAMES) == ablation or "test" not in parts:
            continue
        test, seen = parts["test"], parts.get("train")
        low, high = test["ci95"]
        row = [NAMES.get(name, name), f"{test['success']:.3f}", f"{low:.3f}–{high:.3f}", f"{test['mean_length']:.0f}"]
        row += [] if ablation else ["" if seen is None else f"{seen['success']:.3f}"]
        row += ["" if test[key] is None else f"{test[key]:.0%}" for key in ("failed_in_loop", "failed_confined")]
        row += [] if ablation else [f"{paper[name][1]:.2f} ({paper[name][0]:.2f})" if name in paper else ""]
        rows.append(row)
    return rows


def kind_rows(summary: Mapping[str, Any], kind: str) -> Rows:
    """Test success of the main table's policies by size or by distance."""
    policies = {name: p["test"][kind] for name, p in summary["policies"].items() if name in NAMES and "test" in p}
    bins = list(dict.fromkeys(label for found in policies.values() for label in found))
    counts = {label: next(p[label]["episodes"] for p in policies.values() if label in p) for label in bins}
    rows = [["policy", *(f"{label} (n = {counts[label]})" for label in bins)]]
    for name, found in policies.items():
        rows.append([NAMES[name], *(f"{found[label]['success']:.2f}" if label in found else "" for label in bins)])
    return rows


def idea_rows(episodes: Iterable[Record]) -> Rows:
    """What each idea changes in the same test levels and seeds, with its interval: success, and steps."""
    success: dict[str, dict[tuple[int, int], float]] = {}
    steps: dict[str, dict[tuple[int, int], float]] = {}
    for row in episodes:
        if row["split"] == "test":
            key = int(row["seed"]), int(row["level"])
            success.setdefault(row["policy"], {})[key] = float(row["success"])
            steps.setdefault(row["policy"], {})[key] = float(row["length"])
    rows = [["idea", "success", "95% interval", "steps", "95% interval of steps"]]
    for idea, having, lacking in IDEAS:
        if having in success and lacking in success:
            a, b = (paired_difference(found[having], found[lacking]) for found in (success, steps))
            rows.append(
                [idea, f"{a.mean:+.3f}", f"{a.low:+.3f} to {a.high:+.3f}", f"{b.mean:+.0f}", f"{b.low:+.0f} to {b.high:+.0f}"]
            )
    return rows


def print_mazes(summary: Mapping[str, Any], console: Console | None = None) -> None:
    """Print both tables to the terminal, without the column "confined": eighty characters are few."""
    for ablation, title in ((False, str(summary.get("title", ""))), (True, "more policies, on test levels")):
        heading, *rows = table_rows(summary, ablation)
        shown = [i for i, name in enumerate(heading) if name != "confined"]
        if rows:
            table = Table(title=markup(title), header_style="bold", box=box.SIMPLE, padding=(0, 1, 0, 0))
            for i in shown:
                table.add_column(
                    heading[i].replace(" ", "\n") if i else heading[i], justify="right" if i else "left", no_wrap=i > 0
                )
            for row in rows:
                table.add_row(*(markup(row[i]) for i in shown))
            (console or Console()).print(table)


FILES = {"ideas": "episodes.jsonl"}  # what a block is made of, where it is not the summary
BLOCKS: dict[str, Callable[[Results], Rows]] = {
    "table": lambda results: table_rows(results.summary),
    "ideas": lambda results: idea_rows(results.episodes),
    "ablation": lambda results: table_rows(results.summary, ablation=True),
    "size": lambda results: kind_rows(results.summary, "by_size"),
    "distance": lambda results: kind_rows(results.summary, "by_distance"),
}


def fill_mazes(page: str | Path, folder: str | Path) -> None:
    """Refresh the blocks `<!-- table: FOLDER -->` (or ideas, ablation, size, distance) of a Markdown page."""
    page, name = Path(page), Path(folder).as_posix()
    results, text = read_folder(folder), read_page(page)
    pattern = re.compile(rf"(<!-- ({'|'.join(BLOCKS)}): {re.escape(name)} -->\n).*?(<!-- /\2 -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"{page} has no block of {name}. Fix: put the lines <!-- table: {name} --> and <!-- /table --> there.")

    def fill(match: re.Match[str]) -> str:
        with results.part(FILES.get(match[2], "summary.json")):
            return match[1] + markdown_rows(BLOCKS[match[2]](results)) + match[3]

    write_text(page, pattern.sub(fill, text))


# ---------------------------------------------------------------------- the page


def write_mazes(folder: str | Path) -> Path:
    """Write report.html of a folder."""
    folder = Path(folder)
    results = read_folder(folder)
    with results.part("episodes.jsonl"):
        ideas = idea_rows(results.episodes)
    with results.part("replays.json"):
        replays = _replays(results.replays)
    with results.part("summary.json"):
        text = _page(results.summary, ideas, replays)
    page = folder / "report.html"
    write_text(page, text)
    return page


def _page(summary: Mapping[str, Any], ideas: Rows, replays: str) -> str:
    """The page as a string."""
    title = str(summary["title"])
    known = summary["mazes"].get("known_tests")
    shared = (
        "" if known is None else f" {known:.1%} of the test levels happen to have the walls and cheese of a training level."
    )
    tables = (
        (
            "table",
            "Success",
            "Within 500 steps; a failure counts 500. Loop: the last 100 steps repeat themselves. "
            f"Confined: they stay within 8 cells.{shared}",
            table_rows(summary),
        ),
        (
            "ideas",
            "What each idea brings",
            "A policy that has it less the same one without, in the same test levels.",
            ideas,
        ),
        (
            "ablation",
            "More policies",
            "On test levels. Rows that do not name other networks ask those of the average ensemble.",
            table_rows(summary, ablation=True),
        ),
        ("distance", "By distance to the cheese", "", kind_rows(summary, "by_distance")),
        ("size", "By size of the maze", "", kind_rows(summary, "by_size")),
    )
    sections = [
        header(title, LEAD, _headline(summary["policies"])),
        replays,
        *(section(name, heading, note, html_table(rows)) for name, heading, note, rows in tables),
        made(summary.get("meta") or {}),
    ]
    return whole_page(title, sections, asset("apev.experiments.procgen", "mazes.js"))


def _headline(policies: Mapping[str, Any]) -> str:
    """Success and steps with views, belief and memory, without belief and memory, and of memory without training."""
    shown = {
        "ape-v-best": "views, belief and memory",
        "eight views, frozen": "the same networks, frozen and without memory",
        "memory, untrained networks": "untrained networks with the same memory",
    }
    items = ""
    for name, words in shown.items():
        test = policies.get(name, {}).get("test")
        if test is not None:
            low, high = test["ci95"]
            hero = ' class="hero"' if name == "ape-v-best" else ""
            items += (
                f"<li{hero}><b>{test['success']:.1%}</b>{words}<br>95% interval {low:.1%} – {high:.1%}, "
                f"{test['mean_length']:.0f} steps on average</li>"
            )
    return f'<ul class="headline">{items}</ul>' if items else ""


def _replays(data: Mapping[str, Any] | None) -> str:
    replays = (data or {}).get("replays") or []
    if not replays:
        return left_out("replay", "Watch it think", "This folder has no replays.")
    options = "".join(f'<option value="{i}">{escaped(_replay_name(i, r))}</option>' for i, r in enumerate(replays))
    return f"""<section id="replay" aria-labelledby="replay-title">
<div class="replay-top"><div><h2 id="replay-title">Watch it think</h2>
<p class="note">Mazes chosen because belief and memory solve them and the networks alone do not, and one that they fail. The
trail has the colour of the member most believed in; rings mark where that changes.</p></div>
<label class="pick"><span class="note">Episode</span>
<select id="maze-select" autocomplete="off">{options}</select></label></div>
<div class="stage"><svg id="maze-board" role="img" aria-label="the maze with the mouse, its trail and the cheese"></svg>
<div><p class="panel-title">Belief in each member, step by step</p>
<svg id="maze-belief" role="img" aria-label="belief over time"></svg>
<p class="note" id="maze-told" aria-live="polite"></p>
<label><span class="note">Step</span> <input type="range" id="maze-step" min="0" value="0" style="width:100%"></label>
<p><button id="maze-play" type="button">Play</button></p></div></div>
<script type="application/json" id="maze-data">{embed({"replays": replays})}</script></section>"""


def _replay_name(index: int, replay: Mapping[str, Any]) -> str:
    end = f"found in {replay['length']} steps" if replay["success"] else "not found"
    changes = sum(a != b for a, b in zip(replay["trusted"][1:], replay["trusted"][:-1], strict=True))
    name = NAMES.get(replay["policy"], replay["policy"])
    return f"{index + 1}. {name}, level {replay['level']}: {end}, {changes} changes of mind"
