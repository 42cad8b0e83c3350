"""Batches drawn on the device: no loop over rows and no wait for the device in a step.

Where every episode shows one picture, a batch is drawn by picture, so that its encoder runs once for many rows:

    groups       g0            g1            ...   batch_groups of them, each equally likely
    rows         r r r r ...   r r r r ...         per_group of each
    pictures     one           one                 [batch_groups, C, H, W]

Where the log names its contexts, a batch is drawn by context in the same way: beliefs learn from rows that share a world.
Otherwise rows are drawn uniformly, `batch_size` of them. All draws are with replacement. Where rows are drawn by group,
`batch_size` says how many groups: batch_size / per_group, unless `batch_groups` does.

Columns that lie in files stay there. Their rows are drawn one batch ahead, so that the disk works while the agent learns; what
is drawn does not depend on it. For a GPU such columns are gathered on the CPU and sent batch by batch.

Files that are larger than memory are drawn in blocks (`apev.data.blocks`), with the same chance for every row or context, and
without replacement within an epoch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from apev.data.batch import Batch, Observations
from apev.data.blocks import BLOCK_ROWS, POOL_BLOCKS, Blocks, Draw, GroupBlocks, RowBlocks, resolved
from apev.data.dataset import Dataset
from apev.data.mapped import Pages, Shards, TensorShards, as_tensor
from apev.data.validate import DataError

DRAW = 2**62  # an integer draw this wide, modulo a group's size, is uniform for every purpose
ROWS, GROUPS = 512, 32  # in a batch, unless other numbers are asked for
SLOW = 2e-5  # seconds a row: rows in memory take a hundredth of it, rows on disk several times as long
FETCH_BATCHES = 200


class Sampler:
    """Random batches of the usable rows of a `Dataset`, the same on every run with the same seed."""

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch_groups: int | None = None,
        per_group: int = 16,
        batch_size: int | None = None,
        device: str | torch.device = "cpu",
        seed: int = 0,
        draw: Draw = "auto",
        block_rows: int = BLOCK_ROWS,
        pool_blocks: int = POOL_BLOCKS,
        returns: np.ndarray | None = None,
    ) -> None:
        """draw: single "rows", or "blocks" of `block_rows` that are mixed with others, `pool_blocks` at a time; "auto" takes
        blocks where the log lies in files that do not fit comfortably in memory. returns: [N], what batches say of each row's
        return, where agents learn from it.
        """
        for name, value in (("batch_groups", batch_groups), ("per_group", per_group), ("batch_size", batch_size)):
            if value is not None and value < 1:
                raise ValueError(f"Sampler: {name} is {value}. Fix: pass at least 1.")
        usable = np.flatnonzero(dataset.usable)
        if len(usable) == 0:
            fix = "pass next_observations, or longer episodes"
            raise DataError("next_observations", "no row has a known next observation", fix)
        self.device = torch.device(device)
        self._home = torch.device("cpu") if dataset.mapped else self.device  # where the columns are
        self.by_picture = dataset.shared_pictures and dataset.contexts is None
        self.by_group = self.by_picture or dataset.contexts is not None
        if batch_groups is None:
            batch_groups, left = (GROUPS, 0) if batch_size is None else divmod(batch_size, per_group)
            if self.by_group and (left or not batch_groups):
                raise ValueError(
                    f"Sampler: this log is drawn by context, {per_group} rows of each, and batch_size {batch_size} is no "
                    "multiple of that. Fix: another batch_size or per_group, or say batch_groups."
                )
        self.per_group = per_group
        self.batch_groups = batch_groups
        self.batch_size = batch_groups * per_group if self.by_group else ROWS if batch_size is None else batch_size
        self._generator = torch.Generator(device=self._home).manual_seed(seed)

        self._vectors = [self._column(dataset.observations[key]) for key in dataset.vector_keys]
        self._next_vectors, self._next_rows = self._vectors, None
        self._pictures = self._picture = self._next_picture = None
        if dataset.given_next is not None:
            self._next_vectors = [self._column(dataset.given_next[key]) for key in dataset.vector_keys]
        else:
            self._next_rows = self._column(dataset.next_rows)
        if dataset.pictures is not None and dataset.picture_key is not None:
            # [P, H, W, C] seen as [P, C, H, W] is channels_last, what convolutions like best, without a copy
            self._pictures = self._column(dataset.pictures)
            self._picture = self._column(dataset.observations[dataset.picture_key])
            if dataset.given_next is not None and not self.by_picture:
                self._next_picture = self._column(dataset.given_next[dataset.picture_key])
        self._actions = self._column(dataset.actions)
        self._rewards = self._column(dataset.rewards)
        self._terminated = self._column(dataset.terminated)
        self._usable = self._column(dataset.usable)
        self._allowed = self._next_allowed = None
        if dataset.action_masks is not None and dataset.next_masks is not None:
            self._allowed, self._next_allowed = self._column(dataset.action_masks), self._column(dataset.next_masks)
        self._group = self._column(dataset.group)
        self._returns = None if returns is None else self._column(returns)

        self._pages = Pages([*dataset.observations.values(), *(dataset.given_next or {}).values(), dataset.actions])
        self.draw = resolved(draw, dataset)
        self._blocks: Blocks | None = None
        if self.draw == "rows":
            self._pages.expect_random()
        self._ahead: tuple[Tensor, Tensor] | None = None  # rows of the coming batch, and the generator before they were drawn
        self._fetching = 0  # for so many batches the disk is told of rows beforehand

        self._rows: Tensor | None = None  # None: all rows, in order
        self._repeat = torch.arange(batch_groups, device=self._home).repeat_interleave(per_group)
        if self.by_group:
            groups = dataset.group[usable]
            self._rows = self._column(usable[np.argsort(groups, kind="stable")])  # usable rows, group by group
            drawable, starts, counts = np.unique(np.sort(groups), return_index=True, return_counts=True)
            self._groups, self._starts, self._counts = self._column(drawable), self._column(starts), self._column(counts)
        elif len(usable) < len(dataset):
            self._rows = self._column(usable)
        if self.draw == "blocks":
            how = (self._generator, self._pages.fetch if self._pages else None, block_rows, pool_blocks)
            if self.by_group:
                assert self._rows is not None
                shape = self.batch_groups, self.per_group
                self._blocks = GroupBlocks(self._rows, self._starts, self._counts, shape, *how)
            else:
                self._blocks = RowBlocks(self._rows, len(usable), self.batch_size, *how)

    def sample(self) -> Batch:
        """The next random batch."""
        if self._blocks is not None:
            rows, chosen = self._blocks.next()
        elif self.by_group:
            rows, chosen = self._by_group()
        else:
            return self._gather_ahead() if self._pages else self._gather(self._uniform())
        if not self.by_picture or chosen is None:
            return self._gather(rows)
        table = self._shown(self._groups[chosen])  # the group of a shared picture is the picture
        return self._assemble(rows, table, self._repeat, self._repeat, shared=True)

    def _by_group(self) -> tuple[Tensor, Tensor]:
        """[batch_size] rows, and the places [batch_groups] of their groups, each group equally likely."""
        assert self._rows is not None
        chosen = self._draw(len(self._groups), self.batch_groups)
        offset = self._draw(DRAW, self.batch_groups, self.per_group) % self._counts[chosen, None]
        return self._rows[(self._starts[chosen, None] + offset).flatten()], chosen

    def _uniform(self) -> Tensor:
        """[batch_size] usable rows, each equally likely."""
        if self._rows is None:
            return self._draw(len(self._usable), self.batch_size)
        return self._rows[self._draw(len(self._rows), self.batch_size)]

    def _gather_ahead(self) -> Batch:
        """The batch drawn last time; the rows of the next one are drawn, and fetched if the disk turns out to be slow."""
        rows = self._uniform() if self._ahead is None else self._ahead[0]
        before = self._generator.get_state()
        self._ahead = self._uniform(), before
        begin = time.perf_counter()
        batch = self._gather(rows)
        slow = time.perf_counter() - begin > SLOW * len(rows)
        self._fetching = FETCH_BATCHES if slow else max(0, self._fetching - 1)
        if self._fetching:
            self._pages.fetch(self._ahead[0].numpy())
        return batch

    def batch(self, rows: Tensor) -> Batch:
        """The transitions of these rows, in this order; each distinct picture stands once in the table."""
        rows = rows.to(self._home, torch.int64)
        if rows.ndim != 1 or bool(((rows < 0) | (rows >= len(self._usable))).any()):
            raise IndexError(
                f"Sampler.batch: rows {tuple(rows.shape)} are not [B] within the data. "
                f"Fix: pass numbers from 0 to {len(self._usable) - 1}."
            )
        if not bool(self._usable[rows].all()):
            row = int(rows[~self._usable[rows]][0])
            raise ValueError(f"Sampler.batch: row {row} has no next observation. Fix: pass rows where dataset.usable.")
        if self._pictures is None or self._picture is None:
            return self._assemble(rows, None, None, None)
        both = torch.cat([self._picture[rows], self._following_picture(rows)])
        distinct, place = torch.unique(both, return_inverse=True)
        return self._assemble(rows, self._shown(distinct), place[: len(rows)], place[len(rows) :])

    def iterate(self, batch_size: int) -> Iterator[Batch]:
        """Every usable row once, in the order of the log."""
        if batch_size < 1:
            raise ValueError(f"Sampler.iterate: batch_size is {batch_size}. Fix: pass at least 1.")
        for rows in self._usable.nonzero().flatten().split(batch_size):
            yield self.batch(rows)

    def state_dict(self) -> dict[str, Tensor]:
        """All that the coming batches depend on: uint8, as checkpoints store it."""
        if self._blocks is not None:
            return self._blocks.state_dict()
        state = self._generator.get_state() if self._ahead is None else self._ahead[1]
        return {"generator": state.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on exactly where `state_dict` was taken."""
        if "generator" not in state:
            raise KeyError(f"Sampler state has keys {sorted(state)}. Fix: pass what Sampler.state_dict() returned.")
        if ("place" in state) != (self._blocks is not None):
            was = "blocks" if "place" in state else "rows"
            raise ValueError(f"Sampler state is of one that draws {was}, and this one draws {self.draw}. Fix: draw={was!r}.")
        self._generator.set_state(state["generator"].to("cpu", torch.uint8).clone())
        self._ahead = None
        if self._blocks is not None:
            self._blocks.load_state_dict(state)

    def _column(self, array: np.ndarray) -> Tensor:
        """The column on the device in its own dtype; on the CPU it shares memory, or files, with the data set."""
        if isinstance(array, Shards):
            return cast(Tensor, TensorShards(array))  # it stands for one where rows are selected
        return as_tensor(array).to(self._home)

    def _draw(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=self._generator, device=self._home)

    def _shown(self, index: Tensor) -> Tensor:
        """[P, C, H, W] uint8 in channels_last memory."""
        assert self._pictures is not None
        return self._pictures[index].permute(0, 3, 1, 2)

    def _following_picture(self, rows: Tensor) -> Tensor:
        assert self._picture is not None
        if self._next_picture is not None:
            return self._next_picture[rows]
        return self._picture[rows if self._next_rows is None else self._next_rows[rows]]

    def _gather(self, rows: Tensor) -> Batch:
        """A batch whose table holds the pictures of the rows, then those after the step; nothing waits for a count."""
        if self._picture is None:
            return self._assemble(rows, None, None, None)
        table = self._shown(torch.cat([self._picture[rows], self._following_picture(rows)]))
        place = torch.arange(2 * len(rows), device=self._home)
        return self._assemble(rows, table, place[: len(rows)], place[len(rows) :])

    def _assemble(
        self,
        rows: Tensor,
        pictures: Tensor | None,
        picture: Tensor | None,
        next_picture: Tensor | None,
        *,
        shared: bool = False,
    ) -> Batch:
        next_rows = rows if self._next_rows is None else self._next_rows.index_select(0, rows)
        batch = Batch(
            obs=Observations(self._concatenated(self._vectors, rows), pictures, picture),
            action=self._actions.index_select(0, rows),
            reward=self._rewards.index_select(0, rows),
            next_obs=Observations(self._concatenated(self._next_vectors, next_rows), pictures, next_picture),
            terminated=self._terminated.index_select(0, rows).float(),
            group=self._group.index_select(0, rows),
            returns=None if self._returns is None else self._returns.index_select(0, rows),
            shares_pictures=shared,
        )
        if self._allowed is not None and self._next_allowed is not None:
            obs = replace(batch.obs, allowed=self._allowed.index_select(0, rows))
            next_obs = replace(batch.next_obs, allowed=self._next_allowed.index_select(0, rows))
            batch = replace(batch, obs=obs, next_obs=next_obs)
        return batch if self._home == self.device else batch.to(self.device)

    def _concatenated(self, columns: list[Tensor], rows: Tensor) -> Tensor:
        """[B, D] float32; D = 0 when there is only a picture."""
        if not columns:
            return torch.zeros(len(rows), 0, device=self._home)
        parts = [column.index_select(0, rows).float() for column in columns]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
