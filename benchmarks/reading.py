"""How much one has to read to follow one update of APE-V: the functions that `agent.update(batch)` enters, and their files.

Counted are functions and methods of `agents/`, `belief.py` and `nn/` as they are entered, each once. Left out are
`nn/kernels.py`, which nobody needs to read to understand an agent, what makes an object, and functions without a name.

    python benchmarks/reading.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import apev
from apev.agents import Agent, find
from apev.data import Dataset, Sampler

PACKAGE = Path(apev.__file__).parent
COUNTED = ("agents/", "belief.py", "nn/")
LEFT_OUT = ("nn/kernels.py",)


def entered(agent: Agent, batch: Any) -> list[tuple[str, str]]:
    """(file, function) of all that one update enters, in the order of their first call."""
    found: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(PACKAGE)):
            return
        file = Path(code.co_filename).relative_to(PACKAGE).as_posix()
        makes = code.co_name in ("__init__", "__post_init__")
        if file.startswith(COUNTED) and file not in LEFT_OUT and not makes and "<" not in code.co_name:
            found.setdefault((file, code.co_qualname))

    sys.setprofile(note)
    try:
        agent.update(batch)
    finally:
        sys.setprofile(None)
    return list(found)


def count(log: Dataset, base: str | None = None) -> dict[str, Any]:
    """What `apev train` would update on this log; the functions of a second update, for the first makes the optimiser."""
    variant = find("ape-v", discrete=log.discrete, base=base)
    agent = variant.agent.for_data(log, variant.config(**variant.settings, hidden=(16,)))
    sampler = Sampler(log, batch_groups=16, per_group=4, batch_size=64)
    agent.update(sampler.sample())
    found = entered(agent, sampler.sample())
    files = list(dict.fromkeys(file for file, _ in found))
    return {"functions": len(found), "files": len(files), "read": {f: [n for at, n in found if at == f] for f in files}}


def main() -> None:
    """Count both agents as `apev train` configures them."""
    torch.set_num_threads(1)
    counts = {
        "ape-v on DQN": count(Dataset.example("customers")),
        "ape-v on SAC": count(Dataset.example("pendulum"), "sac-n"),
    }
    print(json.dumps(counts, indent=2))


if __name__ == "__main__":
    main()
