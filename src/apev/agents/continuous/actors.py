"""Actors of soft actor-critic: Gaussians squashed by tanh."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.functional import softplus

from apev.agents.continuous.base import start_as_published
from apev.nn.ensemble import EnsembleMLP

LOG_STD = (-5.0, 2.0)


class Actors(nn.Module):
    """K actors, each a Gaussian squashed by tanh."""

    def __init__(self, members: int, inputs: int, hidden: tuple[int, ...], actions: int) -> None:
        super().__init__()
        self.members = members
        self.net = EnsembleMLP(members, inputs, hidden, 2 * actions)
        start_as_published(self.net, 1e-3)

    def forward(self, obs: Tensor, member: Tensor | None = None, belief: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and deviation before tanh, [B, A], of the actor that each row asks: obs [B, D], member [B].

        The belief [B, K] decides who is asked, and nothing else here.
        """
        out = self.net(obs[None])[0] if member is None else self.net.ask_one(obs, member)
        return split(out)

    def all(self, obs: Tensor, belief: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The same of every actor, [K, B, A]."""
        return split(self.net(obs.expand(self.members, *obs.shape)))


def split(out: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation before tanh, from what an actor's network says."""
    mean, log_std = out.chunk(2, dim=-1)
    return mean, log_std.clamp(*LOG_STD).exp()


def squash(mean: Tensor, std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions in (-1, 1) and their log-probability, [..., A] and [...], from standard normal noise."""
    raw = mean + std * noise
    log_normal = -0.5 * noise.square() - std.log() - 0.5 * math.log(2 * math.pi)
    log_derivative = 2 * (math.log(2) - raw - softplus(-2 * raw))  # log(1 - tanh(raw)^2), without underflow
    return raw.tanh(), (log_normal - log_derivative).sum(-1)


class Drawn(NamedTuple):
    """Actions of the policy in some states."""

    action: Tensor  # [B, A] in (-1, 1)
    log_prob: Tensor  # [B] under the actor that was drawn
    log_alpha: Tensor  # [B] that actor's weight of the entropy; [] where there is one actor
