"""Implicit Q-learning (Kostrikov et al., 2021): no action outside the log is ever asked for its value.

    L_V  = |tau - 1(u < 0)| u^2           u = min_j Q-_j(s, a) - V(s)      an upper expectile: V leans to the better actions
    L_Q  = sum_j (Q_j(s, a) - (r + gamma (1 - terminated) V(s')))^2
    L_pi = -w log pi(a | s)               w = min(exp(beta u), 100)        cloning (`bc.py`) weighted by the advantage

The actor's learning rate falls along a half cosine to 0. For MuJoCo the authors scale rewards so that the returns of the
log's episodes span 1000: `return_range=1000`.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from apev.agents.continuous.base import parameters
from apev.agents.continuous.bc import BC, BCConfig
from apev.data.batch import Batch, Layout
from apev.data.dataset import Dataset
from apev.nn.ensemble import EnsembleMLP


@dataclass(frozen=True)
class IQLConfig(BCConfig):
    """Implicit Q-learning: clone the log's better actions."""

    critics: int = 2
    """Value functions whose minimum is taken."""
    gamma: float = 0.99
    """Discount."""
    target_rate: float = 0.005
    """How far the target network moves towards the online one in each update."""
    expectile: float = 0.7
    """tau: .5 is the mean of the log's actions, towards 1 the best of them."""
    beta: float = 3.0
    """How much more an action better than expected is cloned; 0 clones all alike."""
    max_weight: float = 100.0
    """The most that one row can weigh."""
    return_range: float = 0.0
    """Scale rewards so that the returns of the log's episodes span this (1000 is usual for MuJoCo); 0: as logged."""
    decay_actor: bool = True
    """Let the actor's learning rate fall along a half cosine to 0."""


class IQL(BC):
    """The cloning actor, critics for the log's actions, and a state value that leans to the better of them."""

    config: IQLConfig
    deployed = ("actor", "critics", "value")
    targets = {"target": "critics"}  # noqa: RUF012
    reward_scale: Tensor  # [] what rewards are multiplied by

    def __init__(self, layout: Layout, config: IQLConfig, *, seed: int = 0) -> None:
        if config.critics < 1 or not 0 < config.expectile < 1 or config.return_range < 0:
            raise ValueError(
                f"critics is {config.critics}, expectile {config.expectile}, return_range {config.return_range}. "
                "Fix: at least 1 critic, an expectile inside (0, 1), a range of 0 or more."
            )
        super().__init__(layout, config, seed=seed)
        self.register_buffer("reward_scale", torch.ones(()))

    @classmethod
    def for_data(cls, dataset: Dataset, config: Any, *, seed: int = 0) -> Self:
        """An untrained agent for this log, whose returns say how rewards are scaled."""
        agent = super().for_data(dataset, config, seed=seed)
        agent.scale_rewards(dataset.episode_returns())
        return agent

    def scale_rewards(self, returns: np.ndarray) -> None:
        """Multiply rewards so that these returns span `return_range`, where it is given."""
        spread = float(np.ptp(returns)) if len(returns) else 0.0
        if self.config.return_range and spread:
            self.reward_scale.fill_(self.config.return_range / spread)

    def build(self) -> None:
        """Actor, critics and state value."""
        super().build()
        inputs, actions, hidden = self.layout.vector_dim, self.layout.action_dim, self.config.hidden
        self.critics = EnsembleMLP(self.config.critics, inputs + actions, hidden, 1)
        self.value = EnsembleMLP(1, inputs, hidden, 1)
        self.target = deepcopy(self.critics).requires_grad_(False)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Adam; the actor's rate has a decay of its own."""
        groups: list[dict[str, Any]] = [
            {"params": parameters(self.critics, self.value)},
            {"params": parameters(self.actor), "decays": self.config.decay_actor},
        ]
        return torch.optim.Adam(groups, lr=self.config.lr, fused=True)

    def q(self, net: EnsembleMLP, step: Batch) -> Tensor:
        """[N, B] of every critic at the logged action."""
        return net(step.obs.vector, self.to_unit(step.action))[..., 0]

    def backup(self, step: Batch) -> Tensor:
        """r + gamma V(s'): [B]."""
        next_v = self.value(step.next_obs.vector)[0, :, 0]
        return self.reward_scale * step.reward + self.config.gamma * (1 - step.terminated) * next_v

    @torch.no_grad()
    def td_errors(
        self, step: Batch, log_belief: Tensor, features: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """[B, 1]."""
        return (self.q(self.critics, step).amin(0) - self.backup(step))[:, None]

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step for actor, critics and state value."""
        self.check_batch(batch)
        c = self.config
        with torch.no_grad():
            target_q = self.backup(batch)  # [B]
            q = self.q(self.target, batch).amin(0)
        v = self.value(batch.obs.vector)[0, :, 0]
        advantage = q - v
        value_loss = (torch.where(advantage < 0, 1 - c.expectile, c.expectile) * advantage.square()).mean()
        critic_loss = (self.q(self.critics, batch) - target_q).square().mean(1).sum()
        weight = (c.beta * advantage.detach()).exp().clamp(max=c.max_weight)
        actor_loss = -(weight * self.actor.log_likelihood(batch.obs.vector, self.to_unit(batch.action))).mean()
        self.descend(value_loss + critic_loss + actor_loss)
        return {
            "critic_loss": critic_loss.detach() / c.critics,
            "value_loss": value_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "value": v.detach().mean(),
            "weight": weight.mean(),
        }

    def policy_state(self) -> dict[str, Tensor]:
        """The networks, the filter's scale, and the unit of rewards."""
        return super().policy_state() | {"reward_scale": self.reward_scale}

    def load_policy_state(self, state: dict[str, Tensor]) -> None:
        """Take back what `policy_state` gave."""
        super().load_policy_state(state)
        self.reward_scale.copy_(state["reward_scale"])
