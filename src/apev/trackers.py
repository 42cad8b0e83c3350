"""Training watched elsewhere: the scalars of metrics.jsonl and curves.jsonl, sent to a tracker as they are written.

    apev train --data log.npz --log tensorboard        apev.train(log, track="tensorboard")

    tensorboard   event files in RUN/tensorboard; `tensorboard --logdir RUN`
    wandb         Weights & Biases, project "apev"; WANDB_MODE=offline keeps all of it in RUN/wandb
    trackio       a local dashboard with wandb's interface, project "apev"; `trackio show`

Any object with `start`, `scalars` and `finish` is a tracker: `apev.train(log, track=mine)`. A run that goes on is the same run
in its tracker. A tracker that fails is told of once and left alone: training goes on.
"""

from __future__ import annotations

import importlib
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rich.console import Console

from apev.files import inside, read_json, write_json
from apev.terminal import markup

PROJECT = "apev"
TRACKING = "tracking.json"  # of a run folder: by which name trackers know the run
KNOWN_AS = re.compile(r"[0-9a-f]{8}")


@runtime_checkable
class Tracker(Protocol):
    """Somebody who looks on."""

    def start(self, folder: Path, about: Mapping[str, Any], update: int) -> None:
        """Training begins in `folder`, with the settings `about`; `update` is above 0 where a run goes on."""

    def scalars(self, update: int, values: Mapping[str, float]) -> None:
        """What a line of metrics says."""

    def finish(self) -> None:
        """Training is over, or was stopped."""


class TensorBoard:
    """Event files beside the run."""

    def start(self, folder: Path, about: Mapping[str, Any], update: int) -> None:
        """Append to the files that are there; what they hold beyond `update` is written again."""
        writer = package("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self.writer = writer(str(folder / "tensorboard"), purge_step=update + 1 if update else None)

    def scalars(self, update: int, values: Mapping[str, float]) -> None:
        """A point of each curve."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, update)
        self.writer.flush()  # a line comes every few seconds, and a kill must not lose it

    def finish(self) -> None:
        """Close the file."""
        self.writer.close()


class WandB:
    """Weights & Biases."""

    def start(self, folder: Path, about: Mapping[str, Any], update: int) -> None:
        """Begin the run, or go on with the one of this folder's id."""
        wandb = package("wandb", "wandb")
        self.run = wandb.init(
            project=PROJECT,
            name=folder.name,
            id=known_as(folder),
            resume="allow",
            dir=str(folder),
            config=dict(about),
            settings=wandb.Settings(console="off"),  # the terminal is ours
        )
        self.run.define_metric("*", step_metric="update")  # a run that goes on may write an update again

    def scalars(self, update: int, values: Mapping[str, float]) -> None:
        """A point of each curve."""
        self.run.log({"update": update, **values})

    def finish(self) -> None:
        """Wait until all is written."""
        self.run.finish()


class Trackio:
    """A local dashboard."""

    def start(self, folder: Path, about: Mapping[str, Any], update: int) -> None:
        """Begin the run, or go on with the one of this folder's name."""
        self.trackio = package("trackio", "trackio")
        name = f"{folder.name}-{known_as(folder)}"
        self.trackio.init(project=PROJECT, name=name, config=dict(about), resume="allow", embed=False)

    def scalars(self, update: int, values: Mapping[str, float]) -> None:
        """A point of each curve."""
        self.trackio.log(dict(values), step=update)

    def finish(self) -> None:
        """Wait until all is written."""
        self.trackio.finish()


TRACKERS: dict[str, tuple[Callable[[], Tracker], str]] = {
    "tensorboard": (TensorBoard, "torch.utils.tensorboard"),
    "wandb": (WandB, "wandb"),
    "trackio": (Trackio, "trackio"),
}
"""By name: what makes a tracker, and what it imports."""


def tracker_of(tracker: str | Tracker | None) -> Tracker | None:
    """The tracker of this name, if what it needs is installed; anything that is one already."""
    if tracker is None:
        return None
    if not isinstance(tracker, str):
        if not isinstance(tracker, Tracker):
            raise TypeError(f"a {type(tracker).__name__} is no tracker. Fix: an object with start, scalars and finish.")
        return tracker
    if tracker not in TRACKERS:
        raise ValueError(f"no tracker is called {tracker!r}. Fix: one of {', '.join(TRACKERS)}, or an object of your own.")
    make, module = TRACKERS[tracker]
    package(module, tracker)  # missing: better known before hours of training
    return make()


def package(module: str, extra: str) -> Any:
    """The library, or which command installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ModuleNotFoundError(f"{extra} is not installed ({error}). Fix: pip install 'apev[{extra}]'.") from error


def known_as(folder: Path) -> str:
    """By which id trackers know the run in this folder; drawn once, so that a run that goes on is the same."""
    path = folder / TRACKING
    if path.exists():
        found = read_json(inside(folder, TRACKING)).get("id")
        if isinstance(found, str) and KNOWN_AS.fullmatch(found):
            return found
    drawn = secrets.token_hex(4)
    write_json(path, {"id": drawn})
    return drawn


class Watched:
    """A tracker that cannot harm: its first failure is told, and ends it. Without a tracker nothing happens."""

    def __init__(self, tracker: Tracker | None, console: Console | None = None) -> None:
        self.tracker, self.console = tracker, console or Console(stderr=True, highlight=False)

    def start(self, folder: Path, about: Mapping[str, Any], update: int) -> None:
        """See `Tracker`."""
        self._tell("start", folder, about, update)

    def metrics(self, line: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl."""
        values = {name: value for name, value in line.items() if name != "update"}
        self._tell("scalars", line["update"], values)

    def curves(self, update: int, line: Mapping[str, Any]) -> None:
        """A line of curves.jsonl: its numbers, by the policy that it is of."""
        head = f"evaluation/{line.get('policy', 'policy')}"
        values = {
            f"{head}/{name}": float(value)
            for name, value in line.items()
            if name != "seed" and isinstance(value, int | float) and not isinstance(value, bool)
        }
        if values:
            self._tell("scalars", update, values)

    def finish(self) -> None:
        """See `Tracker`."""
        self._tell("finish")

    def _tell(self, what: str, *facts: Any) -> None:
        if self.tracker is None:
            return
        try:
            getattr(self.tracker, what)(*facts)
        except Exception as error:  # whatever a foreign library raises
            name, self.tracker = type(self.tracker).__name__, None
            told = f"{name} failed ({type(error).__name__}: {error}): nothing more is sent there. metrics.jsonl has all of it."
            self.console.print(f"[yellow]{markup(told)}[/yellow]", soft_wrap=True)


@contextmanager
def watched_by(
    tracker: Tracker | None, folder: Path, about: Mapping[str, Any], update: int, console: Console | None = None
) -> Iterator[Watched]:
    """The tracker from its start to its finish, however training ends."""
    watch = Watched(tracker, console)
    watch.start(folder, json.loads(json.dumps(about, default=str)), update)
    try:
        yield watch
    finally:
        watch.finish()
