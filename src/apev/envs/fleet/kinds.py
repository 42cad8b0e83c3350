"""Hidden kinds: which one an episode is of, and how they are dealt out over the contexts of a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def choose(kind: int | None, count: int, options: Mapping[str, Any] | None, rng: np.random.Generator) -> int:
    """The kind of an episode: the one that `options` or else `kind` asks for, or one of `count` at random.

    A number is drawn in any case: what is drawn after it is the same whichever kind was asked for.
    """
    drawn = int(rng.integers(count))
    asked = (options or {}).get("kind", kind)
    return drawn if asked is None else checked(asked, count)


def checked(kind: Any, count: int, name: str = "kind") -> int:
    """`kind`, if it is one of `count`."""
    if isinstance(kind, bool) or not isinstance(kind, int | np.integer) or not 0 <= kind < count:
        raise ValueError(f"{name} is {kind!r}. Fix: a whole number from 0 to {count - 1}, or None to draw one.")
    return int(kind)


def deal(kinds: Sequence[int], contexts: int, rng: np.random.Generator) -> np.ndarray:
    """int64 [contexts]: each kind as often as any other, give or take one, in random order."""
    if contexts < len(kinds):
        raise ValueError(f"{contexts} contexts cannot be of {len(kinds)} kinds. Fix: at least one context a kind.")
    return np.asarray(rng.permutation(np.resize(np.asarray(kinds, dtype=np.int64), contexts)))
