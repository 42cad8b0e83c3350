"""What agents that keep a history share: an offline algorithm as it is, and more for it to read.

    x_t = (s_t, history of (s, a, r) before t)
    pi(. | x_t), Q(x_t, a), V(x_t)                  BC or IQL (`bc.py`, `iql.py`), with x_t where they had s_t

Whatever is read is brought to one size: observations less their mean over their deviation, as measured in the log, actions in
[-1, 1] or one-hot, rewards over their deviation. IQL learns from rewards in that unit too, so that advantages are of order 1,
where its temperature beta has its effect, whatever the log's unit is.

A history begins empty with each episode. In deployment `Policy` keeps it and hands it over as `obs.history`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from apev.agents.agent import Agent, check_pictures
from apev.agents.continuous.base import ContinuousAgent
from apev.agents.continuous.iql import IQL
from apev.data.batch import Batch, Layout, Observations
from apev.data.dataset import Dataset
from apev.data.history import HistoryBatch, Past
from apev.data.mapped import pieces

CONSTANT = 1e-6  # a deviation this small beside the mean is rounding


@dataclass(frozen=True)
class HistoryConfig:
    """Settings of agents that read a history."""

    weight_decay: float = 0.0
    """How fast weights shrink, by AdamW: with a history every row is another, and networks learn a small log by heart."""


@dataclass(frozen=True)
class DiscreteHistoryConfig(HistoryConfig):
    """Settings of agents that read a history and choose among discrete actions."""

    lr: float = 3e-4
    """AdamW's learning rate."""
    weight_decay: float = 1.0
    """How fast weights shrink, by AdamW: with a history every row is another, and networks learn a small log by heart."""


class HistoryAgent(Agent):
    """An algorithm that reads observations together with a history of the episode."""

    takes_masks = True
    errs = False  # one member: there is no belief to follow
    algorithm: ClassVar[type[Agent]]  # the agent it is but for what it reads
    inner: Agent  # that agent, which knows vectors of width `input_dim`
    mean: Tensor  # [D] of observations in the log
    deviation: Tensor  # [D] of observations
    reward_deviation: Tensor  # []

    def __init__(self, layout: Layout, config: Any, *, num_groups: int = 0, seed: int = 0) -> None:
        super().__init__()
        check_pictures(layout.picture, layout.num_actions > 0)
        if layout.picture is not None:
            raise ValueError(
                f"this agent reads vectors, not the picture {layout.picture!r}. "
                "Fix: log features [N, D] of it, or train ape-v, dqn, cql, iql or bc."
            )
        self.layout, self.config = layout, config
        wide = replace(layout, vectors=(("observation", self.input_dim),), bare=True)
        groups = {} if issubclass(self.algorithm, ContinuousAgent) else {"num_groups": num_groups}
        self.inner = self.algorithm(wide, config, seed=seed, **groups)
        self.members = self.measured = self.inner.members
        self.worlds = None
        self.register_buffer("mean", torch.zeros(layout.vector_dim))
        self.register_buffer("deviation", torch.ones(layout.vector_dim))
        self.register_buffer("reward_deviation", torch.ones(()))
        self.register_buffer("scale", torch.ones(self.members))

    @classmethod
    def for_data(cls, dataset: Dataset, config: Any, *, seed: int = 0) -> Self:
        """An untrained agent for this log, with the log's means and deviations as units."""
        agent = cls(Layout.of(dataset), config, num_groups=dataset.num_groups, seed=seed)
        measured = [spread(dataset.observations[key]) for key in dataset.vector_keys]
        agent.mean.copy_(torch.from_numpy(np.concatenate([mean for mean, _ in measured])))
        agent.deviation.copy_(torch.from_numpy(np.concatenate([deviation for _, deviation in measured])))
        agent.reward_deviation.fill_(float(spread(dataset.rewards[:, None])[1][0]))
        if isinstance(agent.inner, IQL):
            agent.inner.scale_rewards(dataset.episode_returns() / float(agent.reward_deviation))
        return agent

    # ------------------------------------------------------------------ what is read

    @property
    @abstractmethod
    def input_dim(self) -> int:
        """Width of what the algorithm reads: observation and history."""

    @property
    def action_width(self) -> int:
        """Width of an action as it is read."""
        return self.layout.num_actions or self.layout.action_dim

    def read_vector(self, vector: Tensor) -> Tensor:
        """Observations [..., D] in units of the log."""
        return (vector - self.mean) / self.deviation

    def read_outcome(self, action: Tensor, reward: Tensor) -> Tensor:
        """What was done and what it paid, [..., A + 2]: action, reward, and a 1 that says there was a step."""
        inner = self.inner
        done = inner.to_unit(action) if isinstance(inner, ContinuousAgent) else F.one_hot(action, self.action_width).float()
        paid = (reward / self.reward_deviation)[..., None]
        return torch.cat([done, paid, torch.ones_like(paid)], -1)

    @abstractmethod
    def start_history(self, count: int) -> Tensor:
        """The histories of episodes that begin, [count, M]: zeros."""

    @abstractmethod
    def recall(self, obs: Observations) -> Observations:
        """Observation and history in one vector, which the algorithm reads; without a history, an empty one."""

    def recall_step(self, step: Batch) -> Batch:
        """A step as the algorithm reads it; the history after it is the one before it with the step taken in."""
        before = step.obs.history if step.obs.history is not None else self.start_history(len(step.reward))
        obs = self.recall(replace(step.obs, history=before))
        after = self.recall(replace(step.next_obs, history=self.take_in(before, step)))
        return replace(step, obs=obs, next_obs=after, reward=step.reward / self.reward_deviation)

    @abstractmethod
    def recall_past(self, batch: HistoryBatch) -> Batch:
        """The rows of a batch to learn from, as the algorithm reads them."""

    # ------------------------------------------------------------------ an agent

    def check_batch(self, batch: Batch) -> None:
        """Refuse what every agent refuses, and batches without the steps before their rows."""
        super().check_batch(batch)
        if not isinstance(batch, HistoryBatch):
            raise ValueError("this agent reads the steps before each row. Fix: draw batches with agent.sampler(log).")

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step of the algorithm."""
        self.check_batch(batch)
        assert isinstance(batch, HistoryBatch)
        self.inner.optimizer = self.optimizer  # one over everything that is trained
        return self.inner.update(self.recall_past(batch))

    def make_optimizer(self) -> torch.optim.Optimizer:
        """AdamW over the algorithm and, if there is one, the GRU, whose rate decays where the actor's does."""
        whole = self.inner.make_optimizer().param_groups
        groups: list[dict[str, Any]] = [{key: group[key] for key in ("params", "decays") if key in group} for group in whole]
        own = [parameter for name, parameter in self.named_parameters() if not name.startswith("inner.")]
        if own:
            groups.append({"params": own, "decays": getattr(self.config, "decay_actor", False)})
        return torch.optim.AdamW(groups, lr=self.config.lr, weight_decay=self.config.weight_decay, fused=True)

    def encode(self, pictures: Tensor | None) -> Tensor | None:
        """There are no pictures."""
        return None

    @torch.no_grad()
    def act(
        self,
        obs: Observations,
        log_belief: Tensor,
        greedy: bool = True,
        features: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The algorithm's action for observation and history."""
        return self.inner.act(self.recall(obs), log_belief, greedy, None, generator)

    @torch.no_grad()
    def td_errors(
        self, step: Batch, log_belief: Tensor, features: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """[B, K] of the algorithm, rewards in units of the log."""
        return self.inner.td_errors(self.recall_step(step), log_belief, None, generator)

    @property
    def generator(self) -> torch.Generator:
        """The generator of the algorithm: every draw is its own."""
        return self.inner.generator

    @generator.setter
    def generator(self, generator: torch.Generator) -> None:
        self.inner.generator = generator

    def policy_state(self) -> dict[str, Tensor]:
        """The algorithm's tensors, the GRU's and the units."""
        inner = {f"inner.{name}": value for name, value in self.inner.policy_state().items()}
        return inner | {name: value for name, value in self.state_dict().items() if not name.startswith("inner.")}

    def load_policy_state(self, state: dict[str, Tensor]) -> None:
        """Take back what `policy_state` gave."""
        self.inner.load_policy_state({k.removeprefix("inner."): v for k, v in state.items() if k.startswith("inner.")})
        with torch.no_grad():
            for name, own in self.state_dict().items():
                if not name.startswith("inner."):
                    own.copy_(state[name])


def zero_where_missing(past: Past, steps: Tensor) -> Tensor:
    """Steps [B, L, W] before each row, zeros where the episode had not begun."""
    return torch.where(past.there[..., None], steps, 0.0)


def spread(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation [D] of a column [N, D], piece by piece; a column that is constant has deviation 1."""
    total = squares = np.zeros(column.shape[1])
    for rows in pieces(column):
        part = np.asarray(column[rows], dtype=np.float64)
        total, squares = total + part.sum(0), squares + np.square(part).sum(0)
    mean = total / len(column)
    deviation = np.sqrt(np.maximum(squares / len(column) - mean**2, 0))
    return mean, np.where(deviation > CONSTANT * np.abs(mean), deviation, 1.0)
