"""Whether there is anything to adapt to in a log, in plain words: `apev.kinds(log)`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console

from apev.data.dataset import Dataset
from apev.notebook import html_table, html_words
from apev.worlds.calibrate import Reliability, Speed, calibrate, speed, telling_columns
from apev.worlds.choose import Tried
from apev.worlds.find import NO_KIND, Found, find
from apev.worlds.models import WorldModels
from apev.worlds.traces import Trace, traces

TELLING = 0.05  # columns that bring less of the evidence are not named
NAMED = 4
RARE = 0.1  # share of the rows with another reward than the usual one, below which kinds may hide there
DOUBTFUL = 0.25  # share of the contexts that are of no kind, above which the verdict is doubtful
MOST_COLUMNS = 6  # in the table


@dataclass(frozen=True, repr=False)
class Kinds:
    """The kinds of contexts in a log, and what can be said of them."""

    count: int
    kind: np.ndarray  # int64 [contexts]: of each context; -1: of none
    contexts: np.ndarray  # int64 [contexts]: their numbers in the log
    models: WorldModels | None  # what tells kinds apart; None where there is one
    tried: tuple[Tried, ...]
    steps_to_95: float  # of the median context, until the belief in its kind is 95%
    halfway: float  # the belief in the right kind after half an episode, on average
    columns: tuple[tuple[str, float], ...]  # which tell kinds apart, and their share of the evidence
    reliability: tuple[Reliability, ...]
    length: float  # rows of the median episode
    group_is: str  # "context", "episode"
    why_one: str = ""
    traces: tuple[Trace, ...] = ()  # how the belief in the right kind grew in some contexts; not kept in run folders
    rare_rewards: float = 0.0  # the share of rows whose reward is not the usual one, where these are few

    @property
    def sizes(self) -> list[int]:
        """Contexts of each kind."""
        return [int(size) for size in np.bincount(self.kind[self.kind != NO_KIND], minlength=self.count)]

    @property
    def of_no_kind(self) -> int:
        """Contexts that fit none."""
        return int((self.kind == NO_KIND).sum())

    @property
    def pays(self) -> bool:
        """Whether adapting can pay: several kinds, and half an episode, as logged, tells a quarter of what there is to know.

        A policy that looks for evidence learns faster than the log shows.
        """
        return self.count > 1 and self.halfway >= 1 / self.count + (1 - 1 / self.count) / 4

    def in_words(self) -> str:
        """The verdict."""
        if self.count == 1:
            if self.why_one:
                return f"not searched for kinds: {self.why_one}. Whether anything is hidden is not known."
            why = f"several kinds predict {self.group_is}s that were held out no better than one"
            told = f"one kind: {why}. Nothing hidden shows that one could adapt to."
            if self.rare_rewards:
                told += (
                    f" But only {self.rare_rewards:.1%} of the rows have a reward that is not the usual one: kinds that "
                    "differ in these alone may not show. Where you know how many there are, say so (kinds=, --kinds)."
                )
            return told
        none = f", {self.of_no_kind} of no kind" if self.of_no_kind else ""
        found = f"{self.count} kinds of {self.group_is}s ({', '.join(f'{size:,}' for size in self.sizes)}{none})"
        told = " and ".join(name for name, share in self.columns[:NAMED] if share >= TELLING) or "many columns"
        steps = "" if math.isinf(self.steps_to_95) else f", and 95% sure within {self.steps_to_95:.0f} (median)"
        known = f"after half an episode ({self.length / 2:.0f} steps) the right one is believed at {self.halfway:.0%}{steps}"
        verdict = f"{found}, told apart by {told}; {known}: adapting can {'' if self.pays else 'hardly '}pay."
        if self.of_no_kind > DOUBTFUL * len(self.kind):
            verdict += " But so many fit no kind that the sorting may be no good: compare with kinds=1, or search a larger log."
        return verdict

    def __str__(self) -> str:
        return self.in_words()

    __repr__ = __str__

    def tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """What the verdict rests on, as (title, header, rows of text)."""
        tried = [[str(t.kinds), f"{t.gain:+.3f} (error {t.error:.3f})", f"{max(t.share, 0):.1%}"] for t in self.tried]
        header = ["kinds", "gain a step (nats)", "share explained"]
        shown = [("predicting held-out contexts, against one kind", header, tried)] if tried else []
        if self.models is not None:
            told = [[name, f"{share:.0%}"] for name, share in self.columns[:MOST_COLUMNS]]
            shown.append(("what tells kinds apart", ["column", "share of the evidence"], told))
            trust = [[f"{r.stated:.0%}", f"{r.right:.0%}", f"{r.beliefs:,}"] for r in self.reliability]
            shown.append(("how far to trust the belief", ["belief says", "is right", "beliefs"], trust))
        return shown

    def _repr_html_(self) -> str:
        """For a notebook."""
        return html_words(self.in_words()) + "".join(html_table(*table) for table in self.tables())

    def as_json(self) -> dict[str, Any]:
        """All of it but the models, as plain values."""
        steps = None if math.isinf(self.steps_to_95) else self.steps_to_95
        return {
            "kinds": self.count,
            "sizes": self.sizes,
            "of_no_kind": self.of_no_kind,
            "steps_to_95": steps,
            "halfway": self.halfway,
            "episode_length": self.length,
            "columns": [{"name": name, "share": round(share, 4)} for name, share in self.columns],
            "reliability": [vars(r) for r in self.reliability],
            "tried": [vars(t) for t in self.tried],
            "rare_rewards": self.rare_rewards,
            "adapting_can_pay": self.pays,
            "verdict": self.in_words(),
        }


def kinds(
    log: Dataset,
    *,
    count: int | np.ndarray | None = None,
    most: int = 6,
    seed: int = 0,
    console: Console | None = None,
) -> Kinds:
    """The kinds of contexts in this log, found without labels, and whether adapting can pay.

    count: how many kinds, where that is known; or the kind of each context, where that is.
    most: no more than so many are looked for.
    """
    found = find(log, kinds=count, most=most, seed=seed, console=console or Console(stderr=True, highlight=False))
    return judged(log, found)


def judged(log: Dataset, found: Found) -> Kinds:
    """What can be said of kinds that were found; sets the models' temperature."""
    lengths = np.bincount(log.episodes[log.usable])
    length = float(np.median(lengths[lengths > 0])) if lengths.any() else 0.0
    known = Speed(math.inf, 0.0)
    columns: list[tuple[str, float]] = []
    reliability: tuple[Reliability, ...] = ()
    seen: tuple[Trace, ...] = ()
    if found.models is not None and found.rows is not None and found.held_out is not None:
        rows = found.rows
        kind = torch.from_numpy(found.kind[np.searchsorted(found.contexts, rows.contexts)])
        reliability = calibrate(found.models, rows, kind, found.held_out)
        known = speed(found.models, rows, kind, found.held_out, length)
        columns = telling_columns(found.models, rows, kind)
        seen = traces(found.models, rows, kind, found.held_out)
    return Kinds(
        found.count,
        found.kind,
        found.contexts,
        found.models,
        found.tried,
        known.steps_to_95,
        known.halfway,
        tuple(columns),
        reliability,
        length,
        str(log.describe()["group_is"]),
        found.why_one,
        seen,
        rare_rewards(log),
    )


def rare_rewards(log: Dataset) -> float:
    """The share of rows whose reward is not the usual one; 0 where it is none or not small."""
    rewards = np.asarray(log.rewards)[log.usable]
    share = float((rewards != np.median(rewards)).mean()) if len(rewards) else 0.0
    return share if share < RARE else 0.0
