"""Models of worlds: K small networks that each say how likely a transition is, p_k(s', r, end | s, a).

    l_k            = -(E / O) sum over columns o of (nu + 1) / 2 log(1 + (y_o - f_ko(x))^2 / (nu sigma_o^2))
    log p_k(y | x) = (1 / T) log(exp(l_k) + exp(l_0))

Student's t has heavy tails, so that no single surprise decides; sigma_o is what held-out rows leave unexplained, the same for
all kinds: only the error counts, never how sure a model is of itself. Columns are not independent: E of O count (the effective
number of columns, from the correlation of errors), and the temperature T makes the belief as often right as it says. l_0 is how
badly the right model does once in twenty rows: what every kind explains worse than that (a robot on its back, which no log
shows) says nothing about the kind.

The networks of the kinds are a shared one and a small difference each, held near 0 while they train: what the kinds have in
common is learned from all rows, and a kind differs where its own rows say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from apev.data.batch import Batch
from apev.nn import kernels
from apev.nn.ensemble import EnsembleMLP
from apev.worlds.rows import Rows, Units, of_batch

NU = 3.0  # degrees of freedom of Student's t
BATCH = 512
LR = 2e-3
HELD = 1e-4  # weight of the differences' squares
PIECE = 8192  # rows at a time
FAR_OFF = 3.0  # deviations of a column: larger errors pull no harder, so that a few rows do not decide
SHARPEST = 0.05  # of a column's deviation: smaller errors are the network's, not the world's


class WorldModels(nn.Module):
    """K models, and what turns their errors into evidence."""

    sigma: Tensor  # [O]
    columns: Tensor  # [] E / O
    least: Tensor  # [] l_0
    temperature: Tensor  # []

    def __init__(self, kinds: int, units: Units, hidden: tuple[int, ...] = (128, 128)) -> None:
        super().__init__()
        self.kinds, self.hidden, self.units = kinds, hidden, units
        outputs = len(units.out_mean)
        self.net = EnsembleMLP(kinds, len(units.in_mean), hidden, outputs)
        self.register_buffer("sigma", torch.ones(outputs))
        self.register_buffer("columns", torch.ones(()))
        self.register_buffer("least", torch.tensor(-torch.inf))
        self.register_buffer("temperature", torch.ones(()))

    def describe(self) -> dict[str, Any]:
        """What `build` needs, as JSON."""
        units = self.units
        shape = {"inputs": len(units.in_mean), "outputs": len(units.out_mean), "num_actions": units.num_actions}
        return {"kinds": self.kinds, "hidden": list(self.hidden)} | shape

    @classmethod
    def build(cls, told: dict[str, Any]) -> WorldModels:
        """Untrained models of this shape."""
        units = Units(int(told["inputs"]), int(told["outputs"]), int(told["num_actions"]))
        return cls(int(told["kinds"]), units, tuple(int(width) for width in told["hidden"]))

    @torch.no_grad()
    def log_likelihood(self, step: Batch) -> Tensor:
        """[B, K]: how likely each kind finds these transitions, up to what all have in common."""
        x, y, known = of_batch(self.units, step)
        return self.evidence(y - self.net(x.expand(self.kinds, *x.shape)), known).T

    def evidence(self, errors: Tensor, known: Tensor) -> Tensor:
        """[...]: from errors [..., O] of predictions; columns that are not known say nothing."""
        surprise = (errors / self.sigma).square().div(NU).log1p().mul((NU + 1) / 2)
        told = -(surprise * known).sum(-1) * self.columns
        return torch.logaddexp(told, self.least) / self.temperature

    @torch.no_grad()
    def of_rows(self, rows: Rows) -> Tensor:
        """[N, K]: `log_likelihood` of the rows of a log."""
        pieces = zip(rows.x.split(PIECE), rows.y.split(PIECE), rows.known.split(PIECE), strict=True)
        return torch.cat([self.evidence(y - self.net(x.expand(self.kinds, *x.shape)), known).T for x, y, known in pieces])

    @torch.no_grad()
    def errors(self, rows: Rows) -> Tensor:
        """[K, N, O]: outcome less prediction."""
        pieces = zip(rows.x.split(PIECE), rows.y.split(PIECE), strict=True)
        return torch.cat([y - self.net(x.expand(self.kinds, *x.shape)) for x, y in pieces], 1)

    @torch.no_grad()
    def measure(self, errors: Tensor, known: Tensor) -> None:
        """Take sigma and the effective number of columns from errors [n, O] that the right model makes on held-out rows."""
        weight = known.double()
        squares = errors.double().square()
        sigma = (squares * weight).sum(0) / weight.sum(0).clamp_min(1)
        for _ in range(40):  # the likeliest scale of Student's t
            counted = (NU + 1) / (NU / squares + 1 / sigma.clamp_min(1e-8))
            sigma = (counted * weight).sum(0) / weight.sum(0).clamp_min(1)
        self.sigma.copy_(sigma.sqrt().clamp_min(SHARPEST))
        bounded = ((errors / self.sigma).clamp(-3, 3) * known).double()
        bounded = bounded / bounded.square().mean(0).sqrt().clamp_min(1e-6)
        correlation = bounded.T @ bounded / len(bounded)
        effective = correlation.trace().square() / correlation.square().sum().clamp_min(1e-6)
        self.columns.fill_(float(effective.clamp(1, errors.shape[1]) / errors.shape[1]))


def train(
    rows: Rows,
    kind: Tensor,
    kinds: int,
    *,
    updates: int,
    seed: int,
    start: list[Tensor] | None = None,
    each: Callable[[], None] = lambda: None,
    hidden: tuple[int, ...] = (128, 128),
) -> WorldModels:
    """Models of `kinds` kinds, network k from the rows [N] whose kind is k; rows of no kind (-1) teach nobody.

    start: parameters of a shared network to begin with. each: called after every update.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        models = WorldModels(kinds, rows.units, hidden)
        shared = [p.detach()[:1].clone().requires_grad_() for p in models.net.parameters()]
    if start is not None:
        shared = [p.clone().requires_grad_() for p in start]
    apart = [torch.zeros_like(p).requires_grad_() for p in models.net.parameters()]
    trained = shared if kinds == 1 else shared + apart
    optimizer = torch.optim.Adam(trained, lr=LR, fused=True)
    own = [(kind == k).nonzero()[:, 0] for k in range(kinds)]
    size = max(32, BATCH // kinds)
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = LR * (0.02 + 0.49 * (1 + math.cos(math.pi * update / updates)))
        drawn = torch.stack([r[torch.randint(len(r), (size,), generator=generator)] for r in own])
        predicted = kernels.plain_mlp(rows.x[drawn], [s + a for s, a in zip(shared, apart, strict=True)])
        errors = nn.functional.huber_loss(predicted, rows.y[drawn], reduction="none", delta=FAR_OFF) * rows.known[drawn]
        loss = errors.mean()
        if kinds > 1:
            loss = loss + HELD * torch.stack([a.square().sum() for a in apart]).sum() / kinds
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        each()
    with torch.no_grad():
        for p, s, a in zip(models.net.parameters(), shared, apart, strict=True):
            p.copy_(s + a)
    return models


def guess_kind(rows: Rows, kind: Tensor, kinds: int, *, updates: int, seed: int) -> Tensor:
    """[N, K] log-probabilities: which kind a row's state and action look like, learned from rows [N] of a kind."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = EnsembleMLP(1, rows.x.shape[1], (128, 128), kinds)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=LR, weight_decay=1e-2, fused=True)
    own = (kind >= 0).nonzero()[:, 0]
    for _ in range(updates):
        drawn = own[torch.randint(len(own), (BATCH,), generator=generator)]
        loss = nn.functional.cross_entropy(net(rows.x[drawn][None])[0], kind[drawn])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return torch.cat([net(x[None])[0] for x in rows.x.split(PIECE)]).log_softmax(-1)


def out_of_fold(rows: Rows, fold: Tensor, folds: int, *, updates: int, seed: int, each: Callable[[], None]) -> Tensor:
    """[N, O]: what one model for all contexts leaves of each row, learned from the rows of the other folds."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = EnsembleMLP(folds, rows.x.shape[1], (128, 128), rows.y.shape[1])
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=LR, weight_decay=1e-3, fused=True)
    others = [(fold != f).nonzero()[:, 0] for f in range(folds)]
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = LR * (0.02 + 0.49 * (1 + math.cos(math.pi * update / updates)))
        drawn = torch.stack([r[torch.randint(len(r), (BATCH // 2,), generator=generator)] for r in others])
        errors = nn.functional.huber_loss(net(rows.x[drawn]), rows.y[drawn], reduction="none", delta=FAR_OFF)
        loss = (errors * rows.known[drawn]).mean() * folds
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        each()
    with torch.no_grad():
        every = torch.cat([net(x.expand(folds, *x.shape)) for x in rows.x.split(PIECE)], 1)  # [folds, N, O]
    return (rows.y - every[fold, torch.arange(len(rows))]) * rows.known
