"""Policies in folders: `policy.json` says what they are, `weights.safetensors` holds the weights."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apev.agents import Agent
from apev.checkpoint import LATEST, SAVE_AGAIN, build, description, logged_of, policy_of
from apev.data.source import checked
from apev.files import FileError, file_digest, inside, read_json, write_json, write_tensors

ABOUT = "policy.json"
WEIGHTS = "weights.safetensors"
SETTINGS = "config.json"  # of a run


@dataclass(frozen=True)
class Stored:
    """What a folder says of a policy."""

    agent: Agent
    logged: dict[str, Any] | None = None  # what the episodes of its log returned
    source: dict[str, Any] = field(default_factory=dict)  # of its log, as far as a run keeps it


def write_policy(folder: Path, agent: Agent, **facts: Any) -> None:
    """Write an agent, and the facts that are known."""
    weights = {k: v.detach().cpu().contiguous() for k, v in agent.policy_state().items()}
    write_tensors(folder / WEIGHTS, weights)
    about = description(agent) | {"weights": file_digest(folder / WEIGHTS)}
    about |= {name: value for name, value in facts.items() if value is not None}
    write_json(folder / ABOUT, about, checksum=True)


def read_policy(folder: str | Path) -> Stored:
    """What is in a policy's folder, or in a run's. Of a run that was stopped, it is the policy of the last checkpoint."""
    folder = run = Path(folder)
    if not (folder / ABOUT).exists() and (folder / "policy" / ABOUT).exists():
        inside(folder, f"policy/{ABOUT}")
        folder = folder / "policy"
    if (folder / ABOUT).exists():
        about = read_json(inside(folder, ABOUT), fix=SAVE_AGAIN, checked_since=("weights",))
        path = inside(folder, WEIGHTS)
        if "weights" in about and about["weights"] != file_digest(path):
            raise FileError(path, f"is not the file that {ABOUT} was written with", SAVE_AGAIN)
        agent, logged = build(about, folder / ABOUT, path), logged_of(about, folder / ABOUT)
    elif (folder / LATEST).exists():
        agent, update = policy_of(inside(folder, LATEST))
        logged = None
        warnings.warn(f"{folder} was stopped: this is its policy at update {update:,}", stacklevel=3)
    else:
        raise FileNotFoundError(f"{folder} holds no {ABOUT}. Fix: name a run folder that has begun training.")
    settings = run / SETTINGS
    source = checked(read_json(inside(run, SETTINGS)).get("source", {}), SETTINGS) if settings.exists() else {}
    return Stored(agent, logged, source)
