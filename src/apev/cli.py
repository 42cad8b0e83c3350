"""`apev ...`: the command line. Each command is a dataclass; its fields are the options, their docstrings the help."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
import torch
import tyro
from rich.console import Console

import apev
from apev.collect.command import Collect
from apev.data import DataError, Dataset, Sampler
from apev.data.command import Data
from apev.envs.maze_data import CollectMaze
from apev.experiments.reproduce import Reproduce
from apev.machine import Machine
from apev.policy import Policy
from apev.progress import progress_bar
from apev.terminal import markup, quiet_pipes
from apev.train import Interrupted, Schedule, TrainingError

ERRORS = Console(stderr=True, highlight=False)
FIRST_LOOK = 3000  # updates of `apev train`
EVALUATED_BY = ("name", "environment", "environment_spec", "reference")  # what a run keeps of its log's origin


@dataclass(frozen=True, kw_only=True)
class Demo(Machine):
    """Train on the photographs shipped in the package, and watch an agent change its mind (a few minutes)."""

    out: Path = Path("runs/demo")
    """Folder for summary.json, report.html and the trained agents."""
    resume: bool = False
    """Go on with an interrupted demo in the same folder."""

    def run(self) -> None:
        """Run it."""
        from apev.envs import load_images
        from apev.experiments.locked_doors import RECIPES, run
        from apev.experiments.provenance import provenance

        self.use()
        if (self.out / "summary.json").exists():
            ERRORS.print(f"{self.out} holds a finished demo; --out another folder runs it again.")
            Report(folder=self.out).run()
            return
        meta = provenance() | {"scale": "demo"}
        run(
            self.out, load_images(), RECIPES["demo"], device=self.device, resume=self.resume or _unfinished(self.out), meta=meta
        )


@dataclass(frozen=True, kw_only=True)
class Train(Machine):
    """Train an agent on your own log: discrete actions (vectors, pictures, or a dict of them) or continuous ones (vectors)."""

    data: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """The log: an .npz with observations, actions, rewards, terminated, truncated (and next_observations if logged), a D4RL
    .hdf5, a .apev folder, or a Minari id. `apev data` looks at it, checks it and converts it."""
    out: Path = Path("runs/train")
    """The run folder."""
    agent: Literal["ape-v", "dqn", "lcb", "sac", "sac-n", "edac", "rem", "cql", "iql", "bc"] = "ape-v"
    """ape-v adapts, on deep Q-learning or, where actions are continuous, on SAC-N. For both kinds of actions: rem, cql, iql,
    and bc, which only imitates. Discrete: dqn is an ensemble of independent value functions (--members 1: plain DQN), lcb is
    conservative. Continuous: sac, sac-n (10 critics; --set critics=N), edac."""
    members: int | None = None
    """How many members; each agent has a default. Agents of continuous actions other than ape-v have one."""
    gamma: float | None = None
    """Discount: .98 for discrete actions and .99 for continuous ones unless given."""
    updates: int | None = None
    """Gradient steps: 3,000 unless given. For continuous actions that is a first look: robots take 100,000 and more."""
    batch_size: int | None = None
    """Transitions an update: 512 for discrete actions and 256 for continuous ones unless given. Where every episode shows one
    picture, or the log names its contexts, it is drawn as 16 transitions of each."""
    lr_decay: bool = False
    """Let the learning rate fall along a half cosine."""
    held_out: float = 0.05
    """Share of the contexts (pictures or episodes) kept out of training, to calibrate the belief; 0 keeps none."""
    eval_env: str | None = None
    """A Gymnasium id to evaluate in during training."""
    eval_every: int = 1000
    """Updates between two evaluations, if there is an --eval-env."""
    checkpoint_every: int = 500
    """Updates between two checkpoints."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """Any other field of the agent's configuration, e.g. --set alpha=0.5 wildcards=4 lr=3e-4."""
    seed: int = 0
    """Decides every random number."""
    compile: bool = False
    """Compile the networks with torch.compile: a minute at the start, then faster updates on a GPU. Needs a C++ compiler."""
    resume: bool = False
    """Go on from the last checkpoint in --out, bit for bit."""

    def run(self) -> None:
        """Run it."""
        from apev.agents import NAMED, REGISTRY, BeliefConfig, DiscreteBCConfig, registered
        from apev.train import train

        self.use()
        dataset = Dataset.load(self.data)
        ERRORS.print(markup(repr(dataset)))
        kind, config_type = REGISTRY[registered(self.agent, dataset.discrete)]
        given = {name: value for name in ("members", "gamma") if (value := getattr(self, name)) is not None}
        if "members" in given and not hasattr(config_type, "members"):
            raise ValueError(f"--members {self.members}: {self.agent} has one. Fix: leave it out.")
        config = replace(config_type(**NAMED.get(self.agent, {}), **given), **parse_settings(config_type, self.set))
        digest = dataset.digest
        held_out = None
        members = getattr(config, "members", 1) + getattr(config, "wildcards", 0)
        filters = isinstance(config, BeliefConfig) and members != 1 and not isinstance(config, DiscreteBCConfig)
        if filters and self.held_out * len(dataset) >= 1:  # others have no belief to calibrate, or no row to spare
            log = dataset
            dataset, rest = log.split(self.held_out, self.seed)
            held_out = Sampler(rest, device=self.device)
            ERRORS.print(f"held out to calibrate the belief: {split_of(log, rest)}")
        agent = kind.for_data(dataset, config, seed=self.seed)
        agent.to_device(self.device)
        if self.compile:
            agent.compile_networks()
        batch_size = self.batch_size if self.batch_size is not None else (512 if dataset.discrete else 256)
        if batch_size < 1:
            raise ValueError(f"--batch-size {batch_size}. Fix: at least 1.")
        per_group = min(16, batch_size)
        sampler = Sampler(
            dataset,
            batch_groups=max(1, batch_size // per_group),
            per_group=per_group,
            batch_size=batch_size,
            device=self.device,
            seed=self.seed,
        )
        updates = FIRST_LOOK if self.updates is None else self.updates
        if self.updates is None and not dataset.discrete:
            ERRORS.print(f"{updates:,} updates are a first look: robots take 100,000 and more (--updates).")
        log_every = max(1, min(50, updates))
        schedule = Schedule(updates, log_every, self.eval_every, self.checkpoint_every, self.lr_decay)
        folder = train(
            agent,
            sampler,
            self.out,
            schedule,
            resume=self.resume,
            held_out=held_out,
            evaluator=gymnasium_evaluator(self.eval_env, self.seed, agent) if self.eval_env else None,
            config={
                "agent": self.agent,
                "data": self.data.name,
                "data_digest": digest,
                "seed": self.seed,
                "batch_size": batch_size,
                "held_out": self.held_out,
                "source": {key: dataset.source[key] for key in EVALUATED_BY if key in dataset.source},
            },
            title=self.agent,
        )
        print(f'trained: {folder}  (policy = apev.load("{folder}"))')


@dataclass(frozen=True, kw_only=True)
class Evaluate(Machine):
    """Roll out a trained policy, adapting or with its belief frozen, and keep one record an episode."""

    run_folder: tyro.conf.Positional[Path]
    """A run folder made by `apev train`."""
    env: str | None = None
    """A Gymnasium id, e.g. CartPole-v1 or apev/LockedDoors-v0; unless given, the environment the log came from."""
    episodes: int = 20
    """How many episodes."""
    adapt: tuple[str, ...] = ("true", "uniform")
    """Behaviours of the belief, one row each: true, uniform, a member's number, member (one an episode), member-step,
    or commit: act on one member until another is far more believable."""
    seed: int = 0
    """Seed of the first episode."""

    def run(self) -> None:
        """Run it."""
        from apev.data.scores import normalise, of_source
        from apev.data.source import checked, named_environment, recover_environment
        from apev.envs.make import make as make_env
        from apev.evaluate import GymnasiumBatch, check_fit, rollout
        from apev.files import read_json, write_lines
        from apev.report import print_returns, print_table, summarise

        self.use()
        if not self.run_folder.is_dir():
            raise FileNotFoundError(f"no folder {self.run_folder}. Fix: name one that `apev train` made.")
        lines: list[dict[str, Any]] = []
        settings = self.run_folder / "config.json"
        source = checked(read_json(settings).get("source", {}), settings.name) if settings.exists() else {}
        if self.env is not None:
            shown, make = self.env, lambda: make_env(self.env)
        else:
            named = named_environment(source)
            shown, make = named.id, lambda: recover_environment(source)
            if named.told():
                ERRORS.print(markup(f"note: {named.told()}."))
        policy = load_policy(self.run_folder, self.device)
        words = self.adapt if policy.members > 1 else self.adapt[:1]  # one member: nothing to believe in
        env = GymnasiumBatch(make, self.episodes, self.seed)
        check_fit(policy, env, shown)
        for word in words:
            behaviour = policy.with_adapt(parse_adapt(word), seed=self.seed)
            name = f"{shown}: {word}" if policy.members > 1 else shown
            with progress_bar(ERRORS) as progress:
                task = progress.add_task(name, total=self.episodes)

                def watch(steps: int, over: int) -> None:
                    progress.update(task, completed=over, description=f"{name}, step {steps}")  # noqa: B023 (used at once)

                result = rollout(behaviour, env, watch=watch)
            lines += [
                {
                    "policy": f"belief: {word}" if policy.members > 1 else "policy",
                    "seed": self.seed,
                    "episode": i,
                    "return": float(result.returns[i]),
                    "success": bool(result.success[i]) if result.knows_success else None,
                    "length": int(result.lengths[i]),
                    "members_correct": None,
                    "stalled": bool(result.stalled[i]),
                }
                for i in range(self.episodes)
            ]
        write_lines(self.run_folder / "episodes.jsonl", lines)
        title = f"{self.run_folder} in {shown}"
        print_returns(lines, title)
        reference = of_source(source)
        if reference is not None:
            for name in dict.fromkeys(line["policy"] for line in lines):
                mean = sum(line["return"] for line in lines if line["policy"] == name) / self.episodes
                print(f"{name}: normalised score {float(normalise(mean, reference)):.1f}")
        if lines[0]["success"] is not None:
            print_table({"title": title, "policies": summarise(lines)})


@dataclass(frozen=True, kw_only=True)
class Report:
    """Make report.html and the figures again from the files of a results folder; of an evaluated run, print its returns."""

    folder: tyro.conf.Positional[Path]
    """A folder with summary.json or episodes.jsonl (made by `apev demo`, `apev reproduce` or `apev evaluate`)."""
    page: Path | None = None
    """A Markdown page that quotes the folder: its table is refreshed between the markers."""

    def run(self) -> None:
        """Run it."""
        from apev.report import print_returns, print_table, read_folder, write_figures, write_report
        from apev.report.d4rl import fill_scores, holds_scores, print_scores
        from apev.report.d4rl_page import write_scores
        from apev.report.filmstrip import write_filmstrip
        from apev.report.mazes import fill_mazes, holds_mazes, print_mazes, write_mazes
        from apev.report.tables import fill_table, read_returns
        from apev.report.theory import fill_blocks, holds_claims, print_claims, read_theory, write_theory

        if not self.folder.is_dir():
            raise FileNotFoundError(f"no folder {self.folder}. Fix: name one that `apev demo` or `apev reproduce` made.")
        if holds_claims(self.folder):
            print_claims(read_theory(self.folder))
            print(write_theory(self.folder))
            if self.page is not None:
                fill_blocks(self.page, self.folder)
            return
        if holds_scores(self.folder):
            print_scores(write_scores(self.folder))
            print(self.folder / "report.html")
            if self.page is not None:
                fill_scores(self.page, self.folder)
            return
        if holds_mazes(self.folder):
            print_mazes(read_folder(self.folder).summary)
            print(write_mazes(self.folder))
            if self.page is not None:
                fill_mazes(self.page, self.folder)
            return
        returns = read_returns(self.folder)
        if returns:
            print_returns(returns, str(self.folder))
            return
        print_table(read_folder(self.folder).summary)
        write_figures(self.folder)
        write_filmstrip(self.folder)
        print(write_report(self.folder))
        if self.page is not None:
            fill_table(self.page, self.folder)


Command = (
    Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Data, tyro.conf.subcommand("data")]
    | Annotated[Collect, tyro.conf.subcommand("collect")]
    | Annotated[CollectMaze, tyro.conf.subcommand("collect-maze")]
    | Annotated[Reproduce, tyro.conf.subcommand("reproduce")]
)


def _unfinished(folder: Path) -> bool:
    """An interrupted demo goes on by itself: its folder holds agents but no summary."""
    return (folder / "agents").exists() and not (folder / "summary.json").exists()


def load_policy(folder: Path, device: str) -> Policy:
    """The policy of a run; of a stopped one that of its last checkpoint, and that is said."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        policy = Policy.load(folder, device=device)
    for warning in told:
        ERRORS.print(f"[yellow]{markup(str(warning.message))}[/yellow]")
    return policy


def split_of(log: Dataset, held_out: Dataset) -> str:
    """What was held out, in words: "1,203 rows (5.0%) from 12 of 240 episodes"."""
    parts, of = len(np.unique(held_out.group)), len(np.unique(log.group))
    share = len(held_out) / len(log)
    return f"{len(held_out):,} rows ({share:.1%}) from {parts:,} of {of:,} {log.describe()['group_is']}s"


def parse_adapt(word: str) -> bool | int | Literal["commit", "member", "member-step"]:
    """What `--adapt` accepts."""
    if word in ("commit", "member", "member-step"):
        return word  # type: ignore[return-value]
    if word.lower() in ("true", "uniform", "false"):
        return word.lower() == "true"
    if word.isdigit():
        return int(word)
    raise ValueError(f"--adapt {word!r}: use true, uniform, commit, a member's number, member or member-step.")


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


def gymnasium_evaluator(env_id: str, seed: int, agent: Any, episodes: int = 10) -> Any:
    """Mean return of the adaptive policy during training."""
    from apev.evaluate import GymnasiumBatch, check_fit, rollout

    env = GymnasiumBatch(env_id, episodes, seed=1000 + seed)
    check_fit(Policy(agent), env, env_id)

    def evaluate(agent: Any, update: int) -> list[dict[str, Any]]:
        result = rollout(Policy(agent), env)
        return [{"policy": "adaptive", "seed": seed, "return": float(result.returns.mean()), "episodes": episodes}]

    return evaluate


@quiet_pipes()
def main(argv: list[str] | None = None) -> None:
    """Entry point of the `apev` command."""
    words = sys.argv[1:] if argv is None else argv
    if words in (["--version"], ["-V"]):
        print(f"apev {apev.__version__} (torch {torch.__version__})")
        return
    if words == ["reproduce", "--list"]:
        from apev.experiments.cells import print_cells

        print_cells()
        return
    if words[:2] == ["collect", "maze"]:
        words = ["collect-maze", *words[2:]]
    command = tyro.cli(
        Command,
        prog="apev",
        description="Offline reinforcement learning that keeps adapting after deployment. `apev --version` prints the version.",
        args=words,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    try:
        command.run()
    except Interrupted as stop:
        ERRORS.print(f"[yellow]{markup(str(stop), lines=True)}[/yellow]", emoji=False)
        sys.exit(130)
    except KeyboardInterrupt:
        ERRORS.print("[yellow]stopped; --resume goes on from the last checkpoint[/yellow]")
        sys.exit(130)
    except BrokenPipeError:  # see quiet_pipes
        raise
    except (DataError, TrainingError, ValueError, OSError, ImportError, gymnasium.error.Error) as error:
        told = markup(str(error), lines=True)
        ERRORS.print(f"[red]error:[/red] {told}", emoji=False, soft_wrap=True)  # names are not cut in two
        sys.exit(2)


if __name__ == "__main__":
    main()
