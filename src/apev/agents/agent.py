"""What every agent offers: one gradient step, acting under a belief, and the TD errors a belief is updated from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from apev import belief as beliefs
from apev.belief import BeliefFilter, Likelihood
from apev.data.batch import Batch, Layout, Observations
from apev.data.dataset import Dataset
from apev.data.sampler import Sampler
from apev.nn.ensemble import EncoderEnsemble, EnsembleMLP
from apev.worlds.models import WorldModels
from apev.worlds.rows import Units

SMALLEST = 1e-6  # a member that never errs still has a scale
NO_WORLDS = "and this agent's are not: nothing predicts its next states and rewards"


Evidence = Literal["td", "model", "both"]


@dataclass(frozen=True)
class BeliefConfig:
    """How evidence moves the belief."""

    likelihood: Likelihood = "calibrated"
    """How TD errors become surprise: 'paper' is exp(-error^2) as printed, 'calibrated' divides by a measured scale, so that
    only errors larger than a member's usual ones count against it, 'gaussian' counts how large its usual ones are too,
    'student' does so with heavy tails, so that no single error decides."""
    temperature: float = 1.0
    """Above 1 the belief moves more slowly."""
    forgetting: float = 0.0
    """Share of the log-belief forgotten at each step."""
    floor: float = 0.001
    """Smallest weight a member can have, so that it can come back."""
    evidence: Evidence = "td"
    """What counts as evidence: 'td' members' TD errors, as in the paper; 'model' what next state, reward and end the models of
    the worlds expected; 'both' their product. The last two need a log with several kinds of contexts."""
    world_columns: int = 0
    """How many columns of what happens the models of the worlds predict; 0: there are no models. Found in the log."""


def in_todays_names(config_type: type, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a file has them, under the names they have now: an older version may have written it.

    A configuration lists its old names in `RENAMED`: {old: new}, or None for a setting that is gone. A name that means
    something else today is an old one where its value is none that today's field can have.
    """
    renamed: Mapping[str, str | None] = getattr(config_type, "RENAMED", {})
    hints = get_type_hints(config_type)
    today = {f.name: get_args(hints[f.name]) for f in fields(config_type)}
    named: dict[str, Any] = {}
    for name, value in stored.items():
        old = name in renamed and not (name in today and value in today[name])
        now = renamed[name] if old else name
        if now is not None:
            named[now] = value
    return named


def check_pictures(picture: str | None, discrete: bool) -> None:
    """Refuse what no algorithm learns: continuous actions from pictures. picture: the log's name of it, where there is one."""
    if picture is not None and not discrete:
        raise ValueError(
            f"no algorithm learns continuous actions from pictures, and {picture!r} is one. "
            "Fix: leave the picture out and log what it shows as numbers, such as poses or the features [N, D] of a "
            "trained encoder; or number a few choices of the action, as integers [N]: ape-v, dqn, cql, iql and bc "
            "learn those from pictures."
        )


class Agent(nn.Module, ABC):
    """A value ensemble and the policy it implies. Agents that do not adapt have one member: same code, no special case."""

    errs: ClassVar[bool] = True  # members make errors that a belief can follow
    weighs_rows: ClassVar[bool] = False  # it learns from rows by their importance, and tells a sampler how they went
    takes_masks: ClassVar[bool] = False  # it knows actions that are not allowed everywhere
    takes_blocks: ClassVar[bool] = False  # each member may learn from rows of its own
    layout: Layout
    config: Any  # a frozen dataclass with gamma, lr and target_rate; a BeliefConfig too where there is a belief
    members: int  # K
    num_groups: int | None = None  # how many contexts its log has; None: it does not tell them apart
    measured: int  # how many members, the first ones, say how wrong members are on contexts they did not train on
    scale: Tensor  # [K] the filter's sigma_k, a buffer
    worlds: WorldModels | None  # where members are kinds of the world: what each expects to happen
    generator: torch.Generator  # every random draw of a training step comes from here

    @classmethod
    @abstractmethod
    def for_data(cls, dataset: Dataset, config: Any, *, seed: int = 0) -> Self:
        """An untrained agent for this log."""

    @abstractmethod
    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step; the metrics stay tensors, so that nothing waits for the device."""

    def check_batch(self, batch: Batch) -> None:
        """Refuse a batch that this agent cannot learn from, and say what is wrong with it.

        Only shapes are looked at, so nothing waits for the device.
        """
        if batch.obs.vector.shape[1] != self.layout.vector_dim:
            raise ValueError(
                f"the batch's vectors have width {batch.obs.vector.shape[1]}, this agent reads {self.layout.vector_dim}."
            )
        actions = tuple(batch.action.shape[1:])
        if self.layout.action_dim and actions != (self.layout.action_dim,):
            raise ValueError(f"the batch's actions have shape {actions}, this agent's ({self.layout.action_dim},).")
        if batch.weight is not None and not self.weighs_rows:
            raise ValueError("this agent takes all rows alike, and the batch weighs them. Fix: Sampler, or an agent of C51.")
        if self.num_groups == 0:
            raise ValueError("this agent was built without num_groups. Fix: pass num_groups=dataset.num_groups to train it.")
        if batch.obs.allowed is not None and not self.takes_masks:
            raise ValueError(
                "this agent knows no masks, and the log has action_masks. Fix: ape-v, dqn, lcb, rem, cql, iql or bc."
            )
        if batch.blocks and not self.takes_blocks:
            raise ValueError("this agent's members learn from all rows, and the batch has a block for each. Fix: Sampler.")

    def sampler(self, log: Dataset, **how: Any) -> Sampler:
        """Where its batches come from; `how` is that of `Sampler`."""
        return Sampler(log, returns=self.returns_of(log), **how)

    def returns_of(self, log: Dataset) -> np.ndarray | None:
        """What its batches say of each row's return, [N]; None: it learns without."""
        return None

    def start_history(self, count: int) -> Tensor | None:
        """What it knows of `count` episodes that begin, [count, M]; None: it keeps nothing of an episode."""
        return None

    def take_in(self, history: Tensor, step: Batch) -> Tensor:
        """The history [B, M] after a step, whose action is the one that was executed; `act` reads it as `obs.history`."""
        return history

    @abstractmethod
    def encode(self, pictures: Tensor | None) -> Tensor | None:
        """Features [K, P, F] of pictures [P, C, H, W], to be handed to `act` and `td_errors` while they stay the same."""

    @abstractmethod
    def act(
        self,
        obs: Observations,
        log_belief: Tensor,
        greedy: bool = True,
        features: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """pi(a | s, b): actions [B] under log-beliefs [B, K]; drawn with `generator`, else with the agent's own."""

    def act_average(
        self,
        obs: Observations,
        log_belief: Tensor,
        greedy: bool = True,
        features: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The members' belief-weighted average instead of one drawn or most believed; the same where values are mixed."""
        return self.act(obs, log_belief, greedy, features, generator)

    @abstractmethod
    def td_errors(
        self, step: Batch, log_belief: Tensor, features: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """[B, K]: how wrong each member was about this step; what belief.py turns into surprise."""

    def prior(self) -> Tensor | None:
        """Log-weights [K] of the members before any evidence; None: all alike."""
        return None

    def log_evidence(
        self, step: Batch, log_belief: Tensor, features: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """[B, K]: log-likelihoods of this step by each member: what the belief is updated with."""
        kind = getattr(self.config, "evidence", "td")
        if kind == "td":
            return self.filter.log_likelihood(self.td_errors(step, log_belief, features, generator))
        if self.worlds is None:
            raise ValueError(f"evidence={kind!r} needs members that are kinds of the world, {NO_WORLDS}. Fix: evidence='td'.")
        told: Tensor = self.worlds.log_likelihood(step) / self.config.temperature
        if kind == "both":
            told = told + self.filter.log_likelihood(self.td_errors(step, log_belief, features, generator))
        return told

    def follow(self, *, evidence: Evidence | None = None, forgetting: float | None = None) -> None:
        """Let the belief follow another kind of evidence than in training, or forget; None leaves it as it is."""
        named: dict[str, Any] = {"evidence": evidence, "forgetting": forgetting}
        asked = {name: value for name, value in named.items() if value is not None}
        told = ", ".join(f"{name}={value!r}" for name, value in asked.items())
        if not isinstance(self.config, BeliefConfig) or self.members == 1:
            raise ValueError(f"{told}: this policy has no members to believe in. Fix: leave it out, or train ape-v.")
        if evidence is not None and evidence not in get_args(Evidence):
            raise ValueError(f"evidence={evidence!r} is unknown. Fix: one of {', '.join(get_args(Evidence))}.")
        if evidence in ("model", "both") and self.worlds is None:
            raise ValueError(
                f"evidence={evidence!r} needs members that are kinds of the world, {NO_WORLDS}. Fix: evidence='td'."
            )
        BeliefFilter(forgetting=forgetting or 0.0)  # refuses shares that are none
        self.config = replace(self.config, **asked)

    def make_worlds(self) -> None:
        """Models of the worlds where the configuration says that there are any; `take_worlds` fills them."""
        self.worlds = None
        columns = getattr(self.config, "world_columns", 0)
        if columns:
            del self.worlds  # a module may not replace a plain attribute
            layout = self.layout
            units = Units(layout.vector_dim + (layout.num_actions or layout.action_dim), columns, layout.num_actions)
            self.worlds = WorldModels(self.members, units).requires_grad_(False)

    def take_worlds(self, models: WorldModels, kind: Tensor) -> None:
        """Let member k be the world of kind k: models of all, and the kind [groups] of each context (-1: of none)."""
        if self.worlds is None:
            raise ValueError("this agent was not built for worlds. Fix: world_columns.")
        self.worlds.load_state_dict(models.state_dict())

    def worlds_state(self) -> dict[str, Tensor]:
        """The tensors of the models of the worlds, if there are any."""
        return {} if self.worlds is None else {f"worlds.{name}": value for name, value in self.worlds.state_dict().items()}

    @abstractmethod
    def make_optimizer(self) -> torch.optim.Optimizer:
        """One optimiser over everything that is trained."""

    @abstractmethod
    def policy_state(self) -> dict[str, Tensor]:
        """The tensors a deployed policy needs, and no more."""

    @abstractmethod
    def load_policy_state(self, state: dict[str, Tensor]) -> None:
        """Take back what `policy_state` gave."""

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """Made when training asks for it: a deployed policy has none."""
        return self.make_optimizer()

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return next(self.parameters()).device

    def to_device(self, device: torch.device | str) -> None:
        """Move the networks, and let every draw come from a generator there."""
        if torch.device(device) == self.device:
            return
        seed = self.generator.initial_seed()
        self.to(device)
        self.generator = torch.Generator(device=device).manual_seed(seed)
        self.__dict__.pop("optimizer", None)  # one over the parameters where they are now

    def compile_networks(self) -> None:
        """Have torch.compile fuse every network's passes. Weights and files stay as they are; the last digits may differ."""
        for part in self.modules():
            if isinstance(part, EnsembleMLP | EncoderEnsemble):
                part.compile()

    @property
    def filter(self) -> BeliefFilter:
        """Bayes' rule with the scales measured on held-out contexts."""
        c = self.config
        if not isinstance(c, BeliefConfig):
            return BeliefFilter()
        version = self.scale._version
        kept: tuple[BeliefFilter, Any, int] | None = self.__dict__.get("_filter")
        if kept is not None and kept[0].scale is self.scale and kept[1] is c and kept[2] == version:
            return kept[0]  # a deployed policy asks at each step; a scale that stays as it is, is looked at once
        made = BeliefFilter(c.likelihood, c.temperature, c.forgetting, c.floor, scale=self.scale)
        if not torch.compiler.is_exporting():  # there it would be one of tensors without numbers
            self.__dict__["_filter"] = made, c, version
        return made

    @torch.no_grad()
    def track_scale(self, squares: Tensor, weight: Tensor, rate: float) -> None:
        """In training: move each member's scale towards its squared errors [B, K], averaged with `weight` [B, K] over rows.

        A member without any weight keeps its scale; one that is not measured has the mean of the others.
        """
        count, old = weight.sum(0), self.scale.square()
        mean = torch.where(count > 0, (squares * weight).sum(0) / count.clamp_min(SMALLEST), old)
        self.scale.copy_(old.lerp(mean, rate).sqrt().clamp_min(SMALLEST))
        self.scale[self.measured :] = self.scale[: self.measured].mean()

    @torch.no_grad()
    def calibrate(self, steps: Iterable[Batch], generator: torch.Generator | None = None) -> None:
        """Measure the filter's scale on transitions of contexts that no member trained on.

        Where members are worlds, each is measured on the contexts of its kind.
        """
        flat = beliefs.uniform(self.members, 1, self.device)
        errors, groups, evidence = [], [], []
        for step in steps:
            errors.append(self.td_errors(step, flat.expand(len(step.action), -1), None, generator))
            if self.worlds is not None:
                groups.append(step.group)
                evidence.append(self.worlds.log_likelihood(step))
        found = torch.cat(errors)
        found[:, self.measured :] = torch.nan
        if self.worlds is not None:
            context = torch.cat(groups).unique(return_inverse=True)[1]
            told = torch.cat(evidence)
            kind = told.new_zeros(int(context.max()) + 1, self.members).index_add_(0, context, told).argmax(1)[context]
            found[kind[:, None] != torch.arange(self.members, device=found.device)] = torch.nan
        scale = self.filter.calibrate(found).scale
        assert scale is not None
        self.scale.copy_(scale)
