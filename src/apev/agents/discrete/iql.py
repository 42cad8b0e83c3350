"""Implicit Q-learning of discrete actions (Kostrikov et al., 2021): no action outside the log is ever asked for its value.

    L_V  = |tau - 1(u < 0)| u^2           u = min_j Q-_j(s, a) - V(s)      an upper expectile: V leans to the better actions
    L_Q  = sum_j (Q_j(s, a) - (r + gamma (1 - terminated) V(s')))^2
    L_pi = -w log pi(a | s)               w = min(exp(beta u), 100)        cloning (`bc.py`) weighted by the advantage

Two networks are critics; a third gives the policy's logits and, as one more output, V.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from apev.agents.discrete.base import DQNConfig, QAgent, of_rows, permitted, take
from apev.data.batch import Batch, Observations
from apev.nn.qnets import QEnsemble


@dataclass(frozen=True)
class DiscreteIQLConfig(DQNConfig):
    """Implicit Q-learning: clone the log's better actions."""

    members: int = 1
    """One policy; it does not adapt."""
    critics: int = 2
    """Value functions whose minimum is taken."""
    expectile: float = 0.7
    """tau: .5 is the mean of the log's actions, towards 1 the best of them."""
    beta: float = 3.0
    """How much more an action better than expected is cloned; 0 clones all alike."""
    max_weight: float = 100.0
    """The most that one row can weigh."""
    softness: float = 1.0
    """Temperature of drawn actions; 1 draws from the policy as it was learned."""


class DiscreteIQL(QAgent):
    """Critics for the log's actions, a state value that leans to the better of them, and a policy that clones those."""

    config: DiscreteIQLConfig
    limits_actions = False

    def check(self, config: DiscreteIQLConfig) -> None:
        """As for every ensemble, and what is IQL's own."""
        if config.members != 1 or config.critics < 1 or not 0 < config.expectile < 1:
            raise ValueError(
                f"members is {config.members}, critics {config.critics}, expectile {config.expectile}. "
                "Fix: 1 member, at least 1 critic, an expectile inside (0, 1)."
            )
        super().check(config)

    def build(self, **more: Any) -> QEnsemble:
        """Critics, then the network of policy and state value."""
        return super().build(members=self.config.critics + 1, num_actions=self.layout.num_actions + 1, **more)

    def values(self, features: Tensor | None, obs: Observations, belief: Tensor) -> Tensor:
        """What the policy maximises or draws from: its logits [1, B, A]."""
        return self.outputs(self.net, of_rows(features, obs), obs)[1][None]

    def outputs(self, net: QEnsemble, features: Tensor | None, obs: Observations) -> tuple[Tensor, Tensor, Tensor]:
        """Values [N, B, A] of the critics, logits [B, A] of the policy, V [B]."""
        out = net.plain(features, obs.vector)
        return out[:-1, :, :-1], out[-1, :, :-1], out[-1, :, -1]

    @torch.no_grad()
    def td_errors(
        self, step: Batch, log_belief: Tensor, features: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """[B, 1]."""
        features = self.encode(step.obs.pictures) if features is None else features
        q = take(self.outputs(self.net, of_rows(features, step.obs), step.obs)[0], step.action).amin(0)
        next_v = self.outputs(self.net, of_rows(features, step.next_obs), step.next_obs)[2]
        return (q - self.backup(step, next_v))[:, None]

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step for critics, state value and policy."""
        self.check_batch(batch)
        c = self.config
        features = self.net.encode_rows(batch.obs, batch.shares_pictures)
        q, logits, v = self.outputs(self.net, features, batch.obs)
        with torch.no_grad():
            next_features = features if batch.shares_pictures else self.net.encode_rows(batch.next_obs)
            target_q = self.backup(batch, self.outputs(self.net, next_features, batch.next_obs)[2])  # [B]
            slow_q = take(self.outputs(self.target, features, batch.obs)[0], batch.action).amin(0)
        advantage = slow_q - v
        weight = (c.beta * advantage.detach()).exp().clamp(max=c.max_weight)
        value_loss = torch.where(advantage < 0, 1 - c.expectile, c.expectile) * advantage.square()
        critic_loss = (take(q, batch.action) - target_q).square().sum(0)
        actor_loss = -weight * take(permitted(logits, batch.obs.allowed).log_softmax(-1)[None], batch.action)[0]
        metrics = self.descend((value_loss + critic_loss + actor_loss)[None], self.trains_on[batch.group].T)
        parts = {"critic_loss": critic_loss / c.critics, "value_loss": value_loss, "actor_loss": actor_loss, "weight": weight}
        return metrics | {name: part.detach().mean() for name, part in parts.items()} | {"value": v.detach().mean()}
