"""The rows of a log as models of its worlds read them: (s, a) in, and what happened out.

    in     every observation column and the action (one-hot where it is discrete), each with mean 0 and deviation 1
    out    how far each observation column moved, the reward, and whether the episode ended, in the same manner

Only columns that vary are kept. What an observation column does when an episode ends matters to nobody: it is not `known`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from apev.data.batch import Batch
from apev.data.dataset import Dataset

FAR = 8.0  # inputs further than so many deviations from the mean are cut off there
STILL = 1e-6  # a column that varies less is left out


class Units(nn.Module):
    """How numbers of the log become what the networks read, and back."""

    in_mean: Tensor  # [I]
    in_scale: Tensor  # [I]
    out_mean: Tensor  # [O]
    out_scale: Tensor  # [O]
    kept: Tensor  # [O] int64: which of (observation columns, reward, end) vary

    def __init__(self, inputs: int, outputs: int, num_actions: int) -> None:
        super().__init__()
        self.num_actions = num_actions  # 0 where actions are continuous
        for name, width in (("in_mean", inputs), ("out_mean", outputs)):
            self.register_buffer(name, torch.zeros(width))
        for name, width in (("in_scale", inputs), ("out_scale", outputs)):
            self.register_buffer(name, torch.ones(width))
        self.register_buffer("kept", torch.zeros(outputs, dtype=torch.int64))

    def inputs(self, obs: Tensor, action: Tensor) -> Tensor:
        """[B, I] of observations [B, D] and actions [B] or [B, A]."""
        if self.num_actions:
            action = nn.functional.one_hot(action, self.num_actions).float()
        x = torch.cat([obs, action], -1)
        return ((x - self.in_mean) / self.in_scale).clamp(-FAR, FAR)

    def outputs(self, obs: Tensor, next_obs: Tensor, reward: Tensor, terminated: Tensor) -> tuple[Tensor, Tensor]:
        """([B, O] what happened, [B, O] bool which of it is known)."""
        happened = torch.cat([next_obs - obs, reward[:, None], terminated[:, None]], -1)[:, self.kept]
        moved = self.kept < obs.shape[1]
        return (happened - self.out_mean) / self.out_scale, ~(moved & (terminated[:, None] > 0))


@dataclass(frozen=True)
class Rows:
    """N rows of C contexts, in the order of the log within each context."""

    x: Tensor  # [N, I]
    y: Tensor  # [N, O]
    known: Tensor  # [N, O] bool
    context: Tensor  # [N] 0 .. C - 1
    place: Tensor  # [N] how many rows of its context come before
    sizes: Tensor  # [C] rows of each context
    contexts: np.ndarray  # [C] their numbers in the log
    units: Units
    names: tuple[str, ...]  # of what comes out
    vector_dim: int  # how many of the inputs are observations

    def __len__(self) -> int:
        return len(self.x)

    @classmethod
    def of(cls, log: Dataset, units: Units | None = None, contexts: np.ndarray | None = None) -> Rows:
        """The usable rows of these contexts (all); `units` are measured unless given."""
        rows = np.flatnonzero(log.usable if contexts is None else log.usable & np.isin(log.group, contexts))
        following = log.given_next if log.given_next is not None else log.observations
        after = rows if log.given_next is not None else log.next_rows[rows]

        def joined(columns: dict[str, np.ndarray], index: np.ndarray) -> Tensor:
            parts = [np.asarray(columns[key][index], dtype=np.float32) for key in log.vector_keys]
            return torch.from_numpy(np.concatenate(parts, axis=1) if parts else np.zeros((len(index), 0), np.float32))

        obs, next_obs = joined(log.observations, rows), joined(following, after)
        action = torch.from_numpy(np.ascontiguousarray(log.actions[rows]))
        reward, ended = (torch.from_numpy(np.asarray(c[rows], dtype=np.float32)) for c in (log.rewards, log.terminated))
        units = measure(log, obs, action, next_obs, reward, ended) if units is None else units
        y, known = units.outputs(obs, next_obs, reward, ended)
        numbers, context = np.unique(log.group[rows], return_inverse=True)
        of_context = torch.from_numpy(context.astype(np.int64))
        sizes = torch.bincount(of_context, minlength=len(numbers))
        order = torch.argsort(of_context, stable=True)
        place = torch.empty_like(of_context)
        place[order] = torch.arange(len(order)) - (sizes.cumsum(0) - sizes)[of_context[order]]
        names = output_names(log)
        kept = tuple(names[i] for i in units.kept.tolist())
        return cls(units.inputs(obs, action), y, known, of_context, place, sizes, numbers, units, kept, obs.shape[1])

    def sums(self, values: Tensor) -> Tensor:
        """[C, ...]: the sum of [N, ...] over each context's rows."""
        return values.new_zeros(len(self.sizes), *values.shape[1:]).index_add_(0, self.context, values)


def measure(log: Dataset, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, ended: Tensor) -> Units:
    """The units in which this log's columns have mean 0 and deviation 1."""
    actions = log.num_actions or action.shape[1]
    changes = torch.cat([next_obs - obs, reward[:, None], ended[:, None]], -1)
    going_on = changes[ended == 0] if bool((ended == 0).any()) else changes
    mean, spread = going_on.mean(0), going_on.std(0, correction=0)
    for column in (-2, -1):  # rewards and ends of all rows
        mean[column], spread[column] = changes[:, column].mean(), changes[:, column].std(correction=0)
    kept = (spread > STILL * (1 + mean.abs())).nonzero()[:, 0]
    units = Units(obs.shape[1] + actions, len(kept), log.num_actions or 0)
    units.kept.copy_(kept)
    units.out_mean.copy_(mean[kept])
    units.out_scale.copy_(spread[kept])
    x = units.inputs(obs, action)  # not yet scaled, but cut off: measure without
    x = torch.cat([obs, x[:, obs.shape[1] :] if units.num_actions else action], -1)
    units.in_mean.copy_(x.mean(0))
    scale = x.std(0, correction=0)
    scale[obs.shape[1] :] = 1.0 if units.num_actions else scale[obs.shape[1] :]
    units.in_scale.copy_(torch.where(scale > STILL, scale, torch.ones_like(scale)))
    return units


def output_names(log: Dataset) -> list[str]:
    """What people call the columns: "speed", or "observation 3"; then the reward and the end."""
    told: Any = log.source.get("observation_names")
    names = [str(name) for name in told] if isinstance(told, list) and len(told) == log.vector_dim else None
    if names is None:
        names = []
        for key in log.vector_keys:
            width = log.observations[key].shape[1]
            names += [f"{key} {i}" for i in range(width)] if width > 1 else [key]
    return [*names, "reward", "end"]


def of_batch(units: Units, step: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """(x, y, known) of the transitions of a batch."""
    obs, next_obs = step.obs.vector, step.next_obs.vector
    return units.inputs(obs, step.action), *units.outputs(obs, next_obs, step.reward, step.terminated)
