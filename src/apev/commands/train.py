"""`apev train`: a policy from a log."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from rich.console import Console

from apev import api
from apev.agents import ALGORITHMS, find
from apev.agents.agent import check_pictures
from apev.cells import Cell, Machines
from apev.cells.cell import log_at
from apev.data import Dataset, Sampler
from apev.loop import check_new
from apev.policy import Policy
from apev.terminal import markup
from apev.valuation import Estimates, fqe

BY_HEART = 2.0  # times as wrong on held-out rows as on others: the networks have learned their log by heart
LOOKED_AT = 1024  # rows


def algorithms(default: str) -> str:
    """The help of --agent: every algorithm that is registered, in a clause."""
    clauses = []
    for algorithm in ALGORITHMS.values():
        only = "" if algorithm.discrete and algorithm.continuous else " (discrete)" if algorithm.discrete else " (continuous)"
        clauses.append(f"{algorithm.name}{only}: {algorithm.about}")
    return "; ".join(clauses) + "."


@dataclass(frozen=True, kw_only=True)
class Train(Machines):
    """Train an agent on your own log: discrete actions (vectors, pictures, or a dict of them) or continuous ones (vectors)."""

    data: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """The log: an .npz with observations, actions, rewards, terminated, truncated (and next_observations if logged), a D4RL
    .hdf5, a .apev folder, a Minari id, or a table (.csv, .parquet). `apev data` looks at it, checks it and converts it."""
    out: Path = Path("runs/train")
    """The run folder."""
    agent: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help_behavior_hint=algorithms)] = ("ape-v",)
    """Which algorithm, ape-v unless given. Several train a policy each, in OUT/NAME."""
    base: str | None = None
    """The learner that ape-v's members are: for continuous actions td3-bc, unless given, or sac-n as in the paper."""
    kinds: int | None = None
    """How many kinds of contexts the log holds, where that is known; 1: do not look for any. Unless given, they are found, and
    where there are several, ape-v has a member for each."""
    members: int | None = None
    """How many members; each agent has a default. Agents of continuous actions other than ape-v have one."""
    gamma: float | None = None
    """Discount: .98 for discrete actions and .99 for continuous ones unless given."""
    updates: int | None = None
    """Gradient steps: 3,000 unless given. For continuous actions that is a first look: robots take 100,000 and more."""
    batch_size: int | None = None
    """Transitions an update: 512 for discrete actions and 256 for continuous ones unless given. Where every episode shows one
    picture, or the log names its contexts, it is drawn as 16 transitions of each."""
    draw: Literal["auto", "rows", "blocks"] = "auto"
    """Single rows of the log, or blocks of rows that follow each other, mixed with many others, which a disk reads much faster;
    auto takes blocks where the log lies in files that do not fit comfortably in memory."""
    lr_decay: bool = False
    """Let the learning rate fall along a half cosine."""
    held_out: float = 0.05
    """Share of the log kept out of training, in whole contexts where there are many, to calibrate the belief; 0 keeps none."""
    eval_env: str | None = None
    """A Gymnasium id to evaluate in during training."""
    eval_every: int = 1000
    """Updates between two evaluations, if there is an --eval-env."""
    checkpoint_every: int = 500
    """Updates between two checkpoints."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """Any other field of the agent's configuration, e.g. --set hidden=64,64 lr=3e-4."""
    seeds: tuple[int, ...] = (0,)
    """Which seeds, by name: --seeds 0 1 2 trains three policies, in OUT/seed-0, OUT/seed-1, ... Each decides every random
    number of its training."""
    compile: bool = False
    """Compile the networks with torch.compile: a minute at the start, then faster updates on a GPU. Needs a C++ compiler."""
    fqe: bool = False
    """At the end, value the policy on the log by fitted Q evaluation: adapting, frozen, and the log itself (`apev fqe`)."""
    log: Literal["tensorboard", "wandb", "trackio"] | None = None
    """Send the metrics to a tracker too: TensorBoard's files in the run folder, Weights & Biases, or Trackio's dashboard. A run
    that is resumed goes on there."""
    resume: bool = False
    """Go on from the last checkpoint in --out, bit for bit."""

    def run(self) -> None:
        """Train one policy a seed and algorithm."""
        self.use()
        log = log_at(str(self.data))
        Console(stderr=True, highlight=False).print(markup(repr(log)))
        check_pictures(log.picture_key, log.discrete)  # once, and not by every training
        if self.fqe and log.picture_key is not None:
            raise ValueError("--fqe values policies that read vectors, and this log has pictures. Fix: leave --fqe out.")
        for agent in self.agent:
            parse_settings(find(agent, discrete=log.discrete, base=self.base).config, self.set)
        del log
        cells = []
        for agent, seed in product(self.agent, self.seeds):
            folder = self.folder(agent, seed)
            if not self.resume:
                check_new(folder)
            arguments = self.as_json() | {"agent": agent, "seed": seed}
            cells.append(Cell(f"{agent}, seed {seed}", "apev train", arguments, folder))
        self.run_cells(cells)

    def folder(self, agent: str, seed: int) -> Path:
        """Where a policy goes: OUT, OUT/seed-0 of several seeds, OUT/bc of several algorithms, OUT/bc/seed-0 of both."""
        out = self.out / agent if len(self.agent) > 1 else self.out
        return out / f"seed-{seed}" if len(self.seeds) > 1 else out

    def as_json(self) -> dict[str, Any]:
        """What `train_cell` has to know, but the agent and the seed."""
        own = ("out", "agent", "seeds", "resume", "jobs", "ray", "threads")
        asked = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in own}
        return asked | {"data": str(self.data), "set": list(self.set)}


def train_cell(folder: Path, agent: str, seed: int, data: str, set: list[str], **asked: Any) -> None:
    """Train one policy, and say what came of it."""
    given = Train(data=Path(data), agent=(agent,), seeds=(seed,), set=tuple(set), **asked)
    log = log_at(data)
    settings = parse_settings(find(agent, discrete=log.discrete, base=given.base).config, given.set)
    settings |= {name: value for name in ("members", "gamma") if (value := getattr(given, name)) is not None}
    policy = api.train(
        log,
        agent,
        out=folder,
        updates=given.updates,
        seed=seed,
        device=given.device,
        resume=True,  # `Train.run` has refused what may not go on
        eval_env=given.eval_env,
        eval_every=given.eval_every,
        checkpoint_every=given.checkpoint_every,
        batch_size=given.batch_size,
        draw=given.draw,
        held_out=given.held_out,
        lr_decay=given.lr_decay,
        compile=given.compile,
        base=given.base,
        kinds=given.kinds,
        track=given.log,
        **settings,
    )
    print(f'trained: {folder}  (policy = apev.load("{folder}"))')
    valued = None
    if given.fqe:
        valued = fqe({agent: policy}, log, seed=seed, device=given.device)
        Console(highlight=False).print(valued.table())
    for line in verdict(policy, log, given, folder, seed, valued):
        Console(highlight=False).print(markup(line))


def verdict(policy: Policy, log: Dataset, asked: Train, out: Path, seed: int, valued: Estimates | None) -> list[str]:
    """What came of a training, and what to try next, in two or three lines."""
    lines, advice = [], []
    errors = td_errors(policy, log, asked.held_out, seed)
    if errors is not None:
        known, held_out = errors
        lines.append(f"TD error: {held_out:.3g} on rows held out, {known:.3g} on rows it learned from.")
        if held_out > BY_HEART * known:
            fewer = max(1, (asked.updates or api.FIRST_LOOK) // 2)
            advice.append(f"it knows its log by heart: fewer updates (--updates {fewer}), or more data")
    if valued is not None:
        row = valued.rows[0]
        lines += valued.lines()
        if not row.trusted:
            advice.append("stay closer to the log (--agent iql, --agent bc)")
        elif row.over_log.high < 0:
            advice.append("the log itself does better: more updates, or --agent bc")
        elif row.over_log.low < 0:
            advice.append("it is not surely better than the log: more updates, or more data")
    if not advice:
        advice.append(f"try others and pick by value: apev tune --data {asked.data}")
    if valued is None:
        advice.append(f"value it without an environment: apev fqe {out} --data {asked.data}")
    return [*lines, f"Next: {'; '.join(advice)}."]


@torch.no_grad()
def td_errors(policy: Policy, log: Dataset, held_out: float, seed: int) -> tuple[float, float] | None:
    """Root mean square of the members' TD errors on rows they learned from, and on those held out; None where none were."""
    agent = policy.agent
    if not api.has_belief(type(agent), agent.config) or held_out * len(log) < 1:
        return None
    found = []
    for part in log.split(held_out, seed):
        sampler = Sampler(part, batch_size=LOOKED_AT, device=agent.device, seed=seed)
        step = sampler.sample()
        belief = policy.with_adapt("uniform").state.log_belief.expand(len(step.reward), -1)
        draws = torch.Generator(device=agent.device).manual_seed(seed)
        errors = agent.td_errors(step, belief, None, draws)[:, : agent.measured]
        found.append(float(errors.square().mean().sqrt()))
    return found[0], found[1]


def parse_settings(config_type: type, settings: tuple[str, ...]) -> dict[str, Any]:
    """`name=value` words for the fields of a configuration."""
    defaults = {f.name: f.default for f in fields(config_type)}
    parsed: dict[str, Any] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        if name not in defaults:
            raise ValueError(f"--set {setting}: no such field. Fix: one of {', '.join(defaults)}.")
        kind: Any = type(defaults[name])
        try:
            if kind is bool:
                parsed[name] = {"true": True, "false": False}[value.lower()]
            else:
                parsed[name] = tuple(int(v) for v in value.split(",")) if kind is tuple else kind(value)
        except (ValueError, KeyError):
            raise ValueError(f"--set {setting}: {name} is a {kind.__name__}.") from None
    return parsed
