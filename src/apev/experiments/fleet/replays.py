"""What the replay of a fleet shows: traces as figures that move, and when the belief knew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from apev.envs.fleet.customers import ENVIRONMENT as CUSTOMERS
from apev.envs.fleet.customers import OFFERS
from apev.experiments.common.tables import AGAIN
from apev.experiments.fleet.bodies import BODIES, NAMES, STEP, Body
from apev.experiments.fleet.figures import label
from apev.experiments.fleet.rows import knows
from apev.files import read_json

MOST_STEPS, MOST_MEMBERS, MOST_KINDS = 5000, 32, 32
LARGEST = 1e6


def read_replays(path: Path) -> dict[str, Any]:
    """What the page's script draws, from traces.json."""
    told = read_json(path, fix=AGAIN)
    environment = str(told["environment"])
    body = BODIES.get(environment)
    blind = {int(episode["kind"]): episode for episode in told["blind"]}
    pairs = [(episode, blind[int(episode["kind"])]) for episode in told["adaptive"] if int(episode["kind"]) in blind]
    shown = [int(told["kind"]) for episode, _ in pairs for told in (episode, episode.get("change", episode))]
    kinds = names_of_kinds(environment, shown)
    members = [int(kind) for kind in told.get("members", [])]
    count = max((len(belief_of(episode)[0]) for episode, _ in pairs), default=0)
    if len(members) != count or max(members, default=0) >= len(kinds):
        members = [-1] * count
    order = sorted(range(count), key=lambda member: members[member])  # as the kinds are, not as they were found
    members = [members[member] for member in order]
    return {
        "kinds": kinds,
        "members": [kinds[kind] if kind >= 0 else f"kind {number + 1}" for number, kind in enumerate(members)],
        "member_kinds": members,
        "blind": label(str(told["blind_policy"])),
        "note": _note(environment, body),
        "body": None if body is None else _drawn(body),
        "offers": list(OFFERS) if environment == CUSTOMERS and all("actions" in e for pair in pairs for e in pair) else None,
        "seconds": STEP if body is not None else None,
        "episodes": [_episode(ours, theirs, order, body) for ours, theirs in pairs],
    }


def names_of_kinds(environment: str, shown: Sequence[int]) -> list[str]:
    """The environment's own names, or numbers."""
    most = max(shown, default=0)
    if min(shown, default=0) < 0 or most >= MOST_KINDS:
        raise ValueError(f"kinds are numbered from 0 to {MOST_KINDS - 1}")
    names = list(NAMES.get(environment, ()))
    return names + [f"kind {number}" for number in range(len(names), most + 1)]


def belief_of(episode: Mapping[str, Any]) -> np.ndarray:
    """[T + 1, K] of an episode of the adaptive policy."""
    return _numbers(episode["belief"], MOST_MEMBERS)


def _episode(ours: Mapping[str, Any], theirs: Mapping[str, Any], order: Sequence[int], body: Body | None) -> dict[str, Any]:
    """One episode of a kind, of both policies."""
    belief = belief_of(ours)[:, order]
    if len(belief) != len(ours["observations"]):
        raise ValueError("an episode has a belief an observation")
    both = {"adaptive": _told(ours, body) | {"belief": belief.round(3).tolist()}, "blind": _told(theirs, body)}
    about: dict[str, Any] = {"kind": int(ours["kind"]), "change": None, "again": None}
    if "change" not in ours:
        return about | {"knows": knows(belief)} | both
    step, kind = int(ours["change"]["step"]), int(ours["change"]["kind"])
    if not 0 < step < len(belief) - 1 or not 0 <= kind < MOST_KINDS:
        raise ValueError("a machine changes within its episode, to a kind that there is")
    again = knows(belief[step:])  # at once: it has not changed its mind
    if again is not None:
        again = None if again["step"] == 0 else {"step": step + again["step"], "member": again["member"]}
    return about | {"knows": knows(belief[: step + 1]), "change": {"step": step, "kind": kind}, "again": again} | both


def _told(episode: Mapping[str, Any], body: Body | None) -> dict[str, Any]:
    """What is drawn of an episode; places in millimetres, which a page has room for."""
    seen = _numbers(episode["observations"], 1000)
    told: dict[str, Any] = {"length": len(seen) - 1, "return": float(_finite([episode["return"]])[0])}
    if "rewards" in episode:
        told["rewards"] = _finite(episode["rewards"]).round(2).tolist()
    if "actions" in episode:
        told["actions"] = [int(action) for action in episode["actions"]]
    if any(len(told.get(name, seen[1:])) != told["length"] for name in ("rewards", "actions")):
        raise ValueError("an episode has a reward and an action a step")
    if body is not None:
        told["points"] = (1000 * body.points(seen)).round().astype(int).reshape(len(seen), -1).tolist()
        told["way"] = body.way(seen).round(3).tolist()
    return told


def _numbers(values: Any, most: int) -> np.ndarray:
    """[T, D], checked: a file may say anything."""
    array = _finite(values)
    if array.ndim != 2 or not 2 <= len(array) <= MOST_STEPS or not 1 <= array.shape[1] <= most:
        raise ValueError(f"an episode of shape {array.shape} cannot be drawn")
    return array


def _finite(values: Any) -> np.ndarray:
    """Numbers of a size that can be drawn."""
    array = np.asarray(values, dtype=np.float64)
    if not (np.abs(array) < LARGEST).all():
        raise ValueError("it holds numbers that cannot be drawn")
    return array


def _drawn(body: Body) -> dict[str, Any]:
    """A body for the page's script, in millimetres."""
    millimetres = [round(1000 * edge) for edge in body.box]
    shape = {"bones": body.bones, "width": round(1000 * body.width), "box": millimetres, "wrong": body.wrong}
    return shape | {"wrong_is": body.wrong_is, "trail": body.trail, "ground": body.ground}


def _note(environment: str, body: Body | None) -> str:
    if environment == CUSTOMERS:
        return "Eight visits of one customer, an offer each. The bar below a visit is the belief after it."
    if body is None:
        return "The belief, step by step."
    start = f"Both policies start on the same machine in the same state. Dashes are {body.wrong_is}, "
    return start + "which no policy sees. The adaptive machine takes the colour of the kind it believes in."
