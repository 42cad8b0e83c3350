"""Tables in place of networks, so that losses of discrete actions can be worked out by hand.

Without hidden layers a network is a table: a one-hot state s and a belief b give Q_k(s, b, a) = T_k[s, a] + b G_k[:, a];
anchored, the second part counts (1 - b_k) times.
"""

from __future__ import annotations

from typing import Any

import torch
from by_hand import linear
from torch import Tensor

from apev import belief as beliefs
from apev.agents.discrete.base import QAgent
from apev.data import Batch, Layout, Observations
from apev.nn.qnets import QEnsemble

LAYOUT = Layout(vectors=(("observation", 2),), picture=None, picture_shape=None, num_actions=2, bare=True)


def set_table(net: QEnsemble, table: Any, by_belief: Any = None) -> None:
    plain = torch.tensor(table, dtype=torch.float32)
    K, _, A = plain.shape
    by_belief = torch.zeros(K, K, A) if by_belief is None else torch.tensor(by_belief, dtype=torch.float32)
    with torch.no_grad():
        heads = linear(net.heads.layers[0])
        heads.weight.copy_(torch.cat([plain, by_belief], 1) if net.belief == "input" else plain)
        heads.bias.zero_()
        if net.correction is not None:
            correction = linear(net.correction.layers[0])
            correction.weight.copy_(torch.cat([torch.zeros_like(plain), by_belief], 1))
            correction.bias.zero_()


def gradient(agent: QAgent, part: str = "heads") -> Tensor:
    """dL / d weight [K, S (+ K), A] of the last update."""
    grad = linear(getattr(agent.net, part).layers[0]).weight.grad
    assert grad is not None
    return grad


def steps(*rows: tuple[int, int, float, int, int], group: list[int] | None = None) -> Batch:
    """Transitions (s, a, r, s', terminated) of two states."""
    s, a, r, after, ended = zip(*rows, strict=True)
    eye = torch.eye(2)
    return Batch(
        Observations(eye[list(s)]),
        torch.tensor(a),
        torch.tensor(r, dtype=torch.float32),
        Observations(eye[list(after)]),
        torch.tensor(ended, dtype=torch.float32),
        torch.tensor(group or list(range(len(rows)))),
    )


def uniform(agent: QAgent, batch: Batch) -> Tensor:
    return beliefs.uniform(agent.members, len(batch.action))


TABLE = [[[1, 2], [3, 4]], [[0, 1], [5, 2]]]  # Q_k(s, a), online
TARGET = [[[10, 20], [30, 40]], [[-1, 0], [7, 6]]]  # and of the target network
STEPS = ((0, 1, 1.0, 1, 0), (1, 0, -2.0, 0, 1))
