"""What is in the files: a policy's act and observe as functions of tensors alone, state included.

    act(obs, belief[, history][, mask])                                                     -> action
    observe(obs, action, reward, next_obs, terminated, belief[, history][, next_mask][, noise])
                                                                                            -> new_belief[, new_history]

    obs, next_obs   float32 [B, D] or uint8 [B, H, W, C]; one tensor a key, "obs_KEY", where observations are dicts
    action          int64 [B], or float32 [B, A]; the one that was executed
    reward          float32 [B]
    terminated      bool [B]: True where the world ended the episode, False for a time limit
    belief          float32 [B, K] log-weights
    history         float32 [B, M], of agents that keep one
    mask, next_mask bool [B, A], of agents whose log had masks: the actions that may be taken now, and after the step; a row
                    that allows nothing, as where the world ended, says nothing
    noise           of agents whose TD errors are those of drawn actions: drawn anew for each step by the caller

A file cannot raise an error. So a step with numbers that are not finite, or too large, leaves the belief of its row as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from apev.data.batch import Batch, Layout, Observations
from apev.inputs import LARGEST
from apev.policy import Policy

Distribution = Literal["normal", "exponential"]


@dataclass(frozen=True)
class Noise:
    """Random numbers that a step of observing needs."""

    name: str
    distribution: Distribution
    shape: tuple[int, ...]  # of one row
    drawn_as: Literal["rows", "members", "flat"]  # [B, ...]; for each member, [K, B, ...]; these flattened, [K B, ...]

    def as_drawn(self, given: Tensor) -> Tensor:
        """[B, *shape] in the order in which the agent draws."""
        if self.drawn_as == "rows":
            return given
        by_member = given.transpose(0, 1)
        return by_member if self.drawn_as == "members" else by_member.flatten(0, 1)


class Draws(TorchFunctionMode):
    """While this is on, what agents draw is written down; or, where tensors are given, those are drawn, one after another."""

    def __init__(self, given: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.given = None if given is None else [*given]
        self.seen: list[tuple[Distribution, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind: Distribution | None = {torch.randn: "normal", torch.Tensor.exponential_: "exponential"}.get(func)  # type: ignore[assignment]
        if kind is None:
            return func(*args, **(kwargs or {}))
        if self.given is not None:
            return self.given.pop(0)
        found: Tensor = func(*args, **(kwargs or {}))
        self.seen.append((kind, found))
        return found


class Graph(nn.Module):
    """A function of named tensors."""

    outputs: tuple[str, ...]

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.agent, self.layout = policy.agent, policy.agent.layout
        history = policy.agent.start_history(1)
        self.memory = 0 if history is None else history.shape[1]  # M
        self.behaviour, self.filter = policy.behaviour, policy.filter

    @property
    def inputs(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(self.example(1))

    def example(self, rows: int, seed: int = 0) -> dict[str, Tensor]:
        """Inputs of a batch: numbers as they might come."""
        raise NotImplementedError

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The outputs for inputs in the order of their names."""
        with torch.no_grad():
            return self.of(dict(zip(self.inputs, tensors, strict=True)))

    def of(self, given: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """The outputs."""
        raise NotImplementedError

    def observations(self, prefix: str, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Some observations."""
        layout = self.layout
        found = {named(layout, prefix, key): torch.randn(rows, width, generator=generator) for key, width in layout.vectors}
        if layout.picture is not None and layout.picture_shape is not None:
            channels, height, width = layout.picture_shape
            pixels = torch.randint(256, (rows, height, width, channels), dtype=torch.uint8, generator=generator)
            found[named(layout, prefix, layout.picture)] = pixels
        return found

    def masks(self, name: str, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Some masks, where the log had any."""
        if not self.layout.masked:
            return {}
        return {name: torch.rand(rows, self.layout.num_actions, generator=generator) < 0.7}

    def state(self, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Some beliefs, and histories where there are any."""
        found = {"belief": torch.randn(rows, self.agent.members, generator=generator).log_softmax(-1)}
        return found | ({"history": torch.randn(rows, self.memory, generator=generator)} if self.memory else {})


class Act(Graph):
    """The action for what is seen now: the greedy one."""

    outputs = ("action",)

    def example(self, rows: int, seed: int = 0) -> dict[str, Tensor]:
        """Inputs of a batch."""
        generator = torch.Generator().manual_seed(seed)
        return self.observations("obs", rows, generator) | self.state(rows, generator) | self.masks("mask", rows, generator)

    def of(self, given: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """The action."""
        obs = allowing(read(self.layout, "obs", given, given.get("history")), given.get("mask"))
        act = self.agent.act_average if self.behaviour.averages else self.agent.act
        return (act(obs, given["belief"]),)


class Observe(Graph):
    """Bayes' rule, and the history after the step."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.follows = policy.adapts and policy.members > 1  # of one member there is nothing to believe or not
        self.outputs = ("new_belief", "new_history") if self.memory else ("new_belief",)
        self.noises: tuple[Noise, ...] = ()
        self.noises = self.found_noises()

    def found_noises(self) -> tuple[Noise, ...]:
        """What the agent draws in a step; found out by letting it make one."""
        members = self.agent.members
        rows = members + 2  # so that no size can be taken for another
        example, generator = self.example(rows), torch.Generator().manual_seed(0)
        with torch.no_grad(), Draws() as draws:
            self.of(example, generator)
        found: list[Noise] = []
        for kind, drawn in draws.seen:
            shape, word = tuple(drawn.shape), "noise" if kind == "normal" else kind
            count = sum(noise.distribution == kind for noise in found)
            name = f"{word}_{count + 1}" if count else word
            if shape[0] == rows:
                found.append(Noise(name, kind, shape[1:], "rows"))
            elif shape[:2] == (members, rows):
                found.append(Noise(name, kind, (members, *shape[2:]), "members"))
            else:
                found.append(Noise(name, kind, (members, *shape[1:]), "flat"))
        return tuple(found)

    def example(self, rows: int, seed: int = 0) -> dict[str, Tensor]:
        """Inputs of a batch."""
        layout, generator = self.layout, torch.Generator().manual_seed(seed)
        action = torch.randint(max(1, layout.num_actions), (rows,), generator=generator)
        if layout.action_dim:
            low, high = torch.tensor(layout.action_low), torch.tensor(layout.action_high)
            action = low + (high - low) * torch.rand(rows, layout.action_dim, generator=generator)
        noise = {}
        for each in self.noises:
            drawn = torch.randn(rows, *each.shape, generator=generator)
            noise[each.name] = drawn if each.distribution == "normal" else drawn.abs() + 0.01
        return {
            **self.observations("obs", rows, generator),
            "action": action,
            "reward": torch.randn(rows, generator=generator),
            **self.observations("next_obs", rows, generator),
            "terminated": torch.rand(rows, generator=generator) < 0.2,
            **self.state(rows, generator),
            **self.masks("next_mask", rows, generator),
            **noise,
        }

    def of(self, given: Mapping[str, Tensor], generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        """The state after the step."""
        history, belief = given.get("history"), given["belief"]
        step = self.step(given)
        numbers = [step.obs.vector, step.next_obs.vector, step.reward[:, None]]
        usable = sound(*numbers, *([step.action] if self.layout.action_dim else []))
        new = (self.moved(step, belief, usable, given, generator) if self.follows else belief.clone(),)
        return new if history is None else (*new, torch.where(usable, self.agent.take_in(history, step), history))

    def step(self, given: Mapping[str, Tensor]) -> Batch:
        """The transition; one table of pictures for both of its observations."""
        obs, after = (read(self.layout, prefix, given, given.get("history")) for prefix in ("obs", "next_obs"))
        if obs.pictures is not None and after.pictures is not None:
            both = torch.cat([obs.pictures, after.pictures])
            place = torch.arange(both.shape[0]).unflatten(0, (2, -1))
            obs = Observations(obs.vector, both, place[0], obs.history)
            after = Observations(after.vector, both, place[1], after.history)
        after = allowing(after, given.get("next_mask"))
        reward = given["reward"]
        none = torch.zeros_like(reward, dtype=torch.int64)
        return Batch(obs, given["action"], reward, after, given["terminated"].float(), none)

    def moved(
        self, step: Batch, belief: Tensor, usable: Tensor, given: Mapping[str, Tensor], generator: torch.Generator | None
    ) -> Tensor:
        """[B, K]: the belief after the step, where that is `usable` [B, 1] and no error overflows."""
        with drawing([noise.as_drawn(given[noise.name]) for noise in self.noises] if generator is None else None):
            evidence = self.agent.log_evidence(step, belief, None, generator)
        new = self.filter.weigh(belief, evidence)
        return torch.where(usable & sound(evidence, new), new, belief)


@contextmanager
def drawing(given: Sequence[Tensor] | None) -> Iterator[None]:
    """Let these be drawn; None: draw as ever."""
    if given is None:
        yield
    else:
        with Draws(given):
            yield


def sound(*columns: Tensor) -> Tensor:
    """[B, 1]: whether a row of these [B, ...] has numbers alone that are finite and not too large; False for NaN too."""
    return (torch.cat(columns, 1).abs() <= LARGEST).all(-1, keepdim=True)


def allowing(obs: Observations, mask: Tensor | None) -> Observations:
    """With the actions that may be taken; a row that allows nothing allows all."""
    return obs if mask is None else replace(obs, allowed=mask | ~mask.any(1, keepdim=True))


def named(layout: Layout, prefix: str, key: str) -> str:
    """What the files call a part of an observation."""
    return prefix if layout.bare else f"{prefix}_{key}"


def read(layout: Layout, prefix: str, given: Mapping[str, Tensor], history: Tensor | None) -> Observations:
    """Observations from the tensors of a file; every row shows a picture of its own."""
    parts = [given[named(layout, prefix, key)] for key, _ in layout.vectors]
    if layout.picture is None:
        return Observations(torch.cat(parts, 1), history=history)
    pictures = given[named(layout, prefix, layout.picture)].permute(0, 3, 1, 2)
    vector = torch.cat(parts, 1) if parts else torch.zeros(pictures.shape[0], 0)
    return Observations(vector, pictures, torch.arange(pictures.shape[0]), history)
