"""Kinds in a run folder: found once, so that a resumed training goes on with the very same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from apev.files import FileError, parse_json, read_tensors, reading, write_tensors
from apev.worlds.calibrate import Reliability
from apev.worlds.choose import Tried
from apev.worlds.models import WorldModels
from apev.worlds.verdict import Kinds

KINDS = "kinds.safetensors"
START_ANEW = "start anew in another folder"


def save(found: Kinds, folder: Path) -> None:
    """Write kinds and models."""
    tensors = {"kind": torch.from_numpy(found.kind), "contexts": torch.from_numpy(found.contexts)}
    about = found.as_json() | {"group_is": found.group_is, "why_one": found.why_one}
    if found.models is not None:
        tensors |= {f"models.{name}": value for name, value in found.models.state_dict().items()}
        about["models"] = found.models.describe()
    write_tensors(folder / KINDS, tensors, {"kinds": json.dumps(about)})


def load(folder: Path) -> Kinds:
    """Read what `save` wrote; models of other shapes than the file's tensors are never built."""
    path = folder / KINDS
    tensors, facts = read_tensors(path, START_ANEW)
    with reading(path, START_ANEW):
        about: dict[str, Any] = parse_json(facts["kinds"], path, fix=START_ANEW)
        models = None
        if "models" in about:
            state = {name.removeprefix("models."): t for name, t in tensors.items() if name.startswith("models.")}
            with torch.device("meta"):
                plan = {name: tuple(t.shape) for name, t in WorldModels.build(about["models"]).state_dict().items()}
            if plan != {name: tuple(t.shape) for name, t in state.items()}:
                raise FileError(path, "its models are not of the shape it describes", START_ANEW)
            models = WorldModels.build(about["models"])
            models.load_state_dict(state)
        return Kinds(
            1 if models is None else models.kinds,
            tensors["kind"].numpy(),
            tensors["contexts"].numpy(),
            models,
            tuple(Tried(**tried) for tried in about["tried"]),
            float("inf") if about["steps_to_95"] is None else float(about["steps_to_95"]),
            float(about["halfway"]),
            tuple((str(column["name"]), float(column["share"])) for column in about["columns"]),
            tuple(Reliability(**entry) for entry in about["reliability"]),
            float(about["episode_length"]),
            str(about["group_is"]),
            str(about["why_one"]),
            rare_rewards=float(about.get("rare_rewards", 0.0)),  # folders from before it was told
        )
