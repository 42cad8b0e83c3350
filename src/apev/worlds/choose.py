"""How many kinds: contexts that were held out are predicted after their first steps, by each number of kinds.

The smallest number is taken that predicts as well as the best, within the uncertainty; one kind unless the best is better
beyond doubt, and by something that matters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.special import stdtrit
from torch import Tensor

from apev.worlds.models import WorldModels
from apev.worlds.rows import Rows

FIRST_STEPS = 256  # at most so many, and at most half, say which kind a held-out context is
WARMTH = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # temperatures of what they say
DOUBT = 1e-3  # the chance at which several kinds may seem to predict better than one
BETTER = 2.0  # standard errors by which a larger number must predict better than a smaller one
MATTERS = 0.03  # and the share of some column's variance that they must explain; networks differ by a hundredth by chance


@dataclass(frozen=True)
class Tried:
    """How well a number of kinds predicts held-out contexts after their first steps."""

    kinds: int
    gain: float  # log-likelihood a row, less that without knowing the kind
    error: float  # its standard error over held-out contexts
    contexts: int  # how many were held out
    share: float  # of the variance of the column that surely gains, and most

    @property
    def beyond_doubt(self) -> bool:
        """Whether knowing the kind predicts better, surely, and by something that matters."""
        if self.contexts < 2 or self.share < MATTERS:
            return False
        return self.gain > float(stdtrit(self.contexts - 1, 1 - DOUBT)) * self.error


@dataclass(frozen=True)
class Attempt:
    """A number of kinds, tried on one split of the contexts."""

    models: WorldModels
    one: Score  # of one model for all: the same for every number of kinds
    blind: Score  # of what does not know the kind, whichever predicts best: see `better`
    after: Score

    @property
    def gain(self) -> float:
        """A row; likelihoods alone would compare how hard the contexts are that each split holds out."""
        return float((self.after.likelihood - self.one.likelihood).mean())


def compare(tries: list[Attempt]) -> tuple[Tried, Tensor, Tensor]:
    """(how much better than without knowing the kind; than one model for all: the gain of each held-out context, and the
    share explained of each column, by which numbers of kinds are compared with each other)."""
    gains = torch.cat([t.after.likelihood - t.blind.likelihood for t in tries])
    bounded_gains = winsorised(gains)
    error = float(bounded_gains.std() / len(gains) ** 0.5) if len(gains) > 1 else float("inf")
    each = torch.cat([explained(t.blind, t.after) for t in tries])  # [c, O]
    sure = each.mean(0) > BETTER * each.std(0) / len(each) ** 0.5  # not by an end or two that happened to be foretold
    share = float(each.mean(0).where(sure, 0.0).max())
    kinds = sorted(t.models.kinds for t in tries)[len(tries) // 2]
    over_one = torch.cat([t.after.likelihood - t.one.likelihood for t in tries])
    shares = torch.cat([explained(t.one, t.after) for t in tries]).mean(0)  # [O]
    return Tried(kinds, float(bounded_gains.mean()), error, len(gains), share), over_one, shares


def explained(before: Score, after: Score) -> Tensor:
    """[c, O]: the share of each column's variance that is explained after and was not before."""
    return (before.squares - after.squares) / before.total


def smallest_good(found: dict[int, tuple[Tried, Tensor, Tensor]]) -> int | None:
    """The smallest number that predicts as well as the best, within the uncertainty; None: one kind does.

    It also does where the best explains no more of any column: then its kinds differ in noise alone.
    """
    good = {number: result for number, result in found.items() if result[0].beyond_doubt}
    if not good:
        return None
    best = max(good, key=lambda number: float(winsorised(good[number][1]).mean()))
    for number in sorted(good):
        lost = winsorised(good[best][1] - good[number][1])
        unsure = float(lost.mean()) <= BETTER * float(lost.std() / len(lost) ** 0.5)
        if unsure or float((good[best][2] - good[number][2]).max()) < MATTERS:
            return number
    return best


@dataclass(frozen=True)
class Score:
    """How well contexts are predicted after their first steps."""

    likelihood: Tensor  # [c] a row
    squares: Tensor  # [c, O] mean squared error, bounded
    total: Tensor  # [O] variance, bounded alike


def better(one: Score, other: Score) -> Score:
    """The likelier of two, and in each column the one with the smaller errors.

    Kinds must predict better than one model for all. They must also predict better than their own models do with a belief that
    knows of this context only what is usual: the mean of several networks predicts better than one of them even where all
    have learned the same, and one network may be the best for every context.
    """
    likelihood = max(one.likelihood, other.likelihood, key=lambda found: float(found.mean()))
    squares = torch.where(one.squares.mean(0) <= other.squares.mean(0), one.squares, other.squares)
    return Score(likelihood, squares, one.total)


def score(
    models: WorldModels, rows: Rows, held: Tensor, guess: Tensor | None = None, beside: WorldModels | None = None
) -> tuple[Score, Score]:
    """Of the contexts [C] that are `held` out: (after their first steps, as if these had told no more than those of others).

    What the first steps of all of them say together is how common kinds are, and which network is good for everybody. What a
    row's own state and action say, `guess` [N, K], a policy sees as well: a network that is good in a region of states is no
    kind. First steps must tell more than both.

    Where one model for all stands `beside`, either may predict as an even mixture with it. It learned from all rows, and is a
    little more exact wherever kinds are alike; where kinds differ in a few rows alone, that would outweigh what these tell.
    """
    picked = held[rows.context].nonzero()[:, 0]
    part = Rows(
        rows.x[picked], rows.y[picked], rows.known[picked], rows.context[picked], rows.place[picked],
        rows.sizes, rows.contexts, rows.units, rows.names, rows.vector_dim,
    )  # fmt: skip
    errors = models.errors(part)  # [K, n, O]
    evidence = models.evidence(errors, part.known).T  # [n, K]
    first = part.place < (part.sizes // 2).clamp(max=FIRST_STEPS)[part.context]
    told = part.sums(torch.where(first[:, None], evidence, 0.0))  # [C, K]
    after = (~first).float()
    count = part.sums(after)[held].clamp_min(1)
    total = (part.y.square().clamp(max=9) * part.known).mean(0).clamp_min(1e-6)
    of_one = None if beside is None else beside.evidence(beside.errors(part), part.known)[0]  # [n]

    def likely(belief: Tensor) -> Tensor:
        """[c]: how likely the steps after the first are under log-beliefs [n, K], a row; alone, or mixed with one model."""
        alone = (belief + evidence).logsumexp(-1)
        ways = [alone] if of_one is None else [alone, torch.logaddexp(alone, of_one) - math.log(2)]
        return max((part.sums(way * after)[held] / count for way in ways), key=lambda found: float(found.mean()))

    def best(beliefs: list[Tensor]) -> Tensor:
        return max(beliefs, key=lambda belief: float(likely(belief).mean()))

    def by(belief: Tensor) -> Score:
        mean_error = torch.einsum("nk,kno->no", belief.exp(), errors) * part.known
        squares = part.sums(mean_error.square().clamp(max=9) * after[:, None])[held] / count[:, None]
        return Score(likely(belief), squares, total)

    # Rows of a context are not independent: the belief that predicts best is less sure than their product.
    beliefs = [(told / warmth).log_softmax(-1) for warmth in WARMTH]
    informed = max(beliefs, key=lambda belief: float(likely(belief[part.context]).mean()))
    usual = informed[held].logsumexp(0).log_softmax(-1).expand_as(evidence)
    beliefs = [belief[part.context] for belief in beliefs]
    if guess is None:
        return by(best(beliefs)), by(usual)
    guessed = best([(guess[picked] / warmth).log_softmax(-1) for warmth in WARMTH])
    both = [(belief + guessed).log_softmax(-1) for belief in beliefs]
    return by(best([*beliefs, *both])), better(by(usual), by(guessed))


def winsorised(values: Tensor) -> Tensor:
    """Values with the outer tenths moved to where they begin: one odd context does not decide. A few stay as they are."""
    if len(values) < 10:
        return values
    low, high = torch.quantile(values, 0.1), torch.quantile(values, 0.9)
    return values.clamp(low, high)
