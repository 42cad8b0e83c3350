"""An agent changing its mind, in one picture: the key frames of a replay, side by side."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from apev.experiments.common.tables import AGAIN, stored
from apev.experiments.locked_doors.render import filmstrip, render_room
from apev.experiments.locked_doors.rooms import Room
from apev.files import read_json, reading, whole

_FRAMES = 4
MOST_CELLS, MOST_PIXELS = 100, 1024  # a side of a room, a side of its photograph


def write_filmstrip(folder: str | Path, number: int = 0) -> Path | None:
    """Draw replay `number` of `replays.json` into figures/changes_its_mind.png; None when there is no such replay."""
    folder = Path(folder)
    source = stored(folder, "replays.json")
    if source is None:
        return None
    told = read_json(source, fix=AGAIN)
    with reading(source, AGAIN):
        if number >= len(told["replays"]):
            return None
        strip = draw(told["replays"][number], told["room"]["size"], told["classes"])
    target = folder / "figures" / "changes_its_mind.png"
    with whole(target) as partial:
        Image.fromarray(strip).quantize(256).save(partial, format="PNG", optimize=True)
    return target


def key_steps(steps: list[dict[str, Any]]) -> list[int]:
    """Where the story turns: the start, the first changes of mind, and the end; at most four frames."""
    turns = [t for t in range(1, len(steps) - 1) if steps[t]["believed_door"] != steps[t - 1]["believed_door"]]
    return [0, *turns[: _FRAMES - 2], len(steps) - 1]


def read_photo(picture: str) -> np.ndarray:
    """A stored photograph [H, W, 3], a small PNG: a file of some bytes may tell of any size."""
    try:
        photo = Image.open(io.BytesIO(base64.b64decode(picture)), formats=["PNG"])
    except Image.DecompressionBombError as error:
        raise ValueError(str(error)) from error
    if max(photo.size) > MOST_PIXELS:
        raise ValueError(f"a photograph of {photo.size[0]} by {photo.size[1]} pixels")
    return np.asarray(photo.convert("RGB"))


def draw(replay: dict[str, Any], size: int, classes: list[str]) -> np.ndarray:
    """The strip as pixels [H, W, 3]."""
    if not 3 <= size <= MOST_CELLS:
        raise ValueError(f"a room of {size} cells a side cannot be drawn")
    room, steps, photo = Room(size), replay["steps"], read_photo(replay["picture"])
    tried = np.zeros(4, dtype=bool)
    tried_at: list[np.ndarray] = []
    for before, step in zip([steps[0], *steps], steps, strict=False):
        if step["event"] == "bump":
            door = int(room.door_tried(np.array([before["x"]]), np.array([before["y"]]), np.array([step["action"]]))[0])
            if door >= 0:
                tried[door] = True
        tried_at.append(tried.copy())
    frames, captions = [], []
    for t in key_steps(steps):
        step = steps[t]
        out = replay["label"] if step["event"] == "exit" else None
        frames.append(
            render_room(
                room,
                step["x"],
                step["y"],
                photo,
                trail=[(s["x"], s["y"]) for s in steps[: t + 1]],
                tried=tried_at[t],
                door=out,
                belief_doors=step["doors"],
                believed_door=None if out is not None else step["believed_door"],
                class_names=classes,
                size_px=300,
            )
        )
        name = classes[step["believed_door"]]
        if t == 0:
            captions.append(f"Step 0: the photograph looks like the {name} door")
        elif step["event"] == "exit":
            captions.append(f"Step {t}: out through the {classes[replay['label']]} door")
        elif t < len(steps) - 1:
            locked = bool((tried_at[t] & ~tried_at[t - 1]).any())
            captions.append(f"Step {t}: {'locked. It now believes' if locked else 'it now believes'} in the {name} door")
        else:
            captions.append(f"Step {t}: time is up")
    return filmstrip(frames, captions)
