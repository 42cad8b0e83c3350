"""`apev.fqe`: what policies are worth, from a log alone, adapting beside frozen beside the log itself."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from scipy.special import stdtrit
from torch import Tensor

from apev.data import Dataset
from apev.evaluation import _named as named_policies
from apev.policy import Policy
from apev.progress import Bars, progress_bar
from apev.terminal import markup
from apev.valuation.fit import Problem, fit
from apev.valuation.held import check, check_fit, hold, holds_something
from apev.valuation.problem import Prepared, prepare, usual_gamma
from apev.valuation.results import Estimate, Estimates, Interval
from apev.worlds import Kinds
from apev.worlds import kinds as find_kinds
from apev.worlds.files import KINDS
from apev.worlds.files import load as load_kinds
from apev.worlds.models import WorldModels

MEMBERS = 8  # functions, each on its own resample
MOST_ROWS = 200_000  # of larger logs, some contexts are read
LEAST_UPDATES, MOST_UPDATES = 600, 8000

Policies = Policy | str | os.PathLike[str] | Sequence[Any] | Mapping[str, Any]


def fqe(
    policies: Policies,
    log: Dataset | str | os.PathLike[str],
    *,
    gamma: float | None = None,
    updates: int | None = None,
    members: int = MEMBERS,
    frozen: bool = True,
    keep_belief: bool = False,
    deterministic: bool = True,
    kinds: int | Kinds | None = None,
    seed: int = 0,
    device: str = "cpu",
    console: Console | None = None,
) -> Estimates:
    """What policies would earn, estimated from a log without any environment: fitted Q evaluation on (state, belief).

    policies: a `Policy` or a run folder, several of them, or a dict with names for them.
    gamma: 1 asks for returns, with the time as part of the state where episodes are cut off. Unless given: 1 where all
        episodes of the log end within 100 steps, else the largest gamma of the policies.
    updates: gradient steps of each fit; unless given as many as the log's size asks for.
    members: functions fitted, each on its own bootstrap resample of contexts; the interval is their spread.
    frozen: also value each adaptive policy with its belief frozen at the average.
    keep_belief: the belief is carried over the episodes of a context, as `reset(keep_belief=True)` does.
    kinds: how many kinds of contexts the log holds (1: do not look), or what `apev.kinds` found; unless given, those that the
        policies were trained with, else they are found.
    seed: decides every random number.
    """
    console = console or Console(stderr=True, highlight=False)
    found = dict(named_policies(policies, device, False, console))
    log = log if isinstance(log, Dataset) else Dataset.load(log)
    if members < 2:
        raise ValueError(f"members is {members}. Fix: at least 2, the interval is their spread.")
    for name, policy in found.items():
        check(policy)
        check_fit(policy, log, name)
    whole = len(log)
    if whole > MOST_ROWS:
        log = log.split(MOST_ROWS / whole, seed)[1]
        console.print(f"of {whole:,} rows, {len(log):,} of whole contexts are read")
    models = models_of(found, policies, log, kinds, seed, console)
    own = [float(getattr(policy.agent.config, "gamma", 0.0)) for policy in found.values()]
    used = usual_gamma(log, [value for value in own if value > 0]) if gamma is None else gamma
    most = max(policy.agent.layout.num_actions for policy in found.values())
    prepared = prepare(log, gamma=used, models=models, members=members, num_actions=most, seed=seed)
    steps = usual_updates(len(prepared.rows)) if updates is None else updates
    if steps < 1:
        raise ValueError(f"updates is {steps}. Fix: at least 1.")
    with progress_bar(console) as bar:
        values, _ = _fitted(prepared, prepared.problem_of_log(), steps, seed, bar, "the log")
        estimates = Estimates(
            [],
            _interval(*values),
            float(_returns(log).mean()),
            used,
            prepared.timed,
            prepared.kinds,
            prepared.sure,
            prepared.units,
            prepared.resampled,
            steps,
            members,
            seed,
            log.digest,
        )
        for name, policy in found.items():
            adapts = policy.adapts and policy.members > 1

            def value(policy: Policy, label: str) -> tuple[Tensor, Tensor, float, Any]:
                rolled = None
                if holds_something(policy):
                    rolled = bar.add_task(f"{label}: beliefs", total=len(prepared.rows))
                held = hold(
                    policy,
                    log,
                    prepared.rows,
                    keep_belief=keep_belief,
                    deterministic=deterministic,
                    seed=seed,
                    each=lambda done: None if rolled is None else bar.update(rolled, completed=done),
                )
                (mean, again), unsettled = _fitted(prepared, prepared.problem(held), steps, seed, bar, label)
                return mean, again, unsettled, prepared.tried.coverage(prepared.actions(held.action[0]))

            mean, again, unsettled, coverage = value(policy, name)
            gain = still = still_covered = None
            if adapts and frozen:
                other, other_again, _, still_covered = value(policy.with_adapt("uniform"), f"{name}, frozen")
                still = _interval(other, other_again)
                gain = _interval(mean - other, again - other_again)
            estimates.rows.append(
                Estimate(
                    name,
                    _interval(mean, again),
                    _interval(mean - values[0], again - values[1]),
                    coverage,
                    unsettled,
                    still,
                    gain,
                    still_covered,
                    again.tolist(),
                    policy.agent.start_history(1) is not None,
                )
            )
    return estimates


def usual_updates(rows: int) -> int:
    """Gradient steps of a fit: they grow with the root of the log's rows."""
    return int(np.clip(15 * np.sqrt(rows), LEAST_UPDATES, MOST_UPDATES))


def models_of(
    found: Mapping[str, Policy], given: Any, log: Dataset, kinds: int | Kinds | None, seed: int, console: Console
) -> WorldModels | None:
    """Models of the kinds of contexts in the log: a policy's own, those a run found, or found here; None: there is one kind."""
    if isinstance(kinds, Kinds) or kinds == 1:
        return kinds.models if isinstance(kinds, Kinds) else None
    for policy in found.values():
        if policy.agent.worlds is not None and kinds in (None, policy.agent.worlds.kinds):
            return copy.deepcopy(policy.agent.worlds).cpu()  # the policy's own stay where they are
    several = given.values() if isinstance(given, Mapping) else [given] if isinstance(given, str | os.PathLike) else given
    for run in several if kinds is None and not isinstance(several, Policy) else ():
        if isinstance(run, str | os.PathLike) and (Path(run) / KINDS).exists():
            return load_kinds(Path(run)).models
    console.print("looking for kinds of contexts, which whoever logged may have known (kinds=1, --kinds 1: do not look)")
    looked = find_kinds(log, count=kinds, seed=seed, console=console)
    console.print(markup(looked.in_words()))
    return looked.models


def _fitted(
    prepared: Prepared, problem: Problem, updates: int, seed: int, bar: Bars, label: str
) -> tuple[tuple[Tensor, Tensor], float]:
    """((value [], that of each resample [M]), how unsettled), in the log's unit."""
    task = bar.add_task(label, total=updates)
    found = fit(problem, updates=updates, seed=seed, each=lambda done: bar.update(task, completed=done))
    bar.update(task, completed=updates)
    values = found.values.double() * prepared.unit  # [M, E]
    weight = prepared.weight[:, torch.from_numpy(prepared.start)].double()
    weight = torch.where(weight.sum(1, keepdim=True) > 0, weight, 1.0)
    return (values.mean(), (values * weight).sum(1) / weight.sum(1)), found.unsettled * prepared.unit


def _interval(value: Tensor, again: Tensor) -> Interval:
    """95% by the spread of the resamples' values, with Student's t for there are few."""
    reach = float(stdtrit(len(again) - 1, 0.975)) * float(again.std())
    return Interval(float(value), float(value) - reach, float(value) + reach)


def _returns(log: Dataset) -> np.ndarray:
    """Of the episodes in this part of the log."""
    returns = log.episode_returns()
    return returns if log.hidden is None else returns[np.unique(log.episodes[~log.hidden])]
