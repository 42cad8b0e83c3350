"""What distributional learning aims at: projected return distributions, one step or many steps ahead.

Where a batch holds all logged transitions of a context, the log itself says what follows what. `plan` uses it: it applies
Bellman's optimality operator `depth - 1` times within the batch before values are asked of a network. A value far from any
reward is then right after one update instead of after as many as there are steps. Depth 1 is the paper.

    V(p)  =  reward(p) + discount(p) * V0(end(p))     follow the best logged steps from picture p: what they pay, where they
                                                      end, and how much what comes after counts
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from apev.data.batch import Batch


@dataclass(frozen=True)
class Graph:
    """The logged transitions of a batch between its P pictures."""

    following: Tensor  # [P, A] the picture that follows; itself where nothing is known
    reward: Tensor  # [P, A]
    discount: Tensor  # [P, A], 0 where the episode ends
    logged: Tensor  # [P, A] bool: the log has this step

    @classmethod
    def of(cls, batch: Batch, actions: int, gamma: float, shift: float = 0.0) -> Graph:
        """Read it from the rows; a step logged twice is taken as logged last."""
        assert batch.obs.pictures is not None
        assert batch.obs.picture is not None
        assert batch.next_obs.picture is not None
        count, device = len(batch.obs.pictures), batch.action.device
        at = batch.obs.picture, batch.action
        following = torch.arange(count, device=device)[:, None].repeat(1, actions)
        following[at] = batch.next_obs.picture
        reward = torch.zeros(count, actions, device=device)
        reward[at] = batch.reward + shift
        discount = torch.full((count, actions), gamma, device=device)
        discount[at] = gamma * (1 - batch.terminated)
        logged = torch.zeros(count, actions, dtype=torch.bool, device=device)
        logged[at] = True
        return cls(following, reward, discount, logged)


@dataclass(frozen=True)
class Plan:
    """V = reward + discount * V0(end), for each of M policies and P pictures: [M, P] each."""

    reward: Tensor
    discount: Tensor
    end: Tensor


def plan(graph: Graph, value: Tensor, depth: int) -> Plan:
    """The best `depth - 1` logged steps from every picture, then `value` [M, P]."""
    M, P = value.shape
    reward, discount = torch.zeros_like(value), torch.ones_like(value)
    end = torch.arange(P, device=value.device).expand(M, P)
    lost = ~graph.logged.any(1)  # no step is known there: the value is all there is
    unknown = torch.where(graph.logged, 0.0, -torch.inf)
    unknown[lost] = 0.0
    best_before = None
    for _ in range(depth - 1):
        planned = reward + discount * value.gather(1, end)  # [M, P]
        q = graph.reward + graph.discount * planned[:, graph.following] + unknown  # [M, P, A]
        best = q.argmax(-1)  # [M, P]
        if best_before is not None and torch.equal(best, best_before) and not bool(discount.any()):
            break  # every way ends in the log: more steps change nothing
        best_before = best
        cell = torch.arange(P, device=value.device)
        step, after, pay = graph.discount[cell, best], graph.following[cell, best], graph.reward[cell, best]
        reward = torch.where(lost, reward, pay + step * reward.gather(1, after))
        discount = torch.where(lost, discount, step * discount.gather(1, after))
        end = torch.where(lost, end, end.gather(1, after))
    return Plan(reward, discount, end)


def project(p: Tensor, reward: Tensor, discount: Tensor, atoms: Tensor) -> Tensor:
    """The distribution of reward + discount * Z on the atoms: [..., N] from Z's p [..., N], and reward and discount [...].

    Each return lies between two atoms and is shared between them by nearness; what lies outside goes to the last ones.
    """
    count, width = len(atoms), atoms[1] - atoms[0]
    returns = (reward.unsqueeze(-1) + discount.unsqueeze(-1) * atoms).clamp(atoms[0], atoms[-1])
    place = ((returns - atoms[0]) / width).clamp(0, count - 1)
    below = place.floor().clamp(max=count - 2)
    upper = place - below  # share of the atom above
    index = below.long()
    out = torch.zeros_like(p)
    out.scatter_add_(-1, index, p * (1 - upper))
    return out.scatter_add_(-1, index + 1, p * upper)


def returns_target(batch: Batch, members: int, atoms: Tensor) -> Tensor:
    """y: [K, B, N] where the log itself says the return."""
    if batch.returns is None:
        raise ValueError("backup_depth=0 needs a sampler with `returns=logged_returns(...)`. Fix: pass it, or a depth >= 1.")
    certain = torch.zeros(len(batch.returns), len(atoms), device=atoms.device)
    certain[:, 0] = 1
    p = project(certain, batch.returns, torch.zeros_like(batch.returns), atoms)
    return p.expand(members, -1, -1)


def deep_target(
    batch: Batch, graph: Graph, table: Tensor, next_action: Tensor, value: Tensor, depth: int, atoms: Tensor
) -> Tensor:
    """y [K, B, N]: the logged step, then the best logged steps by `value` [M, P], then the distribution of the next action.

    table: [K, P, A, N] of every picture; next_action: [K, P], or [P] where all follow one policy.
    """
    members, planned = len(table), plan(graph, value, depth)
    at, then = (batch.obs.picture, batch.action), batch.next_obs.picture
    reward = graph.reward[at] + graph.discount[at] * planned.reward[:, then]  # [M, B]
    discount = graph.discount[at] * planned.discount[:, then]
    end = planned.end[:, then].expand(members, -1)  # [K, B]
    action = next_action.expand(members, -1).gather(1, end)  # [K, B]
    next_p = table[torch.arange(members, device=table.device)[:, None], end, action]  # [K, B, N]
    return project(next_p, reward.expand(members, -1), discount.expand(members, -1), atoms)
