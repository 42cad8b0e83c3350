"""What agents of return distributions share: categorical networks, their surprise, the cross-entropy loss, views of a picture.

C51 and APE-V on C51 stand on it side by side; they differ in what they draw before a step and in their targets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from apev import belief as beliefs
from apev.agents.discrete.base import ValueAgent, ValueConfig, of_rows
from apev.agents.distributional import symmetries
from apev.agents.distributional.backups import project
from apev.agents.distributional.ranking import ranking_loss
from apev.belief import BeliefFilter
from apev.data.batch import Batch, Observations
from apev.nn.qnets import CategoricalEnsemble

LEAST_LIKELY = 1e-4  # no single step refutes a member further than this


@dataclass(frozen=True)
class C51Config(ValueConfig):
    """C51 with the networks and numbers of the paper's Appendix D."""

    RENAMED: ClassVar[dict[str, str | None]] = {"surprise": "judged_by", "prior_scale": None}

    members: int = 2
    """How many networks are trained; 1 is plain C51."""
    gamma: float = 0.99
    """Discount."""
    lr: float = 6.25e-5
    """Adam's learning rate."""
    target_rate: float = 1.0
    """How far the target network moves in each update. 1: targets come from the networks themselves, whose encodings are
    shared; below 1 a slow copy encodes every picture again."""
    hidden: tuple[int, ...] = ()
    """Widths of layers between encoder and readout."""
    features: int = 256
    """Width of the picture encoder's output."""
    low: float = -31.0
    """The lowest atom."""
    high: float = 9.0
    """The highest atom."""
    atoms: int = 81
    """How many atoms."""
    reward_shift: float = -1.0
    """Added to every reward, so that steps cost something."""
    backup_depth: int = 1
    """How many logged steps a target looks ahead within its context; 1 is the paper. 0: as far as the log goes, whose returns
    the sampler brings (`logged_returns`)."""
    ranking: float = 0.0
    """Weight of a second loss: the softmax over a state's expected returns must be that of its targets. Where values are
    uncertain by many steps, their cross-entropy hardly notices which action is a step better."""
    pool: bool = False
    """Whether the encoder's dense layer reads each channel's maximum over the picture instead of every place by itself."""
    enlarged: int | None = None
    """Side in pixels to which pictures are enlarged for the encoder; None leaves them as they are. Things of two or three
    pixels are blurred by the first pooling layer before the network has learned to look at them."""
    augment: bool = False
    """Train on every context under a random symmetry; actions must be steps left, down, up, right."""
    views: int = 1
    """At deployment, under how many symmetries (1 to 8) each network looks at a picture: each view is a member."""
    judged_by: Literal["error", "categorical"] = "error"
    """What moves the belief: 'error' the TD error of expected returns, 'categorical' the likelihood of the observed return
    under a member's distribution."""
    softness: float = 0.05
    """Where actions are drawn instead of greedy: temperature of the softmax over values."""


class CategoricalAgent(ValueAgent):
    """K return distributions trained side by side. Member v * K + k is network k's view v of a picture."""

    config: C51Config
    weighs_rows = True
    net: CategoricalEnsemble
    target: CategoricalEnsemble

    def check(self, config: C51Config) -> None:
        """Settings that could only fail later."""
        if config.evidence != "td":
            raise ValueError(
                f"evidence={config.evidence!r}: agents of C51 follow TD errors alone. Models of worlds predict vectors, and "
                "these agents read pictures. Fix: evidence='td', or ape-v with kinds=N on a log of pictures and vectors."
            )
        if config.backup_depth < 0:
            raise ValueError(f"backup_depth is {config.backup_depth}. Fix: 1 is the paper, 0 as far as the log goes.")
        if config.enlarged is not None and config.enlarged < 8:
            raise ValueError(f"enlarged is {config.enlarged}. Fix: at least 8 pixels a side.")
        if config.ranking < 0:
            raise ValueError(f"ranking is {config.ranking}. Fix: 0 or more.")
        if not 1 <= config.views <= symmetries.COUNT:
            raise ValueError(f"views is {config.views}. Fix: 1 to {symmetries.COUNT}.")
        if config.judged_by not in ("error", "categorical"):
            raise ValueError(f"judged_by is {config.judged_by!r}. Fix: 'error' or 'categorical'.")
        if not config.low < config.high or config.atoms < 2:
            raise ValueError(f"atoms from {config.low} to {config.high}, {config.atoms}. Fix: low < high, at least 2.")
        shape = self.layout.picture_shape
        symmetric = shape is not None and shape[1] == shape[2] and self.layout.num_actions == len(symmetries.MOVES)
        if (config.augment or config.views > 1) and not symmetric:
            raise ValueError("augment and views need square pictures and the steps left, down, up, right. Fix: leave them out.")
        if (config.augment or config.ranking or config.backup_depth != 1) and (self.layout.vector_dim or shape is None):
            raise ValueError(
                "augment, ranking and backup_depth need observations that are pictures alone. Fix: leave them out."
            )
        super().check(config)

    @staticmethod
    def count_members(config: C51Config) -> int:
        """Every view of every network."""
        return config.members * config.views

    @property
    def filter(self) -> BeliefFilter:
        """As configured; a categorical likelihood has its own scale."""
        usual = super().filter
        return usual if self.config.judged_by == "error" else replace(usual, scale=None)

    def build(self, **more: Any) -> CategoricalEnsemble:
        """The networks."""
        c = self.config
        return CategoricalEnsemble(
            c.members,
            self.layout.num_actions,
            self.layout.vector_dim,
            self.layout.picture_shape,
            hidden=c.hidden,
            features=c.features,
            pool=c.pool,
            enlarged=c.enlarged,
            low=c.low,
            high=c.high,
            count=c.atoms,
            **more,
        )

    # ------------------------------------------------------------------ values and policy

    def encode(self, pictures: Tensor | None) -> Tensor | None:
        """Features [K * views, P, F] of pictures [P, C, H, W]."""
        if pictures is None:
            return None
        with torch.no_grad():
            seen = [self.net.encode(symmetries.transform(pictures, view)) for view in range(self.config.views)]
            return torch.cat([part for part in seen if part is not None])

    def logits(self, features: Tensor | None, obs: Observations, belief: Tensor | None) -> Tensor:
        """[K * views, B, A, N], with the actions of every view as they are in the picture itself."""
        rows = of_rows(features, obs)
        if self.config.views == 1:
            return self.net.logits(rows, obs.vector, belief)
        assert rows is not None
        parts = []
        for view, part in enumerate(rows.split(self.config.members)):
            action = symmetries.ACTION_AFTER[view].to(part.device)
            parts.append(self.net.logits(part, obs.vector, belief)[:, :, action])
        return torch.cat(parts)

    def values(self, features: Tensor | None, obs: Observations, belief: Tensor) -> Tensor:
        """q: [K * views, B, A]."""
        return self.logits(features, obs, belief).softmax(-1) @ self.net.atoms

    def next_action(self, q: Tensor, belief: Tensor | None) -> Tensor:
        """The action each member expects to follow, [K, B], or [B] where all follow one policy: its own best."""
        return q.argmax(-1)

    @torch.no_grad()
    def td_errors(
        self, step: Batch, log_belief: Tensor, features: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """[B, K]: how wrong each member was about this step."""
        features = self.encode(step.obs.pictures) if features is None else features
        belief = log_belief.exp()
        p = take_logits(self.logits(features, step.obs, belief), step.action).softmax(-1)  # [K, B, N]
        next_p = self.logits(features, step.next_obs, belief).softmax(-1)  # [K, B, A, N]
        return self.errors(step, p, take_logits(next_p, self.next_action(next_p @ self.net.atoms, belief)))

    def errors(self, step: Batch, p: Tensor, next_p: Tensor) -> Tensor:
        """[B, K] from the distributions [K, B, N] of the step and of what follows.

        The TD error of expected returns; or, categorical, what its square stands for: twice the negative log-likelihood.
        """
        if self.config.judged_by == "error":
            return (p @ self.net.atoms - self.backup(step, next_p @ self.net.atoms)).T
        return (-2 * (p * self.one_step_target(step, next_p)).sum(-1).clamp_min(LEAST_LIKELY).log()).sqrt().T

    def backup(self, step: Batch, next_q: Tensor) -> Tensor:
        """Shifted reward + gamma V(s'): [K, B]."""
        return step.reward + self.config.reward_shift + self.config.gamma * (1 - step.terminated) * next_q

    def one_step_target(self, step: Batch, next_p: Tensor) -> Tensor:
        """[K, B, N]: the same of a whole distribution [K, B, N]."""
        reward = (step.reward + self.config.reward_shift).expand(next_p.shape[:-1])
        discount = (self.config.gamma * (1 - step.terminated)).expand(next_p.shape[:-1])
        return project(next_p, reward, discount, self.net.atoms)

    @torch.no_grad()
    def calibrate(self, steps: Iterable[Batch], generator: torch.Generator | None = None) -> None:
        """Measure the filter's scale on steps that the policy itself would take: a log of every step has mostly others."""
        errors, own = [], []
        for step in steps:
            features = self.encode(step.obs.pictures)
            flat = beliefs.uniform(self.members, len(step.action), self.device)
            errors.append(self.td_errors(step, flat, features, generator))
            own.append(self.act(step.obs, flat, features=features) == step.action)
        found, taken = torch.cat(errors), torch.cat(own)
        scale = self.filter.calibrate(found[taken] if bool(taken.any()) else found).scale
        if scale is not None:
            self.scale.copy_(scale)

    # ------------------------------------------------------------------ learning

    def encode_batch(self, batch: Batch) -> tuple[Tensor | None, Tensor | None]:
        """Features [K, P, F] of the batch's pictures, with gradient, and those that targets read, without."""
        features = self.net.encode(batch.obs.pictures)
        if self.config.target_rate < 1:
            with torch.no_grad():
                return features, self.target.encode(batch.obs.pictures)
        return features, None if features is None else features.detach()

    def learn(self, batch: Batch, logits: Tensor, target_p: Tensor) -> dict[str, Tensor]:
        """Descend the cross-entropy of targets [K, B, N], and the ranking loss where it counts."""
        loss = -(target_p * logits.log_softmax(-1)).sum(-1)  # [K, B]
        if batch.learned is not None:
            batch.learned(loss.detach().mean(0))
        weight = self.trains_on[batch.group, : self.config.members].T  # [K, B] who trains on which row
        weight = weight.float() if batch.weight is None else weight * batch.weight
        q, target_q = logits.softmax(-1) @ self.net.atoms, target_p @ self.net.atoms  # [K, B]
        ranking = {}
        if self.config.ranking:
            order = ranking_loss(batch, q, target_q, self.layout.num_actions)
            ranking = {"ranking_loss": order.detach().mean()}
            self.descend(loss + self.config.ranking * order, weight)
        else:
            self.descend(loss, weight)
        with torch.no_grad():
            return ranking | {"loss": loss.mean(), "error": (q - target_q).abs().mean(), "value": target_q.mean()}


def take_logits(logits: Tensor, action: Tensor) -> Tensor:
    """[K, B, A, N] at actions [B] (or [K, B]) -> [K, B, N]."""
    index = action.expand(logits.shape[0], -1)[..., None, None].expand(-1, -1, 1, logits.shape[-1])
    return logits.gather(2, index).squeeze(2)
