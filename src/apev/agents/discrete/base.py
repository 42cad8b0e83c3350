"""What agents of discrete actions share: networks and their slow copy, which member trains on which context, acting, files.

An agent of this kind says what its networks are (`build`), what they expect (`values`), how wrong they were (`td_errors`) and
how they learn (`update`). DQN, C51 and both APE-Vs stand on it side by side.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from apev import belief as beliefs
from apev.agents.agent import Agent, BeliefConfig
from apev.belief import BeliefFilter
from apev.data.batch import Batch, Layout, Observations
from apev.data.dataset import Dataset
from apev.nn.qnets import QEnsemble
from apev.worlds.models import WorldModels


@dataclass(frozen=True)
class ValueConfig(BeliefConfig):
    """An ensemble of value functions of discrete actions."""

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


class ValueAgent(Agent):
    """K members trained side by side, and the policy that maximises their mean under the belief."""

    config: ValueConfig
    net: Any  # QEnsemble, or CategoricalEnsemble
    target: Any  # its slow copy
    trains_on: Tensor  # [groups, K] bool: which member trains on which context

    def __init__(self, layout: Layout, config: ValueConfig, *, num_groups: int = 0, seed: int = 0) -> None:
        super().__init__()
        if config.members < 1:
            raise ValueError(f"members is {config.members}. Fix: at least 1.")
        if not config.softness > 0:
            raise ValueError(f"softness is {config.softness}. Fix: a positive temperature.")
        if not 0 < config.bootstrap <= 1:
            raise ValueError(f"bootstrap is {config.bootstrap}. Fix: a share in (0, 1].")
        if not layout.num_actions:
            raise ValueError("this agent chooses among discrete actions. Fix: give integer actions [N], or pick another agent.")
        self.layout, self.config, self.num_groups = layout, config, num_groups
        self.members = self.measured = self.count_members(config)
        self.check(config)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net = self.build()
            masks = torch.rand(num_groups, self.members) < config.bootstrap
            self.make_worlds()
        if num_groups:  # every context teaches somebody
            untaught = ~masks[:, : config.members].any(1)
            masks[untaught, torch.arange(int(untaught.sum())) % config.members] = True
        self.target = deepcopy(self.net).requires_grad_(False)
        self.register_buffer("trains_on", masks)
        self.register_buffer("scale", torch.ones(self.members))
        self.generator = torch.Generator().manual_seed(seed + 1)

    @classmethod
    def for_data(cls, dataset: Dataset, config: Any, *, seed: int = 0) -> Self:
        """An untrained agent for this log."""
        return cls(Layout.of(dataset), config, num_groups=dataset.num_groups, seed=seed)

    @staticmethod
    def count_members(config: Any) -> int:
        """K, all kinds of members counted."""
        return int(config.members)

    def check(self, config: Any) -> None:
        """Settings that could only fail later, after training has begun or ended."""
        belief = BeliefFilter(config.likelihood, config.temperature, config.forgetting, config.floor)
        belief.apply_floor(beliefs.uniform(self.members))

    def take_worlds(self, models: WorldModels, kind: Tensor) -> None:
        """Let member k be the world of kind k, and train on the contexts of that kind alone."""
        super().take_worlds(models, kind)
        self.trains_on.copy_(kind[:, None] == torch.arange(self.members, device=kind.device))

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Adam over everything that is trained."""
        return torch.optim.Adam([p for p in self.net.parameters() if p.requires_grad], lr=self.config.lr, fused=True)

    @abstractmethod
    def build(self) -> Any:
        """The networks; called once, under the agent's seed."""

    # ------------------------------------------------------------------ values and policy

    def encode(self, pictures: Tensor | None) -> Tensor | None:
        """Features [K, P, F] of pictures [P, C, H, W]."""
        with torch.no_grad():
            features: Tensor | None = self.net.encode(pictures)
            return features

    @abstractmethod
    def values(self, features: Tensor | None, obs: Observations, belief: Tensor) -> Tensor:
        """q: [K, B, A]; features: [K, P, F] of the table `obs.pictures`; belief: weights [B, K], or [K, B, K]."""

    def mix(self, q: Tensor, belief: Tensor) -> Tensor:
        """What the policy maximises: q [K, B, A] and weights [B, K] -> [B, A]."""
        return torch.einsum("bk,kba->ba", belief, q)

    def preferences(self, features: Tensor | None, obs: Observations, belief: Tensor) -> Tensor:
        """[B, A]: what the policy prefers the largest of, under weights [B, K]."""
        return self.mix(self.values(features, obs, belief), belief)

    @torch.no_grad()
    def act(
        self,
        obs: Observations,
        log_belief: Tensor,
        greedy: bool = True,
        features: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The greedy action of the mixed values; or, not greedy, one drawn from their softmax."""
        features = self.encode(obs.pictures) if features is None else features
        mixed = self.preferences(features, obs, log_belief.exp())
        if greedy:
            return mixed.argmax(-1)
        return torch.multinomial((mixed / self.config.softness).softmax(-1), 1, generator=generator or self.generator)[:, 0]

    def backup(self, step: Batch, next_q: Tensor) -> Tensor:
        """r + gamma V(s'): [K, B]; only real termination cuts the future off, a time limit does not."""
        return step.reward + self.config.gamma * (1 - step.terminated) * next_q

    # ------------------------------------------------------------------ learning

    def descend(self, loss: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """One step of Adam on each row's loss [K, B], scaled so that a masked member learns as fast as an unmasked one."""
        total = (loss * weight).sum() / (weight.shape[1] * self.config.bootstrap)
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        self.optimizer.step()
        with torch.no_grad():  # else every move is recorded, and memory grows with each update
            torch._foreach_lerp_([*self.target.parameters()], [*self.net.parameters()], self.config.target_rate)
        return {"loss": total.detach() / self.members}

    # ------------------------------------------------------------------ deployment

    def policy_state(self) -> dict[str, Tensor]:
        """The networks and the filter's scales."""
        return {f"net.{k}": v for k, v in self.net.state_dict().items()} | {"scale": self.scale} | self.worlds_state()

    def load_policy_state(self, state: dict[str, Tensor]) -> None:
        """Take back what `policy_state` gave."""
        self.net.load_state_dict({k.removeprefix("net."): v for k, v in state.items() if k.startswith("net.")})
        self.target.load_state_dict(self.net.state_dict())
        self.scale.copy_(state["scale"])
        if self.worlds is not None:
            own = {name.removeprefix("worlds."): state[name] for name in self.worlds_state()}
            self.worlds.load_state_dict(own)


@dataclass(frozen=True)
class DQNConfig(ValueConfig):
    """Deep Q-learning with an ensemble of value functions."""

    prior_scale: float = 0.0
    """Weight of a fixed random network added to each member (randomised priors); 0 leaves it out."""
    support: float = 0.0
    """Only actions that the log takes at least this often, as a share of its likeliest one in a state, are ever chosen; a
    cloning head learns how often that is. 0 chooses among all, 1 does as the log does."""


class QAgent(ValueAgent):
    """A `ValueAgent` whose networks are action values (`QEnsemble`).

    With `support` these come with a cloning head G (Fujimoto et al., 2019: discrete BCQ), which learns by maximum likelihood
    beside them, and every maximum over actions runs over likely ones alone:

        L_G      = -w_k log G_k(a | s)
        likely   : G(a | s) >= support max_a' G(a' | s)          G = G_k for member k alone, sum_k b_k G_k under a belief b
    """

    takes_masks = True
    limits_actions: ClassVar[bool] = True  # whether `support` means anything: there is a maximum over actions
    config: DQNConfig
    net: QEnsemble
    target: QEnsemble

    def check(self, config: Any) -> None:
        """As for every ensemble, and which actions are likely."""
        super().check(config)
        if not 0 <= config.support <= (1 if self.limits_actions else 0):
            fix = "a share from 0 to 1" if self.limits_actions else "leave it out, this agent takes no other actions"
            raise ValueError(f"support is {config.support}. Fix: {fix}.")

    def build(self, **more: Any) -> QEnsemble:
        """The networks; `more` replaces settings of them."""
        settings: dict[str, Any] = {
            "members": self.members,
            "num_actions": self.layout.num_actions,
            "vector_dim": self.layout.vector_dim,
            "picture_shape": self.layout.picture_shape,
            "hidden": self.config.hidden,
            "features": self.config.features,
            "prior_scale": self.config.prior_scale,
            "cloning": self.config.support > 0,
        }
        return QEnsemble(**(settings | more))

    def values(self, features: Tensor | None, obs: Observations, belief: Tensor) -> Tensor:
        """q: [K, B, A]; features: [K, P, F] of the table `obs.pictures`; belief: weights [B, K], or [K, B, K]."""
        return self.net(of_rows(features, obs), obs.vector, belief)

    def preferences(self, features: Tensor | None, obs: Observations, belief: Tensor) -> Tensor:
        """[B, A]: what the policy prefers the largest of, -inf where the log hardly ever does that."""
        log_clone = self.net.clone(of_rows(features, obs), obs.vector, obs.allowed)
        return self.likely(super().preferences(features, obs, belief), log_clone, belief)

    def likely(self, values: Tensor, log_clone: Tensor | None, belief: Tensor | None = None) -> Tensor:
        """Values with -inf for actions that are not likely by log G_k [K, B, A]; None leaves all.

        Values [K, B, A] of members are limited by each one's own G_k; those of a policy, [B, A], by sum_k b_k G_k with
        weights [B, K].
        """
        if log_clone is None:
            return values
        if belief is not None:
            log_clone = torch.einsum("bk,kba->ba", belief, log_clone.exp()).log()
        if not self.config.support:  # only masks forbid
            return values.masked_fill(log_clone == -torch.inf, -torch.inf)
        least = log_clone.amax(-1, keepdim=True) + math.log(self.config.support)
        return values.masked_fill(log_clone < least, -torch.inf)

    def with_cloning(self, loss: Tensor, features: Tensor | None, batch: Batch) -> Tensor:
        """The loss of each row [K, B], and the cloning head's where there is one."""
        log_clone = self.net.clone(features, batch.obs.vector, batch.obs.allowed) if self.config.support else None
        return loss if log_clone is None else loss - take(log_clone, batch.action)

    def encode_batch(self, batch: Batch) -> tuple[Tensor | None, Tensor | None]:
        """Features [K, B, F] of the rows, with gradient, and of the rows after the step, from the target, without.

        Rows that show the same picture before and after the step encode it once: online and target heads share it.
        """
        if batch.obs.pictures is None:
            return None, None
        features = self.net.encode_rows(batch.obs, batch.shares_pictures)
        if features is not None and batch.shares_pictures:
            return features, features.detach()
        with torch.no_grad():
            return features, self.target.encode_rows(batch.next_obs)


def of_rows(features: Tensor | None, obs: Observations) -> Tensor | None:
    """Features [K, B, F] of rows, from those [K, P, F] of the table of pictures."""
    return None if features is None else features[:, obs.picture]


def permitted(values: Tensor, allowed: Tensor | None) -> Tensor:
    """Values [..., B, A] with -inf for actions that are not allowed [B, A]; None allows all."""
    return values if allowed is None else values.masked_fill(~allowed, -torch.inf)


def take(q: Tensor, action: Tensor) -> Tensor:
    """q [K, B, A] at actions [B] (or [K, B]) -> [K, B]."""
    return q.gather(2, action.expand(q.shape[0], -1).unsqueeze(-1)).squeeze(-1)
