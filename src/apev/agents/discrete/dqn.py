"""Deep Q-learning with K independent members: the single DQN (K = 1) and the ensemble behind every other agent.

    y_k  = r + gamma (1 - terminated) max_a' Q-_k(s', a')         each member its own target: nothing is shared
    L    = sum_k w_k (Q_k(s, a) - y_k)^2                          w_k: 1 where member k trains on this context
    pi   = argmax_a sum_k b_k Q_k(s, a)                           uniform b: the average ensemble; e_k: one member

Trained without a belief in mind, the ensemble can still be *evaluated* with one (the paper's "evaluation only"): its TD
errors are defined like APE-V's.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from apev import belief as beliefs
from apev.agents.agent import Agent, BeliefConfig
from apev.belief import BeliefFilter
from apev.data.batch import Batch, Layout, Observations
from apev.data.dataset import Dataset
from apev.nn.qnets import QEnsemble


@dataclass(frozen=True)
class DQNConfig(BeliefConfig):
    """Deep Q-learning with an ensemble of value functions."""

    members: int = 5
    """How many value functions (explanations) are trained; 1 is plain DQN."""
    gamma: float = 0.98
    """Discount."""
    lr: float = 1e-3
    """Adam's learning rate."""
    target_rate: float = 0.05
    """How far the target network moves towards the online one in each update."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the fully connected layers."""
    features: int = 10
    """Width of the picture encoder's output."""
    bootstrap: float = 1.0
    """Share of the contexts (pictures, or episodes) each member trains on; the rest is held out for that member."""
    softness: float = 0.05
    """Where actions are drawn instead of greedy: temperature of the softmax over values. Small: only near ties are broken."""
    prior_scale: float = 0.0
    """Weight of a fixed random network added to each member (randomised priors); 0 leaves it out."""


class DQN(Agent):
    """K value functions trained side by side."""

    config: DQNConfig
    trains_on: Tensor  # [groups, K] bool: which member trains on which context

    def __init__(self, layout: Layout, config: DQNConfig, *, num_groups: int = 0, seed: int = 0) -> None:
        super().__init__()
        if config.members < 1:
            raise ValueError(f"members is {config.members}. Fix: at least 1.")
        if not config.softness > 0:
            raise ValueError(f"softness is {config.softness}. Fix: a positive temperature.")
        if not 0 < config.bootstrap <= 1:
            raise ValueError(f"bootstrap is {config.bootstrap}. Fix: a share in (0, 1].")
        if not layout.num_actions:
            raise ValueError("this agent chooses among discrete actions. Fix: give integer actions [N], or pick another agent.")
        self.layout, self.config = layout, config
        self.members = self.count_members(config)
        self.check(config)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net = self.build()
            masks = torch.rand(num_groups, self.members) < config.bootstrap
        if num_groups:  # every context teaches somebody
            untaught = ~masks[:, : config.members].any(1)
            masks[untaught, torch.arange(int(untaught.sum())) % config.members] = True
        self.target = deepcopy(self.net).requires_grad_(False)
        self.register_buffer("trains_on", masks)
        self.register_buffer("scale", torch.ones(self.members))
        self.generator = torch.Generator().manual_seed(seed + 1)

    @classmethod
    def for_data(cls, dataset: Dataset, config: DQNConfig, *, seed: int = 0) -> Self:
        """An untrained agent for this log."""
        return cls(Layout.of(dataset), config, num_groups=dataset.num_groups, seed=seed)

    def check(self, config: DQNConfig) -> None:
        """Settings that could only fail later, after training has begun or ended."""
        belief = BeliefFilter(config.likelihood, config.temperature, config.forgetting, config.floor)
        belief.apply_floor(beliefs.uniform(self.members))

    def check_batch(self, batch: Batch) -> None:
        """A batch of other data is refused by name; only shapes are looked at, so nothing waits for the device."""
        if batch.obs.vector.shape[1] != self.layout.vector_dim:
            raise ValueError(
                f"the batch's vectors have width {batch.obs.vector.shape[1]}, this agent reads {self.layout.vector_dim}."
            )
        if not len(self.trains_on):
            raise ValueError("this agent was built without num_groups. Fix: pass num_groups=dataset.num_groups to train it.")

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Adam over everything that is trained."""
        return torch.optim.Adam(self.net.trained(), lr=self.config.lr, fused=True)

    @staticmethod
    def count_members(config: DQNConfig) -> int:
        """K, all kinds of members counted."""
        return config.members

    def build(self, **more: Any) -> QEnsemble:
        """The networks."""
        settings: dict[str, Any] = {
            "members": self.members,
            "num_actions": self.layout.num_actions,
            "vector_dim": self.layout.vector_dim,
            "picture_shape": self.layout.picture_shape,
            "hidden": self.config.hidden,
            "features": self.config.features,
            "prior_scale": self.config.prior_scale,
        }
        return QEnsemble(**(settings | more))

    # ------------------------------------------------------------------ values and policy

    def encode(self, pictures: Tensor | None) -> Tensor | None:
        """Features [K, P, F] of pictures [P, C, H, W]."""
        with torch.no_grad():
            return self.net.encode(pictures)

    def values(self, features: Tensor | None, obs: Observations, belief: Tensor) -> Tensor:
        """q: [K, B, A]; features: [K, P, F] of the table `obs.pictures`; belief: weights [B, K], or [K, B, K]."""
        return self.net(None if features is None else features[:, obs.picture], obs.vector, belief)

    def mix(self, q: Tensor, belief: Tensor) -> Tensor:
        """What the policy maximises: q [K, B, A] and weights [B, K] -> [B, A]."""
        return torch.einsum("bk,kba->ba", belief, q)

    @torch.no_grad()
    def act(self, obs: Observations, log_belief: Tensor, greedy: bool = True, features: Tensor | None = None) -> Tensor:
        """The greedy action of the mixed values; or, not greedy, one drawn from their softmax."""
        features = self.encode(obs.pictures) if features is None else features
        belief = log_belief.exp()
        mixed = self.mix(self.values(features, obs, belief), belief)
        if greedy:
            return mixed.argmax(-1)
        return torch.multinomial((mixed / self.config.softness).softmax(-1), 1, generator=self.generator)[:, 0]

    @torch.no_grad()
    def td_errors(self, step: Batch, log_belief: Tensor, features: Tensor | None = None) -> Tensor:
        """[B, K]: each member's own TD error, with its own greedy next action."""
        features = self.encode(step.obs.pictures) if features is None else features
        belief = log_belief.exp()
        q = take(self.values(features, step.obs, belief), step.action)
        follow = self.values(features, step.next_obs, belief).amax(-1)
        return (q - self.backup(step, follow)).T

    def backup(self, step: Batch, follow: Tensor) -> Tensor:
        """r + gamma V(s'): [K, B]; only real termination cuts the future off, a time limit does not."""
        return step.reward + self.config.gamma * (1 - step.terminated) * follow

    @property
    def measured(self) -> int:
        """Members that see no picture come last and are wrong by design: they are not measured."""
        return self.config.members

    # ------------------------------------------------------------------ learning

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step for all members."""
        self.check_batch(batch)
        shown, next_shown = self.encode_batch(batch)
        belief = self.draw_belief(len(batch.action))
        q = self.net(shown, batch.obs.vector, belief)  # [K, B, A]
        with torch.no_grad():
            follow = self.next_value(self.target(next_shown, batch.next_obs.vector, belief), belief)
            target = self.backup(batch, follow)
        weight = self.trains_on[batch.group].T  # [K, B]
        loss = self.row_loss(q, batch.action, target, belief)
        return self.descend(loss, weight) | {"value": take(q.detach(), batch.action).mean()}

    def draw_belief(self, rows: int) -> Tensor:
        """Weights [B, K] of the members in a training step: all alike."""
        return beliefs.uniform(self.members, rows, self.device).exp()

    def row_loss(self, q: Tensor, action: Tensor, target: Tensor, belief: Tensor) -> Tensor:
        """[K, B]: squared errors of q [K, B, A] at the logged actions."""
        return (take(q, action) - target).square()

    def encode_rows(self, obs: Observations, other: Observations) -> Tensor | None:
        """Features [K, B, F] of the rows of `obs`, whose table may hold the pictures of `other` too: these are not encoded."""
        if obs.pictures is None or obs.picture is None:
            return None
        if other.picture is obs.picture:  # one picture a context, many rows each
            features = self.net.encode(obs.pictures)
            assert features is not None
            return features[:, obs.picture]
        return self.net.encode(obs.pictures[obs.picture])

    def encode_batch(self, batch: Batch) -> tuple[Tensor | None, Tensor | None]:
        """Features [K, B, F] of the rows, with gradient, and of the rows after the step, without."""
        obs, after = batch.obs, batch.next_obs
        shown = self.encode_rows(obs, after)
        if shown is None or obs.pictures is None or after.picture is None:
            return None, None
        if after.picture is obs.picture:  # encoded once, online and target heads share it
            return shown, shown.detach()
        with torch.no_grad():
            return shown, self.target.encode(obs.pictures[after.picture])

    def next_value(self, q: Tensor, belief: Tensor) -> Tensor:
        """V(s') of each member from the target's q [K, B, A]: its own maximum."""
        return q.amax(-1)

    def descend(self, errors: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """One step of Adam on each row's loss [K, B], scaled so that a masked member learns as fast as an unmasked one."""
        loss = (errors * weight).sum() / (weight.shape[1] * self.config.bootstrap)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():  # else every move is recorded, and memory grows with each update
            torch._foreach_lerp_(self.target.trained(), self.net.trained(), self.config.target_rate)
        return {"loss": loss.detach() / self.members}

    # ------------------------------------------------------------------ deployment

    def policy_state(self) -> dict[str, Tensor]:
        """The networks and the filter's scales."""
        return {f"net.{k}": v for k, v in self.net.state_dict().items()} | {"scale": self.scale}

    def load_policy_state(self, state: dict[str, Tensor]) -> None:
        """Take back what `policy_state` gave."""
        self.net.load_state_dict({k.removeprefix("net."): v for k, v in state.items() if k.startswith("net.")})
        self.target.load_state_dict(self.net.state_dict())
        self.scale.copy_(state["scale"])


def take(q: Tensor, action: Tensor) -> Tensor:
    """q [K, B, A] at actions [B] (or [K, B]) -> [K, B]."""
    return q.gather(2, action.expand(q.shape[0], -1).unsqueeze(-1)).squeeze(-1)
