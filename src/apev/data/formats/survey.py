"""The first pass over a table that is read in a stream: is every value fit, and what does only the whole log tell?

A mistake is named by its column, its file and its row there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from apev.data import validate
from apev.data.formats import frame as frames
from apev.data.formats.parquet import Plan, Tables, arrow, float32, is_text, moments_of, numbers
from apev.data.validate import MOST_ACTIONS, DataError


def survey(tables: Tables, roles: Mapping[str, Any], seen: Callable[[int], None] = lambda rows: None) -> Plan:
    """Check every value that is used, and find what only the whole log tells; `seen` is told of the rows as they are read.

    roles: which column is what, the arguments of `Dataset.from_frame`.
    """
    checks = Checks.begin(tables, roles)
    for file, first, found in tables.batches(checks.plan.columns):
        checks.look(file, first, found)
        seen(len(found[checks.plan.time]))
    return checks.result()


def drafted(tables: Tables, roles: Mapping[str, Any]) -> tuple[Plan, dict[str, str]]:
    """The plan as far as names tell it, and {action: the column that allows it}."""
    observed, action = roles["observations"], roles["action"]
    looks = [observed] if isinstance(observed, str) else list(observed)
    acts = [action] if isinstance(action, str) else list(action)
    flags = {role: roles[role] for role in ("terminated", "truncated") if roles.get(role) is not None}
    there = list(tables.schema.names)
    allowed = {} if roles.get("masks") is None else frames.mask_columns(there, roles["masks"])
    frames.check_names(there, looks, acts, [roles["reward"], *flags.values()])
    plan = Plan(
        tables, roles["episode"], roles["time"], looks, acts, roles["reward"], roles.get("context"), flags, [*allowed.values()]
    )
    frames.check_there(there, plan.columns)
    for name in plan.keys[:-1]:
        _check_id(tables.type(name), name)
    return plan, allowed


def _check_id(kind: Any, name: str) -> None:
    types = arrow().types
    known = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_date, types.is_timestamp)
    if not is_text(kind) and not any(is_kind(kind) for is_kind in known):
        raise DataError(name, f"is {kind!s:.80}, which is no id", "write ids as numbers or text")


class Checks:
    """What the first pass has found so far."""

    @classmethod
    def begin(cls, tables: Tables, roles: Mapping[str, Any]) -> Checks:
        """Before the first row."""
        plan, allowed = drafted(tables, roles)
        return cls(plan, isinstance(roles["action"], str), allowed, roles.get("masks"))

    def __init__(self, plan: Plan, alone: bool, allowed: Mapping[str, str], prefix: str | None) -> None:
        self.plan, self.allowed, self.prefix, kind = plan, allowed, prefix, plan.tables.type
        self.texts = {name: set[str]() for name in (*plan.observations, *plan.action[: int(alone)]) if is_text(kind(name))}
        only_keys = {*plan.keys} - {*plan.observations}
        self.numbers = [name for name in plan.columns if name not in self.texts and name not in only_keys]
        self.narrow = {*plan.observations, *plan.action, plan.reward}
        self.truths = {*plan.flags.values(), *plan.masks}
        self.alone = alone and plan.action[0] not in self.texts
        self.whole, self.lowest, self.highest = True, 0, 0

    def look(self, file: str, first: int, found: Mapping[str, Any]) -> None:
        """One more stretch of rows."""
        pa = arrow()

        def refuse(name: str, bad: np.ndarray, problem: str, fix: str) -> None:
            if bad.any():
                raise DataError(name, f"{problem} ({file}, row {first + int(np.argmax(bad))})", fix)

        for name, column in found.items():
            missing = column.is_null(nan_is_null=name not in self.numbers)
            refuse(name, missing.to_numpy(zero_copy_only=False), "the value is missing", "fill it in, or drop the row")
        moments_of(found[self.plan.time], self.plan.time)
        for name in self.numbers:
            values = numbers(found[name], name)
            narrow = float32(found[name], name) if name in self.narrow and values.dtype.kind == "f" else values
            if values.dtype.kind == "f":
                refuse(name, ~np.isfinite(values), "value is NaN or infinite", "drop the row or repair the log")
                refuse(name, ~np.isfinite(narrow), "value is too large for float32", "rescale the column")
            if name in self.truths:
                refuse(name, (values != 0) & (values != 1), "value is not True or False", "use bool, or 0 and 1")
            if self.alone and name == self.plan.action[0]:
                self.whole = self.whole and bool((values == np.round(values)).all())
                self.lowest, self.highest = min(self.lowest, int(values.min())), max(self.highest, int(values.max()))
        for name, words in self.texts.items():
            words.update(pa.compute.unique(found[name]).to_pylist())
            self._check_words(name)

    def _check_words(self, name: str) -> None:
        most = MOST_ACTIONS if name in self.plan.action else frames.MOST_CATEGORIES
        if len(self.texts[name]) > most:
            problem = f"has more than {most:,} different values, each of which would be an input or output of its own"
            raise DataError(name, problem, "encode it as numbers, group rare ones, or leave it out")

    def as_json(self) -> dict[str, Any]:
        """All that was found, for who looks at other rows of the same table."""
        words = {name: sorted(found) for name, found in self.texts.items()}
        return {"words": words, "whole": self.whole, "lowest": self.lowest, "highest": self.highest}

    def take(self, found: Mapping[str, Any]) -> Checks:
        """Also count what others have found, as `as_json` tells it."""
        for name, words in found["words"].items():
            self.texts[name].update(words)
            self._check_words(name)
        self.whole = self.whole and found["whole"]
        self.lowest, self.highest = min(self.lowest, found["lowest"]), max(self.highest, found["highest"])
        return self

    def result(self) -> Plan:
        """The plan, with all that was to be found."""
        plan, allowed, prefix = self.plan, self.allowed, self.prefix
        words = {name: sorted(found) for name, found in self.texts.items()}
        acts = plan.action[0]
        labels = words.get(acts) if acts in self.texts and acts in plan.action else None
        kind = plan.tables.type(acts)
        if self.alone and arrow().types.is_boolean(kind):
            labels = ["False", "True"]
        discrete = labels is not None or (self.alone and arrow().types.is_integer(kind))
        if self.alone and not discrete and self.whole:
            fix = "write whole numbers if they number choices, or say that they are amounts (--continuous, action=[...])"
            raise DataError(acts, "are floating-point numbers, all of them whole", fix)
        masks: list[str] = []
        if allowed:
            taken = np.array([self.highest]) if discrete else np.zeros((1, 1))
            _, labels = frames.with_allowed(taken, labels, list(allowed), str(prefix))
            masks = [allowed[name] for name in labels or map(str, range(len(allowed)))]
        count = None
        if discrete:
            told = len(labels) if labels is not None else len(masks) or None
            ends = np.array([self.lowest, self.highest]) if self.alone else np.zeros(1, dtype=np.int64)
            _, count = validate.discrete_or_continuous(ends, told)
        if labels is not None and acts in words:
            words[acts] = labels
        names = [[f"{name}={word}" for word in words[name]] if name in words else [name] for name in plan.observations]
        about: dict[str, Any] = {"name": Path(plan.tables.name).stem, "format": "table"}
        about["observation_names"] = [name for part in names for name in part]
        about |= {} if labels is None else {"action_names": labels}
        return replace(plan, masks=masks, words=words, num_actions=count, source=about)
