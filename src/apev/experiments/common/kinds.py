"""What kind of result a folder holds, as its `summary.json` says, and who reports on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from apev.experiments.common.tables import AGAIN, stored
from apev.files import FileError, read_json

KINDS = ("locked-doors", "procgen", "d4rl", "theory", "fleet", "bases")
_OLDER = {"claims": "theory", "mazes": "procgen", "task": "d4rl", "policies": "locked-doors"}  # summaries without a kind


def kind_of(folder: Path) -> str | None:
    """The kind of a results folder; None if it has no summary, and nothing to make one from."""
    path = stored(folder, "summary.json")
    if path is None:
        started = {"task.json": "d4rl", "episodes.jsonl": "locked-doors"}
        return next((kind for name, kind in started.items() if stored(folder, name) is not None), None)
    summary = read_json(path, fix=AGAIN)
    kind = summary.get("kind", next((kind for key, kind in _OLDER.items() if key in summary), None))
    if kind not in KINDS:
        raise FileError(path, f"is of kind {kind!r:.80}", f"one of {', '.join(KINDS)}, or a newer apev")
    return str(kind)


def show(folder: Path, page: Path | None = None) -> None:
    """Print the tables of a folder, write its page and figures, and refresh a Markdown page that quotes it."""
    kind = kind_of(folder)
    if kind is None:
        raise FileNotFoundError(
            f"{folder} holds no results. Fix: name a folder that `apev demo`, `apev reproduce` or `apev train` made."
        )
    _reporter(kind)(folder, page)


def _reporter(kind: str) -> Callable[[Path, Path | None], None]:
    """Who prints the tables of a kind, writes report.html and fills a Markdown page."""
    from apev.experiments.bases import report as bases
    from apev.experiments.d4rl import page as d4rl
    from apev.experiments.fleet import report as fleet
    from apev.experiments.locked_doors import page as locked_doors
    from apev.experiments.procgen import report as procgen
    from apev.experiments.theory import report as theory

    shows = {"locked-doors": locked_doors.show, "procgen": procgen.show, "d4rl": d4rl.show, "theory": theory.show}
    return (shows | {"fleet": fleet.show, "bases": bases.show})[kind]
