"""The columns of a log under one set of names, whichever file they come from.

    observations/<key> or observations   actions   rewards   terminated   truncated
    optional: next_observations[/<key>], pictures/<key>, episodes, contexts, num_actions, action_masks, next_action_masks

A dot works in place of the slash. D4RL's `terminals` and `timeouts` are read as `terminated` and `truncated`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from apev import __version__
from apev.data.dataset import Dataset
from apev.data.source import checked
from apev.data.validate import DataError
from apev.files import parse_json, reading

FORMAT = "apev.dataset"
VERSION = 1
HEADER = "apev_header"
REQUIRED = ("observations", "actions", "rewards", "terminated", "truncated")
OPTIONAL = ("next_observations", "pictures", "episodes", "contexts", "action_masks", "next_action_masks")
D4RL_NAMES = {"terminated": "terminals", "truncated": "timeouts"}
# An optional column under a wrong name would be ignored in silence, so the likely ones are refused.
MISNAMED = {
    "next_obs": "next_observations",
    "next_observation": "next_observations",
    "episode": "episodes",
    "episode_id": "episodes",
    "episode_ids": "episodes",
    "context": "contexts",
    "context_id": "contexts",
    "picture": "pictures",
    "action_mask": "action_masks",
    "next_action_mask": "next_action_masks",
}


@dataclass
class Columns:
    """What a file holds, by column, before any check of the values."""

    file: str  # its name, for messages
    arrays: dict[str, np.ndarray]
    num_actions: int | None = None
    source: dict[str, Any] = field(default_factory=dict)

    def note(self, sentence: str) -> None:
        """Remember what reading had to decide."""
        self.source["notes"] = [*self.source.get("notes", []), sentence]

    def faults(self) -> Iterator[DataError]:
        """What is wrong with the names of the columns."""
        for wrong, right in MISNAMED.items():
            if wrong in self.arrays and not self.has(right):
                yield DataError(wrong, f"no column of {self.file} may have this name", f"call it {right}")
        yield from self._missing()
        for name in self.arrays:
            head = re.split(r"[/.]", name, maxsplit=1)[0]
            if name != head and head in (*REQUIRED[1:], *OPTIONAL[2:]):
                yield DataError(name, f"{head} is one column, without keys", f"call it {head}")
        for name in ("observations", "next_observations"):
            keyed = self.keyed(name)
            if name in self.arrays and keyed:
                fix = f"keep one form: {name}, or {name}/<key> for each key"
                yield DataError(name, f"is there both by itself and with keys {list(keyed)}", fix)
        empty = self.empty()
        if empty is not None:
            yield empty

    def _missing(self) -> Iterator[DataError]:
        missing = [name for name in REQUIRED if not self.has(name)]
        other = {"terminated": "truncated", "truncated": "terminated"}
        merged = next((name for name in ("dones", "done") if name in self.arrays), None)
        if merged is not None and set(other) <= set(missing):
            problem = f"{self.file} merges termination and truncation, which mean opposite things for the value that follows"
            fix = (
                "save two columns: terminated (the world ended the episode) and truncated (only a clock did); "
                f"where no time limit was ever reached: terminated={merged}, truncated=np.zeros_like({merged})"
            )
            yield DataError(merged, problem, fix)
            missing = [name for name in missing if name not in other]
        for name in missing:
            fix = f"add {name} with one entry a row (np.savez(..., {name}=...) in an .npz)"
            if merged is not None and name in other:  # where an episode ends for either reason, and one of the reasons: enough
                fix += f"; {name} = {merged} & ~{other[name]}, as bool"
            elif name == "truncated":
                fix += "; np.zeros_like(terminated) if no time limit was ever reached"
            yield DataError(name, f"the column is missing in {self.file}, which has {sorted(self.arrays)}", fix)

    def empty(self) -> DataError | None:
        """The mistake of a log that has columns but not one row; None if there is a row."""
        heads = {name: name.replace(".", "/").split("/")[0] for name in self.arrays}
        rows = {
            name: self.arrays[name] for name, head in heads.items() if head in (*REQUIRED, *OPTIONAL) and head != "pictures"
        }
        if not rows or any(array.ndim == 0 or len(array) for array in rows.values()):
            return None
        return DataError(next(iter(rows)), "the data is empty", "log at least one transition")

    def has(self, name: str) -> bool:
        """Whether there is a column of this name, by itself or with keys."""
        return any(column == name or column.startswith((f"{name}/", f"{name}.")) for column in self.arrays)

    def keyed(self, name: str) -> dict[str, np.ndarray]:
        """The columns `name/<key>` or `name.<key>` as {key: array}, in the order of the file."""
        cut = len(name) + 1
        return {column[cut:]: array for column, array in self.arrays.items() if column.startswith((f"{name}/", f"{name}."))}

    def observations(self, name: str) -> np.ndarray | dict[str, np.ndarray] | None:
        """`name` as one array or {key: array}; None if there is none."""
        return self.arrays.get(name, self.keyed(name) or None)

    def dataset(self) -> Dataset:
        """Check everything."""
        for fault in self.faults():
            raise fault
        arrays = self.arrays
        return Dataset.from_arrays(
            self.observations("observations"),  # type: ignore[arg-type]
            arrays["actions"],
            arrays["rewards"],
            arrays["terminated"],
            arrays["truncated"],
            next_observations=self.observations("next_observations"),
            pictures=self.keyed("pictures") if self.has("pictures") else None,
            episodes=arrays.get("episodes"),
            contexts=arrays.get("contexts"),
            action_masks=arrays.get("action_masks"),
            next_action_masks=arrays.get("next_action_masks"),
            num_actions=self.num_actions,
            source=self.source,
        )


def from_file(file: str, arrays: dict[str, np.ndarray], header: str | None) -> Columns:
    """Columns with D4RL's names made ours, and what our header says if there is one."""
    arrays = dict(arrays)
    for ours, theirs in D4RL_NAMES.items():
        if ours not in arrays and theirs in arrays:
            arrays[ours] = arrays.pop(theirs)
    given = arrays.pop("num_actions", None)
    if header is None:
        return Columns(file, arrays, given.item() if given is not None and given.size == 1 else None)
    fix = f"write the file again with Dataset.save, or remove the entry {HEADER}"
    with reading(HEADER, fix, raises=DataError, of=file):
        read = parse_json(header, HEADER, fix=fix, raises=DataError)
        version, num_actions = read["version"], read["num_actions"]
        if read.get("format") != FORMAT or version > VERSION:
            problem = (
                f"{file} has format {read.get('format')!r:.80} version {version!r:.80}; this apev reads {FORMAT} {VERSION}"
            )
            raise DataError(HEADER, problem, "upgrade apev, or write the file again with this version")
        source = checked(read.get("source", {}), file)
        names = source.get("action_names")
        if names is not None and len(names) != num_actions:
            raise DataError(HEADER, f"{file} has {len(names)} names for {num_actions!r:.80} actions", fix)
    return Columns(file, arrays, num_actions, source)


def header_of(dataset: Dataset) -> str:
    """The header our files carry, as JSON."""
    return header(dataset.num_actions, dataset.source)


def header(num_actions: int | None, source: Mapping[str, Any]) -> str:
    """The header of a file with so many actions (None: continuous) and this source."""
    facts = {"format": FORMAT, "version": VERSION, "apev": __version__, "num_actions": num_actions}
    return json.dumps(facts | {"source": dict(source)})


def entries(dataset: Dataset) -> dict[str, np.ndarray]:
    """Every stored column under its name in a file."""
    named = {f"observations/{key}": column for key, column in dataset.observations.items()}
    named |= {f"next_observations/{key}": column for key, column in (dataset.given_next or {}).items()}
    if dataset.pictures is not None:
        named[f"pictures/{dataset.picture_key}"] = dataset.pictures
    for name in ("actions", "rewards", "terminated", "truncated", "episodes"):
        named[name] = getattr(dataset, name)
    optional = {
        "contexts": dataset.contexts,
        "action_masks": dataset.action_masks,
        "next_action_masks": dataset.given_next_masks,
    }
    named |= {name: column for name, column in optional.items() if column is not None}
    return named


def known(columns: Mapping[str, Any]) -> list[str]:
    """The names among `columns` that mean something to us, or are a likely slip for one that does."""
    meant = {*REQUIRED, *OPTIONAL, *D4RL_NAMES.values(), *MISNAMED, "num_actions", "dones", "done"}
    return [name for name in columns if name in meant or name.replace(".", "/").split("/")[0] in (*REQUIRED, *OPTIONAL)]
