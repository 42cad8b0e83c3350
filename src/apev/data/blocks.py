"""Rows drawn in blocks, for logs in files larger than memory: a disk reads neighbours together, and single rows one by one.

    epoch    all blocks, stretches of 256 rows that follow each other, in random order; where they begin is random too
    round    the next 512 of them, which fit in memory; the system reads those of the coming round meanwhile
    batch    rows of the round in random order, each once

So a batch of 256 rows comes from some 200 places of the log, for one read of a block. Batches that are a few whole blocks would
read as much, and be made of neighbours, which are alike. This is CorgiPile's order (Xu et al., 2022), which learns as from
single rows as long as a round holds many blocks.

Where a batch takes some rows of each of several contexts, an epoch has all contexts in random order, and a round up to 512 of
them with a block of each, or several where contexts are fewer: a context that is no longer than that is there as a whole.
Batches draw from the round with replacement, each context of it equally likely.

An epoch is drawn from the generator's state at its beginning. That state and a place are all that a run needs to go on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from apev.data.dataset import Dataset
from apev.data.mapped import is_mapped
from apev.files import free_memory

Draw = Literal["auto", "rows", "blocks"]
BLOCK_ROWS, POOL_BLOCKS = 256, 512
COMFORT = 0.5  # of the free memory: a log that is smaller stays in it once it is read
SEEDS = 2**62


def resolved(draw: Draw, dataset: Dataset) -> Literal["rows", "blocks"]:
    """How rows are drawn: "auto" takes blocks where the log lies in files that do not fit comfortably in memory."""
    if draw not in get_args(Draw):
        raise ValueError(f"draw is {draw!r}. Fix: 'auto', 'rows' or 'blocks'.")
    if draw != "auto":
        return draw
    there = free_memory()
    return "rows" if there is None or bytes_in_files(dataset) <= COMFORT * there else "blocks"


def bytes_in_files(dataset: Dataset) -> int:
    """Of the columns that are read from files as they are drawn."""
    columns = [*dataset.observations.values(), *(dataset.given_next or {}).values(), dataset.actions]
    return sum(int(column.nbytes) for column in columns if is_mapped(column))


@dataclass(frozen=True)
class Round:
    """The batches that are made of some blocks."""

    rows: Tensor  # int64 [batches, batch_size]
    groups: Tensor | None  # int64 [batches, batch_groups]: places among the contexts, where they are drawn by context
    reads: list[np.ndarray]  # all rows of the blocks in the order of the log, in a part for each batch


@dataclass(frozen=True)
class Epoch:
    """What was drawn at the beginning of an epoch."""

    begin: Tensor  # the generator's state before
    order: Tensor  # int64: all blocks, or all contexts
    offset: int  # any number: where the first block begins
    seeds: list[int]  # of the rounds


@dataclass
class Turn:
    """A round of an epoch."""

    epoch: Epoch
    number: int
    round: Round


class Blocks(ABC):
    """Batches of row numbers, without an end."""

    def __init__(self, generator: torch.Generator, fetch: Callable[[np.ndarray], None] | None, block: int, pool: int) -> None:
        """fetch: told of rows that will be wanted; block, pool: rows of a block and blocks of a round."""
        if block < 1 or pool < 1:
            raise ValueError(f"block_rows is {block}, pool_blocks {pool}. Fix: at least 1 each.")
        self._generator, self._fetch, self._device = generator, fetch, generator.device
        self.block, self.pool = block, pool
        self._now: Turn | None = None
        self._coming: Turn | None = None
        self._used = 0  # batches of the round

    @abstractmethod
    def count(self) -> int:
        """How many blocks or contexts an epoch has."""

    @abstractmethod
    def make(self, members: Tensor, offset: int, generator: torch.Generator) -> Round:
        """The round of these blocks or contexts."""

    def next(self) -> tuple[Tensor, Tensor | None]:
        """Rows [batch_size] of the next batch, and its contexts where they are drawn by context."""
        if self._now is None or self._used == len(self._now.round.rows):
            self._turn(self._coming or self._begin())
        assert self._now is not None
        assert self._coming is not None
        at, found = self._used, self._now.round
        self._used += 1
        if self._fetch is not None:
            # Spread over the round, so that no batch waits for all of it; the last one asks for what is left.
            parts = self._coming.round.reads
            for part in parts[at : len(parts) if self._used == len(found.rows) else self._used]:
                self._fetch(part)
        return found.rows[at], None if found.groups is None else found.groups[at]

    def state_dict(self) -> dict[str, Tensor]:
        """All that the coming batches depend on."""
        if self._now is None:
            return {"generator": self._generator.get_state().clone(), "place": torch.tensor([0, 0])}
        return {"generator": self._now.epoch.begin.clone(), "place": torch.tensor([self._now.number, self._used])}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on exactly where `state_dict` was taken; the generator has the state that it told."""
        number, used = (int(value) for value in state["place"])
        epoch = self._draw()
        if not 0 <= number < len(epoch.seeds):
            raise ValueError(f"sampler state is in round {number} of {len(epoch.seeds)}. Fix: go on with the log of the run.")
        self._coming = None
        self._turn(self._at(epoch, number))
        self._used = used

    def _turn(self, to: Turn) -> None:
        if self._fetch is not None and to is not self._coming:  # nobody has asked for it yet
            for part in to.round.reads:
                self._fetch(part)
        self._now, self._used = to, 0
        self._coming = self._at(to.epoch, to.number + 1) if to.number + 1 < len(to.epoch.seeds) else self._begin()

    def _begin(self) -> Turn:
        return self._at(self._draw(), 0)

    def _draw(self) -> Epoch:
        def whole(high: int, *shape: int) -> Tensor:
            return torch.randint(high, shape, generator=self._generator, device=self._device)

        begin = self._generator.get_state()
        offset = int(whole(SEEDS, 1))
        order = torch.randperm(self.count(), generator=self._generator, device=self._device)
        return Epoch(begin, order, offset, whole(SEEDS, -(-len(order) // self.pool)).tolist())

    def _at(self, epoch: Epoch, number: int) -> Turn:
        """A round; all of an epoch are equally large, so that none has only a few blocks."""
        begin, end = (len(epoch.order) * part // len(epoch.seeds) for part in (number, number + 1))
        generator = torch.Generator(device=self._device).manual_seed(epoch.seeds[number])
        return Turn(epoch, number, self.make(epoch.order[begin:end], epoch.offset, generator))


class RowBlocks(Blocks):
    """Each row as likely as the others."""

    def __init__(
        self,
        rows: Tensor | None,
        number: int,
        batch_size: int,
        generator: torch.Generator,
        fetch: Callable[[np.ndarray], None] | None,
        block: int = BLOCK_ROWS,
        pool: int = POOL_BLOCKS,
    ) -> None:
        """rows: [number] those that may be drawn, in the order of the log; None: all from 0 on."""
        super().__init__(generator, fetch, block, pool)
        self._rows, self._number, self.batch_size = rows, number, batch_size

    def count(self) -> int:
        """Blocks of the log, the last of which may be short."""
        return -(-self._number // self.block)

    def make(self, members: Tensor, offset: int, generator: torch.Generator) -> Round:
        """Every row of these blocks, in random order; a few are left over where batches do not come out even."""
        places = (members[:, None] * self.block + torch.arange(self.block, device=self._device)).flatten()
        places = places[places < self._number] + offset % self._number
        places = (places % self._number).sort().values  # the end meets the start
        rows = places if self._rows is None else self._rows[places]
        batches = max(1, len(rows) // self.batch_size)
        order = torch.randperm(len(rows), generator=generator, device=self._device)
        wanted = torch.arange(batches * self.batch_size, device=self._device) % len(rows)  # again, where a log is so small
        return Round(rows[order[wanted]].view(batches, -1), None, np.array_split(rows.cpu().numpy(), batches))


class GroupBlocks(Blocks):
    """Each context as likely as the others, and some rows of each in a batch."""

    def __init__(
        self,
        rows: Tensor,
        starts: Tensor,
        counts: Tensor,
        shape: tuple[int, int],
        generator: torch.Generator,
        fetch: Callable[[np.ndarray], None] | None,
        block: int = BLOCK_ROWS,
        pool: int = POOL_BLOCKS,
    ) -> None:
        """rows: context by context; starts, counts: where those of each begin, and how many; shape: contexts, rows of each."""
        super().__init__(generator, fetch, block, pool)
        self._rows, self._starts, self._counts, self.shape = rows, starts, counts, shape

    def count(self) -> int:
        """Contexts of the log."""
        return len(self._starts)

    def make(self, members: Tensor, offset: int, generator: torch.Generator) -> Round:
        """Blocks of these contexts that begin anywhere and go on at the context's beginning where it ends."""

        def whole(high: int, *shape: int) -> Tensor:
            return torch.randint(high, shape, generator=generator, device=self._device)

        each = max(1, self.pool // len(members))  # blocks of a context
        count = self._counts[members, None]
        step = torch.arange(self.block, device=self._device).repeat(each)
        begin = (whole(SEEDS, len(members), each) % count).repeat_interleave(self.block, dim=1)
        small = count <= len(step)
        place = torch.where(small, torch.arange(len(step), device=self._device).expand(len(members), -1), begin + step) % count
        table = self._rows[self._starts[members, None] + place]  # [contexts, each * block]
        there = count.flatten().clamp(max=len(step))
        batches = max(1, int(there.sum()) // (self.shape[0] * self.shape[1]))
        chosen = whole(len(members), batches, self.shape[0])
        which = whole(SEEDS, batches, *self.shape) % there[chosen, None]
        rows = table[chosen[..., None], which].view(batches, -1)
        return Round(rows, members[chosen], np.array_split(table.unique().cpu().numpy(), batches))
