"""APE-V on C51 (the paper's Section 6.2 and Appendix D): return distributions that know the policy will change its mind.

    b    ~ Dirichlet(1)                                          one belief a row
    b'   = BeliefUpdate(b, transition)                           TD errors at b on both sides, as printed
    y_k  = project(r + gamma Z-_k(s', b', argmax_a sum_j b'_j E Z-_j(s', b', a)))

All else is `c51.py`. With `backup_depth` above 1 a context considers several beliefs at once; a row's b is one of them, its b'
is rounded to the nearest of them and stays there for the rest of the plan. At depth 1 nothing is rounded. At depth 0 targets
are the returns that the log proves, whatever the belief. On the training contexts that is also where the printed algorithm
arrives: members that fit every transition are never surprised, b' = b, and all beliefs have the same value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from apev.agents.discrete.dqn import DQNConfig
from apev.agents.distributional.backups import Graph, plan, project
from apev.agents.distributional.c51 import C51, C51Config, take_logits
from apev.belief import sample_dirichlet
from apev.data.batch import Batch, Observations
from apev.nn.qnets import CategoricalEnsemble


@dataclass(frozen=True)
class APEVC51Config(C51Config):
    """APE-V on C51: K networks that read the belief, and a policy that adapts it."""

    alpha: float = 1.0
    """Concentration of the Dirichlet that beliefs are drawn from in training."""
    measured_at: Literal["certain", "paper"] = "paper"
    """Where TD errors are measured: 'paper' at the current belief, 'certain' at e_k for member k."""
    beliefs: int = 8
    """How many beliefs a context considers at once where backups are deep."""


class APEVC51(C51):
    """K return distributions Z_k(s, b, a) and the policy that maximises their belief-weighted mean."""

    config: APEVC51Config

    def check(self, config: DQNConfig) -> None:
        """As for C51, and what is APE-V's own."""
        assert isinstance(config, APEVC51Config)
        if config.views != 1:
            raise ValueError("APE-V's networks read the belief of networks, not of views. Fix: views=1, or agent c51.")
        if not config.alpha > 0 or config.beliefs < 1:
            raise ValueError(f"alpha is {config.alpha} and beliefs {config.beliefs}. Fix: above 0, and at least 1.")
        if config.measured_at not in ("certain", "paper"):
            raise ValueError(f"measured_at is {config.measured_at!r}. Fix: 'certain' or 'paper'.")
        if self.layout.picture is None or self.layout.vector_dim:
            raise ValueError("APE-V on C51 reads pictures alone. Fix: agent ape-v, or a log of pictures.")
        super().check(config)

    def build(self, **more: Any) -> CategoricalEnsemble:  # type: ignore[override]
        """Networks that read the belief."""
        return super().build(belief=True, **more)

    @torch.no_grad()
    def td_errors(self, step: Batch, log_belief: Tensor, features: Tensor | None = None) -> Tensor:
        """[B, K]: how wrong each member was about this step."""
        features = self.encode(step.obs.pictures) if features is None else features
        belief = log_belief.exp()
        if self.config.measured_at == "certain":
            belief = torch.eye(self.members, device=self.device)[:, None].expand(-1, len(belief), -1)  # [K, B, K]
        now = take_logits(self.logits(features, step.obs, belief), step.action).softmax(-1)
        after = self.logits(features, step.next_obs, belief).softmax(-1)
        return self.surprise_of(step, now, take_logits(after, self.chosen(after @ self.net.atoms, belief)))

    def chosen(self, q: Tensor, belief: Tensor) -> Tensor:
        """The action of the policy under the belief, [B]; under certainty each member's own, [K, B]."""
        return q.argmax(-1) if belief.ndim == 3 else self.mix(q, belief).argmax(-1)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step for all networks, under beliefs drawn from p(b)."""
        self.check_batch(batch)
        batch = self.augmented(batch) if self.config.augment else batch
        features = self.net.encode(batch.obs.pictures)
        known = self.target_features(batch, features)
        assert features is not None
        assert known is not None
        rows, deep = len(batch.action), self.config.backup_depth > 1
        number, group = torch.unique(batch.group, return_inverse=True)  # [B] which of the G contexts in this batch
        if deep:
            drawn = self.draw_beliefs(self.config.beliefs * len(number)).unflatten(0, (self.config.beliefs, -1))  # [M, G, K]
            pick = torch.randint(self.config.beliefs, (rows,), generator=self.generator, device=self.device)
            log_belief = drawn[pick, group]
        else:
            log_belief = self.draw_beliefs(rows)
        logits = take_logits(self.net.logits(features[:, batch.obs.picture], batch.obs.vector, log_belief.exp()), batch.action)
        if self.config.backup_depth == 0:  # the log's returns are those of every belief
            return self.learn(batch, logits, self.known_target(batch), self.trains_on[batch.group].T)
        with torch.no_grad():
            new_belief = self.filter.update(log_belief, self.training_errors(batch, logits, known, log_belief))
            if deep:
                near = (drawn.exp()[:, group] - new_belief.exp()).abs().sum(-1).argmin(0)  # [B]
                target = self.deep_target(batch, known, drawn.exp(), group, near)
                new_belief = drawn[near, group]
            else:
                target = self.shallow_target(batch, known, new_belief.exp())
            moved = (new_belief.exp() - log_belief.exp()).abs().sum(-1).mean() / 2
        metrics = self.learn(batch, logits, target, self.trains_on[batch.group].T)
        return metrics | {"belief_moved": moved}

    def draw_beliefs(self, rows: int) -> Tensor:
        """p(b): [B, K] log-beliefs."""
        return self.filter.apply_floor(sample_dirichlet(self.config.alpha, rows, self.members, self.generator, self.device))

    def training_errors(self, batch: Batch, logits: Tensor, known: Tensor, log_belief: Tensor) -> Tensor:
        """[B, K]: surprise as at deployment, with the target's values after the step; on the way, how large it is."""
        belief = log_belief.exp()
        now = logits.detach().softmax(-1)
        if self.config.measured_at == "certain":
            belief = torch.eye(self.members, device=self.device)[:, None].expand(-1, len(belief), -1)
            plain = self.net.logits(known[:, batch.obs.picture], batch.obs.vector, belief)
            now = take_logits(plain, batch.action).softmax(-1)
        after = self.target.logits(known[:, batch.next_obs.picture], batch.next_obs.vector, belief).softmax(-1)
        errors = self.surprise_of(batch, now, take_logits(after, self.chosen(after @ self.net.atoms, belief)))
        self.scale.copy_(self.scale.square().lerp(errors.square().mean(0), 0.02).sqrt().clamp_min(1e-6))
        return errors

    def shallow_target(self, batch: Batch, known: Tensor, belief: Tensor) -> Tensor:
        """y [K, B, N], one step ahead, under the new belief."""
        after = self.target.logits(known[:, batch.next_obs.picture], batch.next_obs.vector, belief).softmax(-1)
        follow = self.mix(after @ self.net.atoms, belief).argmax(-1)
        return self.one_step_target(batch, take_logits(after, follow))

    def deep_target(self, batch: Batch, known: Tensor, drawn: Tensor, group: Tensor, near: Tensor) -> Tensor:
        """y [K, B, N], many steps ahead, under belief number `near` [B] of each context's `drawn` [M, G, K]."""
        M, P, K = len(drawn), known.shape[1], self.members
        of_picture = torch.zeros(P, dtype=torch.int64, device=self.device)
        of_picture[batch.obs.picture] = group
        belief = drawn[:, of_picture].flatten(0, 1)  # [M P, K]
        obs = Observations(known.new_zeros(M * P, 0))
        table = self.target.logits(known.repeat(1, M, 1), obs.vector, belief).softmax(-1)  # [K, M P, A, N]
        q = table @ self.net.atoms
        mixed = self.mix(q, belief)  # [M P, A]
        follow = mixed.argmax(-1)  # [M P]
        graph = Graph.of(batch, mixed.shape[-1], self.config.gamma, self.config.reward_shift)
        ways = plan(graph, mixed.amax(-1).view(M, P), self.config.backup_depth)
        now, then = (batch.obs.picture, batch.action), batch.next_obs.picture
        gain = graph.reward[now] + graph.fade[now] * ways.gain[near, then]  # [B]
        fade = graph.fade[now] * ways.fade[near, then]
        source = near * P + ways.source[near, then]  # [B], rows of the table
        following = take_logits(table[:, source], follow[source])  # [K, B, N]
        return project(following, gain.expand(K, -1), fade.expand(K, -1), self.net.atoms)
