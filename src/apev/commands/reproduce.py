"""`apev reproduce ...`: the paper's experiments as commands."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from apev.cells import Machines, Many

Algorithm = Literal[
    "bc",
    "td3-bc",
    "sac",
    "rem",
    "cql",
    "iql",
    "sac-n",
    "edac",
    "ape-v-td3-bc",
    "ape-v-printed",
    "ape-v-no-floor",
    "ape-v-eval-only",
    "ape-v",
]
Task = Literal[
    "halfcheetah-random",
    "halfcheetah-medium",
    "halfcheetah-medium-replay",
    "halfcheetah-medium-expert",
    "halfcheetah-expert",
    "hopper-random",
    "hopper-medium",
    "hopper-medium-replay",
    "hopper-medium-expert",
    "hopper-expert",
    "walker2d-random",
    "walker2d-medium",
    "walker2d-medium-replay",
    "walker2d-medium-expert",
    "walker2d-expert",
]


@dataclass(frozen=True, kw_only=True)
class LockedDoors(Machines):
    """The paper's Section 6.1: trained agents on CIFAR-10 photographs, every policy in the same test rooms."""

    scale: Literal["smoke", "demo", "short", "small", "cpu", "paper"] = "cpu"
    """smoke: seconds; demo: minutes; short: 8 passes over the photographs at discount .9, tens of minutes a seed; small: 3,000
    photographs, 170 passes at the paper's discount, hours; cpu: 25 passes at the paper's discount, hours; paper: its updates
    and batch, for a GPU."""
    out: Path = Path("runs/locked-doors")
    """Folder for episodes, curves, summary.json, figures and report.html."""
    images: str | None = None
    """An .npz or the official cifar-10-python.tar.gz, or 'cifar10' to download it; else the small set we ship."""
    seeds: tuple[int, ...] | None = None
    """Which seeds, by name: --seeds 0 1 2. Unless given: 0 for smoke and demo, 0 to 3 for paper, else 0 to 2."""
    only_seed: int | None = None
    """Do one seed and no table: several processes can share a folder. Run again with --resume for the table."""
    agents: tuple[str, ...] = ()
    """Which agents to train, e.g. --agents ensemble ape-v-printed; unless given, all of the scale's."""
    resume: bool = False
    """Go on with an interrupted run in the same folder."""
    store: Path | None = None
    """Also add episodes, curves and figures, without weights, to this folder; what is stored there stays."""

    def run(self) -> None:
        """Train, walk the test rooms, print the table."""
        from apev.envs import load_images
        from apev.experiments.common.provenance import provenance
        from apev.experiments.locked_doors.cells import Asked, evaluations, trainings
        from apev.experiments.locked_doors.recipe import begin, run
        from apev.experiments.locked_doors.scales import TRAINED
        from apev.experiments.locked_doors.store import store

        self.use()
        unknown = [name for name in self.agents if name not in TRAINED]
        if unknown:
            raise ValueError(f"--agents {unknown[0]}: no such agent here. Fix: some of {', '.join(TRAINED)}.")
        seeds = self.seeds or tuple(range({"smoke": 1, "demo": 1, "short": 3, "small": 3, "cpu": 3, "paper": 4}[self.scale]))
        images = load_images(self.images)
        if self.images is None and self.scale in ("short", "cpu", "paper"):
            told = f"{len(images.train_labels):,} training photographs, the set shipped in the package"
            Console(stderr=True).print(f"{self.scale} scale on {told}. Pass --images for all of CIFAR-10's vehicles.")
        asked = Asked(self.scale, self.agents)
        recipe, own = asked.recipe()[0], self.only_seed
        begin(self.out, images, recipe, self.resume or own is not None)
        for cells in (trainings, evaluations):
            self.run_cells(cells(self.out, asked, self.images, seeds if own is None else [own], self.device))
        if own is None:
            title = f"Locked Doors, {self.scale} scale"
            meta = provenance() | {"scale": self.scale}
            run(self.out, images, recipe, seeds=seeds, device=self.device, resume=True, meta=meta, title=title)
            if self.store is not None:
                store(self.out, self.store)


@dataclass(frozen=True, kw_only=True)
class DoorsAblation(Machines):
    """What each idea of our recipe does: APE-V as printed, and with the ideas added one by one (Locked Doors). Hours."""

    out: Path = Path("runs/locked-doors-ablation")
    """Folder for episodes, curves, summary.json and figures."""
    images: str | None = None
    """As for locked-doors."""
    seeds: tuple[int, ...] = (0,)
    """Which seeds, by name: --seeds 0 1 2."""
    agents: tuple[str, ...] = ()
    """Which variants to train, e.g. --agents ensemble "+ masks"; unless given, all."""
    updates: int = 16_000
    """Gradient steps a variant."""
    train_images: int = 3000
    """How many training images are used."""
    resume: bool = False
    """Go on with an interrupted run in the same folder."""
    store: Path | None = None
    """Also add episodes, curves and figures, without weights, to this folder; what is stored there stays."""

    def run(self) -> None:
        """Train every variant, print the table."""
        from apev.envs import load_images
        from apev.experiments.common.provenance import provenance
        from apev.experiments.locked_doors.ablation import run_ablation
        from apev.experiments.locked_doors.cells import Asked, evaluations, trainings
        from apev.experiments.locked_doors.recipe import begin
        from apev.experiments.locked_doors.store import store

        self.use()
        images = load_images(self.images)
        asked = Asked(agents=self.agents, updates=self.updates, train_images=self.train_images)
        begin(self.out, images, asked.recipe()[0], self.resume)
        for cells in (trainings, evaluations):
            self.run_cells(cells(self.out, asked, self.images, self.seeds, self.device))
        given: dict[str, Any] = {"seeds": self.seeds, "updates": self.updates, "train_images": self.train_images}
        given["agents"] = self.agents
        run_ablation(self.out, images, device=self.device, resume=True, meta=provenance(), **given)
        if self.store is not None:
            store(self.out, self.store)


@dataclass(frozen=True, kw_only=True)
class Theory(Many):
    """The paper's Sections 4 and 5 and Figure 1: every claim with its number; exits with 1 if one fails."""

    out: Path = Path("runs/theory")
    """Folder for summary.json, figures and report.html."""
    scale: Literal["smoke", "full"] = "full"
    """smoke: seconds, to see that it runs; its agents learn nothing, so that their claims fail."""

    def run(self) -> None:
        """Compute, check and print every claim."""
        from apev.experiments.common.provenance import provenance
        from apev.experiments.theory.recipe import SIZES, run

        self.use()
        summary = run(self.out, SIZES[self.scale], machines=self, meta=provenance() | {"scale": self.scale})
        if not all(claim["holds"] for claim in summary["claims"]):
            sys.exit(1)


@dataclass(frozen=True, kw_only=True)
class D4RL(Machines):
    """The paper's Section 6.3: offline algorithms and APE-V on a robot's log, normalised scores beside the published ones."""

    task: Annotated[Task, tyro.conf.arg(metavar="NAME")] = "halfcheetah-medium-replay"
    """halfcheetah, hopper or walker2d, and random, medium, medium-replay, medium-expert or expert: hopper-medium-replay."""
    algos: tuple[Algorithm, ...] = ("sac-n", "ape-v")
    """Which of bc, td3-bc, sac, rem, cql, iql, sac-n, edac, ape-v to train. ape-v is on SAC-N; ape-v-td3-bc is what
    `apev train` trains unless told otherwise. ape-v-eval-only adapts, but was not trained to; ape-v-no-floor lets targets
    sink below any return in the log; ape-v-printed trains and filters as the paper prints it."""
    scale: Literal["smoke", "cpu", "rows10k", "paper"] = "cpu"
    """smoke: seconds; cpu: 100,000 updates, an hour or more for SAC-N and its kin; rows10k: 5,000 updates of
    SAC and its kin, steadied for logs of some 10,000 rows, and 10,000 of others: minutes; paper: 3 million updates, for a
    GPU."""
    data: Path | None = None
    """D4RL's .hdf5, or any log of the task. Unless given: what `apev collect` made in runs/collect."""
    seeds: tuple[int, ...] = (0,)
    """Which seeds, by name: --seeds 0 1 2."""
    updates: int | None = None
    """Gradient steps, instead of the scale's."""
    compile: bool = False
    """Compile the networks with torch.compile: a minute at the start of each training, then faster updates on a GPU."""
    out: Path = Path("runs/d4rl")
    """Folder; each task has its own in it. Runs that are finished there are not repeated, interrupted ones go on."""
    store: Path | None = None
    """Also add episodes, curves and figures of the task, without weights, to this folder; runs stored there before stay."""

    def run(self) -> None:
        """Train what is missing, print the scores."""
        from apev.experiments.common.provenance import provenance
        from apev.experiments.d4rl.page import write_scores
        from apev.experiments.d4rl.recipe import run
        from apev.experiments.d4rl.report import store

        self.use()
        settings: dict[str, Any] = {"data": self.data, "seeds": self.seeds, "updates": self.updates, "machines": self}
        settings["compiled"] = self.compile
        run(self.out, self.task, self.algos, self.scale, meta=provenance(), **settings)
        if self.store is not None:
            store(self.out / self.task, self.store)
            write_scores(self.store)


@dataclass(frozen=True, kw_only=True)
class Procgen(Machines):
    """The paper's Section 6.2: C51 on all transitions of maze levels, every policy in levels it has never seen."""

    levels: int = 200
    """Training levels: 200 or 1000 in the paper."""
    mode: Literal["easy", "hard"] = "hard"
    """easy: boards of 15 cells a side; hard: 25, which fits the paper's count of transitions."""
    scale: Literal["smoke", "cpu", "paper"] = "cpu"
    """smoke: seconds, our own pictures; cpu: hours, Procgen's pixels; paper: its updates and batch, for a GPU."""
    out: Path | None = None
    """Folder for episodes, curves, summary.json and report.html; runs/procgen/MODE-LEVELS unless given."""
    seeds: tuple[int, ...] = (0,)
    """Which seeds, by name: --seeds 0 1 2."""
    only_seed: int | None = None
    """Do one seed and no table: several processes can share a folder. Run again with --resume for the table."""
    backup_depth: int | None = None
    """How many logged steps targets look ahead, for all agents; 1 is the paper (and its scale), 0 (cpu) as far as the log
    goes, which is to the cheese."""
    renderer: Literal["procgen", "simple"] | None = None
    """procgen: the real pixels (`make procgen` installs it); simple: our own drawing, the only one of smoke."""
    resume: bool = False
    """Go on with an interrupted run in the same folder."""

    def run(self) -> None:
        """Train, walk the test levels, print the tables."""
        from apev.experiments.common.provenance import provenance
        from apev.experiments.procgen.cells import Asked, trainings, walks
        from apev.experiments.procgen.recipe import begin, run

        self.use()
        levels = min(self.levels, 10) if self.scale == "smoke" else self.levels
        if levels < 2:
            raise ValueError(f"--levels {self.levels}. Fix: at least 2, one is held out.")
        asked = Asked(self.scale, self.mode, levels, self.renderer, self.backup_depth)
        out = self.out or Path("runs/procgen") / f"{self.mode}-{levels}"
        recipe, own = asked.recipe(), self.only_seed
        begin(out, recipe, self.mode, levels, self.resume or own is not None)
        for cells in (trainings, walks):
            self.run_cells(cells(out, asked, self.seeds if own is None else [own], self.device))
        if own is None:
            meta = provenance() | {"scale": self.scale}
            given: dict[str, Any] = {"mode": self.mode, "levels": levels, "seeds": self.seeds, "device": self.device}
            run(out, recipe, resume=True, meta=meta, **given)


@dataclass(frozen=True, kw_only=True)
class Fleet(Machines):
    """Worlds with a hidden kind, found in the log without labels: adapting beside blind policies and those with memory."""

    world: Literal["customers", "pendulum", "cheetah-wiring", "unseen-wiring", "rewired", "worn-joint"] = "customers"
    """customers: three segments, eight visits; pendulum: the sign of the torque; cheetah-wiring: each leg wired right or wrong;
    unseen-wiring: the same, tested in a wiring that is in nobody's log; rewired: the agents of cheetah-wiring, on robots whose
    wiring changes in mid-episode; worn-joint: healthy or a weak thigh, from teachers that are trained first."""
    data: Path | None = None
    """A half-cheetah's log, from which the wired ones are made exactly."""
    seeds: tuple[int, ...] = (0,)
    """Which seeds, by name: --seeds 0 1 2."""
    only: tuple[str, ...] = ()
    """Train and test only these, e.g. --only ape-v bc; unless given, every row of the table. --only teachers makes those of
    worn-joint and the log."""
    updates: int | None = None
    """Gradient steps of every agent, instead of the world's."""
    episodes: int | None = None
    """Test episodes a kind, instead of the world's."""
    teacher_steps: int = 60_000
    """Steps that each teacher of worn-joint learns for."""
    out: Path = Path("runs/fleet")
    """Folder; each world has its own in it. What is finished there is not repeated, interrupted trainings go on."""
    store: Path | None = None
    """Also copy episodes and summary, without weights, to the world's folder in this one."""

    def run(self) -> None:
        """Train what is missing, print the table."""
        from apev.experiments.common.provenance import provenance
        from apev.experiments.fleet.recipe import check_asked, run, taught, trainings
        from apev.experiments.fleet.report import show, store, write_summary
        from apev.experiments.fleet.worlds import WORLDS
        from apev.files import append_line

        self.use()
        folder, world = self.out / self.world, WORLDS[self.world].sized(self.updates, self.episodes)
        check_asked(world, self.data, self.only)
        taught(world, folder, self.teacher_steps)
        cells = trainings(self.world, world, folder, self.data, self.seeds, self.only, self.device)
        self.run_cells(cells, lambda cell, made: append_line(folder / "made.jsonl", made | provenance()))
        asked: dict[str, Any] = {"data": self.data, "seeds": self.seeds, "only": self.only, "device": self.device}
        run(world, folder, teacher_steps=self.teacher_steps, **asked)
        if not (folder / "episodes.jsonl").exists():
            return
        write_summary(folder, {"world": self.world})
        show(folder)
        if self.store is not None:
            store(folder, self.store / self.world)


@dataclass(frozen=True, kw_only=True)
class Reproduce:
    """Make a table of the paper again. `apev reproduce --list` prints a command for every cell of its tables."""

    experiment: Annotated[
        Annotated[LockedDoors, tyro.conf.subcommand("locked-doors")]
        | Annotated[DoorsAblation, tyro.conf.subcommand("locked-doors-ablation")]
        | Annotated[Theory, tyro.conf.subcommand("theory")]
        | Annotated[D4RL, tyro.conf.subcommand("d4rl")]
        | Annotated[Procgen, tyro.conf.subcommand("procgen")]
        | Annotated[Fleet, tyro.conf.subcommand("fleet")],
        tyro.conf.arg(name=""),
    ]

    def run(self) -> None:
        """Pass on to the experiment."""
        self.experiment.run()
