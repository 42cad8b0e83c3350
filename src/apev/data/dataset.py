"""Logged transitions as validated columns, with every picture stored once.

What the two flags mean at an episode's end (`.` False, `T` True):

    row          0   1   2 | 3   4   5 | 6   7
    episode      0   0   0 | 1   1   1 | 2   2   <- the log stops here
    terminated   .   .   T | .   .   . | .   .
    truncated    .   .   . | .   .   T | .   .
    next row     1   2   - | 4   5   ? | 7   ?

`-`  terminated: the world ended the episode. No value follows, so what comes next does not matter.
`?`  truncated, or the log stops: only the recording ended. A value follows, so the next observation is needed.
     Without `next_observations` nobody knows it: such a row stays in the data but is not `usable` for learning.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from apev.data import masks as checks
from apev.data import validate
from apev.data.describe import describe, in_words
from apev.data.hold_out import held_out_rows
from apev.data.mapped import is_mapped, pieces
from apev.data.pictures import deduplicate, one_an_episode
from apev.data.validate import DataError, ObservationsLike


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """N logged transitions. Make one with `Dataset.from_arrays` or `Dataset.load`, which check everything.

    Columns keep their compact dtype (a uint8 one-hot stays uint8) and become float32 only when sampled; arrays that
    already have the right dtype are not copied.
    """

    observations: dict[str, np.ndarray]  # vectors [N, D]; the picture column is an index [N] into `pictures`
    actions: np.ndarray  # int64 [N], or float32 [N, A] when they are continuous
    rewards: np.ndarray  # float32 [N]
    terminated: np.ndarray  # bool [N]
    truncated: np.ndarray  # bool [N]
    episodes: np.ndarray  # int64 [N]: 0, 1, 2, ... in the order of the log
    given_next: dict[str, np.ndarray] | None  # as logged; None: the following row
    pictures: np.ndarray | None  # uint8 [P, H, W, C]
    picture_key: str | None
    num_actions: int | None  # None when actions are continuous
    shared_pictures: bool  # every episode shows one picture throughout, so the picture is the context
    contexts: np.ndarray | None = None  # int64 [N]: the world behind a row, where the log says so
    source: dict[str, Any] = field(default_factory=dict)  # where it came from, as JSON: see `apev.data.source`
    action_masks: np.ndarray | None = None  # bool [N, A]: the discrete actions that were allowed; None: all of them
    given_next_masks: np.ndarray | None = None  # bool [N, A]: after the step, as logged; None: the following row's
    hidden: np.ndarray | None = None  # bool [N]: rows of mapped columns that `split` gave to the other part

    @classmethod
    def from_arrays(
        cls,
        observations: ObservationsLike,
        actions: ArrayLike,
        rewards: ArrayLike,
        terminated: ArrayLike,
        truncated: ArrayLike,
        *,
        next_observations: ObservationsLike | None = None,
        pictures: Mapping[str, ArrayLike] | None = None,
        episodes: ArrayLike | None = None,
        contexts: ArrayLike | None = None,
        action_masks: ArrayLike | None = None,
        next_action_masks: ArrayLike | None = None,
        num_actions: int | None = None,
        source: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Check the columns of a log and store every picture once.

        observations: [N, D] numbers, uint8 pictures [N, H, W, C], or a dict of them (at most one picture).
        next_observations: the same after the step; None takes the following row of the same episode.
        pictures: {key: uint8 [P, H, W, C]} when the column `key` already is an integer index into such a table.
        episodes: an integer id a row; None starts a new episode after each terminated or truncated row.
        contexts: an integer id a row of what stays the same throughout an episode and may come back in others (a day, a
            machine, a patient); None takes the picture where an episode shows one throughout, else the episode.
        action_masks: bool [N, A], the discrete actions that were allowed in each row; None allows all.
        next_action_masks: the same after the step; None takes the following row of the same episode.
        num_actions: how many discrete actions there are; None takes the highest in the log plus one.
        source: what is known of its origin: name, environment, ... (see `apev.data.source`); kept in files and splits.

        Memory-mapped columns of the right dtype stay on disk: they are checked piece by piece, never copied.
        """
        table_key, table = validate.picture_table(pictures)
        now, labels = validate.observation_columns(observations, "observations")
        after: dict[str, np.ndarray] = {}
        after_labels: dict[str, str] = {}
        if next_observations is not None:
            after, after_labels = validate.observation_columns(next_observations, "next_observations")
        flat = {labels[key]: array for key, array in now.items()}
        flat |= {after_labels[key]: array for key, array in after.items()}
        scalars = {"actions": actions, "rewards": rewards, "terminated": terminated, "truncated": truncated}
        flat |= {name: validate.as_column(value, name) for name, value in scalars.items()}
        if episodes is not None:
            flat["episodes"] = validate.as_column(episodes, "episodes")
        if contexts is not None:
            flat["contexts"] = validate.as_column(contexts, "contexts")
        limits = {"action_masks": action_masks, "next_action_masks": next_action_masks}
        flat |= {name: validate.as_column(value, name) for name, value in limits.items() if value is not None}
        validate.check_lengths(flat)

        if table_key is not None and table_key not in now:
            fix = f"name the table after one of the observations: {list(now)}"
            raise DataError(f"pictures/{table_key}", "no observation has this name", fix)
        picture_key = table_key if table_key is not None else validate.picture_key_of(now)
        now = validate.stored_columns(now, labels, picture_key, table)
        if next_observations is not None:
            after = validate.stored_columns(after, after_labels, picture_key, table)
            validate.check_alike(now, after, after_labels)
            after = {key: after[key] for key in now}
        if picture_key is not None and table is None:
            parts = [part[picture_key] for part in (now, after) if part]
            table, indices = deduplicate(parts)
            for part, index in zip((now, after), indices, strict=False):
                part[picture_key] = index

        if num_actions is None:  # an action that was allowed is one, even if it was never taken
            num_actions = checks.mask_width(flat.get("action_masks"))
        stored_actions, action_count = validate.discrete_or_continuous(flat["actions"], num_actions)
        ended = validate.flags(flat["terminated"], "terminated")
        cut = validate.flags(flat["truncated"], "truncated")
        numbers = validate.episode_numbers(flat.get("episodes"), ended, cut)
        shared = picture_key is not None and one_an_episode(now[picture_key], after.get(picture_key), numbers, ended)
        if shared and after:  # the picture after a terminated step matters to nobody: one column serves both
            after[str(picture_key)] = now[str(picture_key)]
        return cls(
            observations=now,
            actions=stored_actions,
            rewards=validate.rewards(flat["rewards"]),
            terminated=ended,
            truncated=cut,
            episodes=numbers,
            given_next=after or None,
            pictures=table,
            picture_key=picture_key,
            num_actions=action_count,
            shared_pictures=shared,
            contexts=validate.context_numbers(flat.get("contexts"), numbers),
            action_masks=checks.action_masks(flat.get("action_masks"), stored_actions, action_count),
            given_next_masks=checks.next_masks(flat.get("next_action_masks"), flat.get("action_masks"), ended),
            source=dict(source or {}),
        )

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        episode: str,
        time: str,
        observations: Sequence[str],
        action: str | Sequence[str],
        reward: str,
        context: str | None = None,
        terminated: str | None = None,
        truncated: str | None = None,
        masks: str | None = None,
        source: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """A pandas DataFrame with one row a step, in any order; the arguments name its columns. See `apev.data.formats.frame`.

        observations: numbers; text and categories become one-hot.
        action: text, categories or whole numbers are discrete; other numbers, and a list of columns, are continuous.
        context: what stays the same throughout an episode and may come back in others, such as a machine.
        terminated, truncated: flags; without them the last row of an episode is terminated.
        masks: what the names of the flags begin with that say which actions were allowed: "may_" for may_wait, may_go, ...
        """
        from apev.data.formats import frame as frames

        return frames.read(
            frame,
            episode=episode,
            time=time,
            observations=observations,
            action=action,
            reward=reward,
            context=context,
            terminated=terminated,
            truncated=truncated,
            masks=masks,
            source=source,
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], **columns: Any) -> Dataset:
        """Read an .npz, a D4RL .hdf5, a .apev folder, a Minari data set (its folder or id), or a table (.csv, .parquet).

        columns: which column of a table is what, as for `from_frame`; those not given are guessed from their names.
        See `apev.data.formats.io`.
        """
        from apev.data.formats import io

        return io.load(path, columns=columns)

    @classmethod
    def example(cls, name: str) -> Dataset:
        """A log to try things on, made on the spot: "cartpole" (discrete actions) or "pendulum" (continuous).

        "customers" (discrete) and "pendulum-fleet" (continuous) hide something to adapt to: see `apev.envs.fleet`.
        """
        from apev.data.examples import EXAMPLES

        if name not in EXAMPLES:
            raise ValueError(f"there is no example {name!r}. Fix: one of {', '.join(EXAMPLES)}.")
        return EXAMPLES[name]()

    def save(self, path: str | os.PathLike[str], *, compress: bool = False) -> None:
        """Write .npz, .hdf5 or .apev as the name says, or a Minari id; it appears complete or not at all."""
        from apev.data.formats import io

        io.save(self, path, compress=compress)

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def discrete(self) -> bool:
        """Whether actions are integers."""
        return self.num_actions is not None

    @property
    def mapped(self) -> bool:
        """Whether a column lies in a file instead of in memory."""
        return any(is_mapped(column) for column in (*self.observations.values(), *(self.given_next or {}).values()))

    @property
    def num_episodes(self) -> int:
        """Episodes, including an unfinished last one."""
        return int(self.episodes[-1]) + 1

    @property
    def vector_keys(self) -> tuple[str, ...]:
        """The observations that are vectors, in the order in which a batch concatenates them."""
        return tuple(key for key in self.observations if key != self.picture_key)

    @property
    def vector_dim(self) -> int:
        """Length of the concatenated vector; 0 when there is only a picture."""
        return sum(self.observations[key].shape[1] for key in self.vector_keys)

    @cached_property
    def _last(self) -> np.ndarray:
        """bool [N]: the last row of its episode."""
        return np.append(self.episodes[1:] != self.episodes[:-1], True)

    @cached_property
    def next_rows(self) -> np.ndarray:
        """int64 [N]: the following row of the same episode; a last row points at itself."""
        following: np.ndarray = np.arange(len(self)) + ~self._last
        return following

    @cached_property
    def usable(self) -> np.ndarray:
        """bool [N]: the rows one can learn from, i.e. those whose next observation is known or does not matter."""
        known = np.ones(len(self), dtype=bool) if self.given_next is not None else ~self._last | self.terminated
        if self.action_masks is not None and self.given_next_masks is None:  # what may be done next must be known too
            known = known & (~self._last | self.terminated)
        return known if self.hidden is None else known & ~self.hidden

    @cached_property
    def next_masks(self) -> np.ndarray | None:
        """bool [N, A]: what is allowed after each row's step; everything where the world ended, as nothing follows."""
        if self.action_masks is None:
            return None
        after = self.action_masks[self.next_rows] if self.given_next_masks is None else self.given_next_masks
        allowed: np.ndarray = after | self.terminated[:, None]
        return allowed

    @cached_property
    def next_observations(self) -> dict[str, np.ndarray]:
        """What each row's step led to. Where the log did not say, it is the following row, or itself at the end."""
        return self.given_next if self.given_next is not None else self.next_observations_of(slice(None))

    def next_observations_of(self, rows: slice) -> dict[str, np.ndarray]:
        """`next_observations` of some rows alone."""
        if self.given_next is not None:
            return {key: column[rows] for key, column in self.given_next.items()}
        return {key: column[self.next_rows[rows]] for key, column in self.observations.items()}

    @cached_property
    def group(self) -> np.ndarray:
        """int64 [N]: the context of a row: as given, else its picture where episodes show one each, else its episode."""
        if self.contexts is not None:
            return self.contexts
        return self.observations[str(self.picture_key)].astype(np.int64) if self.shared_pictures else self.episodes

    @property
    def num_groups(self) -> int:
        """Groups are numbered below this. A picture that no row shows counts, but is never sampled."""
        if self.contexts is not None:
            return int(self.contexts.max()) + 1
        return len(self.pictures) if self.shared_pictures and self.pictures is not None else self.num_episodes

    def episode_returns(self) -> np.ndarray:
        """float64 [episodes]: the sum of the rewards, not discounted."""
        return np.bincount(self.episodes, weights=self.rewards, minlength=self.num_episodes)

    def lowest_return(self, gamma: float) -> float:
        """The least discounted reward from any row on; where an episode was cut off, it goes on as badly for ever."""
        return self._worst_return(self.rewards, gamma)

    def highest_return(self, gamma: float) -> float:
        """The most discounted reward from any row on; where an episode was cut off, it goes on as well for ever."""
        return -self._worst_return(-self.rewards, gamma)

    def _worst_return(self, rewards: np.ndarray, gamma: float) -> float:
        from scipy.signal import lfilter

        starts = np.flatnonzero(self._last)[:-1] + 1
        lowest = np.inf
        for episode, ended in zip(np.split(rewards, starts), self.terminated[self._last], strict=True):
            backwards = np.asarray(episode[::-1], dtype=np.float64)
            returns = lfilter([1.0], [1.0, -gamma], backwards)  # of the last row first
            if not ended:
                with np.errstate(divide="ignore", invalid="ignore"):  # gamma may be 1
                    repeated = returns / (1 - gamma ** np.arange(1, len(returns) + 1))
                returns = np.where(returns < 0, repeated, returns)
            lowest = min(lowest, float(returns.min()))
        return lowest

    def split(self, fraction: float, seed: int) -> tuple[Dataset, Dataset]:
        """(kept, held out): about this share of the rows is held out, as contexts that the kept part knows nothing of.

        Calibration needs contexts the members never trained on; held-out rows of a known picture would not do. Where there
        are so few contexts that one of them is more than the share, none is taken whole: later episodes of contexts are held
        out, and where a context is one episode, the end of that.

        Both parts share the picture table, without a copy. Mapped columns are not copied for the larger part either: it
        keeps all rows, and those of the other part are `hidden`, so not `usable`.
        """
        if not 0 < fraction < 1:
            raise ValueError(f"split: fraction is {fraction}. Fix: pass the share to hold out, between 0 and 1.")
        shown = np.ones(len(self), dtype=bool) if self.hidden is None else ~self.hidden
        if shown.sum() < 2:
            raise DataError("episodes", "there is only one row, so none can be held out", "log more episodes")
        held_out = held_out_rows(self.group, self.episodes, shown, fraction, np.random.default_rng(seed))
        if self.mapped:
            hidden = held_out if self.hidden is None else held_out | self.hidden
            return replace(self, hidden=hidden), self._rows(held_out)
        return self._rows(~held_out), self._rows(held_out)

    def _rows(self, keep: np.ndarray) -> Dataset:
        """The part with these rows; of an episode it is one stretch."""
        following = self.given_next
        return replace(
            self,
            observations={key: column[keep] for key, column in self.observations.items()},
            actions=self.actions[keep],
            rewards=self.rewards[keep],
            terminated=self.terminated[keep],
            truncated=self.truncated[keep],
            episodes=np.unique(self.episodes[keep], return_inverse=True)[1].astype(np.int64),
            given_next=None if following is None else {key: column[keep] for key, column in following.items()},
            contexts=None if self.contexts is None else self.contexts[keep],
            action_masks=None if self.action_masks is None else self.action_masks[keep],
            given_next_masks=None if self.given_next_masks is None else self.given_next_masks[keep],
            hidden=None,
        )

    @cached_property
    def digest(self) -> str:
        """A checksum of every number, whichever file it came from: a run that goes on must find the log it began with."""
        found = hashlib.sha256(f"{self.num_actions} {self.picture_key}".encode())
        columns = {f"observations/{key}": column for key, column in self.observations.items()}
        columns |= {f"next_observations/{key}": column for key, column in (self.given_next or {}).items()}
        columns |= {"actions": self.actions, "rewards": self.rewards, "terminated": self.terminated}
        columns |= {"truncated": self.truncated, "episodes": self.episodes}
        optional = {"pictures": self.pictures, "contexts": self.contexts}
        optional |= {"action_masks": self.action_masks, "next_action_masks": self.given_next_masks}
        columns |= {name: column for name, column in optional.items() if column is not None}
        for name, column in columns.items():
            found.update(f"{name} {column.dtype} {column.shape}".encode())
            for rows in pieces(column):
                found.update(np.ascontiguousarray(column[rows]).data)
        return found.hexdigest()

    def describe(self) -> dict[str, Any]:
        """What is in the data, as plain numbers and strings (fit for JSON)."""
        return describe(self)

    def __repr__(self) -> str:
        return in_words(self)
