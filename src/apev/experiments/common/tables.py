"""From episode records to tables: what `summary.json` says, and how a terminal or a README shows it."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from apev.agents import ALGORITHMS
from apev.experiments.common.statistics import paired_difference, success_interval
from apev.files import MOST_JSON, FileError, inside, parse_json, read_json, read_lines, reading, regular, write_text
from apev.terminal import markup, plain

AGAIN = "make the folder again (`apev demo`, `apev reproduce`), or copy it again from where it was made"
REMAKE = "delete it to have it remade from episodes.jsonl, or copy it again from where it was made"
NEEDS = {"stalled": 112, "episodes": 112, "mean steps": 98, "APE-V's lead": 86}
"""Columns that a terminal narrower than so many characters does without."""

Record = Mapping[str, Any]
Rows = list[list[str]]  # a table of text, the first row its heading

# Table order, and what people read instead of the names in the files. Other policies follow under their raw name.
POLICY_NAMES = {
    "oracle": "Blind exact search",
    "ape-v": ALGORITHMS["ape-v"].label,
    "ape-v-committed": "APE-V, committed",
    "ape-v-greedy": "APE-V, greedy",
    "ape-v-td3-bc": "APE-V on TD3+BC",
    "ape-v-printed": "APE-V as printed",
    "ape-v-no-floor": "APE-V, no target floor",
    "ape-v-frozen": "APE-V, belief frozen",
    "ape-v-eval-only": "APE-V, eval only",
    "ape-v-eval-only-printed": "APE-V, eval only as printed",
    "ape-v-eval-only-committed": "APE-V, eval only, committed",
    "random-member": "Random member",
    "random-member-step": "Random member a step",
    "average": "Average ensemble",
    "average-greedy": "Average ensemble, greedy",
    "single": "Single network",
} | {name: ALGORITHMS[name].label for name in ("lcb", "sac-n", "edac", "cql", "iql", "rem", "sac", "bc")}


def display_name(policy: str) -> str:
    """The name people read; a policy we don't know keeps its own."""
    if policy in POLICY_NAMES:
        return POLICY_NAMES[policy]
    return ALGORITHMS[policy].label if policy in ALGORITHMS else policy


def table_order(policies: Iterable[str]) -> list[str]:
    """Known policies in the order of the paper's comparison, then the others as they came."""
    found = list(dict.fromkeys(policies))
    return [p for p in POLICY_NAMES if p in found] + [p for p in found if p not in POLICY_NAMES]


def summarise(episodes: Iterable[Record]) -> dict[str, dict[str, Any]]:
    """The "policies" part of `summary.json`: success with its interval, mean length and return, stalled share.

    "lead" is APE-V's over the policy, on the same photographs from the same starts: such pairs tell policies apart whose
    own intervals overlap.
    """
    by_policy = _by_policy(episodes)
    ours = paired_values(by_policy.get("ape-v", []))
    summary: dict[str, dict[str, Any]] = {}
    for policy in table_order(by_policy):
        rows = by_policy[policy]
        success, interval = _success(rows)
        summary[policy] = {
            "success": success,
            "ci95": interval,
            "episodes": len(rows),
            "mean_length": float(np.mean([r["length"] for r in rows])),
            "mean_return": float(np.mean([r["return"] for r in rows])),
            "stalled": float(np.mean([bool(r.get("stalled", False)) for r in rows])),
            "seeds": len({r["seed"] for r in rows}),
        }
        theirs = {} if policy == "ape-v" else paired_values(rows)
        if ours.keys() & theirs.keys():
            lead = paired_difference(ours, theirs)
            summary[policy]["lead"] = {"mean": lead.mean, "ci95": [lead.low, lead.high]}
    return summary


def success_by_members_correct(episodes: Iterable[Record]) -> dict[str, list[dict[str, Any]]]:
    """Success of each policy where exactly c of its members point at the right door (the paper's figure).

    Policies without members (`members_correct` is null) are left out, and so are counts that never occurred.
    """
    by_policy = _by_policy(r for r in episodes if r.get("members_correct") is not None)
    result: dict[str, list[dict[str, Any]]] = {}
    for policy in table_order(by_policy):
        groups: dict[int, list[Record]] = {}
        for row in by_policy[policy]:
            groups.setdefault(int(row["members_correct"]), []).append(row)
        result[policy] = []
        for correct, rows in sorted(groups.items()):
            success, interval = _success(rows)
            result[policy].append({"correct": correct, "success": success, "ci95": interval, "episodes": len(rows)})
    return result


def paired_values(rows: Iterable[Record]) -> dict[tuple[int, int], float]:
    """Success for each (seed, picture) of one policy's episodes: what `paired_difference` takes."""
    values: dict[tuple[int, int], list[float]] = {}
    for row in rows:
        if row.get("picture") is not None:
            values.setdefault((int(row["seed"]), int(row["picture"])), []).append(float(row["success"]))
    return {key: float(np.mean(v)) for key, v in values.items()}


def print_table(summary: Record, console: Console | None = None) -> None:
    """Print the table of `summary.json` to the terminal; a narrow one shows fewer columns, and the policies' names whole."""
    console = console or Console()
    columns = _columns(summary)
    left_out = [column for column, least in NEEDS.items() if console.width < least]
    shown = [i for i, column in enumerate(columns) if column not in left_out]
    table = Table(
        title=markup(str(summary.get("title", ""))) or None, header_style="bold", box=box.SIMPLE, padding=(0, 1, 0, 0)
    )
    table.add_column("policy", no_wrap=console.width >= 60)
    for i in shown:
        table.add_column(columns[i], justify="right", no_wrap=True)
    for policy, cells in _rows(summary):
        table.add_row(markup(display_name(policy)), *(cells[i] for i in shown), style="bold" if policy == "ape-v" else None)
    console.print(table)


def markdown_table(summary: Record) -> str:
    """The same table for a README."""
    return markdown_rows(
        [["policy", *_columns(summary)], *([display_name(policy), *cells] for policy, cells in _rows(summary))]
    )


def markdown_rows(rows: Rows) -> str:
    """A table for a Markdown page: names to the left, numbers to the right."""
    heading, *body = [[markdown_cell(cell) for cell in row] for row in rows]
    lines = ["| " + " | ".join(heading) + " |", "|---|" + "--:|" * (len(heading) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in body]) + "\n"


def markdown_cell(text: str) -> str:
    """Text as a cell of a Markdown table, which it neither ends nor fills with tags."""
    return re.sub(r"<(?=[a-zA-Z/!?])", "&lt;", plain(text).replace("|", "\\|"))


def fill_table(page: str | Path, folder: str | Path, table: str | None = None) -> None:
    """Put the table of a results folder between its markers, `<!-- table: FOLDER -->` and `<!-- /table -->`, in a page."""
    page, begin, end = Path(page), f"<!-- table: {Path(folder).as_posix()} -->\n", "<!-- /table -->"
    before, found, rest = read_page(page).partition(begin)
    if not found or end not in rest:
        raise ValueError(f"{page} has no table of {folder}. Fix: put the lines {begin.strip()} and {end} where it belongs.")
    table = markdown_table(read_folder(folder).summary) if table is None else table
    write_text(page, before + begin + table + rest[rest.index(end) :])


def read_page(page: Path) -> str:
    """The text of a Markdown page."""
    with reading(page, "name a Markdown page, as UTF-8 text"):
        return regular(page).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Results:
    """Everything a results folder holds; what it lacks is empty or None."""

    folder: Path
    summary: dict[str, Any]
    episodes: list[dict[str, Any]]
    curves: list[dict[str, Any]]
    replays: dict[str, Any] | None

    def part(self, name: str) -> AbstractContextManager[None]:
        """Whatever is wrong with what a file of the folder tells, while it is drawn, is said of that file."""
        return reading(stored(self.folder, name) or self.folder / name, AGAIN)


def read_folder(folder: str | Path) -> Results:
    """Read a results folder. `summary.json` is remade from the episodes when only they are there."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; `apev demo --out {folder}` makes one")
    episodes = _read_optional(folder, "episodes.jsonl")
    path = stored(folder, "summary.json")
    if path is not None:
        summary = read_json(path, fix=REMAKE)
        if not isinstance(summary.get("policies"), dict):
            raise FileError(path, 'has no "policies"', REMAKE)
        with reading(path, REMAKE):
            _check_table(summary)
    elif episodes:
        with reading(stored(folder, "episodes.jsonl") or folder, AGAIN):
            summary = {"title": folder.resolve().name, "policies": summarise(episodes), "meta": {}}
    else:
        raise FileNotFoundError(
            f"{folder} holds neither summary.json nor episodes.jsonl: not a results folder; "
            "`apev demo` and `apev reproduce` write one"
        )
    replays = stored(folder, "replays.json")
    return Results(
        folder,
        summary,
        episodes,
        _read_optional(folder, "curves.jsonl"),
        None if replays is None else read_json(replays, fix=AGAIN),
    )


def _check_table(summary: Record) -> None:
    """Make the table of a summary, so that one it cannot be made of is refused where it is read."""
    if "mazes" in summary:
        from apev.experiments.procgen.report import table_rows

        table_rows(summary)
        table_rows(summary, ablation=True)
    else:
        list(_rows(summary))


NUMBER = (int, float)


def check_lines(path: Path, lines: Iterable[Record], kinds: Mapping[str, type | tuple[type, ...]]) -> None:
    """Each line of a file has these entries, each of its kind."""
    for number, line in enumerate(lines, start=1):
        for name, kind in kinds.items():
            if not isinstance(line.get(name), kind):
                raise FileError(path, f"line {number} says {name} {line.get(name)!r:.80}", AGAIN)


def stored(folder: str | Path, name: str) -> Path | None:
    """The file of this name in a results folder, or its packed form; None if there is neither."""
    folder = Path(folder)
    found = next((each for each in (name, f"{name}.gz") if (folder / each).is_file()), None)
    return None if found is None else inside(folder, found)


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """One dict a line, from a plain or gzipped (`.gz`) file."""
    path = Path(path)
    if path.suffix != ".gz":
        return read_lines(path)
    with reading(path, AGAIN), gzip.open(regular(path), "rb") as file:
        text = file.read(MOST_JSON + 1)
    if len(text) > MOST_JSON:
        raise FileError(path, f"unpacks to more than {MOST_JSON:,} bytes", "check where it comes from")
    lines = []
    for number, line in enumerate(text.split(b"\n"), start=1):
        if line.strip():
            try:
                lines.append(parse_json(line, path, fix=AGAIN))
            except FileError as error:
                raise FileError(path, f"line {number} {error.problem}", error.fix) from error
    return lines


def _read_optional(folder: Path, name: str) -> list[dict[str, Any]]:
    found = stored(folder, name)
    return read_jsonl(found) if found else []


def _by_policy(episodes: Iterable[Record]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for row in episodes:
        groups.setdefault(str(row["policy"]), []).append(row)
    return groups


def _success(rows: list[Record]) -> tuple[float, list[float]]:
    """Success rate and its 95% interval, from each seed's outcomes and photographs."""
    if any(r["success"] is None for r in rows):
        raise ValueError("these episodes know no success, only returns. Fix: `apev report` prints those.")
    by_seed: dict[int, list[Record]] = {}
    for row in rows:
        by_seed.setdefault(int(row["seed"]), []).append(row)
    outcomes = [[float(r["success"]) for r in seed] for seed in by_seed.values()]
    pictures = None
    if all(r.get("picture") is not None for r in rows):
        pictures = [[int(r["picture"]) for r in seed] for seed in by_seed.values()]
    low, high = success_interval(outcomes, pictures)
    return float(np.mean([float(r["success"]) for r in rows])), [low, high]


def _columns(summary: Record) -> list[str]:
    led = any("lead" in p for p in summary["policies"].values())
    return ["success", "95% interval", *(["APE-V's lead"] if led else []), "mean steps", "stalled", "episodes"]


def _rows(summary: Record) -> Iterator[tuple[str, list[str]]]:
    policies = summary["policies"]
    for policy in table_order(policies):
        p = policies[policy]
        low, high = p["ci95"]
        steps = f"{p['mean_length']:.1f}" if "mean_length" in p else ""
        stalled = f"{p['stalled']:.1%}" if "stalled" in p else ""
        cells = [f"{p['success']:.3f}", f"{low:.3f} – {high:.3f}"]
        if "APE-V's lead" in _columns(summary):
            lead = p.get("lead")
            cells.append(f"{lead['mean']:+.3f} ({lead['ci95'][0]:+.3f} to {lead['ci95'][1]:+.3f})" if lead else "")
        yield policy, [*cells, steps, stalled, f"{p['episodes']:,}"]
