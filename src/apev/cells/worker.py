"""A process that does cells: `python -m apev.cells.worker`, started by `apev.cells.local`.

It reads a cell a line, and writes what happens as JSON lines. Nothing else gets into that pipe: whatever prints to stdout by
itself is led to stderr. When whoever started it is gone, it saves and stops.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from apev.cells.cell import Cell, performed


def main() -> None:
    """Do cells until there are no more."""
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    alone = False

    def send(message: dict[str, Any]) -> None:
        nonlocal alone
        if alone:
            return
        try:
            pipe.write(json.dumps(message) + "\n")
            pipe.flush()
        except BrokenPipeError:
            alone = True
            os.kill(os.getpid(), signal.SIGTERM)

    for line in sys.stdin:
        send({"began": "begins"})
        outcome = performed(Cell.of_json(json.loads(line)), send)
        send({"ended": vars(outcome)})
        if alone:
            break


if __name__ == "__main__":
    main()
