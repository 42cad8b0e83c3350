"""How many kinds: contexts that were held out are predicted after their first steps, by each number of kinds.

The smallest number is taken that predicts as well as the best, within the uncertainty; one kind unless the best is better
beyond doubt, and by something that matters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.stats import t as student
from torch import Tensor

from apev.worlds.models import WorldModels
from apev.worlds.rows import Rows

FIRST_STEPS = 256  # at most so many, and at most half, say which kind a held-out context is
WARMTH = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # temperatures of what they say
DOUBT = 1e-3  # the chance at which several kinds may seem to predict better than one
BETTER = 2.0  # standard errors by which a larger number must predict better than a smaller one
MATTERS = 0.01  # and the share of some column's variance that they must explain


@dataclass(frozen=True)
class Tried:
    """How well a number of kinds predicts held-out contexts after their first steps."""

    kinds: int
    gain: float  # log-likelihood a row, less that of one model for all
    error: float  # its standard error over held-out contexts
    contexts: int  # how many were held out
    share: float  # of the variance of the column that gains most

    @property
    def beyond_doubt(self) -> bool:
        """Whether it predicts better than one model for all, surely, and by something that matters."""
        if self.contexts < 2 or self.share < MATTERS:
            return False
        return self.gain > float(student.ppf(1 - DOUBT, self.contexts - 1)) * self.error


@dataclass(frozen=True)
class Attempt:
    """A number of kinds, tried on one split of the contexts."""

    models: WorldModels
    before: Score  # of one model for all
    after: Score


def compare(tries: list[Attempt]) -> tuple[Tried, Tensor, Tensor]:
    """(how much better than one model for all, the gain of each held-out context, the share explained of each column)."""
    gains = torch.cat([t.after.likelihood - t.before.likelihood for t in tries])
    bounded_gains = winsorised(gains)
    error = float(bounded_gains.std() / len(gains) ** 0.5) if len(gains) > 1 else float("inf")
    explained = torch.cat([(t.before.squares - t.after.squares) / t.before.total for t in tries])
    kinds = sorted(t.models.kinds for t in tries)[len(tries) // 2]
    shares = explained.mean(0)  # [O]
    return Tried(kinds, float(bounded_gains.mean()), error, len(gains), float(shares.max())), gains, shares


def smallest_good(found: dict[int, tuple[Tried, Tensor, Tensor]]) -> int | None:
    """The smallest number that predicts as well as the best, within the uncertainty; None: one kind does.

    It also does where the best explains no more of any column: then its kinds differ in noise alone.
    """
    good = {number: result for number, result in found.items() if result[0].beyond_doubt}
    if not good:
        return None
    best = max(good, key=lambda number: good[number][0].gain)
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


def score(models: WorldModels, rows: Rows, held: Tensor) -> Score:
    """Of the contexts [C] that are `held` out."""
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

    def at(warmth: float) -> tuple[Tensor, Tensor]:
        """(the belief after the first steps [C, K], how likely it makes those after them [c])."""
        belief = (told / warmth).log_softmax(-1)
        return belief, part.sums((belief[part.context] + evidence).logsumexp(-1) * after)[held] / count

    # Rows of a context are not independent: the belief that predicts best is less sure than their product.
    belief, likelihood = max((at(warmth) for warmth in WARMTH), key=lambda found: float(found[1].mean()))
    mean_error = torch.einsum("nk,kno->no", belief[part.context].exp(), errors) * part.known
    squares = part.sums(mean_error.square().clamp(max=9) * after[:, None])[held] / count[:, None]
    return Score(likelihood, squares, (part.y.square().clamp(max=9) * part.known).mean(0).clamp_min(1e-6))


def winsorised(values: Tensor) -> Tensor:
    """Values with the outer tenths moved to where they begin: one odd context does not decide. A few stay as they are."""
    if len(values) < 10:
        return values
    low, high = torch.quantile(values, 0.1), torch.quantile(values, 0.9)
    return values.clamp(low, high)
