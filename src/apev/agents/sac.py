"""Soft actor-critic, offline: SAC (N = 2) and SAC-N, whose pessimism is a minimum over N critics (An et al., 2021).

For member k, the minimum over its first n_k critics, written Q_k. SAC and SAC-N have one member, for which the belief b plays
no part; APE-V on SAC-N (`apev_sac.py`) is this file with K of them:

    y_k      = r + gamma (1 - terminated) (Q-_k(s', b', a') - alpha log pi(a' | s', b'))         a' ~ pi(. | s', b')
    L_Q      = sum over k and j <= n_k of (Q_jk(s, b, a) - y_k)^2                                each member its own target
    L_pi     = alpha log pi(a | s, b) - sum_k b_k Q_k(s, b, a)                                   a ~ pi(. | s, b)
    L_alpha  = -log alpha (log pi(a | s, b) + H)                                                 H = -dim(A)
    pi       = sum_k b_k pi_k(. | s)                                                             K actors, mixed

K members share N = max n_k networks with K outputs each (the paper's Appendix E). The three gradients are taken at the same
parameters and followed by one step of Adam. The actors' gradient differentiates the critics' input, never their weights, and
passes only through the critic that is the smallest for its row.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from apev.agents.agent import Agent
from apev.data.batch import Batch, Layout, Observations
from apev.data.dataset import Dataset
from apev.ensemble import EnsembleLinear, EnsembleMLP, Groups

LOG_STD = (-5.0, 2.0)


@dataclass(frozen=True)
class SACConfig:
    """Soft actor-critic with N critics: 2 is SAC, more is SAC-N."""

    critics: int = 2
    """N: over how many value functions the minimum is taken."""
    gamma: float = 0.99
    """Discount."""
    lr: float = 3e-4
    """Adam's learning rate."""
    target_rate: float = 0.005
    """How far the target network moves towards the online one in each update."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of the fully connected layers, of actors and critics."""


class Actors(nn.Module):
    """K actors, each a Gaussian squashed by tanh."""

    def __init__(self, members: int, inputs: int, hidden: tuple[int, ...], actions: int) -> None:
        super().__init__()
        self.members = members
        self.net = EnsembleMLP(members, inputs, hidden, 2 * actions)
        start_as_published(self.net, 1e-3)

    def forward(self, obs: Tensor, member: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and deviation before tanh, [B, A], of the actor that each row asks: obs [B, D], member [B]."""
        if member is None:
            out = self.net(obs[None])[0]
        else:
            groups = Groups.of(member, self.members)
            out = groups.join(self.net(groups.split(obs)))
        mean, log_std = out.chunk(2, dim=-1)
        return mean, log_std.clamp(*LOG_STD).exp()


def squash(mean: Tensor, std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions in (-1, 1) and their log-probability [B], from standard normal noise."""
    raw = mean + std * noise
    log_normal = -0.5 * noise.square() - std.log() - 0.5 * math.log(2 * math.pi)
    log_slope = 2 * (math.log(2) - raw - softplus(-2 * raw))  # log(1 - tanh(raw)^2), without underflow
    return raw.tanh(), (log_normal - log_slope).sum(-1)


def start_as_published(net: EnsembleMLP, last: float) -> None:
    """Biases .1 and a last layer near zero, as SAC-N's authors start their networks."""
    with torch.no_grad():
        layers = [layer for layer in net.layers if isinstance(layer, EnsembleLinear)]
        for layer in layers:
            layer.bias.fill_(0.1)
        layers[-1].weight.uniform_(-last, last)
        layers[-1].bias.uniform_(-last, last)


class SAC(Agent):
    """Actors and critics of K members; one member unless a subclass says otherwise."""

    config: SACConfig
    counts: Tensor  # [K, N] bool: which critics member k takes its minimum over
    middle: Tensor  # [A] of the action's range
    reach: Tensor  # [A] half of it

    def __init__(self, layout: Layout, config: SACConfig, *, seed: int = 0) -> None:
        super().__init__()
        if not layout.action_dim:
            raise ValueError("this agent needs continuous actions. Fix: give actions [N, A] of floats, or pick another agent.")
        if layout.picture is not None:
            raise ValueError(
                f"this agent reads vectors, not the picture {layout.picture!r}. Fix: log features, or pick another agent."
            )
        self.layout, self.config = layout, config
        sizes = self.sizes(config)
        if min(sizes) < 1:
            raise ValueError(f"members take their minimum over {sizes} critics. Fix: at least 1 each.")
        self.members, K, N = len(sizes), len(sizes), max(sizes)
        inputs = layout.vector_dim + layout.action_dim + (K if K > 1 else 0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actors = Actors(K, layout.vector_dim, config.hidden, layout.action_dim)
            self.critics = EnsembleMLP(N, inputs, config.hidden, K)
            start_as_published(self.critics, 3e-3)
        self.target = deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.zeros(()))
        self.register_buffer("counts", torch.arange(N)[None] < torch.tensor(sizes)[:, None])
        self.register_buffer("scale", torch.ones(K))
        low, high = torch.tensor(layout.action_low), torch.tensor(layout.action_high)
        self.register_buffer("middle", (low + high) / 2, persistent=False)
        self.register_buffer("reach", (high - low) / 2, persistent=False)
        self.generator = torch.Generator().manual_seed(seed + 1)
        self.optimizer = self.make_optimizer()

    @classmethod
    def for_data(cls, dataset: Dataset, config: Any, *, seed: int = 0) -> Self:
        """An untrained agent for this log."""
        return cls(Layout.of(dataset), config, seed=seed)

    @staticmethod
    def sizes(config: SACConfig) -> tuple[int, ...]:
        """n_k for each member."""
        return (config.critics,)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Adam over actors, critics and the entropy's weight."""
        trained = [*self.actors.parameters(), *self.critics.parameters(), self.log_alpha]
        return torch.optim.Adam(trained, lr=self.config.lr, fused=True)

    # ------------------------------------------------------------------ values and policy

    def values(self, net: EnsembleMLP, obs: Tensor, action: Tensor, belief: Tensor | None) -> Tensor:
        """[K, N, B] of every critic, for each member; actions in (-1, 1)."""
        x = torch.cat([obs, action] if belief is None else [obs, action, belief], -1)
        return net(x.expand(self.counts.shape[1], *x.shape)).permute(2, 0, 1)

    def smallest(self, q: Tensor) -> Tensor:
        """Q_k [K, B]: the minimum of [K, N, B] over each member's own critics."""
        if self.members == 1:
            return q.amin(1)
        return q.masked_fill(~self.counts[:, :, None], torch.inf).amin(1)

    def draw_member(self, belief: Tensor | None) -> Tensor | None:
        """A member for each row, by its belief."""
        return None if belief is None else torch.multinomial(belief, 1, generator=self.generator)[:, 0]

    def sample(self, obs: Tensor, belief: Tensor | None) -> tuple[Tensor, Tensor]:
        """Actions [B, A] of the mixture and their log-probability under the actor that was drawn."""
        mean, std = self.actors(obs, self.draw_member(belief))
        return squash(mean, std, torch.randn(mean.shape, generator=self.generator, device=mean.device))

    def weights(self, log_belief: Tensor) -> Tensor | None:
        """What actors and critics read of a belief: nothing where there is one member."""
        return None if self.members == 1 else log_belief.exp()

    def encode(self, pictures: Tensor | None) -> Tensor | None:
        """There are no pictures."""
        return None

    @torch.no_grad()
    def act(self, obs: Observations, log_belief: Tensor, greedy: bool = True, features: Tensor | None = None) -> Tensor:
        """Actions [B, A] in the environment's units; greedy: the middle of the actor most believed in."""
        belief = self.weights(log_belief)
        if greedy:
            action = self.actors(obs.vector, None if belief is None else belief.argmax(-1))[0].tanh()
        else:
            action = self.sample(obs.vector, belief)[0]
        return self.middle + self.reach * action

    @torch.no_grad()
    def td_errors(self, step: Batch, log_belief: Tensor, features: Tensor | None = None) -> Tensor:
        """[B, K]: all at the current belief, as printed."""
        belief = self.weights(log_belief)
        q = self.smallest(self.values(self.critics, step.obs.vector, self.to_unit(step.action), belief))
        follow, _ = self.sample(step.next_obs.vector, belief)
        after = self.smallest(self.values(self.critics, step.next_obs.vector, follow, belief))
        return (q - self.backup(step, after)).T

    def to_unit(self, action: Tensor) -> Tensor:
        """Actions of the environment in [-1, 1]."""
        return (action - self.middle) / self.reach

    def backup(self, step: Batch, follow: Tensor) -> Tensor:
        """r + gamma V(s'): [K, B]."""
        return step.reward + self.config.gamma * (1 - step.terminated) * follow

    # ------------------------------------------------------------------ learning

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step for actors, critics and the entropy's weight."""
        if batch.obs.vector.shape[1] != self.layout.vector_dim:
            raise ValueError(
                f"the batch's vectors have width {batch.obs.vector.shape[1]}, this agent reads {self.layout.vector_dim}."
            )
        obs, after, alpha = batch.obs.vector, batch.next_obs.vector, self.log_alpha.detach().exp()
        log_belief = self.draw_belief(len(obs))
        belief = None if log_belief is None else log_belief.exp()
        q = self.values(self.critics, obs, self.to_unit(batch.action), belief)  # [K, N, B]
        with torch.no_grad():
            new_belief = self.new_belief(batch, q, log_belief)
            follow, log_prob = self.sample(after, new_belief)
            soft = self.smallest(self.values(self.target, after, follow, new_belief)) - alpha * log_prob
            y = self.backup(batch, soft)  # [K, B]
        squared = (q - y[:, None]).square()
        critic_loss = (squared if self.members == 1 else squared * self.counts[:, :, None]).sum((0, 1)).mean()
        action, log_prob = self.sample(obs, belief)
        value = self.policy_value(obs, action, belief)
        actor_loss = (alpha * log_prob - value).mean()
        alpha_loss = -self.log_alpha * (log_prob.detach().mean() - self.layout.action_dim)
        self.optimizer.zero_grad(set_to_none=True)
        (critic_loss + actor_loss + alpha_loss).backward()
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.parameters()), list(self.critics.parameters()), self.config.target_rate)
        used = self.counts.sum()
        return {
            "critic_loss": critic_loss.detach() / used,
            "value": value.detach().mean(),
            "entropy": -log_prob.detach().mean(),
            "alpha": alpha,
        }

    def policy_value(self, obs: Tensor, action: Tensor, belief: Tensor | None) -> Tensor:
        """[B]: Q_k(s, b, a) of a member drawn by the belief, whose gradient by the action is that of sum_k b_k Q_k on average.

        All critics are asked which is the smallest, without gradient; then each row asks that one again.
        """
        with torch.no_grad():
            q = self.values(self.critics, obs, action, belief)  # [K, N, B]
            member = self.draw_member(belief)
            if member is None:
                least = q[0].argmin(0)
            else:
                q = q.masked_fill(~self.counts[:, :, None], torch.inf)
                least = q[member, :, torch.arange(len(obs), device=obs.device)].argmin(1)
        x = torch.cat([obs, action] if belief is None else [obs, action, belief], -1)
        groups = Groups.of(least, self.counts.shape[1])
        value = groups.join(self.critics(groups.split(x), frozen=True))  # [B, K]
        return value[:, 0] if member is None else value.gather(1, member[:, None])[:, 0]

    def draw_belief(self, rows: int) -> Tensor | None:
        """The log-beliefs [B, K] of a training step; None where there is one member."""
        return None

    def new_belief(self, batch: Batch, q: Tensor, log_belief: Tensor | None) -> Tensor | None:
        """b' [B, K] after the step; q: [K, N, B] at b."""
        return None

    # ------------------------------------------------------------------ deployment

    def policy_state(self) -> dict[str, Tensor]:
        """Actors, critics and the filter's scales."""
        parts = {"actors": self.actors, "critics": self.critics}
        state = {f"{name}.{k}": v for name, part in parts.items() for k, v in part.state_dict().items()}
        return state | {"scale": self.scale}

    def load_policy_state(self, state: dict[str, Tensor]) -> None:
        """Take back what `policy_state` gave."""
        for name, part in (("actors", self.actors), ("critics", self.critics)):
            part.load_state_dict({k.removeprefix(f"{name}."): v for k, v in state.items() if k.startswith(f"{name}.")})
        self.target.load_state_dict(self.critics.state_dict())
        self.scale.copy_(state["scale"])
