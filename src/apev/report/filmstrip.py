"""An agent changing its mind, in one picture: the key frames of a replay, side by side."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from apev.envs.locked_doors import Room
from apev.envs.render import filmstrip, render_room

_FRAMES = 4


def write_filmstrip(folder: str | Path, number: int = 0) -> Path | None:
    """Draw replay `number` of `replays.json` into figures/changes_its_mind.png; None when there is no such replay."""
    folder = Path(folder)
    source = folder / "replays.json"
    if not source.exists():
        return None
    stored = json.loads(source.read_text())
    if number >= len(stored["replays"]):
        return None
    strip = draw(stored["replays"][number], stored["room"]["size"], stored["classes"])
    target = folder / "figures" / "changes_its_mind.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(strip).quantize(256).save(target, optimize=True)
    return target


def key_steps(steps: list[dict[str, Any]]) -> list[int]:
    """Where the story turns: the start, the first changes of mind, and the end; at most four frames."""
    turns = [t for t in range(1, len(steps) - 1) if steps[t]["believed_door"] != steps[t - 1]["believed_door"]]
    return [0, *turns[: _FRAMES - 2], len(steps) - 1]


def draw(replay: dict[str, Any], size: int, classes: list[str]) -> np.ndarray:
    """The strip as pixels [H, W, 3]."""
    room, steps = Room(size), replay["steps"]
    photo = np.asarray(Image.open(io.BytesIO(base64.b64decode(replay["picture"]))))
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
