"""Which doors a policy tries, and how straight it walks to them: the paper says that its trained agent tries near doors first.

From a door every other one is equally far in a square room, so that "near" can only mean near the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from apev.experiments.common.tables import table_order
from apev.experiments.locked_doors.rooms import Room


def paths(episodes: Iterable[Mapping[str, Any]], room: Room) -> dict[str, dict[str, float | int | None]]:
    """For every policy whose episodes say which doors were tried.

    near_first: share of rooms in which no door is nearer to the start than the first one tried
    detour: steps to the first door tried, beyond the fewest
    between: steps from the first door tried to the second, over the rooms where there is a second; 9 at best in a room of 9
    """
    found: dict[str, list[tuple[bool, int, int | None]]] = {}
    for line in episodes:
        if line.get("tries"):
            found.setdefault(line["policy"], []).append(_path(line, room))
    return {policy: _means(found[policy]) for policy in table_order(found)}


def _path(line: Mapping[str, Any], room: Room) -> tuple[bool, int, int | None]:
    """Whether the first door tried is a nearest one, its detour, and the steps from there to the second."""
    fewest = room.steps_to_leave(*line["start"])
    (door, step), *others = line["tries"]
    return bool(fewest[door] == fewest.min()), int(step - fewest[door]), others[0][1] - step if others else None


def _means(rows: list[tuple[bool, int, int | None]]) -> dict[str, float | int | None]:
    near, detour, between = zip(*rows, strict=True)
    second = [steps for steps in between if steps is not None]
    return {
        "rooms": len(rows),
        "near_first": float(np.mean(near)),
        "detour": float(np.mean(detour)),
        "second_tried": len(second),
        "between": float(np.mean(second)) if second else None,
    }
