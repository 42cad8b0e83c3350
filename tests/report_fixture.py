"""A synthetic results folder: a walk through every file format, small enough for any test."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from apev.experiments.common.tables import summarise

CLASSES = ["airplane", "automobile", "ship", "truck"]
DOORS = [[4, 0], [8, 4], [4, 8], [0, 4]]
MOVES = [(0, -1), (1, 0), (0, 1), (-1, 0)]
SKILL = {
    "oracle": 1.0,
    "ape-v": 0.95,
    "ape-v-eval-only": 0.88,
    "random-member": 0.72,
    "average": 0.78,
    "single": 0.7,
    "lcb": 0.6,
}


def make_episodes(seeds: int = 3, pictures: int = 60, members: int = 5) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    hardness = rng.random(pictures)
    rows = []
    for policy, skill in SKILL.items():
        for seed in range(seeds):
            for picture in range(pictures):
                correct = int(rng.binomial(members, 1 - 0.8 * hardness[picture]))
                success = policy == "oracle" or bool(
                    rng.random() < skill * (0.15 + 0.85 * (correct / members) ** 0.5) ** (1 / skill)
                )
                length = int(rng.integers(4, 25)) if success else 50
                rows.append(
                    {
                        "policy": policy,
                        "seed": seed,
                        "episode": picture,
                        "return": float(-length + success),
                        "success": success,
                        "length": length,
                        "members_correct": None if policy == "oracle" else correct,
                        "members": members,
                        "label": picture % 4,
                        "picture": picture,
                        "stalled": not success and bool(rng.random() < 0.5),
                    }
                )
    return rows


def make_curves(seeds: int = 3) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    return [
        {
            "policy": policy,
            "seed": seed,
            "update": update,
            "success": float(np.clip(SKILL[policy] * (1 - 0.7 * np.exp(-update / 700)) + rng.normal(0, 0.01), 0, 1)),
            "episodes": 200,
        }
        for policy in SKILL
        if policy != "oracle"
        for seed in range(seeds)
        for update in range(0, 3001, 250)
    ]


def make_replay(label: int, visits: list[int], start: tuple[int, int], policy: str = "ape-v", seed: int = 0) -> dict[str, Any]:
    """Walk to the doors of `visits` in turn; the last one opens when it is the label's."""
    member_doors = [visits[0], visits[0], visits[-1], visits[len(visits) // 2], visits[0]]
    belief = np.full(5, 0.2)
    x, y = start
    steps: list[dict[str, Any]] = []

    def note(action: int | None, event: str) -> None:
        doors = [float(sum(b for b, d in zip(belief, member_doors, strict=True) if d == door)) for door in range(4)]
        steps.append(
            {"x": x, "y": y, "action": action, "event": event, "belief": [float(b) for b in belief]}
            | {"doors": doors, "believed_door": int(np.argmax(doors))}
        )

    note(None, "start")
    for door in visits:
        while [x, y] != DOORS[door]:
            tx, ty = DOORS[door]
            action = (1 if tx > x else 3) if x != tx else (2 if ty > y else 0)
            x, y = x + MOVES[action][0], y + MOVES[action][1]
            note(action, "move")
        if door == label:
            note(door, "exit")
            break
        surprise = np.array([8.0 if d == door else 1.0 for d in member_doors])
        belief = belief / surprise / (belief / surprise).sum()
        note(door, "bump")
    colours = np.array([(110, 160, 220), (200, 80, 70), (60, 130, 150), (190, 150, 70)])
    noise = np.random.default_rng(seed).integers(-30, 30, size=(32, 32, 3))
    picture = io.BytesIO()
    Image.fromarray(np.clip(colours[label] + noise, 0, 255).astype(np.uint8)).save(picture, format="PNG")
    return {
        "policy": policy,
        "picture": base64.b64encode(picture.getvalue()).decode(),
        "label": label,
        "success": steps[-1]["event"] == "exit",
        "member_doors": member_doors,
        "steps": steps,
    }


def make_replays() -> dict[str, Any]:
    room = {"size": 9, "doors": DOORS, "actions": ["up", "right", "down", "left"]}
    replays = [
        make_replay(2, [1, 2], (2, 6), seed=0),
        make_replay(0, [3, 1, 0], (6, 2), seed=1),
        make_replay(3, [3], (5, 5), seed=2),
        make_replay(1, [2, 2, 2], (4, 4), policy="average", seed=3),
    ]
    return {"room": room, "classes": CLASSES, "replays": replays}


def make_folder(folder: Path, title: str = "Locked Doors", optional: bool = True) -> Path:
    """Write a results folder; `optional=False` leaves out the curves and the replays."""
    folder.mkdir(parents=True, exist_ok=True)
    episodes = make_episodes()
    meta = {
        "command": "apev reproduce locked-doors --scale cpu --seeds 0 1 2 --out results/locked-doors",
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "version": "0.1.0",
        "seeds": [0, 1, 2],
        "scale": "cpu",
        "train_images": 20000,
        "test_images": 60,
        "updates": 3000,
        "seconds": 1234.5,
        "images": "CIFAR-10 vehicles",
    }
    summary = {"title": title, "policies": summarise(episodes), "members": 5, "meta": meta}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in episodes))
    if optional:
        (folder / "curves.jsonl").write_text("".join(json.dumps(row) + "\n" for row in make_curves()))
        (folder / "replays.json").write_text(json.dumps(make_replays()))
    return folder
