"""The loop: sample, update, log, evaluate, checkpoint, resume.

A run folder holds

    config.json        what was asked for
    metrics.jsonl      one line every `log_every` updates
    curves.jsonl       one line an evaluation during training
    checkpoints/       latest.safetensors: weights, optimiser, generators, step; enough to go on bit for bit
    policy/            the deployable policy, written at the end

Metrics stay on the device until they are logged, so no update waits for another. Ctrl-C, or a kill, loses at most the
updates since the last checkpoint, and a resumed run ends with the very same parameters as one never interrupted.
"""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from apev.agents import Agent
from apev.data.sampler import Sampler
from apev.policy import Policy
from apev.progress import progress_bar

CALIBRATION_BATCH = 1024  # transitions; each may bring two pictures to encode


class Interrupted(Exception):  # noqa: N818 (not an error: the user asked for it)
    """Training was stopped by the user and can be resumed."""


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


def train(
    agent: Agent,
    sampler: Sampler,
    folder: str | Path,
    schedule: Schedule,
    *,
    resume: bool = False,
    held_out: Sampler | None = None,
    evaluator: Evaluator | None = None,
    config: dict[str, Any] | None = None,
    title: str = "training",
    console: Console | None = None,
) -> Path:
    """Train `agent` to the end of the schedule; returns the run folder.

    `held_out` samples contexts that no member trains on: the belief filter's scales are measured there at the end.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        checkpoint = folder / "checkpoints" / "latest.safetensors"
        start = 0
        about = {"agent_config": asdict(agent.config), "schedule": asdict(schedule)} | (config or {})
        if resume:
            if checkpoint.exists():
                check_settings(folder, about)
                start = load_checkpoint(checkpoint, agent, sampler)
            for name in ("metrics.jsonl", "curves.jsonl"):  # killed before the first checkpoint: all of them
                keep_lines_until(folder / name, start)
        elif checkpoint.exists() or (folder / "metrics.jsonl").exists():
            raise FileExistsError(f"{folder} already holds a run. Fix: pass --resume to go on with it, or name another folder.")
        (folder / "config.json").write_text(json.dumps(about, indent=1, default=str) + "\n")

        update = logged = saved = start
        sums: dict[str, Tensor] = {}
        with stop_on_interrupt() as stopped, progress_bar(console) as progress:
            task = progress.add_task(title, total=schedule.updates, completed=start)
            while update < schedule.updates:
                set_lr(agent, update / schedule.updates, schedule.lr_decay)
                metrics = agent.update(sampler.sample())
                update += 1
                sums = {name: sums[name] + value if name in sums else value.clone() for name, value in metrics.items()}
                log = update % schedule.log_every == 0 or update == schedule.updates
                if log:
                    line = {"update": update} | {name: float(value) / (update - logged) for name, value in sums.items()}
                    append_line(folder / "metrics.jsonl", line)
                    sums, logged = {}, update
                evaluate = update == schedule.updates or (schedule.eval_every and update % schedule.eval_every == 0)
                if evaluator is not None and evaluate:
                    # What is evaluated is calibrated; what is trained goes on as if nobody had looked.
                    trained_scale, drawn = agent.scale.clone(), agent.generator.get_state()
                    if held_out is not None:
                        agent.calibrate(held_out.iterate(CALIBRATION_BATCH))
                    for line in evaluator(agent, update):
                        append_line(folder / "curves.jsonl", {"update": update} | line)
                    agent.scale.copy_(trained_scale)
                    agent.generator.set_state(drawn)
                # Checkpoints lie on multiples of log_every, so that no half-summed metric is lost.
                due = update // schedule.checkpoint_every > saved // schedule.checkpoint_every
                if log and (due or update == schedule.updates or stopped):
                    save_checkpoint(checkpoint, agent, sampler, update)
                    saved = update
                progress.update(task, completed=update)
                if stopped and log:
                    raise Interrupted(f"stopped at update {update} of {schedule.updates}; --resume goes on from here")
        if held_out is not None:
            agent.calibrate(held_out.iterate(CALIBRATION_BATCH))
        Policy(agent).save(folder / "policy")
        return folder


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
            raise FileExistsError(f"another process trains in {folder}. Fix: let it finish, or name another folder.") from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(held)


def check_settings(folder: Path, about: dict[str, Any]) -> None:
    """A run goes on with the settings it began with; only the schedule may change."""
    path = folder / "config.json"
    if not path.exists():
        return
    old = json.loads(path.read_text())
    new = json.loads(json.dumps(about, default=str))
    before, now = (dict(_leaves(d)) for d in (old, new))
    added = [k for k in now if k.startswith("agent_config ") and k not in before]  # by a newer version
    differ = [k for k in before if not k.startswith("schedule ") and before[k] != now.get(k)] + added
    if differ:
        told = ", ".join(f"{k.removeprefix('agent_config ')} was {before.get(k)!r}, now {now.get(k)!r}" for k in differ)
        raise ValueError(f"{folder} was begun with other settings ({told}). Fix: resume with those, or start anew.")


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


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Add one JSON line."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def keep_lines_until(path: Path, update: int) -> None:
    """Drop lines written after the checkpoint: the resumed run writes them again."""
    if path.exists():
        lines = path.read_text().splitlines()
        kept = []
        for line in lines:
            try:
                if json.loads(line)["update"] <= update:
                    kept.append(line)
            except json.JSONDecodeError:
                break  # a line cut short by the kill
        path.write_text("".join(line + "\n" for line in kept))


# ---------------------------------------------------------------------- checkpoints


class Source(Protocol):
    """Where batches come from, as far as a checkpoint is concerned."""

    def state_dict(self) -> dict[str, Tensor]:
        """What the coming batches depend on."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from there."""


def save_checkpoint(path: Path, agent: Agent, sampler: Source, update: int) -> None:
    """Everything the coming updates depend on, written to a temporary name, synced, then renamed."""
    tensors = {f"agent.{k}": v for k, v in agent.state_dict().items()}
    for index, state in agent.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{k}": v for k, v in state.items()}
    tensors |= {f"sampler.{k}": v for k, v in sampler.state_dict().items()}
    tensors["generator"] = agent.generator.get_state()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    contiguous = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
    save_file(contiguous, temporary, metadata={"update": str(update)})
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)
    descriptor = os.open(path.parent, os.O_RDONLY)  # the rename itself must reach the disk too
    os.fsync(descriptor)
    os.close(descriptor)


def load_checkpoint(path: Path, agent: Agent, sampler: Source) -> int:
    """Put everything back; returns the update to go on from."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        update = int(file.metadata()["update"])
    stored = {k.removeprefix("agent."): v for k, v in tensors.items() if k.startswith("agent.")}
    try:
        agent.load_state_dict(stored)
    except RuntimeError as error:
        raise ValueError(f"{path} was written with other settings. Fix: resume with those, or start anew. ({error})") from None
    optimizer = agent.optimizer.state_dict()
    states: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            states.setdefault(int(index), {})[key] = value
    parameters = [p for group in agent.optimizer.param_groups for p in group["params"]]
    for index, state in states.items():  # fused Adam reads memory in order: moments must lie as their parameter does
        for key, value in state.items():
            if value.shape == parameters[index].shape:
                state[key] = torch.empty_like(parameters[index], requires_grad=False).copy_(value)
    agent.optimizer.load_state_dict(optimizer | {"state": states})
    sampler.load_state_dict({k.removeprefix("sampler."): v for k, v in tensors.items() if k.startswith("sampler.")})
    agent.generator.set_state(tensors["generator"])
    return update


# ---------------------------------------------------------------------- what a person sees


@contextmanager
def stop_on_interrupt() -> Iterator[list[int]]:
    """The first Ctrl-C asks the loop to save and stop; a second one stops at once."""
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    try:
        previous = signal.signal(signal.SIGINT, handle)
    except ValueError:  # not the main thread: the caller deals with interrupts
        yield received
        return
    try:
        yield received
    finally:
        signal.signal(signal.SIGINT, previous)
