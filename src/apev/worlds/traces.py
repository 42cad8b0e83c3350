"""How the belief in the right kind grew over the steps of some contexts, for people to look at."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from apev.worlds.calibrate import LONG_ENOUGH
from apev.worlds.models import WorldModels
from apev.worlds.rows import Rows

CONTEXTS, STEPS = 60, 256  # at most
Trace = tuple[int, np.ndarray]  # the kind of a context, and the belief in it [steps + 1] from before its first step on


def traces(models: WorldModels, rows: Rows, kind: Tensor, held_out: Tensor) -> tuple[Trace, ...]:
    """Of some contexts of each kind, along rows that models did not learn from, unless they are few, as `speed` has it."""
    looked_at = held_out if rows.sums(held_out.float()).median() >= LONG_ENOUGH else torch.ones_like(held_out)
    each = [(kind == k).nonzero()[:, 0] for k in range(models.kinds)]
    shown = [own[:: max(1, -(-len(own) * models.kinds // CONTEXTS))] for own in each]
    evidence, found = models.of_rows(rows), []
    for context in torch.cat(shown).tolist():
        told = evidence[(rows.context == context) & looked_at][:STEPS]
        sums = told.new_zeros(len(told) + 1, models.kinds)
        sums[1:] = told.cumsum(0)
        found.append((int(kind[context]), sums.softmax(-1)[:, int(kind[context])].numpy()))
    return tuple(found)
