"""Every algorithm, once: its name, its label and colour in tables and charts, and the agent for each kind of actions.

To add one, write its file and call `register`; the command line, `apev.train`, tables and charts find it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from apev.agents.agent import Agent


@dataclass(frozen=True)
class Variant:
    """An algorithm for one kind of actions."""

    agent: type[Agent]
    config: type[Any]
    stored: str  # the agent's name in files
    settings: Mapping[str, Any] = field(default_factory=dict)  # what the name stands for beyond the agent's defaults
    base: str = ""  # the learner that members are, where there is a choice
    other_bases: tuple[Variant, ...] = ()  # with other learners


@dataclass(frozen=True)
class Algorithm:
    """What users call by one name, whichever kind of actions their log has."""

    name: str
    label: str  # in tables
    colour: str  # in charts; at least 3:1 against white and against the pages' dark card
    about: str  # one sentence, for --help
    discrete: Variant | None = None
    continuous: Variant | None = None
    adapts: bool = False  # a policy of it has a belief that follows the evidence


ALGORITHMS: dict[str, Algorithm] = {}
"""By name, in the order of --help."""

AGENTS: dict[str, tuple[type[Agent], type[Any]]] = {}
"""By their name in files: (agent, configuration)."""

_experiments: set[str] = set()  # names in files that no algorithm stands for


def register(algorithm: Algorithm) -> Algorithm:
    """Make an algorithm known everywhere."""
    if algorithm.name in ALGORITHMS:
        raise ValueError(f"there is an algorithm {algorithm.name!r} already. Fix: another name.")
    for variant in variants(algorithm):
        register_agent(variant.stored, variant.agent, variant.config)
    ALGORITHMS[algorithm.name] = algorithm
    return algorithm


def register_agent(stored: str, agent: type[Agent], config: type[Any], *, experiment: bool = False) -> None:
    """Make an agent known to files; two algorithms may share one, and some serve experiments alone."""
    if AGENTS.setdefault(stored, (agent, config)) != (agent, config):
        raise ValueError(f"files know another agent as {stored!r}. Fix: another name.")
    if experiment:
        _experiments.add(stored)


def variants(algorithm: Algorithm) -> list[Variant]:
    """Every variant of an algorithm, with every base."""
    either = [variant for variant in (algorithm.discrete, algorithm.continuous) if variant is not None]
    return [found for variant in either for found in (variant, *variant.other_bases)]


def unregister(name: str) -> None:
    """Forget an algorithm, and the agents that no other one uses."""
    ALGORITHMS.pop(name)
    used = {variant.stored for algorithm in ALGORITHMS.values() for variant in variants(algorithm)}
    for stored in [stored for stored in AGENTS if stored not in used | _experiments]:
        AGENTS.pop(stored)


def find(name: str, *, discrete: bool, base: str | None = None) -> Variant:
    """The variant of algorithm `name` that fits a log's actions; with members of the learner `base`, where it is named."""
    if name not in ALGORITHMS:
        raise ValueError(f"no algorithm is called {name!r}. Fix: one of {', '.join(ALGORITHMS)}.")
    algorithm = ALGORITHMS[name]
    variant = algorithm.discrete if discrete else algorithm.continuous
    if variant is None:
        kind = "discrete" if discrete else "continuous"
        fitting = [a.name for a in ALGORITHMS.values() if (a.discrete if discrete else a.continuous) is not None]
        raise ValueError(
            f"{name} does not learn from {kind} actions, which this log has. Fix: pick one of {', '.join(fitting)}."
        )
    known = {found.base: found for found in (variant, *variant.other_bases)}
    if base is not None and base not in known:
        choice = ", ".join(word for word in known if word) or "leave it out"
        raise ValueError(f"{name} has no base {base!r} for this log's actions. Fix: {choice}.")
    return variant if base is None else known[base]


def agent_of(config: Any) -> type[Agent]:
    """The agent that a configuration is for."""
    return next(agent for agent, config_type in AGENTS.values() if config_type is type(config))


def stored_name(agent: Agent) -> str:
    """What files call an agent."""
    return next(name for name, (kind, _) in AGENTS.items() if kind is type(agent))
