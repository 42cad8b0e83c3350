"""How certain a belief may be: the temperature at which it is as often right as it says, and how soon it is sure.

Both are measured on stretches of rows that the models did not learn from. What kind a stretch is of is judged by all other rows
of its context, so that no evidence is counted twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from apev.worlds.models import WorldModels
from apev.worlds.rows import Rows

WINDOWS = (1, 2, 4, 8, 16, 32)  # steps of evidence
TEMPERATURES = torch.logspace(0, 2, 41, base=10.0)
SURE = 0.95
RARE = 0.05  # share of its rows that the right model explains worse than WorldModels.least
LONG_ENOUGH = 16  # rows held out of the median context, below which all its rows are looked at


@dataclass(frozen=True)
class Reliability:
    """Of all beliefs that said about this, how many were right."""

    stated: float
    right: float
    beliefs: int


def windows(rows: Rows, kind: Tensor, held_out: Tensor, evidence: Tensor) -> tuple[Tensor, Tensor]:
    """([n, K] evidence of stretches of held-out rows, [n, K] what all other rows of their contexts say)."""
    total = rows.sums(evidence)
    picked = (held_out & (kind[rows.context] >= 0)).nonzero()[:, 0]
    picked = picked[torch.argsort(rows.context[picked], stable=True)]
    context, told = rows.context[picked], evidence[picked]
    counts = torch.bincount(context, minlength=len(rows.sizes))
    place = torch.arange(len(picked)) - (counts.cumsum(0) - counts)[context]
    found, others = [], []
    for length in WINDOWS:
        stretch = context * (len(picked) + 1) + place // length
        names, index = stretch.unique(return_inverse=True)
        whole = torch.bincount(index) == length
        sums = told.new_zeros(len(names), told.shape[1]).index_add_(0, index, told)
        of_context = torch.zeros(len(names), dtype=torch.int64).scatter_(0, index, context)
        found.append(sums[whole])
        others.append((total[of_context] - sums)[whole])
    return torch.cat(found), torch.cat(others)


def calibrate(models: WorldModels, rows: Rows, kind: Tensor, held_out: Tensor) -> tuple[Reliability, ...]:
    """Set the models' temperature and `least`; returns how often beliefs are right by what they say, in ten bins."""
    models.temperature.fill_(1.0)
    models.least.fill_(-torch.inf)
    evidence = models.of_rows(rows)
    own = kind[rows.context]
    judged = (held_out & (own >= 0)).nonzero()[:, 0]
    if not len(judged):
        return ()
    models.least.fill_(float(np.quantile(evidence[judged, own[judged]].numpy(), RARE)))
    evidence = torch.logaddexp(evidence, models.least)
    told, others = windows(rows, kind, held_out, evidence)
    if not len(told):
        return ()
    truth = others.argmax(1)
    losses = [torch.nn.functional.cross_entropy(told / t, truth) for t in TEMPERATURES]
    best = float(TEMPERATURES[torch.stack(losses).argmin()])
    models.temperature.fill_(best)
    belief = (told / best).softmax(-1)
    stated, chosen = belief.max(1)
    right = (chosen == truth).float()
    bins = (stated * 10).long().clamp(max=9)
    return tuple(
        Reliability(float(stated[bins == b].mean()), float(right[bins == b].mean()), int((bins == b).sum()))
        for b in range(10)
        if bool((bins == b).any())
    )


@dataclass(frozen=True)
class Speed:
    """How soon the contexts of a log are known."""

    steps_to_95: float  # of the median context, until the belief in its kind is 95%; infinite where it never is
    halfway: float  # belief in the right kind after half an episode, on average


def speed(models: WorldModels, rows: Rows, kind: Tensor, held_out: Tensor, length: float) -> Speed:
    """From the uniform belief on, along the rows of each context; `length` of the median episode."""
    evidence = models.of_rows(rows)
    looked_at = held_out if rows.sums(held_out.float()).median() >= LONG_ENOUGH else torch.ones_like(held_out)
    steps, halfway = [], []
    of_kind = (kind >= 0).nonzero()[:, 0]
    picked = (looked_at & (kind[rows.context] >= 0)).nonzero()[:, 0]
    picked = picked[torch.argsort(rows.context[picked], stable=True)]
    counts = torch.bincount(rows.context[picked], minlength=len(rows.sizes))
    for c, told in zip(of_kind.tolist(), evidence[picked].split(counts[of_kind].tolist()), strict=True):
        own = told.cumsum(0).softmax(-1)[:, int(kind[c])]
        sure = (own >= SURE).nonzero()
        steps.append(float(sure[0]) + 1 if len(sure) else math.inf)
        if len(own):
            halfway.append(float(own[min(len(own), max(1, round(length / 2))) - 1]))
    return Speed(float(torch.tensor(steps).median()), sum(halfway) / max(1, len(halfway)))


def telling_columns(models: WorldModels, rows: Rows, kind: Tensor) -> list[tuple[str, float]]:
    """The share of all evidence for the right kind, against the next likely one, that each column brings; largest first."""
    errors = models.errors(rows)  # [K, N, O]
    by_column = -(errors / models.sigma).square().div(3).log1p() * rows.known
    own = kind[rows.context]
    known = own >= 0
    right = by_column[own.clamp_min(0), torch.arange(len(rows))]
    others = by_column.masked_fill((torch.arange(models.kinds)[:, None] == own)[:, :, None], -torch.inf).amax(0)
    told = (right - others)[known].mean(0).clamp_min(0)
    shares = (told / told.sum().clamp_min(1e-9)).tolist()
    return sorted(zip(rows.names, shares, strict=True), key=lambda pair: -pair[1])
