"""How much a log says about what a policy does: of actions that were never tried nothing is known, however sure a fit looks.

Discrete actions: how likely the log takes the policy's action in the state, by a small classifier. Below `SELDOM` the log says
little.

Continuous actions: how far the policy's action is from the nearest one that the log took in similar states (`NEIGHBOURS` of
them). The log's own actions say what is usual: those further off than 95% of them are beyond what was tried.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor
from torch.nn import functional as F

from apev.nn.ensemble import NormedMLP

SELDOM = 0.05
NEIGHBOURS = 20
ASKED = 4000  # rows at most
UPDATES, BATCH = 600, 256
DOUBTFUL, BAD = 0.1, 0.3  # shares of little-known actions from which a number is doubtful, or not to be trusted


@dataclass(frozen=True)
class Coverage:
    """Of a policy's actions at the log's rows."""

    little_known: float  # share of them that the log says little about
    typical: (
        float  # discrete: mean behaviour probability; continuous: median distance, 1: as far as the log's own 95th percentile
    )

    @property
    def trusted(self) -> bool:
        """Whether the number may be taken at its word."""
        return self.little_known < DOUBTFUL

    def in_words(self) -> str:
        """What to make of it."""
        share = f"{self.little_known:.0%}"
        if self.trusted:
            return f"the log knows this policy's actions (it says little about {share} of them)"
        told = f"the log says little about {share} of this policy's actions: "
        return told + ("do not trust this number" if self.little_known >= BAD else "take this number with care")


class Tried:
    """What the log did where: asked once, for every policy."""

    def __init__(self, state: Tensor, action: Tensor, num_actions: int, seed: int) -> None:
        """state: [N, D] in units of one size; action: [N, A], one-hot where discrete."""
        self.num_actions = num_actions
        rng = np.random.default_rng(seed)
        self.rows = torch.from_numpy(np.sort(rng.permutation(len(state))[:ASKED]))
        if num_actions:
            self.chance = classify(state, action.argmax(1), num_actions, seed)[self.rows]  # [n, A]
            return
        tree = cKDTree(state.numpy())
        near = np.asarray(tree.query(state[self.rows].numpy(), k=min(NEIGHBOURS + 1, len(state)))[1])
        own = near == self.rows.numpy()[:, None]
        self.tried = action[torch.from_numpy(near)]  # [n, k, A]
        distance = (self.tried - action[self.rows][:, None]).norm(dim=-1)
        distance[torch.from_numpy(own)] = torch.inf  # the row itself proves nothing
        nearest = distance.amin(1)
        self.usual = float(nearest[nearest.isfinite()].quantile(0.95).clamp_min(1e-6)) if len(nearest) > 1 else 1.0

    def coverage(self, action: Tensor) -> Coverage:
        """Of a policy's actions [N, A] at all rows."""
        asked = action[self.rows]
        if self.num_actions:
            chance = (self.chance * asked).sum(1)
            return Coverage(float((chance < SELDOM).float().mean()), float(chance.mean()))
        nearest = (self.tried - asked[:, None]).norm(dim=-1).amin(1) / self.usual
        return Coverage(float((nearest > 1).float().mean()), float(nearest.median()))


def classify(state: Tensor, action: Tensor, num_actions: int, seed: int) -> Tensor:
    """[N, A]: how likely the log takes each action at each row."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = NormedMLP(1, state.shape[1], (64,), num_actions)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.1)
    for _ in range(UPDATES):
        rows = torch.randint(len(state), (BATCH,), generator=generator)
        loss = F.cross_entropy(net(state[None, rows])[0], action[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return net(state[None])[0].softmax(-1)
