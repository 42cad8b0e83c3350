"""The loop: sample, update, log, evaluate, checkpoint, resume.

A run folder holds

    config.json        what was asked for
    metrics.jsonl      one line every `log_every` updates
    curves.jsonl       one line an evaluation during training
    checkpoints/       latest.safetensors: weights, optimiser, generators, step; enough to go on bit for bit
    policy/            the deployable policy, written at the end

Metrics stay on the device until they are logged, so no update waits for another. Ctrl-C and SIGTERM save before they stop; a
kill loses at most the updates since the last checkpoint; and a resumed run ends with the very same parameters as one never
interrupted. `apev.load` reads a stopped run too: the policy of its last checkpoint.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from apev.agents import Agent
from apev.agents.agent import in_todays_names
from apev.checkpoint import LATEST, Progress, load_checkpoint, save_checkpoint
from apev.data.sampler import Sampler
from apev.files import append_line, check_links, read_json, read_lines, reading, write_lines, write_text
from apev.policy import Policy
from apev.progress import progress_bar
from apev.signals import Stop, Stopped, stop_on_signal
from apev.trackers import Tracker, Watched, watched_by

CALIBRATION_BATCH = 1024  # transitions; each may bring two pictures to encode


class Interrupted(Exception):  # noqa: N818 (not an error: the user asked for it)
    """Training was stopped by the user and can be resumed."""


class BusyError(FileExistsError):
    """Another process trains in the folder."""


@dataclass(frozen=True)
class Schedule:
    """How long to train, and how often to log, evaluate and save."""

    updates: int = 3000
    """Gradient steps in all."""
    log_every: int = 50
    """Updates between two lines of metrics.jsonl."""
    eval_every: int = 500
    """Updates between two evaluations during training, and one at the end; 0: only that."""
    checkpoint_every: int = 500
    """Updates between two checkpoints."""
    lr_decay: bool = False
    """Let the learning rate fall along a half cosine, to a twentieth at the end."""

    def __post_init__(self) -> None:
        for name, least in (("updates", 0), ("log_every", 1), ("eval_every", 0), ("checkpoint_every", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}. Fix: at least {least}.")


Evaluator = Callable[[Agent, int], list[dict[str, Any]]]
"""Called with the agent and the update; returns lines for curves.jsonl."""


def run(
    agent: Agent,
    sampler: Sampler,
    folder: str | Path,
    schedule: Schedule,
    *,
    resume: bool = False,
    held_out: Sampler | None = None,
    evaluator: Evaluator | None = None,
    config: dict[str, Any] | None = None,
    logged: dict[str, Any] | None = None,
    title: str = "training",
    console: Console | None = None,
    tracker: Tracker | None = None,
) -> Path:
    """Train `agent` to the end of the schedule; returns the run folder.

    `held_out` samples contexts that no member trains on: the belief filter's scales are measured there at the end.
    `logged` says what the log's episodes returned, and goes with the policy. `tracker` is told of every line of metrics.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        check_links(folder)
        for left in folder.rglob(".*.partial"):  # half-written by a process that was killed; nobody else is here
            left.unlink(missing_ok=True)
        checkpoint = folder / LATEST
        progress = Progress()
        about = {"agent_config": asdict(agent.config), "schedule": asdict(schedule)} | (config or {})
        threads = begun_with(folder) if resume else None
        if threads is not None:  # another number of threads rounds otherwise
            torch.set_num_threads(threads)
        about["threads"] = torch.get_num_threads()
        if resume:
            if checkpoint.exists():
                check_settings(folder, about, type(agent.config))
                progress = load_checkpoint(checkpoint, agent, sampler)
            for name in ("metrics.jsonl", "curves.jsonl"):  # killed before the first checkpoint: all of them
                keep_lines_until(folder / name, progress)
        else:
            check_new(folder)
        write_text(folder / "config.json", json.dumps(about, indent=1, default=str) + "\n")
        told = watched_by(tracker, folder, about, progress.update, console)
        with told as watch, stop_on_signal() as stop, progress_bar(console) as bar:
            training = Training(agent, sampler, folder, schedule, held_out, evaluator, progress, stop, watch)
            task = bar.add_task(title, total=schedule.updates, completed=progress.update)
            while not training.finished:
                training.turn()
                bar.update(task, completed=progress.update)
        training.calibrate()
        policy = Policy(agent)
        policy.logged = logged
        policy.save(folder / "policy", update=progress.update)
        return folder


@dataclass
class Training:
    """One training under way: an update, then whatever falls due after it."""

    agent: Agent
    sampler: Sampler
    folder: Path
    schedule: Schedule
    held_out: Sampler | None
    evaluator: Evaluator | None
    progress: Progress
    stop: Stop
    watch: Watched
    recent: list[dict[str, Tensor]] = field(default_factory=list)  # metrics of updates not yet summed, on the device

    @property
    def finished(self) -> bool:
        """Whether every update is made and every evaluation too."""
        return self.progress.update >= self.schedule.updates and not self.progress.unseen

    def turn(self) -> None:
        """One update, or the evaluation that a stopped run was in; then log, evaluate, save, stop."""
        if not self.progress.unseen:
            self.update()
        if self.progress.unseen and not self.stop.asked:
            self.evaluate()
        every, progress = self.schedule.checkpoint_every, self.progress
        due = progress.update // every > progress.saved // every or progress.update == self.schedule.updates
        if due or self.stop.asked:
            self.save()
        if self.stop.asked and not self.finished:
            raise Interrupted(
                f"stopped at update {progress.update:,} of {self.schedule.updates:,}, saved in {self.folder}. "
                "The same command with --resume goes on from here."
            )

    def update(self) -> None:
        """A gradient step; a line of metrics where one is due."""
        schedule, progress = self.schedule, self.progress
        set_lr(self.agent, progress.update / schedule.updates, schedule.lr_decay)
        try:
            self.recent.append(self.agent.update(self.sampler.sample()))
        except ValueError as error:  # a broken network is the cause, not what it breaks
            self.sum_up()
            self.check_weights(error)
            raise
        progress.update += 1
        last = progress.update == schedule.updates
        if progress.update % schedule.log_every == 0 or last:
            self.sum_up()
            line = progress.line()
            append_line(self.folder / "metrics.jsonl", line)
            self.watch.metrics(line)
        due = last or (schedule.eval_every > 0 and progress.update % schedule.eval_every == 0)
        progress.unseen = self.evaluator is not None and due

    def sum_up(self) -> None:
        """Take the recent metrics into the sums, if all of them are numbers."""
        if not self.recent:
            return
        sound = torch.stack([torch.isfinite(torch.stack([*metrics.values()])).all() for metrics in self.recent])
        if not bool(sound.all()):
            first = self.progress.update - len(self.recent) + 1 + int((~sound).int().argmax())
            raise self.broken(first, broken_networks(self.agent))
        self.progress.add(self.recent)
        self.recent = []

    def evaluate(self) -> None:
        """What an evaluator finds, as lines of curves.jsonl. It may take minutes, so a signal does not wait for it."""
        assert self.evaluator is not None
        try:
            with self.stop.at_once(), untouched(self.agent):
                self.calibrate()
                lines = self.evaluator(self.agent, self.progress.update)
        except Stopped:
            return
        for line in lines:
            append_line(self.folder / "curves.jsonl", {"update": self.progress.update} | line)
            self.watch.curves(self.progress.update, line)
        self.progress.unseen = False

    def save(self) -> None:
        """A checkpoint, unless the networks are broken; of a run that is being stopped with a calibrated belief."""
        self.sum_up()
        self.check_weights()
        self.progress.saved = self.progress.update
        scale = None
        if self.stop.asked and self.held_out is not None:
            with untouched(self.agent):
                self.calibrate()
                scale = self.agent.scale.clone()
        save_checkpoint(self.folder / LATEST, self.agent, self.sampler, self.progress, scale)

    def calibrate(self) -> None:
        """Measure the filter's scales on what was held out."""
        if self.held_out is not None:
            self.agent.calibrate(self.held_out.iterate(CALIBRATION_BATCH))

    def check_weights(self, cause: Exception | None = None) -> None:
        """Stop where a weight is not finite."""
        networks = broken_networks(self.agent)
        if networks:
            raise self.broken(self.progress.update + (cause is not None), networks) from cause

    def broken(self, update: int, networks: list[str]) -> TrainingError:
        """What to say of networks whose numbers are no longer finite; what was saved stays as it is."""
        whose = f" of {', '.join(networks)}" if networks else ""
        kept = f"; {self.folder / LATEST} holds the last good state" if (self.folder / LATEST).exists() else ""
        return TrainingError(
            f"at update {update:,} the loss{whose} is no longer a finite number{kept}. "
            "Fix: a smaller learning rate (--set lr=1e-4), or rewards of a smaller scale."
        )


class TrainingError(RuntimeError):
    """Training cannot go on: a network's numbers are no longer finite."""


def broken_networks(agent: Agent) -> list[str]:
    """Which networks hold numbers that are not finite: "net, member 2"."""
    found: dict[str, None] = {}
    for name, weights in agent.named_parameters():
        bad = ~torch.isfinite(weights.detach())
        if not bool(bad.any()):
            continue
        words = name.split(".")
        if "encoders" in words:  # a module a member
            members = [int(words[words.index("encoders") + 1])]
        else:  # [K, in, out]; networks of one member have no K
            members = bad.flatten(1).any(1).nonzero()[:, 0].tolist() if bad.ndim > 2 else [0]
        found |= dict.fromkeys(f"{words[0]}, member {member}" for member in members)
    return list(found)[:8]


@contextmanager
def untouched(agent: Agent) -> Iterator[None]:
    """Within it the agent may be calibrated and may draw; after it, scales and generator are as they were."""
    scale, drawn = agent.scale.clone(), agent.generator.get_state()
    try:
        yield
    finally:
        agent.scale.copy_(scale)
        agent.generator.set_state(drawn)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Refuse a folder in which another process trains: two would write into each other's files."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock
        yield
        return
    held = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(f"another process trains in {folder}. Fix: let it finish, or name another folder.") from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(held)


def check_new(folder: Path) -> None:
    """Refuse a folder that holds a run."""
    if (folder / LATEST).exists() or (folder / "metrics.jsonl").exists():
        raise FileExistsError(f"{folder} already holds a run. Fix: pass --resume to go on with it, or name another folder.")


def check_settings(folder: Path, about: dict[str, Any], config_type: type | None = None) -> None:
    """A run goes on with the settings it began with; only the schedule may change.

    config_type: of the agent, so that settings which an older version called otherwise are known.
    """
    path = folder / "config.json"
    if not path.exists():
        return
    old = read_json(path)
    if config_type is not None and isinstance(old.get("agent_config"), dict):
        old["agent_config"] = in_todays_names(config_type, old["agent_config"])
    new = json.loads(json.dumps(about, default=str))
    before, now = (dict(_leaves(d)) for d in (old, new))
    added = [k for k in now if k.startswith("agent_config ") and k not in before]  # by a newer version
    free = ("schedule ", "threads")
    differ = [k for k in before if not k.startswith(free) and before[k] != now.get(k)] + added
    if differ:
        told = ", ".join(f"{k.removeprefix('agent_config ')} was {before.get(k)!r}, now {now.get(k)!r}" for k in differ)
        raise ValueError(f"{folder} was begun with other settings ({told}). Fix: resume with those, or start anew.")


def begun(folder: Path) -> dict[str, Any]:
    """What a run was asked for when it began; nothing if it does not say."""
    path = folder / "config.json"
    return read_json(path) if path.exists() else {}


def begun_with(folder: Path) -> int | None:
    """How many threads a run began with, if it says."""
    found = begun(folder).get("threads")
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 < found <= 1024 else None


def _leaves(settings: dict[str, Any], head: str = "") -> Iterator[tuple[str, Any]]:
    """("log rows", 75000) of {"log": {"rows": 75000}}: a difference is told where it is."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{head}{key} ")
        else:
            yield f"{head}{key}", value


def set_lr(agent: Agent, done: float, decay: bool) -> None:
    """Learning rates when this share of training is done; a group of parameters that `decays` falls to 0 by itself."""
    half_cosine = 0.5 + 0.5 * math.cos(math.pi * done)
    for group in agent.optimizer.param_groups:
        start = group.setdefault("initial_lr", group["lr"])
        group["lr"] = start * (0.05 + 0.95 * half_cosine if decay else 1) * (half_cosine if group.get("decays") else 1)


def keep_lines_until(path: Path, progress: Progress) -> None:
    """Drop lines written after the checkpoint: the resumed run writes them again."""
    if not path.exists():
        return
    last = progress.update - 1 if progress.unseen and path.name == "curves.jsonl" else progress.update
    with reading(path):
        write_lines(path, [line for line in read_lines(path) if line["update"] <= last])
