"""Fitted Q evaluation: what a fixed policy is worth, from transitions that somebody else made.

    Q_m(x, a)  ~  r + gamma (1 - ended) Q_m(x', pi(x'))            x: state, and what the policy holds

M functions Q_m, each fitted on its own bootstrap resample of the log's contexts, are one batched network. Its last layer is
linear, so for given features phi the equation is solved and not waited for:

    w  <-  (Phi' D Phi + ridge)^-1 Phi' D (r + gamma (1 - ended) Phi_next w)        repeated `ROUNDS` times, by doubling

Between two solutions the features learn by gradient steps on the targets of the last one. Nothing is maximised, so nothing is
overestimated for being noisy. Targets stay within what the log's rewards allow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from apev.nn import kernels
from apev.nn.ensemble import NormedMLP

HIDDEN = 64
BATCH = 256
LR = 1e-3
RIDGE = 1e-3
PHASES = 8  # of gradient steps, a solution before each and one at the end
KEPT = 3  # the last solutions, whose values are averaged
DOUBLINGS = 13  # of the rounds of fitted iteration: 8,192
CLIPPED = 200  # rounds where iteration without bounds leaves them
SOLVED_ON = 12_000  # rows at most


@dataclass(frozen=True)
class Problem:
    """Transitions of a policy's state. Rewards and bounds are in one unit."""

    state: Tensor  # [N, D] what is seen
    next_state: Tensor  # [N, D]
    held: Tensor  # [R, N, W] what the policy holds, in R passes
    next_held: Tensor  # [R, N, W]
    action: Tensor  # [N, A] the logged one
    next_action: Tensor  # [R, N, A] the policy's
    reward: Tensor  # [N]
    discount: Tensor  # [N] gamma, or 0 where the episode ended
    weight: Tensor  # [M, N] how often each resample holds the row
    start: Tensor  # [E, D + W + A]: where episodes begin, with the policy's action
    low: float
    high: float


@dataclass(frozen=True)
class Values:
    """Of every start by every function."""

    values: Tensor  # [M, E]
    unsettled: float  # how much the last solutions differ, in the reward's unit


def fit(problem: Problem, *, updates: int, seed: int, each: Callable[[int], None] = lambda update: None) -> Values:
    """Fit the functions; the same problem and seed give the same values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inputs = problem.start.shape[1]
        trunk = NormedMLP(len(problem.weight), inputs, (HIDDEN,), HIDDEN)
    head = torch.nn.Parameter(torch.zeros(len(problem.weight), HIDDEN + 1, 1))
    optimizer = torch.optim.Adam([*trunk.parameters(), head], lr=LR)
    passes, count = problem.held.shape[:2]
    solved_on = _draw(passes, count, min(SOLVED_ON, passes * count), generator)
    found = []
    done = 0
    for phase in range(PHASES + 1):
        solve(trunk, head, problem, *solved_on)
        found.append(values(trunk, head, problem))
        if phase == PHASES:
            break
        old = [p.detach().clone() for p in trunk.parameters()]
        old_head = head.detach().clone()
        for _ in range(updates // PHASES):
            roll, row = _draw(passes, count, BATCH, generator)
            x, x_next = rows_of(problem, roll, row)
            with torch.no_grad():
                ahead = (features_of(old, x_next, len(old_head)) @ old_head)[..., 0].clamp(problem.low, problem.high)
                target = problem.reward[row] + problem.discount[row] * ahead
            error = (features(trunk, x) @ head)[..., 0] - target
            loss = (error.square() * problem.weight[:, row]).mean(1).sum()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            done += 1
            each(done)
    last = torch.stack(found[-KEPT:])
    return Values(last.mean(0), float(last.mean((1, 2)).std(correction=0)))


@torch.no_grad()
def solve(trunk: NormedMLP, head: Tensor, problem: Problem, roll: Tensor, row: Tensor) -> None:
    """Set the last layer to the fixed point of fitted iteration for the features as they are."""
    x, x_next = rows_of(problem, roll, row)
    phi, ahead = features(trunk, x), features(trunk, x_next)  # [M, n, H]
    reward, discount = problem.reward[row], problem.discount[row]
    weighted = (phi * problem.weight[:, row, None]).mT  # [M, H, n]
    gram = (weighted @ phi).double()
    size = gram.diagonal(dim1=1, dim2=2).mean(1)
    ridge = RIDGE * size[:, None, None] * torch.eye(gram.shape[1], dtype=gram.dtype)
    factor = torch.linalg.cholesky(gram + ridge)
    first = torch.cholesky_solve((weighted @ reward[:, None]).double(), factor)  # [M, H, 1]
    follow = torch.cholesky_solve((weighted @ (discount[:, None] * ahead)).double(), factor)  # [M, H, H]
    found, power = first, follow
    for _ in range(DOUBLINGS):  # found = (1 + F + ... + F^(2^i - 1)) first
        found = found + power @ found
        power = power @ power
    told = (ahead @ found.float())[..., 0]
    within = (told - told.clamp(problem.low, problem.high)).abs().mean(1) < 0.05 * (problem.high - problem.low)
    wrong = (~within).nonzero()[:, 0]  # NaN is not within
    if len(wrong):
        back = torch.cholesky_solve(weighted[wrong].double(), factor[wrong]).float()  # [m, H, n]
        some = torch.zeros_like(first[wrong], dtype=torch.float32)
        for _ in range(CLIPPED):
            values_ahead = (ahead[wrong] @ some)[..., 0].clamp(problem.low, problem.high)
            some = back @ (reward + discount * values_ahead)[..., None]
        found[wrong] = some.double()
    head.copy_(found.float())


@torch.no_grad()
def values(trunk: NormedMLP, head: Tensor, problem: Problem) -> Tensor:
    """[M, E]: of the starts, within what the rewards allow."""
    return (features(trunk, problem.start) @ head)[..., 0].clamp(problem.low, problem.high)


def rows_of(problem: Problem, roll: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """What the functions read [n, D + W + A], before the step and after it."""
    now = torch.cat([problem.state[row], problem.held[roll, row], problem.action[row]], 1)
    after = torch.cat([problem.next_state[row], problem.next_held[roll, row], problem.next_action[roll, row]], 1)
    return now, after


def features(trunk: NormedMLP, x: Tensor) -> Tensor:
    """[M, n, H + 1] of inputs [n, in]; the last is 1."""
    return _ended_by_one(trunk(x.expand(trunk.members, *x.shape)))


def features_of(parameters: list[Tensor], x: Tensor, members: int) -> Tensor:
    """The same of weights that were kept."""
    return _ended_by_one(kernels.normed_mlp(x.expand(members, *x.shape), parameters))


def _ended_by_one(given: Tensor) -> Tensor:
    normed = F.layer_norm(given, given.shape[-1:]).relu()
    return torch.cat([normed, torch.ones_like(normed[..., :1])], -1)


def _draw(passes: int, count: int, many: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(passes, rows) [many] each, equally likely; without replacement where all are asked for."""
    flat = (
        torch.randperm(passes * count, generator=generator)[:many]
        if many > BATCH
        else torch.randint(passes * count, (many,), generator=generator)
    )
    return flat // count, flat % count
