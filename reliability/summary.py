"""One page of numbers from the three harnesses: python reliability/summary.py

Reads fuzz.json, chaos.json and soak.json of a folder, those that are there, and writes summary.json beside them. The last line
is JSON; the exit code is 1 if any of the three found something wrong.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from common import keep, tell
from tries import BAD, CLASSES

SOAK = (
    "environments", "steps", "seed", "policies", "acts", "accepted", "refused", "accepted_invalid", "extreme_accepted",
    "extreme_refused", "resets", "broken", "memory_flat", "growth_mb",
)  # fmt: skip
LONG = ("lost_runs", "meta")  # of chaos.json


@dataclass(frozen=True)
class Options:
    """Merge what the three harnesses found."""

    folder: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("results/reliability")
    """Where fuzz.json, chaos.json and soak.json are, and summary.json goes."""


def merge(folder: Path) -> dict[str, Any]:
    """What there is of the three, in one, and where each comes from."""
    found: dict[str, dict[str, Any]] = {}
    for name in ("fuzz", "chaos", "soak"):
        path = folder / f"{name}.json"
        if path.is_file():
            found[name] = json.loads(path.read_text(encoding="utf-8"))
        else:
            tell(f"{path} is not there yet: python reliability/{name}.py --out {path}")
    summary: dict[str, Any] = {}
    if "fuzz" in found:
        summary["fuzz"] = {name: found["fuzz"][name] for name in ("tries", *CLASSES, "unnoticed_damage", "seed", "limits")}
    if "chaos" in found:
        summary["kills"] = {name: value for name, value in found["chaos"].items() if name not in LONG}
    if "soak" in found:
        summary["soak"] = {name: found["soak"][name] for name in SOAK}
    return summary | {
        "made_by": {name: {key: part["meta"][key] for key in ("command", "commit")} for name, part in found.items()}
    }


def sound(summary: dict[str, Any]) -> bool:
    """Whether nothing was found."""
    fuzz, kills, soak = (summary.get(name) for name in ("fuzz", "kills", "soak"))
    harmless = not fuzz or not any(fuzz[name] for name in (*BAD, "unnoticed_damage"))
    kept = not kills or (not kills["lost"] and kills["bit_equal"])
    return harmless and kept and (not soak or (not soak["broken"] and soak["memory_flat"]))


def main(options: Options) -> None:
    """Merge, write, and end with the line of JSON."""
    summary = merge(options.folder)
    keep(options.folder / "summary.json", summary, "python reliability/summary.py")
    print(json.dumps({name: summary[name] for name in ("fuzz", "kills", "soak") if name in summary}))
    if not sound(summary):
        sys.exit(1)


if __name__ == "__main__":
    main(tyro.cli(Options, description=Options.__doc__))
