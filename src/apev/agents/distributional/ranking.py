"""A second loss for values that are uncertain by many steps: which action is better must be right before how good it is."""

from __future__ import annotations

from torch import Tensor, arange

from apev.data.batch import Batch

SHARP = 0.5  # steps: by how many one action must be better than another to be e times as probable
MISSING = -1e4  # logit of actions that the batch does not show in a state, so that the softmax gives them nothing


def ranking_loss(batch: Batch, q: Tensor, target_q: Tensor, actions: int) -> Tensor:
    """[K, B]: for each row that of its state, the divergence of the actions' softmax by q from that by the targets.

    Only actions that the batch has count. Returns that the log proves are compared as they are, below the lowest atom too.
    """
    assert batch.obs.pictures is not None
    state = batch.obs.picture
    shape = len(q), len(batch.obs.pictures), actions  # [K, P, A]
    cell = arange(len(q), device=q.device)[:, None], state, batch.action
    wanted_q = target_q if batch.returns is None else batch.returns.expand_as(target_q)
    missing = q.new_full(shape, MISSING)
    wanted = missing.index_put(cell, wanted_q / SHARP).log_softmax(-1)
    found = missing.index_put(cell, q / SHARP).log_softmax(-1)
    return (wanted.exp() * (wanted - found)).sum(-1)[:, state]
