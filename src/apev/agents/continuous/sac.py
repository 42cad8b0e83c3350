"""Soft actor-critic, offline: SAC (N = 2) and SAC-N, whose pessimism is a minimum over N critics (An et al., 2021).

Q is the minimum over N critics:

    y        = r + gamma (1 - terminated) (Q-(s', a') - alpha log pi(a' | s'))         a' ~ pi(. | s')
    L_Q      = sum over j <= N of (Q_j(s, a) - y)^2                                    one target for all
    L_pi     = alpha log pi(a | s) - Q(s, a)                                           a ~ pi(. | s)
    L_alpha  = -log alpha (log pi(a | s) + H)                                          H = -dim(A)

The three gradients are taken at the same parameters and followed by one step of Adam. The actor's gradient differentiates the
critics' input, never their weights, and passes only through the critic that is the smallest for its row.

Four settings steady it where a log is small. All are off unless asked for:

    layer_norm       before every ReLU of the critics: values cannot grow without bound far from the data
    target_bounds    lowest <= y <= highest: the discounted rewards that the log's own episodes allow
    actor_average    what is deployed is a slow copy of the actors, which sways less from update to update
    near_log         L_pi is divided by mean |Q|, and near_log (a - a_log)^2 added: 1 / 2.5 is as close as TD3+BC stays

EDAC, CQL, REM and APE-V are this file with another `critic_loss`. APE-V has K members, each an actor and a minimum over its own
number n_k of critics, and a belief b over them (`apev.py`). What is written here is for K members, of which SAC has one: there
the belief is None, and plays no part.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from apev.agents.agent import SMALLEST
from apev.agents.continuous.base import ContinuousAgent, parameters, start_as_published
from apev.belief import draw_index, most_believed
from apev.data.batch import Batch, Layout, Observations
from apev.data.dataset import Dataset
from apev.nn import kernels
from apev.nn.ensemble import EnsembleMLP, NormedMLP

LOG_STD = (-5.0, 2.0)
NOTHING = 1e-6  # a weight no larger than this is 0


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
    layer_norm: bool = False
    """Whether critics have layer norm before every ReLU."""
    target_bounds: bool = False
    """Whether targets are held between the lowest and the highest discounted return that the log's rewards allow."""
    actor_average: float = 0.0
    """How far the deployed actors move towards the trained ones in each update; 0 deploys the trained ones themselves."""
    near_log: float = 0.0
    """How much closeness to the logged actions counts for actors, beside values divided by their mean size; 0: not at all."""


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
        out = self.net(obs)[0] if member is None else kernels.ask_one(self.net, obs, member)
        mean, log_std = out.chunk(2, dim=-1)
        return mean, log_std.clamp(*LOG_STD).exp()

    def all(self, obs: Tensor, belief: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The same of every actor, [K, B, A]."""
        mean, log_std = self.net(obs).chunk(2, dim=-1)
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


class SAC(ContinuousAgent):
    """Actors and critics of K members; one member unless a subclass says otherwise."""

    config: SACConfig
    actor_type: ClassVar[type[Actors]] = Actors
    soft: ClassVar[bool] = True  # whether the entropy's bonus counts in targets
    deployed: tuple[str, ...] = ("actors", "critics", "log_alpha")
    targets = {"target": "critics"}  # noqa: RUF012
    counts: Tensor  # [K, N] bool: which critics member k takes its minimum over
    network: Tensor  # [K, N] which network is member k's j-th critic; from n_k on, its last one again
    head: Tensor  # [K] which of that network's outputs is member k's
    lowest: Tensor  # [] no target is lower
    highest: Tensor  # [] none is higher

    def __init__(self, layout: Layout, config: SACConfig, *, seed: int = 0) -> None:
        self.n = self.sizes(config)
        if min(self.n) < 1:
            raise ValueError(f"members take their minimum over {self.n} critics. Fix: at least 1 each.")
        if not config.near_log >= 0:
            raise ValueError(f"near_log is {config.near_log}. Fix: 0 or more.")
        if not 0 <= config.actor_average <= 1:
            raise ValueError(f"actor_average is {config.actor_average}. Fix: from 0 to 1; .005 averages over some 200 updates.")
        super().__init__(layout, config, members=len(self.n), seed=seed)

    @classmethod
    def for_data(cls, dataset: Dataset, config: Any, *, seed: int = 0) -> Self:
        """An untrained agent for this log, whose rewards say what values are possible."""
        agent = super().for_data(dataset, config, seed=seed)
        if config.target_bounds:
            agent.lowest.fill_(dataset.lowest_return(config.gamma))
            agent.highest.fill_(dataset.highest_return(config.gamma))
        return agent

    @staticmethod
    def sizes(config: SACConfig) -> tuple[int, ...]:
        """n_k for each member."""
        return (config.critics,)

    @property
    def shared(self) -> bool:
        """Whether members share networks, each with a head a member; else each has networks of its own."""
        return True

    @property
    def critics_see(self) -> int:
        """How many weights of the belief are an input of the critics."""
        return self.members if self.members > 1 else 0

    def build(self) -> None:
        """Actors, critics and the weight of the entropy."""
        K, N, hidden = len(self.n), max(self.n), self.config.hidden
        n, j, k = torch.tensor(self.n)[:, None], torch.arange(N), torch.arange(K)
        first = torch.zeros_like(n) if self.shared else n.cumsum(0) - n  # [K, 1]: the network of its first critic
        self.register_buffer("counts", j < n)
        self.register_buffer("network", first + j.minimum(n - 1), persistent=False)
        self.register_buffer("head", k if self.shared else torch.zeros_like(k), persistent=False)
        self.register_buffer("lowest", torch.tensor(-torch.inf), persistent=False)
        self.register_buffer("highest", torch.tensor(torch.inf), persistent=False)
        inputs = self.layout.vector_dim + self.layout.action_dim + self.critics_see
        self.actors = self.actor_type(K, self.layout.vector_dim, hidden, self.layout.action_dim)
        networks = NormedMLP if self.config.layer_norm else EnsembleMLP
        self.critics = networks(N, inputs, hidden, K) if self.shared else networks(sum(self.n), inputs, hidden, 1)
        start_as_published(self.critics, 3e-3)
        self.target = deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.zeros(K))
        if self.config.actor_average:
            self.slow_actors = deepcopy(self.actors).requires_grad_(False)
            self.targets = self.targets | {"slow_actors": "actors"}
            self.rates = {"slow_actors": self.config.actor_average}
            self.deployed = tuple("slow_actors" if name == "actors" else name for name in self.deployed)

    @property
    def deployed_actors(self) -> Actors:
        """The actors that act outside training."""
        return self.slow_actors if self.config.actor_average else self.actors

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Adam over actors, critics and the entropy's weight."""
        trained = [*parameters(self.actors, self.critics), self.log_alpha]
        return torch.optim.Adam(trained, lr=self.config.lr, fused=True)

    # ------------------------------------------------------------------ values and policy

    def values(self, net: EnsembleMLP, obs: Tensor, action: Tensor, belief: Tensor | None = None) -> Tensor:
        """[K, N, B] of every critic, for each member; actions in (-1, 1)."""
        q = net(obs, action, belief)  # [networks, B, heads]
        return q.permute(2, 0, 1) if q.shape[2] == self.members else q[..., 0][self.network]

    def reduce(self, q: Tensor) -> Tensor:
        """Q_k [K, B]: the minimum of [K, N, B] over each member's own critics."""
        if self.members == 1:
            return q.amin(1)
        return q.masked_fill(~self.counts[:, :, None], torch.inf).amin(1)

    def sample(
        self,
        obs: Tensor,
        belief: Tensor | None = None,
        member: Tensor | None = None,
        generator: torch.Generator | None = None,
        actors: Actors | None = None,
    ) -> Drawn:
        """Actions of the actor that each row names, or of one drawn by its belief; of the only one where there is one."""
        if belief is not None:
            member = draw_index(belief, generator or self.generator)
        mean, std = (actors or self.actors)(obs, member, belief)
        action, log_prob = squash(mean, std, self.noise(mean, generator))
        return Drawn(action, log_prob, self.log_alpha[0] if member is None else self.log_alpha[member])

    def backup(
        self,
        net: EnsembleMLP,
        step: Batch,
        belief: Tensor | None = None,
        generator: torch.Generator | None = None,
        actors: Actors | None = None,
    ) -> Tensor:
        """r + gamma (1 - terminated) V_k(s', b): [K, B], from one action of the policy, by these critics."""
        next_action, log_prob, log_alpha = self.sample(step.next_obs.vector, belief, generator=generator, actors=actors)
        next_q = self.reduce(self.values(net, step.next_obs.vector, next_action, belief))
        if self.soft:
            next_q = next_q - log_alpha.exp() * log_prob
        return step.reward + self.config.gamma * (1 - step.terminated) * next_q

    def weights(self, log_belief: Tensor | None) -> Tensor | None:
        """What actors, critics and losses know of a belief, [B, K]: nothing where there is one member.

        Next to nothing counts as nothing: a CPU computes with numbers such as 1e-40 many times as slowly as with others.
        """
        if log_belief is None or self.members == 1:
            return None
        return nn.functional.threshold(log_belief.exp(), NOTHING, 0.0)

    @torch.no_grad()
    def act(
        self,
        obs: Observations,
        log_belief: Tensor,
        greedy: bool = True,
        features: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Actions [B, A] in the environment's units; greedy: those of the actor most believed in, the last of equals."""
        belief = self.weights(log_belief)
        if greedy:
            trusted = None if belief is None else most_believed(belief)
            return self.from_unit(self.deployed_actors(obs.vector, trusted, belief)[0].tanh())
        drawn = self.sample(obs.vector, belief, generator=generator, actors=self.deployed_actors)
        return self.from_unit(drawn.action)

    @torch.no_grad()
    def act_average(
        self,
        obs: Observations,
        log_belief: Tensor,
        greedy: bool = True,
        features: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Actions [B, A]: the mean of all actors' own, weighted by the belief; not greedy, those of the mixture."""
        belief = self.weights(log_belief)
        if belief is None or not greedy:
            return self.act(obs, log_belief, greedy, features, generator)
        mean = self.deployed_actors.all(obs.vector, belief)[0]  # [K, B, A]
        return self.from_unit(torch.einsum("bk,kba->ba", belief, mean.tanh()))

    @torch.no_grad()
    def td_errors(
        self, step: Batch, log_belief: Tensor, features: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """[B, K]: all at the current belief, as printed."""
        belief = self.weights(log_belief)
        q = self.reduce(self.values(self.critics, step.obs.vector, self.to_unit(step.action), belief))
        return (q - self.backup(self.critics, step, belief, generator, self.deployed_actors)).T

    # ------------------------------------------------------------------ learning

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step for actors, critics and the entropy's weight."""
        self.check_batch(batch)
        obs = batch.obs.vector
        log_belief = batch.log_belief if batch.log_belief is not None else self.draw_belief(len(obs))
        belief = self.weights(log_belief)
        critic_loss, metrics = self.critic_loss(batch, log_belief)
        action, log_prob, log_alpha = self.sample(obs, belief)
        value = self.policy_value(obs, action, belief)
        actor_loss = (log_alpha.detach().exp() * log_prob - value).mean()
        if self.config.near_log:
            actor_loss = self.near(actor_loss, value, action, batch)
        alpha_loss = -(log_alpha * (log_prob.detach() - self.layout.action_dim)).mean()
        self.descend(critic_loss + actor_loss + alpha_loss)
        alpha, value = log_alpha.detach().exp().mean(), value.detach()
        metrics |= {"value": value.mean(), "entropy": -log_prob.detach().mean(), "alpha": alpha}
        if belief is not None:  # a bold member whose values run away does not hide in the mean
            by_member = (belief.T @ value) / belief.sum(0).clamp_min(NOTHING)
            metrics |= {"value_boldest": by_member[0], "value_most_careful": by_member[-1]}
        return metrics

    def near(self, actor_loss: Tensor, value: Tensor, action: Tensor, batch: Batch) -> Tensor:
        """The actors' loss with closeness to the log: from actions [B, A] and their values [B]."""
        away = (action - self.to_unit(batch.action)).square().mean()
        return actor_loss / value.detach().abs().mean().clamp_min(SMALLEST) + self.config.near_log * away

    def draw_belief(self, rows: int) -> Tensor | None:
        """The log-beliefs [B, K] of a training step; None where there is one member."""
        return None

    def critic_loss(self, batch: Batch, log_belief: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Squared TD errors, summed over critics; and what is logged of it."""
        q = self.values(self.critics, batch.obs.vector, self.to_unit(batch.action))  # [1, N, B]
        with torch.no_grad():
            target_q = self.backup(self.target, batch).clamp(self.lowest, self.highest)  # [1, B]
        loss = (q - target_q[:, None]).square().sum((0, 1)).mean()
        return loss, {"critic_loss": loss.detach() / sum(self.n)}

    def policy_value(self, obs: Tensor, action: Tensor, belief: Tensor | None) -> Tensor:
        """[B]: Q_k(s, b, a) of a member drawn by the belief, whose gradient by the action is that of sum_k b_k Q_k on average.

        It passes through the one critic that is the smallest for its row, and trains no critic.
        """
        member = obs.new_zeros(len(obs), dtype=torch.int64) if belief is None else draw_index(belief, self.generator)
        x = torch.cat([obs, action] if belief is None else [obs, action, belief], -1)
        return kernels.smallest(self.critics, x, self.network[member], self.head[member])
