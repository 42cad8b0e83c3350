"""Agents in files: checkpoints a training goes on from, and what describes a policy.

A file may describe any network of ours, and nothing else. Every value is checked against the configuration's own types, and the
shapes of the weights against the network that is described, before memory is asked for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Protocol, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

import apev
from apev.agents import AGENTS, Agent
from apev.agents.agent import in_todays_names
from apev.agents.registry import stored_name
from apev.data.batch import Layout
from apev.files import FileError, brief, parse_json, read_tensors, reading, tensor_shapes, write_tensors

LATEST = "checkpoints/latest.safetensors"  # of a run folder
MOST_LAYERS = 64  # entries of a setting that is a list
SELDOM = ("action_names", "observation_names", "masked")  # of a layout: stored where there is something to say
SAVE_AGAIN = "copy it again, or save the policy again (`apev train --resume` does)"


@dataclass
class Progress:
    """How far a training is: what a checkpoint keeps beside weights and generators."""

    update: int = 0
    logged: int = 0  # the update of the last line of metrics.jsonl
    saved: int = 0  # the update of the last checkpoint
    unseen: bool = False  # an evaluation is due at this update
    sums: dict[str, Tensor] = field(default_factory=dict)  # of the metrics since the last line

    def add(self, recent: list[dict[str, Tensor]]) -> None:
        """Add the metrics of some updates, one by one, so that a stopped run rounds as one never stopped."""
        for metrics in recent:
            self.sums = {k: self.sums[k] + value if k in self.sums else value.clone() for k, value in metrics.items()}

    def line(self) -> dict[str, Any]:
        """The mean of each metric since the last line."""
        means = {name: float(value) / (self.update - self.logged) for name, value in self.sums.items()}
        self.sums, self.logged = {}, self.update
        return {"update": self.update} | means


class Source(Protocol):
    """Where batches come from, as far as a checkpoint is concerned."""

    def state_dict(self) -> dict[str, Tensor]:
        """What the coming batches depend on."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from there."""


def save_checkpoint(path: Path, agent: Agent, sampler: Source, progress: Progress, scale: Tensor | None = None) -> None:
    """Everything the coming updates depend on; `scale` is that of the calibrated filter, for whoever loads the policy."""
    tensors = {f"agent.{k}": v for k, v in agent.state_dict().items()}
    for index, state in agent.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{k}": v for k, v in state.items()}
    tensors |= {f"sampler.{k}": v for k, v in sampler.state_dict().items()}
    tensors |= {f"sums.{k}": v for k, v in progress.sums.items()}
    tensors["generator"] = agent.generator.get_state()
    if scale is not None:
        tensors["calibrated"] = scale
    numbers = {name: str(int(getattr(progress, name))) for name in ("update", "logged", "saved", "unseen")}
    write_tensors(path, tensors, numbers | {"policy": json.dumps(description(agent))})


def load_checkpoint(path: Path, agent: Agent, sampler: Source) -> Progress:
    """Put everything back; returns how far the training was."""
    fix = "start anew in another folder"
    tensors, about = read_tensors(path, fix)
    parts: dict[str, dict[str, Tensor]] = {name: {} for name in ("agent", "optimizer", "sampler", "sums")}
    for name, value in tensors.items():
        part, _, rest = name.partition(".")
        parts.get(part, {})[rest] = value
    with reading(path, fix):
        update = int(about["update"])
        logged, saved = int(about.get("logged", update)), int(about.get("saved", update))
        progress = Progress(update, logged, saved, about.get("unseen") == "1", parts["sums"])
        try:
            agent.load_state_dict(parts["agent"])
        except RuntimeError as error:
            problem = f"was written with other settings ({brief(error)})"
            raise FileError(path, problem, "resume with those, or start anew") from None
        states: dict[int, dict[str, Tensor]] = {}
        for name, value in parts["optimizer"].items():
            number, _, key = name.partition(".")
            states.setdefault(int(number), {})[key] = value
        parameters = [p for group in agent.optimizer.param_groups for p in group["params"]]
        for index, state in states.items():  # a moment of another size would be read past its end
            for key, value in state.items():
                if value.shape != (parameters[index].shape if key.startswith("exp_avg") else torch.Size([])):
                    raise FileError(path, f"optimizer.{index}.{key} has shape {tuple(value.shape)}", fix)
            if not {"exp_avg", "exp_avg_sq", "step"} <= state.keys():
                raise FileError(path, f"optimizer.{index} misses a moment", fix)
        for index, state in states.items():  # fused Adam reads memory in order: moments must lie as their parameter does
            for key, value in state.items():
                if value.shape == parameters[index].shape:
                    state[key] = torch.empty_like(parameters[index], requires_grad=False).copy_(value)
        agent.optimizer.load_state_dict(agent.optimizer.state_dict() | {"state": states})
        sampler.load_state_dict(parts["sampler"])
        agent.generator.set_state(tensors["generator"])
    progress.sums = {name: value.to(agent.device) for name, value in progress.sums.items()}
    return progress


# ---------------------------------------------------------------------- policies


def description(agent: Agent) -> dict[str, Any]:
    """All it takes to build this agent again, but its weights: plain values."""
    about = {"apev": apev.__version__, "agent": stored_name(agent)}
    layout = {key: value for key, value in asdict(agent.layout).items() if value or key not in SELDOM}
    return about | {"config": asdict(agent.config), "layout": layout}


def build(about: dict[str, Any], file: Path, weights: Path) -> Agent:
    """The agent that a file describes, with its weights. Nothing is built before their shapes are known to fit."""
    agent = _unbuilt(about, file)
    with torch.device("meta"):  # shapes without memory: a description may ask for networks of any size
        plan = {name: tuple(tensor.shape) for name, tensor in agent().policy_state().items()}
    stored = tensor_shapes(weights, SAVE_AGAIN)
    odd = [name for name in sorted({*plan, *stored}) if plan.get(name) != stored.get(name)]
    if odd:
        problem = f"{odd[0]} has shape {stored.get(odd[0])}, {file.name} describes {plan.get(odd[0])}"
        raise FileError(weights, problem, SAVE_AGAIN)
    built = agent()
    built.load_policy_state(read_tensors(weights, SAVE_AGAIN)[0])
    return built


def logged_of(about: dict[str, Any], file: Path) -> dict[str, Any] | None:
    """What a file says of the returns in its policy's log: mean, std and episodes, all numbers."""
    stored = about.get("logged")
    if stored is None:
        return None
    names = ("mean", "std", "episodes")
    if not isinstance(stored, dict) or not all(_is_a(stored.get(name), float) for name in names):
        raise FileError(file, f"logged is {stored!r:.80}, not mean, std and episodes", SAVE_AGAIN)
    return {name: stored[name] for name in names}


def policy_of(path: Path) -> tuple[Agent, int]:
    """The agent of a checkpoint as a policy needs it, and the update it was at."""
    tensors, facts = read_tensors(path, SAVE_AGAIN)
    if "policy" not in facts:
        raise FileError(path, "is of an older version and does not describe its policy", "go on with the run: --resume")
    agent = _unbuilt(parse_json(facts["policy"], path, fix=SAVE_AGAIN), path)
    state = {name.removeprefix("agent."): value for name, value in tensors.items() if name.startswith("agent.")}
    if "calibrated" in tensors:
        state["scale"] = tensors["calibrated"]
    with reading(path, SAVE_AGAIN):
        with torch.device("meta"):
            plan = {name: tuple(tensor.shape) for name, tensor in agent().policy_state().items()}
        odd = [name for name, shape in plan.items() if name not in state or tuple(state[name].shape) != shape]
        if odd:
            raise FileError(path, f"{odd[0]} does not fit what it describes", SAVE_AGAIN)
        built = agent()
        built.load_policy_state(state)
        return built, int(facts["update"])


def _unbuilt(about: dict[str, Any], file: Path) -> Callable[[], Agent]:
    """What makes the agent that a file describes, once every value is of its kind and within reason."""
    if not isinstance(about.get("agent"), str) or about["agent"] not in AGENTS:
        known = f"one of {sorted(AGENTS)}, or a newer apev"
        raise FileError(file, f"no agent is called {about.get('agent')!r:.80}", known)
    kind, config_type = AGENTS[about["agent"]]
    with reading(file, SAVE_AGAIN):
        config = typed(config_type, about["config"], file)
        layout = layout_from_json(about["layout"])
    return lambda: _built(kind, layout, config, file)


def _built(kind: type[Agent], layout: Layout, config: Any, file: Path) -> Agent:
    with reading(file, SAVE_AGAIN):
        return kind(layout, config)


def typed(config_type: type, stored: Any, file: Path) -> Any:
    """A configuration from JSON, which has no tuples; values of another kind than the field's are refused by name.

    Settings that had another name when the file was written are taken under today's.
    """
    every = get_type_hints(config_type)
    hints = {f.name: every[f.name] for f in fields(config_type)}
    renamed = in_todays_names(config_type, dict(stored))
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in renamed.items()}
    for name, value in given.items():
        if name not in hints:
            raise FileError(file, f"config: there is no {name!r:.80}", "a newer apev may know it")
        if not _is_a(value, hints[name]):
            raise FileError(file, f"config: {name} is {value!r:.80}, which is no {hints[name]}", SAVE_AGAIN)
    return config_type(**given)


def _is_a(value: Any, hint: Any) -> bool:
    """Whether a plain value is of the annotated kind; a whole number serves as a float, if it is finite."""
    origin, kinds = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in kinds
    if origin in (UnionType, Union):
        return any(_is_a(value, kind) for kind in kinds)
    if origin is tuple:
        repeated = len(kinds) == 2 and kinds[1] is Ellipsis
        wanted = kinds[:1] * len(value) if repeated and isinstance(value, tuple) else kinds
        few = isinstance(value, tuple) and len(value) == len(wanted) <= MOST_LAYERS
        return few and all(map(_is_a, value, wanted))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31
    return isinstance(value, hint)


def layout_from_json(stored: dict[str, Any]) -> Layout:
    """The inverse of `asdict(layout)` through JSON; sizes and bounds must be possible ones."""
    shape = stored["picture_shape"]
    vectors = tuple((str(key), width) for key, width in stored["vectors"])
    low, high = tuple(stored.get("action_low", ())), tuple(stored.get("action_high", ()))
    sizes = [*(width for _, width in vectors), *(shape or ()), stored["num_actions"]]
    if not all(isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**31 for size in sizes):
        raise ValueError(f"its sizes are {sizes!r:.80}")
    if len(low) != len(high) or not all(_is_a(x, float) and _is_a(y, float) and x < y for x, y in zip(low, high, strict=True)):
        raise ValueError("the bounds of its actions are not finite pairs low < high")
    if shape is not None and len(shape) != 3:
        raise ValueError(f"its pictures have shape {shape!r:.80}")
    picture = stored["picture"]
    if (picture is None) != (shape is None) or not isinstance(picture, str | None):
        raise ValueError(f"its picture is called {picture!r:.80} and has shape {shape!r:.80}")
    keys = [key for key, _ in vectors] + ([] if picture is None else [picture])
    if not keys or len(keys) != len(set(keys)) or (stored["bare"] and keys != ["observation"]):
        raise ValueError(f"its observations are {keys!r:.80}")
    return Layout(
        vectors,
        stored["picture"],
        shape and tuple(shape),
        stored["num_actions"],
        bool(stored["bare"]),
        low,
        high,
        _names(stored, "action_names", stored["num_actions"]),
        _names(stored, "observation_names", sum(width for _, width in vectors)),
        bool(stored.get("masked", False)),
    )


def _names(stored: dict[str, Any], key: str, count: int) -> tuple[str, ...]:
    """The names that a file has, one for each of `count`, or none."""
    names = tuple(stored.get(key, ()))
    if names and (len(names) != count or not all(isinstance(name, str) for name in names)):
        raise ValueError(f"its {key} are {names!r:.80}, not {count} names")
    return names
