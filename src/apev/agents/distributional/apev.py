"""APE-V on C51 (the paper's Section 6.2 and Appendix D): return distributions that know the policy will change its mind.

    b    ~ Dirichlet(1)                                          one belief a row
    b'   = BeliefUpdate(b, delta)                                delta_k: TD error of expected returns, at b on both sides
    y_k  = project(r + gamma Z-_k(s', b', argmax_a sum_j b'_j E Z-_j(s', b', a)))
    L    = sum_k w_k  - sum_i y_k,i log p_k,i(s, b, a)           cross-entropy

This is the paper's loss and the one that runs by default; `APEVC51Config.paper()` adds its filter, exp(-delta^2) without a
floor, and its slow target. `surprise="certain"` measures delta_k at b = e_k.

With `backup_depth` above 1 a context considers several beliefs at once; a row's b is one of them, its b' is rounded to the
nearest of them and stays there for the rest of the plan. At depth 1 nothing is rounded. At depth 0 targets are the returns
that the log proves, whatever the belief. On the training contexts that is also where the printed algorithm arrives: members
that fit every transition are never surprised, b' = b, and all beliefs have the same value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from apev.agents.distributional import symmetries
from apev.agents.distributional.backups import Graph, plan, project, returns_target
from apev.agents.distributional.base import C51Config, CategoricalAgent, take_logits
from apev.belief import sample_dirichlet
from apev.data.batch import Batch
from apev.nn.qnets import CategoricalEnsemble

SCALE_RATE = 0.02  # how far a batch moves the running scale of errors


@dataclass(frozen=True)
class APEVC51Config(C51Config):
    """APE-V on C51: K networks that read the belief, and a policy that adapts it."""

    RENAMED: ClassVar[dict[str, str | None]] = C51Config.RENAMED | {"alpha": "concentration", "measured_at": "surprise"}

    concentration: float = 1.0
    """Of the Dirichlet that beliefs are drawn from in training: the smaller, the nearer to certainty they are."""
    surprise: Literal["certain", "paper"] = "paper"
    """Where TD errors are measured: 'paper' at the current belief, 'certain' at e_k for member k."""
    beliefs: int = 8
    """How many beliefs a context considers at once where backups are deep."""

    @classmethod
    def paper(cls) -> Self:
        """APE-V on C51 as the paper prints it, with the numbers of its Appendix D."""
        return cls(likelihood="paper", floor=0.0, target_rate=0.005)


class APEVC51(CategoricalAgent):
    """K return distributions Z_k(s, b, a) and the policy that maximises their belief-weighted mean."""

    config: APEVC51Config

    def check(self, config: Any) -> None:
        """As for C51, and what is APE-V's own."""
        if config.views != 1:
            raise ValueError("APE-V's networks read the belief of networks, not of views. Fix: views=1, or agent c51.")
        if not config.concentration > 0 or config.beliefs < 1:
            numbers = f"concentration is {config.concentration} and beliefs {config.beliefs}"
            raise ValueError(f"{numbers}. Fix: above 0, and at least 1.")
        if config.surprise not in ("certain", "paper"):
            raise ValueError(f"surprise is {config.surprise!r}. Fix: 'certain' or 'paper'.")
        if self.layout.picture is None or self.layout.vector_dim:
            raise ValueError("APE-V on C51 reads pictures alone. Fix: agent ape-v, or a log of pictures.")
        super().check(config)

    def build(self, **more: Any) -> CategoricalEnsemble:
        """Networks that read the belief."""
        return super().build(belief=True, **more)

    @torch.no_grad()
    def td_errors(
        self, step: Batch, log_belief: Tensor, features: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """[B, K]: how wrong each member was about this step."""
        if self.config.surprise == "certain":
            log_belief = self.corners(log_belief.shape[0]).log()
        return super().td_errors(step, log_belief, features, generator)

    def corners(self, rows: int) -> Tensor:
        """[K, B, K]: member k at e_k, the belief that trusts it alone."""
        return torch.eye(self.members, device=self.device)[:, None].expand(-1, rows, -1)

    def next_action(self, q: Tensor, belief: Tensor | None) -> Tensor:
        """The action of the policy under the belief, [B]; under certainty each member's own, [K, B]."""
        assert belief is not None
        return q.argmax(-1) if belief.ndim == 3 else self.mix(q, belief).argmax(-1)

    # ------------------------------------------------------------------ learning

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step for all networks, under beliefs drawn from p(b)."""
        self.check_batch(batch)
        c = self.config
        if c.augment:
            batch = symmetries.augmented(batch, len(self.trains_on), self.generator)
        features, target_features = self.encode_batch(batch)
        assert features is not None
        assert target_features is not None
        number, group = torch.unique(batch.group, return_inverse=True)  # [B] which of the G contexts in this batch
        rows, deep = len(batch.action), c.backup_depth > 1
        if deep:
            drawn = self.draw_beliefs(c.beliefs * len(number)).unflatten(0, (c.beliefs, -1))  # [M, G, K]
            log_belief = drawn[torch.randint(c.beliefs, (rows,), generator=self.generator, device=self.device), group]
        else:
            log_belief = self.draw_beliefs(rows)
        logits = self.net.logits(features[:, batch.obs.picture], batch.obs.vector, log_belief.exp())
        logits = take_logits(logits, batch.action)  # [K, B, N]
        if c.backup_depth == 0:  # the log's returns are those of every belief
            return self.learn(batch, logits, returns_target(batch, c.members, self.net.atoms))
        with torch.no_grad():
            errors = self.training_errors(batch, logits, target_features, log_belief)
            self.track_scale(errors.square(), torch.ones_like(errors), SCALE_RATE)
            new_belief = self.filter.update(log_belief, errors)
            if deep:
                nearest = (drawn.exp()[:, group] - new_belief.exp()).abs().sum(-1).argmin(0)  # [B]
                target_p = self.deep_target(batch, target_features, drawn.exp(), group, nearest)
                new_belief = drawn[nearest, group]
            else:
                target_p = self.shallow_target(batch, target_features, new_belief.exp())
            moved = (new_belief.exp() - log_belief.exp()).abs().sum(-1).mean() / 2
        return self.learn(batch, logits, target_p) | {"belief_moved": moved}

    def draw_beliefs(self, rows: int) -> Tensor:
        """p(b): [B, K] log-beliefs."""
        drawn = sample_dirichlet(self.config.concentration, rows, self.members, self.generator, self.device)
        return self.filter.apply_floor(drawn)

    def training_errors(self, batch: Batch, logits: Tensor, features: Tensor, log_belief: Tensor) -> Tensor:
        """[B, K]: surprise as at deployment, but with the target's values after the step; features: the target's."""
        belief, p = log_belief.exp(), logits.detach().softmax(-1)
        if self.config.surprise == "certain":
            belief = self.corners(len(belief))
            own = self.net.logits(features[:, batch.obs.picture], batch.obs.vector, belief)
            p = take_logits(own, batch.action).softmax(-1)
        return self.errors(batch, p, self.next_distribution(batch, features, belief))

    def next_distribution(self, batch: Batch, features: Tensor, belief: Tensor) -> Tensor:
        """[K, B, N] of the policy's next action by the target networks, under weights [B, K] or [K, B, K]."""
        next_p = self.target.logits(features[:, batch.next_obs.picture], batch.next_obs.vector, belief).softmax(-1)
        return take_logits(next_p, self.next_action(next_p @ self.net.atoms, belief))

    def shallow_target(self, batch: Batch, features: Tensor, belief: Tensor) -> Tensor:
        """y [K, B, N], one step ahead, under the new belief."""
        return self.one_step_target(batch, self.next_distribution(batch, features, belief))

    def deep_target(self, batch: Batch, features: Tensor, drawn: Tensor, group: Tensor, nearest: Tensor) -> Tensor:
        """y [K, B, N], many steps ahead, under belief number `nearest` [B] of each context's `drawn` [M, G, K]."""
        M, P, K = len(drawn), features.shape[1], self.members
        of_picture = torch.zeros(P, dtype=torch.int64, device=self.device)
        of_picture[batch.obs.picture] = group
        belief = drawn[:, of_picture].flatten(0, 1)  # [M P, K]
        table = self.target.logits(features.repeat(1, M, 1), features.new_zeros(M * P, 0), belief).softmax(-1)  # [K, M P, A, N]
        mixed = self.mix(table @ self.net.atoms, belief)  # [M P, A]
        graph = Graph.of(batch, mixed.shape[-1], self.config.gamma, self.config.reward_shift)
        planned = plan(graph, mixed.amax(-1).view(M, P), self.config.backup_depth)
        at, then = (batch.obs.picture, batch.action), batch.next_obs.picture
        reward = graph.reward[at] + graph.discount[at] * planned.reward[nearest, then]  # [B]
        discount = graph.discount[at] * planned.discount[nearest, then]
        end = nearest * P + planned.end[nearest, then]  # [B], rows of the table
        next_p = take_logits(table[:, end], mixed.argmax(-1)[end])  # [K, B, N]
        return project(next_p, reward.expand(K, -1), discount.expand(K, -1), self.net.atoms)
