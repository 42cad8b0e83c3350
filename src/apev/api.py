"""The front door: `apev.train` makes a policy of a log, `apev.evaluate` says what policies are worth.

The command line, the README, the examples and every experiment train through `train`: the same log, settings and seed give the
same tensors, whoever asks.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from apev.agents import ALGORITHMS, BeliefConfig, Variant, find
from apev.agents.agent import Agent, check_pictures
from apev.agents.registry import agent_of
from apev.checkpoint import LATEST
from apev.data import Dataset, Sampler
from apev.data.blocks import Draw, bytes_in_files
from apev.data.by_kind import KindSampler
from apev.evaluation import Evaluation, evaluate_policies
from apev.loop import Evaluator, Schedule, begun
from apev.loop import run as run_training
from apev.policy import Policy, load
from apev.terminal import markup
from apev.trackers import Tracker, tracker_of
from apev.worlds import NO_KIND, Kinds
from apev.worlds import kinds as find_kinds
from apev.worlds.files import KINDS
from apev.worlds.files import load as load_kinds
from apev.worlds.files import save as save_kinds
from apev.worlds.find import MOST_ROWS
from apev.worlds.rows import Rows

FIRST_LOOK = 3000  # updates unless they are given
FLOOR = 1e-6  # of a belief in kinds: they stay the same, and a few odd steps undo nothing
# What a run keeps of its log's origin.
KEPT = ("name", "environment", "environment_spec", "reference", "action_names", "observation_names")
LEAST_A_KIND = 128  # transitions of each kind in a batch, where members are kinds
PER_GROUP = 16  # transitions of a context that a batch takes together, where the log names contexts or shares pictures

Log = Dataset | str | os.PathLike[str]
Environment = str | Callable[[], Any]


@dataclass(frozen=True)
class Extras:
    """What experiments ask of a training beyond what a user does."""

    sampler: Callable[[Dataset, Any], Any] | None = None  # (log to train on, configuration) -> where batches come from
    evaluator: Evaluator | None = None  # instead of returns in `eval_env`
    schedule: Schedule | None = None  # instead of one for so many updates
    facts: Mapping[str, Any] | None = None  # kept in config.json instead of the usual ones
    held_out: Dataset | None = None  # instead of a share of the log
    title: str | None = None


def train(
    data: Log,
    algorithm: str = "ape-v",
    *,
    out: str | os.PathLike[str] | None = None,
    updates: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    resume: bool = False,
    eval_env: Environment | None = None,
    eval_every: int = 1000,
    checkpoint_every: int = 500,
    batch_size: int | None = None,
    draw: Draw = "auto",
    held_out: float = 0.05,
    lr_decay: bool = False,
    compile: bool = False,
    base: str | None = None,
    kinds: int | Sequence[int] | None = None,
    config: Any = None,
    track: str | Tracker | None = None,
    console: Console | None = None,
    extras: Extras | None = None,
    **settings: Any,
) -> Policy:
    """Train a policy from a log, and return it as it would be deployed.

    data: a `Dataset`, or a path that `Dataset.load` reads.
    algorithm: "ape-v" adapts; `apev train --help` lists the others. The agent for the log's kind of actions is taken.
    out: the run folder, with checkpoints to resume from and the policy; without one nothing is kept but what is returned.
    updates: gradient steps, 3,000 unless given: a first look. Robots take 100,000 and more.
    seed: decides every random number.
    resume: go on from the last checkpoint in `out`, bit for bit; nothing there begins anew.
    eval_env: a Gymnasium id, or a function that makes an environment, to evaluate in every `eval_every` updates.
    batch_size: transitions an update: 512 for discrete actions and 256 for continuous ones unless given. Where every episode
        shows one picture, or the log names its contexts, they are drawn as 16 transitions of each.
    draw: single "rows" of the log, or "blocks" of rows that follow each other, mixed with many others, which a disk reads much
        faster; "auto" takes blocks where the log lies in files that do not fit comfortably in memory. A run that goes on draws
        as it began.
    held_out: share of the rows that no member trains on, to calibrate the belief; agents without one hold out nothing.
    lr_decay: let the learning rate fall along a half cosine.
    compile: compile the networks with torch.compile, for a GPU.
    base: the learner that the members of "ape-v" are, for continuous actions "td3-bc" (default) or "sac-n", the paper's.
    kinds: how many kinds of contexts the log holds, where that is known (1: do not look), or the kind of each context, by its
        number; None finds out. Where there are several, "ape-v" has a member for each.
    config: a whole configuration of an agent, instead of an algorithm and its settings.
    track: who is told of the metrics as training goes on: "tensorboard", "wandb", "trackio", or a `apev.trackers.Tracker`.
    settings: any field of the agent's configuration: members=5, gamma=0.98, lr=3e-4, ...
    """
    extras, console = extras or Extras(), console or Console(stderr=True, highlight=False)
    tracker = tracker_of(track)
    log = data if isinstance(data, Dataset) else Dataset.load(data)
    check_pictures(log.picture_key, log.discrete)
    looks = config is None and extras.sampler is None
    if config is None:
        variant = find(algorithm, discrete=log.discrete, base=base)
        config = configure(variant, settings)
        kind: type[Agent] = variant.agent
    else:
        kind, config = agent_of(config), replace(config, **settings)
    if updates is None and extras.schedule is None:
        updates = FIRST_LOOK
        if not log.discrete:
            console.print(f"{updates:,} updates are a first look: robots take 100,000 and more (updates=, --updates).")
    size = batch_size if batch_size is not None else 512 if log.discrete else 256
    if size < 1:
        raise ValueError(f"batch_size is {size}. Fix: at least 1.")
    schedule = extras.schedule or Schedule(
        updates or 0, max(1, min(50, updates or 1)), eval_every if eval_env is not None else 0, checkpoint_every, lr_decay
    )
    kept, rest = log, extras.held_out
    if rest is None and has_belief(kind, config) and held_out * len(log) >= 1:
        kept, rest = log.split(held_out, seed)
        console.print(f"held out to calibrate the belief: {split_in_words(log, rest)}")
    # Settings and an environment that cannot work are refused here, before minutes of search.
    agent, evaluator = kind.for_data(kept, config, seed=seed), extras.evaluator
    if evaluator is None and eval_env is not None:
        evaluator = returns_in(eval_env, seed, agent)
    worlds = None
    if looks and can_be_worlds(algorithm, kind, config, settings):
        worlds = kinds_of(kept, kinds, None if out is None else Path(out), resume, seed, console)
        if worlds.models is not None:
            agent = kind.for_data(kept, for_worlds(config, worlds, settings), seed=seed)
            agent.take_worlds(worlds.models, by_group(kept, worlds))
    elif kinds is not None and not (isinstance(kinds, int) and kinds == 1) and has_use_for_kinds(algorithm, kind):
        raise ValueError(
            "kinds= makes a member of each kind of context, and these settings say what else members are. "
            "Fix: leave out kinds, or members, wildcards, surprise='paper' and config."
        )
    if getattr(config, "evidence", "td") != "td" and (worlds is None or worlds.models is None):
        raise ValueError(
            f"evidence={config.evidence!r} asks models of the log's kinds, and here members are no kinds. Fix: evidence='td'; "
            "or kinds=N (--kinds N) where you know how many there are, and no settings that say what else members are."
        )
    agent.to_device(device)
    if compile:
        agent.compile_networks()
    if extras.sampler is not None:
        sampler = extras.sampler(kept, config)
    elif worlds is not None and worlds.models is not None:
        if draw == "blocks":
            raise ValueError(
                f"draw='blocks': the log holds {worlds.count} kinds of contexts, and a batch takes single rows of each, "
                "wherever they lie. Fix: draw='rows' (--draw rows), or kinds=1 (--kinds 1) for members that are no kinds."
            )
        sampler = sampler_of_worlds(kept, worlds, size, device, seed, agent.returns_of(kept))
    else:
        draw = drawn_before(out, draw) if resume else draw
        sampler = usual_sampler(kept, size, device, seed, agent.sampler, draw)
        if draw == "auto" and sampler.draw == "blocks":
            large = f"the log's {bytes_in_files(kept) / 1e9:.1f} GB do not fit comfortably in memory"
            console.print(f'{large}: rows are drawn in blocks (draw="rows", --draw rows: one by one).')
    facts = extras.facts
    if facts is None:
        facts = {"agent": algorithm, "data_digest": log.digest, "seed": seed, "batch_size": size, "held_out": held_out}
        facts |= {} if getattr(sampler, "draw", "rows") == "rows" else {"draw": sampler.draw}
        facts |= {"source": {key: log.source[key] for key in KEPT if key in log.source}}
    with tempfile.TemporaryDirectory() as nowhere:
        folder = Path(nowhere if out is None else out)
        if worlds is not None and not (folder / LATEST).exists():  # a run that is there keeps its own
            save_kinds(worlds, folder)
        folder = run_training(
            agent,
            sampler,
            folder,
            schedule,
            resume=resume,
            held_out=None if rest is None else Sampler(rest, device=device),
            evaluator=evaluator,
            config=dict(facts),
            logged=logged_return(log),
            title=extras.title or algorithm,
            console=console,
            tracker=tracker,
        )
        return load(folder, device=device, seed=seed)


def configure(variant: Variant, settings: Mapping[str, Any]) -> Any:
    """The configuration of an algorithm with these settings; a name it does not know is refused."""
    names = variant.config.__dataclass_fields__
    for name in settings:
        if name == "members" and name not in names:
            raise ValueError(f"members={settings[name]}: this algorithm has one. Fix: leave it out.")
        if name not in names:
            raise ValueError(f"there is no setting {name!r}. Fix: one of {', '.join(names)}.")
    return variant.config(**{**variant.settings, **settings})


def has_belief(kind: type[Agent], config: Any) -> bool:
    """Whether these agents have members to believe in, and errors to judge them by."""
    members = getattr(config, "members", 1) + getattr(config, "wildcards", 0)
    return kind.errs and isinstance(config, BeliefConfig) and members != 1


def can_be_worlds(algorithm: str, kind: type[Agent], config: Any, settings: Mapping[str, Any]) -> bool:
    """Whether members may be kinds of the world: not where the user has said what they are."""
    as_printed = getattr(config, "surprise", "certain") == "paper"
    said = "members" in settings or as_printed or getattr(config, "wildcards", 0) > 0
    return has_use_for_kinds(algorithm, kind) and not said


def has_use_for_kinds(algorithm: str, kind: type[Agent]) -> bool:
    """Whether members of this algorithm could be kinds of the world; others have no use for kinds, and are given them."""
    return ALGORITHMS[algorithm].adapts and kind.takes_blocks


def kinds_of(
    log: Dataset, count: int | Sequence[int] | None, out: Path | None, resume: bool, seed: int, console: Console
) -> Kinds:
    """The kinds of contexts to train on, as they were found before where a run goes on; says what they are."""
    if out is not None and resume and (out / KINDS).exists():
        return load_kinds(out)
    given = count if count is None or isinstance(count, int) else labels_of(log, count)
    found = find_kinds(log, count=given, seed=seed, console=console)
    if count != 1:
        console.print(markup(found.in_words()))
    if count != 1 and found.count == 1:
        members, rival = ("bootstrapped", "bc, cql") if log.discrete else ("differently pessimistic", "bc, td3-bc")
        console.print(f"Members are {members} explanations of what the log leaves open. Compare with: {rival}.")
    return found


def labels_of(log: Dataset, labels: Sequence[int]) -> np.ndarray:
    """The kind of each context that shows in the log, from labels by the contexts' numbers."""
    named = np.asarray(labels, dtype=np.int64)
    numbers = np.unique(log.group[log.usable])
    if log.contexts is None or named.ndim != 1 or len(named) <= numbers[-1] or named.min() < 0:
        raise ValueError(
            f"kinds: {len(named)} labels for contexts 0 to {int(numbers[-1])}. "
            "Fix: a log with `contexts`, and one whole number from 0 on for each of them."
        )
    return np.asarray(np.unique(named[numbers], return_inverse=True)[1])


def for_worlds(config: Any, worlds: Kinds, settings: Mapping[str, Any]) -> Any:
    """The same configuration with a member for each kind; as it is where there is one kind."""
    if worlds.models is None:
        return config
    found: dict[str, Any] = {"members": worlds.count, "world_columns": len(worlds.models.sigma), "evidence": "model"}
    found |= {"floor": FLOOR}
    found |= {name: config.critics for name in ("careful", "fewest") if hasattr(config, name)}
    found |= {"bootstrap": 1.0} if hasattr(config, "bootstrap") else {}
    return replace(config, **{name: value for name, value in found.items() if name not in settings})


def by_group(log: Dataset, worlds: Kinds) -> Tensor:
    """int64 [num_groups]: the kind of each context by its number; -1 where it has none."""
    kind = torch.full((log.num_groups,), NO_KIND)
    kind[torch.from_numpy(worlds.contexts)] = torch.from_numpy(worlds.kind)
    return kind


def sampler_of_worlds(
    log: Dataset, worlds: Kinds, batch_size: int, device: str, seed: int, returns: np.ndarray | None = None
) -> Sampler:
    """Batches with a block for each kind, and beliefs that the log's evidence leads to."""
    assert worlds.models is not None
    evidence = np.zeros((len(log), worlds.count), dtype=np.float32)
    usable = np.flatnonzero(log.usable)
    for part in np.array_split(np.unique(log.group[usable]), max(1, len(usable) // MOST_ROWS)):
        rows = Rows.of(log, worlds.models.units, part)
        evidence[usable[np.isin(log.group[usable], part)]] = worlds.models.of_rows(rows).numpy()
    size = max(batch_size, LEAST_A_KIND * worlds.count)
    kind = by_group(log, worlds).numpy()
    return KindSampler(log, kind, evidence=evidence, batch_size=size, device=device, seed=seed, returns=returns)


def usual_sampler(
    log: Dataset, batch_size: int, device: str, seed: int, make: Callable[..., Sampler] = Sampler, draw: Draw = "auto"
) -> Sampler:
    """Batches of this size: single rows, or some of each context where the log says what those are."""
    each = min(PER_GROUP, batch_size)
    groups = max(1, batch_size // each)
    return make(log, batch_groups=groups, per_group=each, batch_size=batch_size, device=device, seed=seed, draw=draw)


def drawn_before(out: str | os.PathLike[str] | None, draw: Draw) -> Draw:
    """How a run that goes on draws its rows: as it began, on a machine with more memory or less, unless it is told."""
    if draw != "auto" or out is None or not (Path(out) / LATEST).exists():
        return draw
    return "blocks" if begun(Path(out)).get("draw") == "blocks" else "rows"


def split_in_words(log: Dataset, held_out: Dataset) -> str:
    """What was held out: "1,203 rows (5.0%) from 12 of 240 episodes"."""
    parts, of = len(np.unique(held_out.group)), len(np.unique(log.group))
    share = len(held_out) / len(log)
    return f"{len(held_out):,} rows ({share:.1%}) from {parts:,} of {of:,} {log.describe()['group_is']}s"


def logged_return(log: Dataset) -> dict[str, Any]:
    """What the log's own episodes returned, for the table that a policy is judged in."""
    returns = log.episode_returns()
    if log.hidden is not None:
        returns = returns[np.unique(log.episodes[~log.hidden])]
    spread = float(returns.std(ddof=1)) if len(returns) > 1 else 0.0
    return {"mean": float(returns.mean()), "std": spread, "episodes": len(returns)}


def returns_in(env: Environment, seed: int, agent: Agent, episodes: int = 10) -> Evaluator:
    """Mean return of the policy as it is deployed, during training; an environment that does not fit is refused at once."""
    from apev.rollout import GymnasiumBatch, check_fit, rollout

    batch = GymnasiumBatch(env, episodes, seed=1000 + seed)
    check_fit(Policy(agent), batch, env if isinstance(env, str) else "the environment")

    def evaluate_now(agent: Agent, update: int) -> list[dict[str, Any]]:
        result = rollout(Policy(agent, seed=seed), batch)
        return [{"policy": "adaptive", "seed": seed, "return": float(result.returns.mean()), "episodes": episodes}]

    return evaluate_now


def evaluate(
    policies: Policy | str | os.PathLike[str] | Sequence[Any] | Mapping[str, Any],
    env: Environment | None = None,
    episodes: int = 20,
    *,
    adapt: Sequence[str] | None = None,
    seed: int = 0,
    device: str = "cpu",
    life: int = 1,
    console: Console | None = None,
) -> Evaluation:
    """Roll out policies in an environment; returns a table that prints well, with every episode in it.

    policies: a `Policy` or a run folder, several of them, or a dict with names for them.
    env: a Gymnasium id, or a function that makes an environment; None takes the one that a run's log names.
    adapt: behaviours of the belief, a row each (see `apev.behaviour`): adapting, the average and each member unless given.
    seed: of the first episode; all rows see the same episodes.
    life: episodes that each machine runs, the same one again, with the belief kept from one to the next; the last is told of.
    """
    return evaluate_policies(policies, env, episodes, adapt=adapt, seed=seed, device=device, life=life, console=console)
