"""What a policy would hold at every row of a log: its belief or its history, and what it would do with it.

    row             0       1       2       3            one episode of the log
    held            b0  ->  b1  ->  b2  ->  b3           b0: the starting belief; b1 = Bayes' rule on the step of row 0
    next_held       b1      b2      b3      b4

The belief after logged steps is the one that the policy's filter would hold had it taken those steps itself. So (state, held)
is a state that the policy's actions are a function of, and a log of states is a log of those.

A deployed policy comes to a state with beliefs of other ages than the logged episode gives. `ROLLS` passes over the log begin
anew at random rows, the first one only where episodes do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from apev.data import Dataset, Sampler
from apev.data.batch import Batch, Observations
from apev.policy import Policy

ROLLS = (0.0, 0.05, 0.3)  # how often each pass over the log begins anew, a row
PIECE = 4096  # rows at a time
DEEPEST = 7.0  # log-weights below -7 are alike: a thousandth
FOLLOWED = ("bayes", "uniform", "weights", "member")  # behaviours whose action is a function of state and belief


@dataclass(frozen=True)
class Held:
    """Of N usable rows, in R passes over the log."""

    held: Tensor  # [R, N, W] before the step; W = 0 for policies that hold nothing
    next_held: Tensor  # [R, N, W] after it
    action: Tensor  # [R, N] or [R, N, A]: what the policy would do at the row,
    next_action: Tensor  # and after its step


def check(policy: Policy) -> None:
    """Refuse what cannot be rolled along a log."""
    if policy.agent.layout.picture is not None:
        raise ValueError(
            f"fitted Q evaluation reads vectors, not the picture {policy.agent.layout.picture!r}. "
            "Fix: log features of the pictures, or evaluate in an environment (`apev evaluate`)."
        )
    if policy.behaviour.word not in FOLLOWED or policy.remember:
        told = "remember=True" if policy.remember else f"adapt={policy.adapt!r}"
        raise ValueError(
            f"{told}: its actions depend on more than state and belief. Fix: one of bayes, uniform, member:K or weights."
        )


def check_fit(policy: Policy, log: Dataset, name: str) -> None:
    """A log of other observations or actions than the policy's is refused by name."""
    layout = policy.agent.layout
    vectors = tuple((key, log.observations[key].shape[1]) for key in log.vector_keys)
    actions = (log.num_actions or 0, 0 if log.discrete else log.actions.shape[1])
    if vectors != layout.vectors or log.picture_key != layout.picture:
        raise ValueError(f"{name} reads {dict(layout.vectors)}, this log has {dict(vectors)}. Fix: the log it was trained on.")
    if actions[1] != layout.action_dim or actions[0] > layout.num_actions:
        own = f"{layout.num_actions} discrete" if layout.num_actions else f"{layout.action_dim} continuous"
        has = f"{actions[0]} discrete" if actions[0] else f"{actions[1]} continuous"
        raise ValueError(f"{name} has {own} actions, this log {has}. Fix: the log it was trained on.")


def holds_something(policy: Policy) -> bool:
    """Whether the policy's actions depend on more than what is seen now."""
    return (policy.adapts and policy.members > 1) or policy.agent.start_history(1) is not None


@torch.no_grad()
def hold(
    policy: Policy,
    log: Dataset,
    rows: np.ndarray,
    *,
    keep_belief: bool = False,
    deterministic: bool = True,
    seed: int = 0,
    each: Callable[[int], None] = lambda steps: None,
) -> Held:
    """Roll the policy's belief and history along the usable `rows` [N] of a log; the policy itself is left as it is.

    keep_belief: it is carried over the episodes of a context. each: told how many rows are done.
    """
    agent, device = policy.agent, policy.agent.device
    draws = torch.Generator(device=device).manual_seed(seed)
    sampler = Sampler(log, batch_groups=1, per_group=1, batch_size=1, device=device)
    rolls = ROLLS if holds_something(policy) else ROLLS[:1]
    first = policy.with_adapt(policy.adapt).state.log_belief  # [1, K], as an episode begins
    empty = agent.start_history(1)
    width = 0 if empty is None else empty.shape[1]
    many = len(rolls)
    belief = first.expand(many, 2, len(rows), -1).clone()  # [R, before or after, N, K]
    history = torch.zeros(many, 2, len(rows), width, device=device)
    if holds_something(policy):
        resets = torch.from_numpy(_resets(rolls, len(rows), np.random.default_rng(seed))).to(device)
        sequence = log.group[rows] if keep_belief else log.episodes[rows]
        before = torch.from_numpy(_before(sequence)).to(device)  # [N] the row that came before, -1 at a start
        done = 0
        for now in _waves(sequence):
            at = torch.from_numpy(now).to(device)
            old = before[at].clamp_min(0)
            fresh = (resets[:, at] | (before[at] < 0))[..., None]  # [R, n, 1]
            belief[:, 0, at] = torch.where(fresh, first[0], belief[:, 1, old])
            if empty is not None:
                history[:, 0, at] = torch.where(fresh, empty[0], history[:, 1, old])
            step = _repeated(sampler.batch(torch.from_numpy(rows[now])), many)
            weights = belief[:, 0, at].flatten(0, 1)
            if policy.adapts and policy.members > 1:
                evidence = agent.log_evidence(step, weights, None, draws)
                weights = policy.filter.weigh(weights, evidence)
            belief[:, 1, at] = weights.unflatten(0, (many, -1))
            if empty is not None:
                history[:, 1, at] = agent.take_in(history[:, 0, at].flatten(0, 1), step).unflatten(0, (many, -1))
            done += len(now)
            each(done)
    held = torch.cat([_read(belief if policy.adapts and policy.members > 1 else belief[..., :0]), history], -1)
    actions = []
    for when in range(2):
        parts = []
        for roll in range(many):
            for piece in torch.arange(len(rows)).split(PIECE):
                batch = sampler.batch(torch.from_numpy(rows)[piece])
                obs = batch.next_obs if when else batch.obs
                at = piece.to(device)
                parts.append(
                    _act(policy, obs, belief[roll, when, at], history[roll, when, at] if width else None, deterministic, draws)
                )
        actions.append(torch.cat(parts).unflatten(0, (many, len(rows))).cpu())
    return Held(held[:, 0].cpu(), held[:, 1].cpu(), *actions)


def _act(
    policy: Policy, obs: Observations, log_belief: Tensor, history: Tensor | None, greedy: bool, draws: torch.Generator
) -> Tensor:
    """As `Policy.act` does, without an episode under way."""
    seen = obs if history is None else replace(obs, history=history)
    act = policy.agent.act_average if policy.behaviour.averages else policy.agent.act
    return act(seen, log_belief, greedy, None, draws)


def _read(log_belief: Tensor) -> Tensor:
    """[..., 2 K]: weights, which actions depend on, and their bounded logarithms, which say how firm they are."""
    return torch.cat([log_belief.exp(), log_belief.clamp_min(-DEEPEST) / DEEPEST], -1)


def _resets(rolls: tuple[float, ...], count: int, rng: np.random.Generator) -> np.ndarray:
    """bool [R, N]: where each pass begins anew."""
    return np.stack([rng.random(count) < chance for chance in rolls])


def _before(sequence: np.ndarray) -> np.ndarray:
    """int64 [N]: the place of the row before in the same sequence; -1: there is none."""
    order = np.argsort(sequence, kind="stable")
    before = np.full(len(sequence), -1)
    same = sequence[order][1:] == sequence[order][:-1]
    before[order[1:][same]] = order[:-1][same]
    return before


def _waves(sequence: np.ndarray) -> list[np.ndarray]:
    """The first rows of all sequences, then their second ones, and so on: each wave is rolled at once."""
    order = np.argsort(sequence, kind="stable")
    starts = np.flatnonzero(np.append(True, sequence[order][1:] != sequence[order][:-1]))
    place = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    by_place = np.argsort(place, kind="stable")
    return np.split(order[by_place], np.cumsum(np.bincount(place))[:-1])


def _repeated(step: Batch, times: int) -> Batch:
    """The same transitions so many times, one pass after another."""
    if times == 1:
        return step
    many = [
        column.repeat(times, *[1] * (column.ndim - 1)) for column in (step.action, step.reward, step.terminated, step.group)
    ]
    now, after = (
        Observations(part.vector.repeat(times, 1), allowed=None if part.allowed is None else part.allowed.repeat(times, 1))
        for part in (step.obs, step.next_obs)
    )
    return Batch(now, many[0], many[1], after, many[2], many[3])
