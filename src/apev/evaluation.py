"""What policies are worth in an environment: one table, adaptive beside average, members and the log itself."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from apev.agents.agent import Evidence
from apev.data.scores import normalise, of_source
from apev.data.source import named_environment, recover_environment
from apev.envs.make import make as make_env
from apev.files import write_lines
from apev.notebook import html_table
from apev.policy import Policy
from apev.progress import progress_bar
from apev.rollout import GymnasiumBatch, Rollout, check_fit, rollout
from apev.terminal import markup, plain

LABELS = {"bayes": "adaptive", "uniform": "average", "commit": "adaptive, committed", "hold": "adaptive, held an episode"}
MOST_MEMBERS = 12  # more are not shown one by one unless asked for


@dataclass(frozen=True)
class Row:
    """One policy with one behaviour of its belief, or the log."""

    name: str
    mean: float
    low: float  # of the 95% interval of the mean
    high: float
    episodes: int
    length: float | None = None  # mean steps an episode
    success: float | None = None
    score: float | None = None  # normalised as D4RL does, where a reference is known


@dataclass(repr=False)
class Evaluation:
    """The table, and every episode behind it."""

    environment: str
    rows: list[Row] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)  # one an episode
    traces: dict[str, list[list[float]]] = field(default_factory=dict)  # the belief in a first episode, step by step

    def __getitem__(self, name: str) -> Row:
        """The row of this name."""
        found = {row.name: row for row in self.rows}
        if name not in found:
            raise KeyError(f"no row is called {name!r}; there are {list(found)}.")
        return found[name]

    def table(self) -> Table:
        """For a terminal."""
        shown = Table(title=markup(self.environment), box=box.SIMPLE, padding=(0, 1, 0, 0), header_style="bold")
        first, *others = self._columns()
        shown.add_column(first)
        for name in others:
            shown.add_column(name, justify="right", no_wrap=True)
        for name, *numbers in self._cells():
            shown.add_row(markup(name), *numbers)
        return shown

    def _columns(self) -> list[str]:
        return ["policy", "return", "95% interval", *self._optional()]

    def _optional(self) -> list[str]:
        return [name for name in ("length", "success", "score") if any(getattr(row, name) is not None for row in self.rows)]

    def _cells(self) -> list[list[str]]:
        """The table as texts, row by row."""
        return [
            [row.name, _number(row.mean), f"{_number(row.low)} to {_number(row.high)}"]
            + [_number(getattr(row, name)) for name in self._optional()]
            for row in self.rows
        ]

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=100, color_system=None, force_jupyter=False).print(self.table())
        return text.getvalue().rstrip()

    __repr__ = __str__  # every episode is too much to read

    def _repr_html_(self) -> str:
        """For a notebook."""
        return html_table(self.environment, self._columns(), self._cells())

    @classmethod
    def of_records(cls, environment: str, records: list[dict[str, Any]], traces: dict[str, Any]) -> Evaluation:
        """The table of episodes that were kept; rows of the log are kept as records without an episode."""
        found = cls(environment, [], records, traces)
        for name in dict.fromkeys(str(record["policy"]) for record in records):
            own = [record for record in records if record["policy"] == name]
            if own[0].get("episode") is None:
                found.rows.append(Row(**{key: own[0][key] for key in ("name", "mean", "low", "high", "episodes")}))
                continue
            returns = np.array([float(record["return"]) for record in own])
            low, high = interval(returns)
            length = float(np.mean([record["length"] for record in own]))
            known = [record["success"] for record in own if record.get("success") is not None]
            success = float(np.mean(known)) if known else None
            found.rows.append(Row(name, float(returns.mean()), low, high, len(own), length, success))
        return found

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Keep the episodes in a run folder, for `apev report`."""
        logged = [
            {"policy": row.name, "name": row.name, "mean": row.mean, "low": row.low, "high": row.high, "episodes": row.episodes}
            for row in self.rows
            if row.name.startswith("the log")
        ]
        write_lines(Path(folder) / "episodes.jsonl", [*self.records, *logged])
        write_lines(Path(folder) / "beliefs.jsonl", [{"policy": name, "belief": trace} for name, trace in self.traces.items()])


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}"


def interval(values: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """The 95% interval of a mean, by the bootstrap over episodes."""
    if len(values) < 2:
        return float(values.mean()), float(values.mean())
    rng = np.random.default_rng(seed)
    means = values[rng.integers(len(values), size=(2000, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def evaluate_policies(
    policies: Any,
    env: str | Callable[[], Any] | None,
    episodes: int,
    *,
    adapt: Sequence[str] | None = None,
    seed: int = 0,
    device: str = "cpu",
    remember: bool = False,
    life: int = 1,
    evidence: Evidence | None = None,
    forgetting: float | None = None,
    console: Console | None = None,
) -> Evaluation:
    """See `apev.evaluate`; `evidence` and `forgetting` are for those that have members to believe in."""
    console = console or Console(stderr=True, highlight=False)
    found = dict(_named(policies, device, remember, console))
    for policy in found.values():
        if policy.members > 1:
            policy.follow(evidence, forgetting)
    several = len(found) > 1
    name, make, source = _environment(env, [policy.source for policy in found.values()], console)
    batch = GymnasiumBatch(make, episodes, seed)
    result = Evaluation(name)
    reference = of_source(source)
    for label, policy in found.items():
        check_fit(policy, batch, name)
        with progress_bar(console) as progress:
            words = _behaviours(policy, adapt)
            task = progress.add_task(markup(label), total=len(words) * life * episodes)
            done = 0
            for row_name, word in words.items():
                whole = f"{label}: {row_name}" if several and row_name != "policy" else label if several else row_name
                text = markup(whole)

                behaviour = policy.with_adapt(word, seed=seed)
                for number in range(life):

                    def watch(steps: int, over: int, text: str = text, done: int = done) -> None:
                        progress.update(task, completed=done * episodes + over, description=f"{text}, step {steps}")  # noqa: B023

                    traced = behaviour.adapts and policy.members > 1
                    rolled = rollout(behaviour, batch, trace=traced, keep_belief=number > 0, watch=watch)
                    done += 1
                result.rows.append(_row(whole, rolled, reference))
                result.records += _records(whole, rolled, seed)
                if rolled.beliefs:
                    trace = np.stack(rolled.beliefs)[: rolled.lengths[0] + 1, 0]
                    result.traces[whole] = np.round(trace, 4).tolist()
    result.rows += _logged(found, reference)
    return result


def _named(policies: Any, device: str, remember: bool, console: Console) -> Iterator[tuple[str, Policy]]:
    if isinstance(policies, Policy | str | os.PathLike):
        policies = [policies]
    if not isinstance(policies, Mapping):
        names = [Path(p).name if isinstance(p, str | os.PathLike) else "policy" for p in policies]
        labels = [f"{name} {i}" if names.count(name) > 1 else name for i, name in enumerate(names)]
        policies = dict(zip(labels, policies, strict=True))
    if not policies:
        raise ValueError("there is no policy to evaluate. Fix: name at least one.")
    for name, policy in policies.items():
        if isinstance(policy, Policy):
            yield name, policy
            continue
        if not Path(policy).is_dir():
            raise FileNotFoundError(f"no folder {policy}. Fix: name one that `apev train` made.")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            loaded = Policy.load(policy, device=device, remember=remember)
        for warning in told:
            console.print(f"[yellow]{markup(str(warning.message))}[/yellow]")
        yield name, loaded


def _environment(env: Any, sources: list[dict[str, Any]], console: Console) -> tuple[str, Any, dict[str, Any]]:
    """(its name, what makes it, what reference scores are looked up by)."""
    source = next((source for source in sources if source), {})
    if isinstance(env, str):
        return env, lambda: make_env(env), source | {"environment": env}
    if env is not None:
        return "the environment", env, {}
    named = named_environment(source)
    if named.told():
        console.print(markup(f"note: {named.told()}."))
    return named.id, lambda: recover_environment(source), source


def _behaviours(policy: Policy, adapt: Sequence[str] | None) -> dict[str, Any]:
    """What is shown of a policy: {row: behaviour}."""
    if policy.members == 1:
        return {"policy": "bayes"}
    if adapt is not None:
        return {LABELS.get(word, word.replace("member:", "member ")): word for word in adapt}
    members = range(policy.members if policy.members <= MOST_MEMBERS else 0)
    return {"adaptive": "bayes", "average": "uniform"} | {f"member {k}": f"member:{k}" for k in members}


def _row(name: str, rolled: Rollout, reference: Any) -> Row:
    low, high = interval(rolled.returns)
    mean = float(rolled.returns.mean())
    success = float(rolled.success.mean()) if rolled.knows_success else None
    score = None if reference is None else float(normalise(mean, reference))
    return Row(name, mean, low, high, len(rolled.returns), float(rolled.lengths.mean()), success, score)


def _records(name: str, rolled: Rollout, seed: int) -> list[dict[str, Any]]:
    return [
        {
            "policy": plain(name),
            "seed": seed,
            "episode": i,
            "return": float(rolled.returns[i]),
            "success": bool(rolled.success[i]) if rolled.knows_success else None,
            "length": int(rolled.lengths[i]),
            "members_correct": None,
            "stalled": bool(rolled.stalled[i]),
        }
        for i in range(len(rolled.returns))
    ]


def _logged(policies: Mapping[str, Policy], reference: Any) -> list[Row]:
    """The log's own returns; one row where all policies learned from the same."""
    rows: dict[tuple[float, int], Row] = {}
    for name, policy in policies.items():
        facts = policy.logged
        if facts is None:
            continue
        error = 1.96 * facts["std"] / max(1, facts["episodes"]) ** 0.5
        mean, key = facts["mean"], (facts["mean"], facts["episodes"])
        label = "the log" if not rows or key in rows else f"the log of {name}"
        score = None if reference is None else float(normalise(mean, reference))
        rows.setdefault(key, Row(label, mean, mean - error, mean + error, facts["episodes"], score=score))
    return list(rows.values())
