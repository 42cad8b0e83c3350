"""What distributional learning aims at: projected return distributions, one step or many steps ahead.

Where a batch holds all logged transitions of a context, the log itself says what follows what. `plan` uses it: it applies
Bellman's optimality operator `depth - 1` times within the batch before values are asked of a network. A value far from any
reward is then right after one update instead of after as many as there are steps. Depth 1 is the paper.

    V(p)  =  gain(p) + fade(p) * V0(source(p))        follow the best logged steps from picture p: what they pay, where they
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
    fade: Tensor  # [P, A] discount, 0 where the episode ends
    known: Tensor  # [P, A] bool: the log has this step

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
        fade = torch.full((count, actions), gamma, device=device)
        fade[at] = gamma * (1 - batch.terminated)
        known = torch.zeros(count, actions, dtype=torch.bool, device=device)
        known[at] = True
        return cls(following, reward, fade, known)


@dataclass(frozen=True)
class Plan:
    """V = gain + fade * V0(source), for each of M policies and P pictures: [M, P] each."""

    gain: Tensor
    fade: Tensor
    source: Tensor


def plan(graph: Graph, value: Tensor, depth: int) -> Plan:
    """The best `depth - 1` logged steps from every picture, then `value` [M, P]."""
    M, P = value.shape
    gain, fade = torch.zeros_like(value), torch.ones_like(value)
    source = torch.arange(P, device=value.device).expand(M, P)
    lost = ~graph.known.any(1)  # no step is known there: the value is all there is
    unknown = torch.where(graph.known, 0.0, -torch.inf)
    unknown[lost] = 0.0
    best_before = None
    for _ in range(depth - 1):
        worth = gain + fade * value.gather(1, source)  # [M, P]
        ahead = graph.reward + graph.fade * worth[:, graph.following] + unknown  # [M, P, A]
        best = ahead.argmax(-1)  # [M, P]
        if best_before is not None and torch.equal(best, best_before) and not bool(fade.any()):
            break  # every way ends in the log: more steps change nothing
        best_before = best
        cell = torch.arange(P, device=value.device)
        step, after, pay = graph.fade[cell, best], graph.following[cell, best], graph.reward[cell, best]
        gain = torch.where(lost, gain, pay + step * gain.gather(1, after))
        fade, source = torch.where(lost, fade, step * fade.gather(1, after)), torch.where(lost, source, source.gather(1, after))
    return Plan(gain, fade, source)


def project(probabilities: Tensor, gain: Tensor, fade: Tensor, atoms: Tensor) -> Tensor:
    """The distribution of gain + fade * Z on the atoms: [..., N] from Z's [..., N], and gain and fade [...].

    Each return lies between two atoms and is shared between them by nearness; what lies outside goes to the last ones.
    """
    count, width = len(atoms), atoms[1] - atoms[0]
    returns = (gain.unsqueeze(-1) + fade.unsqueeze(-1) * atoms).clamp(atoms[0], atoms[-1])
    place = ((returns - atoms[0]) / width).clamp(0, count - 1)
    below = place.floor().clamp(max=count - 2)
    upper = place - below  # share of the atom above
    index = below.long()
    out = torch.zeros_like(probabilities)
    out.scatter_add_(-1, index, probabilities * (1 - upper))
    return out.scatter_add_(-1, index + 1, probabilities * upper)
