"""Contexts sorted into kinds by how their rows differ from what all contexts have in common: a mixture of linear regressions.

    e      = y - g(s, a)                      what the pooled model g leaves unexplained
    e      = W_k' f + noise                   in a context of kind k, with f = (1, s, a)

A context is of one kind with all its rows. All that the mixture needs of a context are the sums F'F, F'e and e'e, so a round of
expectation and maximisation costs nothing per row. F'F is symmetric: each pair of features is kept once, and what regressions
explain is one product of these pairs with the pairs of their weights.

It begins with more kinds than are asked for, and then joins the two whose regressions lose least by becoming one, again and
again: one way down gives a sorting into every number of kinds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDS = 40
HOT, COOLING = 20.0, 0.6  # responsibilities begin vague, so that the first rounds do not decide
SURE = 1e-3


@dataclass(frozen=True)
class Sums:
    """What is kept of each of C contexts."""

    ff: Tensor  # [C, F (F + 1) / 2] of each pair of features
    fe: Tensor  # [C, F, O]
    ee: Tensor  # [C, O]
    rows: Tensor  # [C] float: how many rows

    @classmethod
    def of(cls, features: Tensor, errors: Tensor, context: Tensor, count: int) -> Sums:
        """From features [N, F] and errors [N, O] of contexts [N]."""
        order, sizes = torch.argsort(context, stable=True), torch.bincount(context, minlength=count)
        one, other = pairs(features.shape[1])
        ff = features.new_zeros(count, len(one))
        fe = features.new_zeros(count, features.shape[1], errors.shape[1])
        parts = zip(features[order].split(sizes.tolist()), errors[order].split(sizes.tolist()), strict=True)
        for c, (f, e) in enumerate(parts):
            ff[c] = (f.T @ f)[one, other]
            torch.mm(f.T, e, out=fe[c])
        ee = errors.new_zeros(count, errors.shape[1]).index_add_(0, context, errors.square())
        return cls(ff, fe, ee, sizes.float())

    def only(self, contexts: Tensor) -> Sums:
        """Those of some contexts [C] bool; the others are empty."""
        keep = contexts.float()
        return Sums(self.ff * keep[:, None], self.fe * keep[:, None, None], self.ee * keep[:, None], self.rows * keep)

    def squares(self, w: Tensor) -> Tensor:
        """[C, K, O]: the sum of squares that regressions w [K, F, O] leave of each context."""
        one, other = pairs(w.shape[1])
        twice = torch.where(one == other, 1.0, 2.0)  # a pair stands for both orders
        flat = w.permute(1, 0, 2).flatten(1)  # [F, K O]
        explained = (self.ff @ (flat[one] * flat[other] * twice[:, None])).unflatten(1, (len(w), -1))
        crossed = torch.einsum("kfo,cfo->cko", w, self.fe)
        squares: Tensor = self.ee[:, None] - 2 * crossed + explained
        return squares.clamp_min(0)


def pairs(count: int) -> tuple[Tensor, Tensor]:
    """The pairs of `count` features, each once: two numbers each."""
    one, other = torch.triu_indices(count, count)
    return one, other


def whole(ff: Tensor, count: int) -> Tensor:
    """[..., F, F] from what is kept of each pair."""
    one, other = pairs(count)
    full = ff.new_zeros(*ff.shape[:-1], count, count)
    full[..., one, other] = ff
    full[..., other, one] = ff
    return full


@dataclass(frozen=True)
class Mixture:
    """A sorting of contexts into K kinds."""

    share: Tensor  # [C, K] how much of each context is of each kind
    likelihood: float  # of all rows


def mixtures(sums: Sums, most: int, ridge: Tensor, starts: int, generator: torch.Generator) -> dict[int, Mixture]:
    """{K: the likeliest sorting into K kinds found} for K from `most` down to 1; ridge [F]: rows that speak for no effect."""
    found: dict[int, Mixture] = {}
    for _ in range(starts):
        share = (3 * torch.randn(len(sums.rows), most, generator=generator)).softmax(-1)
        heat = HOT
        while True:
            share, ff, fe, variance, likelihood = settle(sums, share, ridge, heat)
            kinds = share.shape[1]
            if kinds not in found or likelihood > found[kinds].likelihood:
                found[kinds] = Mixture(share, likelihood)
            if kinds == 1:
                break
            share, heat = join(sums, share, ff, fe, variance, ridge), 1.0
    return found


def settle(sums: Sums, share: Tensor, ridge: Tensor, heat: float) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
    """Expectation and maximisation until nothing changes."""
    filled = sums.rows > 0
    likelihood = 0.0
    for turn in range(ROUNDS):
        ff, fe = whole(share.T @ sums.ff, len(ridge)), torch.einsum("ck,cfo->kfo", share, sums.fe)
        squares = sums.squares(torch.linalg.solve(ff + ridge.diag(), fe))  # [C, K, O]
        variance = ((share[:, :, None] * squares).sum((0, 1)) / sums.rows.sum()).clamp_min(1e-10)  # [O]
        prior = share[filled].mean(0).clamp_min(1e-4).log()
        fit = prior - (squares / variance).sum(2) / 2 - sums.rows[:, None] * variance.log().sum() / 2
        likelihood = float(fit[filled].logsumexp(1).sum())
        warmth = max(1.0, heat * COOLING**turn)
        before, share = share, (fit / warmth).softmax(1)
        if warmth == 1.0 and turn > 5 and bool((share - before).abs().max() < SURE):
            break
    return share, ff, fe, variance, likelihood


def join(sums: Sums, share: Tensor, ff: Tensor, fe: Tensor, variance: Tensor, ridge: Tensor) -> Tensor:
    """The same with one kind less: the two are joined that lose least."""
    ee = torch.einsum("ck,co->ko", share, sums.ee)

    def left(ff: Tensor, fe: Tensor, ee: Tensor) -> Tensor:
        """What regressions leave, in units of the noise: [...]."""
        w = torch.linalg.solve(ff + ridge.diag(), fe)
        unexplained: Tensor = (ee - (w * fe).sum(-2)).clamp_min(0)
        return (unexplained / variance).sum(-1)

    one, other = torch.triu_indices(share.shape[1], share.shape[1], 1)
    alone = left(ff, fe, ee)
    loss = left(ff[one] + ff[other], fe[one] + fe[other], ee[one] + ee[other]) - alone[one] - alone[other]
    a, b = int(one[loss.argmin()]), int(other[loss.argmin()])
    joined = share.clone()
    joined[:, a] += share[:, b]
    return torch.cat([joined[:, :b], joined[:, b + 1 :]], 1)
