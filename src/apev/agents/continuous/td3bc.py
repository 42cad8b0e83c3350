"""TD3+BC (Fujimoto and Gu, 2021) of K members: actors that follow the values, and stay close to what the log does.

Member k has a deterministic actor pi_k and n_k critics; Q_k is the minimum over these, a dash marks slow copies:

    a'      = pi-_k(s') + noise, within the bounds                            noise: N(0, .2), cut off at .5
    y_k     = r + gamma (1 - terminated) Q-_k(s', a')                         no less than the log's lowest return can be,
                                                                              and no more than its highest
    y_k    <- (1 - m) y_k + m G                                               G: what the log went on to earn
    L_Q     = sum over k and j <= n_k of (Q_kj(s, a) - y_k)^2
    L_pi    = sum_k (pi_k(s) - a)^2 - w Q_k(s, pi_k(s)) / mean |Q_k|          every second update
    pi      = pi-_k of the member most believed in                           slow copies sway less from update to update

m is 0 in TD3+BC itself. A far future then arrives in the values after 1 / (target rate (1 - gamma)) updates, 20,000 here.
Until then they know the next rewards alone, and actors that follow them do what pays at once and fall. With m they are the
values of following the actor for 1 / m steps or so, then the log, and arrive after 1 / (target rate (1 - gamma (1 - m))).

Critics have layer norm, and observations are normalised by the mean and deviation of the log. The size of rewards plays no
part. One member is TD3+BC itself; several are one of two things. Degrees of pessimism learn from all rows, and differ by n_k.
Kinds of the world learn from rows of their own (`Batch.blocks`), which costs no more than one member does.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from apev.agents.agent import SMALLEST, BeliefConfig
from apev.agents.continuous.base import ContinuousAgent, parameters
from apev.belief import draw_index, most_believed
from apev.data.batch import Batch, Layout, Observations
from apev.data.dataset import Dataset
from apev.data.mapped import moments
from apev.data.returns import returns_to_go
from apev.nn import kernels
from apev.nn.ensemble import EnsembleMLP, NormedMLP

ACTOR_EVERY = 2  # updates
TARGET_NOISE, NOISE_BOUND = 0.2, 0.5  # of the next action in a target; of half the action's range
SPREAD = 0.1  # deviation of actions that are drawn instead of greedy


@dataclass(frozen=True)
class TD3BCConfig(BeliefConfig):
    """TD3+BC: follow the values, and stay close to the log."""

    members: int = 1
    """K: how many members, each an actor and critics of its own; 1 is TD3+BC."""
    critics: int = 2
    """Over how many value functions the first member takes its minimum."""
    careful: int = 4
    """Over how many the last one does; those between are spread evenly. As many as `critics` make all members alike."""
    gamma: float = 0.99
    """Discount."""
    lr: float = 3e-4
    """Adam's learning rate."""
    target_rate: float = 0.005
    """How far the target networks move towards the online ones in each update."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the fully connected layers, of actors and critics."""
    towards_value: float = 2.5
    """w: how much the values count beside closeness to the log; 0 is cloning."""
    returns_share: float = 0.0
    """m: how much targets follow what the log went on to earn, instead of the values."""


class TD3BC(ContinuousAgent):
    """K deterministic actors, and critics of each."""

    config: TD3BCConfig
    takes_blocks = True
    deployed = ("slow_actors", "critics", "centre", "spread")
    targets = {"target": "critics", "slow_actors": "actors"}  # noqa: RUF012
    centre: Tensor  # [D] mean of the log's observations
    spread: Tensor  # [D] their deviation
    lowest: Tensor  # [] no target is lower
    highest: Tensor  # [] none is higher
    owner: Tensor  # [sum n_k] whose critic each is

    def __init__(self, layout: Layout, config: TD3BCConfig, *, seed: int = 0) -> None:
        self.n = self.sizes(config)
        if not config.towards_value >= 0:
            raise ValueError(f"towards_value is {config.towards_value}. Fix: 0 or more.")
        if not 0 <= config.returns_share <= 1:
            raise ValueError(f"returns_share is {config.returns_share}. Fix: from 0 to 1.")
        super().__init__(layout, config, members=len(self.n), seed=seed)
        self.filter.apply_floor(torch.zeros(self.members))  # refuses a floor that leaves nothing to share
        self.updates = 0

    @classmethod
    def for_data(cls, dataset: Dataset, config: Any, *, seed: int = 0) -> Self:
        """An untrained agent for this log, which says how observations are normalised and what values are possible."""
        agent = super().for_data(dataset, config, seed=seed)
        agent.lowest.fill_(dataset.lowest_return(config.gamma))
        agent.highest.fill_(dataset.highest_return(config.gamma))
        measured = [moments(dataset.observations[key]) for key in dataset.vector_keys]
        mean, deviation = (np.concatenate(part) for part in zip(*measured, strict=True))
        agent.centre.copy_(torch.from_numpy(mean))
        agent.spread.copy_(torch.from_numpy(np.where(deviation > SMALLEST, deviation, 1.0)))
        return agent

    def returns_of(self, log: Dataset) -> np.ndarray | None:
        """What the log went on to earn after each row, where targets follow it."""
        return returns_to_go(log, self.config.gamma) if self.config.returns_share else None

    @staticmethod
    def sizes(config: TD3BCConfig) -> tuple[int, ...]:
        """n_k for each member."""
        first, last, K = config.critics, config.careful, config.members
        if K < 1 or first < 1 or (K > 1 and last < first):
            raise ValueError(
                f"members is {K}, critics {first}, careful {last}. "
                "Fix: at least 1 member and 1 critic, and no fewer critics for the last than for the first."
            )
        return tuple(round(first + (last - first) * k / (K - 1)) for k in range(K)) if K > 1 else (first,)

    def build(self) -> None:
        """Actors, critics, and how their input is normalised."""
        width, actions, hidden = self.layout.vector_dim, self.layout.action_dim, self.config.hidden
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width))
        self.register_buffer("lowest", torch.tensor(-torch.inf), persistent=False)
        self.register_buffer("highest", torch.tensor(torch.inf), persistent=False)
        owner = torch.arange(self.members).repeat_interleave(torch.tensor(self.n), output_size=sum(self.n))
        self.register_buffer("owner", owner, persistent=False)
        self.actors = EnsembleMLP(self.members, width, hidden, actions)
        self.critics = NormedMLP(sum(self.n), width + actions, hidden, 1)
        self.target = deepcopy(self.critics).requires_grad_(False)
        self.slow_actors = deepcopy(self.actors).requires_grad_(False)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Adam over actors and critics."""
        return torch.optim.Adam(parameters(self.actors, self.critics), lr=self.config.lr, fused=True)

    def get_extra_state(self) -> Tensor:
        """How many updates were made: whether the actors learn in the next one depends on it."""
        return torch.tensor(self.updates)

    def set_extra_state(self, state: Tensor) -> None:
        """Take back what `get_extra_state` gave."""
        self.updates = int(state)

    # ------------------------------------------------------------------ values and policy

    def normalise(self, vector: Tensor) -> Tensor:
        """Observations in units of the log's deviation, from its mean."""
        return (vector - self.centre) / self.spread

    def values(self, net: NormedMLP, obs: Tensor, action: Tensor, frozen: bool = False) -> Tensor:
        """[sum n_k, B] of all critics, where each member asks its own: obs [K, B, D], actions [K, B, A] in [-1, 1]."""
        return net(torch.cat([obs, action], -1)[self.owner], frozen=frozen)[..., 0]

    def reduce(self, q: Tensor) -> Tensor:
        """Q_k [K, B]: the minimum over each member's own critics."""
        return torch.stack([own.amin(0) for own in q.split(self.n)])

    def for_members(self, column: Tensor, blocks: bool = False) -> Tensor:
        """[K, B, ...]: what each member sees of a column [B, ...]: all of it, or its own block."""
        return column.unflatten(0, (self.members, -1)) if blocks else column.expand(self.members, *column.shape)

    @torch.no_grad()
    def act(
        self,
        obs: Observations,
        log_belief: Tensor,
        greedy: bool = True,
        features: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Actions [B, A] of the actor most believed in; not greedy, of one drawn by the belief, with some noise."""
        vector = self.normalise(obs.vector)
        if self.members == 1:
            action = self.slow_actors(vector[None])[0].tanh()
        else:
            trusted = most_believed(log_belief) if greedy else draw_index(log_belief.exp(), generator or self.generator)
            action = kernels.ask_one(self.slow_actors, vector, trusted).tanh()
        return self.from_unit(action if greedy else self.disturbed(action, generator))

    @torch.no_grad()
    def act_average(
        self,
        obs: Observations,
        log_belief: Tensor,
        greedy: bool = True,
        features: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Actions [B, A]: the mean of all actors' own, weighted by the belief; not greedy, with some noise."""
        actions = self.slow_actors(self.for_members(self.normalise(obs.vector))).tanh()  # [K, B, A]
        action = torch.einsum("bk,kba->ba", log_belief.exp(), actions)
        return self.from_unit(action if greedy else self.disturbed(action, generator))

    def disturbed(self, action: Tensor, generator: torch.Generator | None) -> Tensor:
        """Actions with some noise, within the bounds."""
        return (action + SPREAD * self.noise(action, generator)).clamp(-1, 1)

    @torch.no_grad()
    def td_errors(
        self, step: Batch, log_belief: Tensor, features: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """[B, K]: each member's own, with its own actor and critics, whatever the belief."""
        obs, next_obs = (self.for_members(self.normalise(o.vector)) for o in (step.obs, step.next_obs))
        q = self.reduce(self.values(self.critics, obs, self.for_members(self.to_unit(step.action))))
        next_q = self.reduce(self.values(self.critics, next_obs, self.slow_actors(next_obs).tanh()))
        return (q - step.reward - self.config.gamma * (1 - step.terminated) * next_q).T

    # ------------------------------------------------------------------ learning

    def check_batch(self, batch: Batch) -> None:
        """A batch of other data is refused by name, and blocks that do not fit the members."""
        super().check_batch(batch)
        if batch.blocks and (len(batch.action) % self.members or len(set(self.n)) > 1):
            raise ValueError(
                f"{len(batch.action)} rows are no equal blocks for {self.members} members of {self.n} critics. "
                "Fix: as many rows a member, and careful = critics."
            )

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step for the critics, and every second time for the actors."""
        self.check_batch(batch)
        observed = (self.normalise(o.vector) for o in (batch.obs, batch.next_obs))
        columns = (*observed, self.to_unit(batch.action), batch.reward, batch.terminated)
        obs, next_obs, action, reward, terminated = (self.for_members(column, batch.blocks) for column in columns)
        with torch.no_grad():
            next_action = self.slow_actors(next_obs).tanh()
            noise = (TARGET_NOISE * self.noise(next_action)).clamp(-NOISE_BOUND, NOISE_BOUND)
            next_q = self.reduce(self.values(self.target, next_obs, (next_action + noise).clamp(-1, 1)))
            target_q = (reward + self.config.gamma * (1 - terminated) * next_q).clamp(self.lowest, self.highest)  # [K, B]
            if self.config.returns_share:
                target_q = target_q.lerp(self.for_members(self.returns_in(batch), batch.blocks), self.config.returns_share)
        q = self.values(self.critics, obs, action)
        critic_loss = (q - target_q[self.owner]).square().mean(1).sum()
        learns = self.updates % ACTOR_EVERY == 0
        self.descend(critic_loss + self.actor_loss(obs, action).sum() if learns else critic_loss)
        self.updates += 1
        return {"critic_loss": critic_loss.detach() / sum(self.n), "value": q.detach().mean()}

    def returns_in(self, batch: Batch) -> Tensor:
        """[B]; a batch without them is refused by name."""
        if batch.returns is None:
            raise ValueError("returns_share needs returns. Fix: draw batches with agent.sampler(log).")
        return batch.returns

    def actor_loss(self, obs: Tensor, action: Tensor) -> Tensor:
        """[K]: each actor's distance from the logged actions, less the value of its own ones."""
        chosen = self.actors(obs).tanh()
        value = self.reduce(self.values(self.critics, obs, chosen, frozen=True))
        weight = self.config.towards_value / value.detach().abs().mean(1).clamp_min(SMALLEST)
        return (chosen - action).square().mean((1, 2)) - weight * value.mean(1)
