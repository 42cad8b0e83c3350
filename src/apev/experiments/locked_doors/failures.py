"""Why rooms stay shut: no member knew the door, or one did and the policy stood still, or walked until time was up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from apev.experiments.common.tables import table_order


def failures(episodes: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """For every policy with members: how many rooms, and how many failures of each sort.

    none_right: no member that sees the photograph would go to the open door
    stalled: some member would, and the policy ended moving between at most two cells
    out_of_time: some member would, and it was still under way
    """
    found: dict[str, dict[str, int]] = {}
    for line in episodes:
        right = line.get("members_correct")
        if right is None:
            continue
        counts = found.setdefault(line["policy"], {"rooms": 0, "none_right": 0, "stalled": 0, "out_of_time": 0})
        counts["rooms"] += 1
        if not line["success"]:
            counts["none_right" if not right else "stalled" if line.get("stalled") else "out_of_time"] += 1
    return {policy: found[policy] for policy in table_order(found)}
