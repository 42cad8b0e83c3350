r"""`apev.tune`: search algorithms and settings on a log, and pick by value on contexts that no trial learned from.

    log --> kept     --> every trial trains on it, through `apev.train`, in OUT/trial-0, OUT/trial-1, ...
        \-> held out --> fitted Q evaluation of each trial's policy (`apev.fqe`), the same for all

The search is Optuna's (TPE). Its journal is a file of JSON lines in OUT, written and read by `files.py`: nothing in it is code.
Each trial's settings depend on the seed and on the trials before it alone, so a search that was stopped goes on as if it had
not been; a trial that was cut short resumes its training. Trials that are suggested together do not know of each other: they
are cells (`apev.cells`), which run side by side here or on Ray.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from apev.agents import ALGORITHMS
from apev.agents.agent import check_pictures
from apev.api import train
from apev.cells import Cell, run_cells
from apev.cells.cell import log_at
from apev.cells.runner import check
from apev.data import Dataset
from apev.experiments.common.html import header, html_table, section, whole_page
from apev.files import append_line, inside, read_json, read_lines, write_json, write_lines, write_text
from apev.loop import Interrupted, TrainingError, alone_in
from apev.terminal import markup
from apev.valuation import fqe
from apev.valuation.results import number
from apev.worlds import Kinds
from apev.worlds import kinds as find_kinds
from apev.worlds.files import KINDS
from apev.worlds.files import load as load_kinds
from apev.worlds.files import save as save_kinds

JOURNAL, REPORT, ASKED, LOG = "journal.jsonl", "tune.json", "asked.json", "log.npz"
ON_RAY = 4  # trials suggested together, unless told
INSTALL = "tuning needs Optuna. Fix: pip install 'apev[tune]'."
SHARES = (0.25, 0.5, 1.0)  # of the updates

Suggest = Callable[[Any], dict[str, Any]]
"""From an Optuna trial the settings of an algorithm."""

DISCRETE: dict[str, Suggest] = {
    "ape-v": lambda t: {"support": t.suggest_categorical("ape-v support", [0.0, 0.3])},
    "cql": lambda t: {},
    "iql": lambda t: {},
    "bc": lambda t: {},
}
CONTINUOUS: dict[str, Suggest] = {
    "ape-v": lambda t: {"hidden": _widths(t.suggest_categorical("ape-v width", [128, 256]))},
    "td3-bc": lambda t: {"hidden": _widths(t.suggest_categorical("td3-bc width", [128, 256]))},
    "iql": lambda t: {},
    "bc": lambda t: {},
}


def _widths(width: int) -> tuple[int, int]:
    return width, width


@dataclass(frozen=True)
class Tuned:
    """All trials, and the best."""

    folder: Path
    trials: list[dict[str, Any]]  # in the order they were made

    @property
    def finished(self) -> list[dict[str, Any]]:
        """Those that have a value, the best first."""
        valued = [trial for trial in self.trials if trial.get("score") is not None]
        return sorted(valued, key=lambda trial: -float(trial["score"]))

    @property
    def best(self) -> dict[str, Any]:
        """The trial to deploy."""
        if not self.finished:
            raise ValueError("no trial has a value. Fix: see the errors in tune.json.")
        return self.finished[0]

    @property
    def run(self) -> Path:
        """Its run folder: `apev.load(tuned.run)`."""
        return self.folder / str(self.best["run"])

    def table(self) -> Table:
        """For a terminal."""
        shown = Table(title="trials, the best first", box=box.SIMPLE, padding=(0, 1, 0, 0), header_style="bold")
        for name in ("run", "algorithm", "settings"):
            shown.add_column(name, overflow="fold")
        for name in ("value", "95% interval", "unknown"):
            shown.add_column(name, justify="right", no_wrap=True)
        for row in self.cells():
            shown.add_row(*(markup(cell) for cell in row))
        return shown

    def cells(self) -> list[list[str]]:
        """The rows of the table."""
        rows = []
        for trial in self.finished:
            value, known = trial["value"], trial["coverage"]["little_known"]
            settings = told(trial["settings"])
            interval = f"{number(value['low'])} to {number(value['high'])}"
            rows.append([trial["run"], trial["algorithm"], settings, number(value["value"]), interval, f"{known:.0%}"])
        for trial in self.trials:
            if "error" in trial:
                rows.append([trial["run"], trial["algorithm"], str(trial["error"]), "failed", "", ""])
        return rows

    def write(self) -> None:
        """tune.json and tune.html."""
        best = self.best if self.finished else None
        write_json(self.folder / REPORT, {"best": best and best["run"], "trials": self.trials})
        heading = ["run", "algorithm", "settings", "value", "95% interval", "unknown"]
        lead = f"{len(self.finished)} trials, valued by fitted Q evaluation on contexts that none of them learned from."
        table = html_table([heading, *self.cells()], hero=best["run"] if best else "")
        note = "unknown: the share of a policy's actions that the held-out log says little about."
        sections = [header(f"{self.folder.name}: which policy to deploy", lead, ""), section("trials", "Trials", note, table)]
        write_text(self.folder / "tune.html", whole_page("tune", sections))


def tune(
    data: Dataset | str | os.PathLike[str],
    *,
    trials: int = 20,
    out: str | os.PathLike[str],
    algorithms: Iterable[str] | None = None,
    updates: int = 3000,
    held_out: float = 0.3,
    gamma: float | None = None,
    kinds: int | None = None,
    fqe_updates: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    at_once: int | None = None,
    jobs: int | None = None,
    threads: int | None = None,
    ray: str | None = None,
    console: Console | None = None,
) -> Tuned:
    """Try algorithms and settings on a log; the best is the one whose value on held-out contexts is surely the highest.

    Trials are compared by the lower end of their value's 95% interval: of two alike, the surer one is picked.

    trials: in all; the same call again goes on to so many. out: the folder, with a run folder for each trial.
    algorithms: which to try, ape-v and three that fit the log's actions unless given.
    updates: the most gradient steps of a trial; fewer are tried too.
    held_out: share of the log, in whole contexts where there are many, that no trial learns from.
    kinds: how many kinds of contexts the log holds, where that is known; 1: do not look for any.
    gamma, fqe_updates: of the fitted Q evaluation, see `apev.fqe`.
    at_once: trials that are suggested together, before any of them is known, and tried side by side: as many as jobs unless
        given, 4 on Ray. Another number is another search; another number of jobs is not.
    jobs, threads, ray: how many side by side, and where, see `apev.cells.run_cells`.
    """
    try:
        import optuna
    except ImportError as error:
        raise ModuleNotFoundError(INSTALL) from error
    console = console or Console(stderr=True, highlight=False)
    log, folder = data if isinstance(data, Dataset) else Dataset.load(data), Path(out)
    check_pictures(log.picture_key, log.discrete)
    if log.picture_key is not None:
        raise ValueError(
            f"trials are judged by fitted Q evaluation, which reads vectors, and this log has the picture {log.picture_key!r}. "
            "Fix: log features [N, D] of it; or train each with apev.train and try them with apev.evaluate."
        )
    if trials < 1 or updates < 4:
        raise ValueError(f"trials is {trials}, updates {updates}. Fix: at least 1 and 4.")
    together = at_once or jobs or (1 if ray is None else ON_RAY)
    check(jobs, threads, ray)
    if together < 1:
        raise ValueError(f"at_once is {together}. Fix: at least 1.")
    space = search_space(log, algorithms)
    asked = {"data_digest": log.digest, "algorithms": [*space], "updates": updates, "held_out": held_out, "gamma": gamma}
    asked |= {"seed": seed, "fqe_updates": fqe_updates, "kinds": kinds, "at_once": together}
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        check_asked(folder, asked)
        kept, rest = log.split(held_out, seed)
        worlds = kinds_once(folder, kept, kinds, seed, console)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = optuna.storages.JournalStorage(journal_in(folder / JOURNAL))
        study = optuna.create_study(storage=storage, study_name="tune", direction="maximize", load_if_exists=True)

        how: dict[str, Any] = {"seed": seed, "device": device, "gamma": gamma, "fqe_updates": fqe_updates}

        def note(trial: Any, found: dict[str, Any]) -> None:
            """Keep what came of a trial."""
            trial.set_user_attr("found", found)
            if "error" in found:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                console.print(f"[yellow]{markup(str(found['error']))}[/yellow]")
            else:
                study.tell(trial, found["score"])
            results(folder, study).write()

        asked_for: dict[str, tuple[Any, str, dict[str, Any]]] = {}

        def heard(cell: Cell, found: dict[str, Any]) -> None:
            """From a trial that ran beside others."""
            note(asked_for[cell.name][0], found)

        try:
            while chosen := next_trials(study, [*space], trials, seed, together):
                asked_for.clear()
                for trial in chosen:
                    algorithm = trial.suggest_categorical("algorithm", [*space])
                    steps = max(1, int(updates * trial.suggest_categorical("share", list(SHARES))))
                    settings = {"updates": steps} | space[algorithm](trial)
                    console.print(markup(f"trial {trial.number + 1} of {trials}: {algorithm}, {told(settings)}"))
                    asked_for[f"trial-{trial.number}"] = trial, algorithm, settings
                if together == 1:
                    for run, (trial, algorithm, settings) in asked_for.items():
                        note(trial, judged(folder / run, kept, rest, worlds, algorithm, settings, console=console, **how))
                    continue
                if isinstance(data, Dataset) and not (folder / LOG).exists():
                    log.save(folder / LOG)
                path = str(Path(folder / LOG if isinstance(data, Dataset) else data).absolute())
                cells = [
                    Cell(run, "tune", how | given | {"data": path, "held_out": held_out}, folder / run, device=device)
                    for run, (_, algorithm, settings) in asked_for.items()
                    for given in [{"algorithm": algorithm, "settings": settings}]
                ]
                run_cells(cells, jobs=jobs, threads=threads, ray=ray, finished=heard, console=console)
        except (KeyboardInterrupt, Interrupted):
            done = len([trial for trial in study.trials if trial.state.is_finished()])
            raise Interrupted(f"stopped after {done} of {trials} trials, kept in {folder}. The same command goes on.") from None
        tuned = results(folder, study)
        tuned.write()
        return tuned


def judged(
    run: Path,
    kept: Dataset,
    rest: Dataset,
    worlds: Kinds,
    algorithm: str,
    settings: Mapping[str, Any],
    *,
    seed: int,
    device: str,
    gamma: float | None,
    fqe_updates: int | None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Train and value one trial; what is known of it then, or why it failed."""
    about: dict[str, Any] = {"run": run.name, "algorithm": algorithm, "settings": dict(settings)}
    given = {name: value for name, value in settings.items() if name != "updates"}
    how: dict[str, Any] = {"seed": seed, "device": device, "console": console}
    try:
        policy = train(kept, algorithm, out=run, updates=settings["updates"], resume=True, kinds=worlds.count, **how, **given)
        valued = fqe({run.name: policy}, rest, gamma=gamma, updates=fqe_updates, frozen=False, kinds=worlds, **how)
    except (ValueError, TrainingError) as error:  # of this trial; the others go on
        return about | {"error": str(error)}
    found = valued.rows[0]
    return about | {"score": found.value.low, "values_are": valued.unit()} | found.as_json()


def trial_cell(folder: Path, data: str, held_out: float, seed: int, **given: Any) -> dict[str, Any]:
    """A trial as a cell, beside the folders of others; the kinds of the log lie there too."""
    kept, rest = log_at(data).split(held_out, seed)
    return judged(folder, kept, rest, load_kinds(folder.parent), seed=seed, **given)


def next_trials(study: Any, names: list[str], trials: int, seed: int, together: int) -> list[Any]:
    """Those that a stopped search was in, or so many new ones: each algorithm once, then what Optuna suggests."""
    import optuna

    def sampler(place: int) -> Any:
        # a sampler for each trial: what it suggests depends on the seed and the trials before, not on who made them
        return optuna.samplers.TPESampler(seed=1000 * seed + place, n_startup_trials=len(names) + 2)

    if running := study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
        study.sampler = sampler(running[0].number)
        return [optuna.trial.Trial(study, trial._trial_id) for trial in running]
    done = len([trial for trial in study.trials if trial.state.is_finished()])
    chosen = []
    for place in range(done, min(trials, done + together)):
        study.sampler = sampler(place)
        if place < len(names):
            study.enqueue_trial({"algorithm": names[place], "share": 1.0}, skip_if_exists=True)
        chosen.append(study.ask())
    return chosen


def told(settings: Mapping[str, Any]) -> str:
    """Settings as one would write them."""
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def search_space(log: Dataset, algorithms: Iterable[str] | None) -> dict[str, Suggest]:
    """Algorithms that fit the log's actions, and what is searched of each."""
    usual = DISCRETE if log.discrete else CONTINUOUS
    if algorithms is None:
        return dict(usual)
    found: dict[str, Suggest] = {}
    for name in algorithms:
        fits = name in ALGORITHMS and (ALGORITHMS[name].discrete if log.discrete else ALGORITHMS[name].continuous) is not None
        if not fits:
            kind = "discrete" if log.discrete else "continuous"
            fitting = [a.name for a in ALGORITHMS.values() if (a.discrete if log.discrete else a.continuous) is not None]
            raise ValueError(f"{name!r} is no algorithm for {kind} actions. Fix: some of {', '.join(fitting)}.")
        found[name] = usual.get(name, lambda trial: {})
    if not found:
        raise ValueError("no algorithm is named. Fix: at least one.")
    return found


def check_asked(folder: Path, asked: Mapping[str, Any]) -> None:
    """A search goes on with what it began with; only the number of trials may grow."""
    path = folder / ASKED
    if path.exists():
        before = read_json(inside(folder, ASKED))
        before = {"at_once": 1} | before  # searches that began before there was a choice
        differ = [f"{key} was {before.get(key)!r}, now {asked[key]!r}" for key in asked if before.get(key) != asked[key]]
        if differ:
            raise ValueError(f"{folder} holds a search that began otherwise ({', '.join(differ)}). Fix: another folder.")
        return
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty and holds no search. Fix: another folder.")
    write_json(path, dict(asked))


def kinds_once(folder: Path, log: Dataset, count: int | None, seed: int, console: Console) -> Kinds:
    """The kinds of contexts in the kept log; looked for once, for all trials."""
    if (folder / KINDS).exists():
        return load_kinds(folder)
    found = find_kinds(log, count=count, seed=seed, console=console)
    if count != 1:
        console.print(markup(found.in_words()))
    save_kinds(found, folder)
    return found


def journal_in(path: Path) -> Any:
    """Optuna's journal as JSON lines. Its own file storage would do, but for lines that a kill has cut short."""
    from optuna.storages.journal import BaseJournalBackend

    class Journal(BaseJournalBackend):
        def __init__(self) -> None:
            self.lines = read_lines(inside(path.parent, path.name)) if path.exists() else []
            write_lines(path, self.lines)

        def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
            return self.lines[log_number_from:]

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            for line in logs:
                append_line(path, line)
                self.lines.append(line)

    return Journal()


def results(folder: Path, study: Any) -> Tuned:
    """All trials as they are."""
    return Tuned(folder, [dict(trial.user_attrs["found"]) for trial in study.trials if "found" in trial.user_attrs])
