"""How often the search for kinds says "one kind" of logs that hold one: python benchmarks/verdicts.py cartpole pendulum LOG.npz

Each log is searched with `--seeds` seeds, which decide folds, starts and networks. Names without a suffix are our examples.
The last line is JSON with the number of kinds found for each log and seed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from apev.data import Dataset
from apev.experiments.common.provenance import keep_answer
from apev.worlds import kinds

QUIET = Console(quiet=True)


def main() -> None:
    """Search, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", help="files, or names of examples")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    found: dict[str, list[int]] = {}
    for name in asked.logs:
        log = Dataset.load(name) if Path(name).suffix else Dataset.example(name)
        own = found.setdefault(Path(name).name, [])
        for seed in range(asked.seeds):
            own.append(kinds(log, seed=seed, console=QUIET).count)
            print(f"{Path(name).name}, seed {seed}: {own[-1]}", flush=True)
    answer = {"benchmark": "verdicts", "kinds": found, "one_kind": {name: own.count(1) for name, own in found.items()}}
    keep_answer(asked.out, answer)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
