"""APE-V on deep Q-learning: value functions that know the policy will change its mind (Algorithm 1 of the paper).

    b    ~ p(b)                                              a belief the agent might hold, drawn apart from the transition
    b'   = BeliefUpdate(b, transition)                       Bayes' rule with the members' TD errors as surprise
    y_k  = r + gamma Q-_k(s', b', argmax_a sum_j b'_j Q-_j(s', b', a))
    L    = sum_k w_k (Q_k(s, b, a) - y_k)^2
    pi   = argmax_a sum_k b_k Q_k(s, b, a)

`surprise="paper"` measures the TD errors as printed, at belief b on both sides. Once values know about adaptation that is
biased: a bump that every right member foresaw still raises *their* values (the policy will now do better), and the raise
counts as surprise. `surprise="certain"` measures member k at b = e_k, the belief that trusts k alone. There the policy is
k's own and b' = e_k = b, so the TD error is that of plain Q-learning: zero in k's own world, whatever the belief does. The
values are anchored there (see `QEnsemble`): plain values learn by themselves, as in DQN, and a correction learns what changes
where other members are trusted too. One network for both let bad values at rare beliefs spoil the plain ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor

from apev.agents.discrete.dqn import DQN, DQNConfig, take
from apev.agents.discrete.wildcards import UNKNOWN, kinds_of_contexts
from apev.belief import normalise, sample_dirichlet
from apev.data.batch import Batch, Layout, Observations
from apev.data.dataset import Dataset
from apev.nn.qnets import QEnsemble


@dataclass(frozen=True)
class APEVConfig(DQNConfig):
    """APE-V: an ensemble of value functions and a policy that adapts its belief over them."""

    alpha: float = 0.1
    """Concentration of the Dirichlet that beliefs are drawn from in training."""
    evidence_share: float = 1.0
    """Share of the training beliefs that come from logged evidence: what other transitions of the same context would have
    taught an agent that started uniform. The rest, and rows that stand alone, use the Dirichlet. Needs surprise='certain'."""
    surprise: Literal["certain", "paper"] = "certain"
    """Where TD errors are measured: 'certain' at e_k for member k, 'paper' at the current belief."""
    wildcards: int = 0
    """Extra members that see no picture, each explaining one kind of context found in the log."""
    bootstrap: float = 0.8
    """Share of the contexts each member trains on; beliefs see the rest, and so learn what being wrong looks like."""


class APEV(DQN):
    """K value functions Q_k(s, b, a) and the policy that maximises their belief-weighted mean."""

    config: APEVConfig

    kinds: Tensor  # [groups] which wildcard trains on which context; -1: none

    def __init__(self, layout: Layout, config: APEVConfig, *, num_groups: int = 0, seed: int = 0) -> None:
        super().__init__(layout, config, num_groups=num_groups, seed=seed)
        self.register_buffer("kinds", torch.full((num_groups,), UNKNOWN))

    @classmethod
    def for_data(cls, dataset: Dataset, config: DQNConfig, *, seed: int = 0) -> Self:
        """An untrained agent for this log; its wildcards share out the kinds of contexts found there."""
        agent = super().for_data(dataset, config, seed=seed)
        if agent.config.wildcards:
            agent.kinds.copy_(torch.from_numpy(kinds_of_contexts(dataset, agent.config.wildcards, seed)))
        return agent

    def check(self, config: DQNConfig) -> None:
        """As for DQN, and what is APE-V's own."""
        assert isinstance(config, APEVConfig)
        if config.surprise not in ("certain", "paper"):
            raise ValueError(f"surprise is {config.surprise!r}. Fix: 'certain' or 'paper'.")
        if not config.alpha > 0:
            raise ValueError(f"alpha is {config.alpha}. Fix: a positive concentration.")
        if config.wildcards < 0:
            raise ValueError(f"wildcards is {config.wildcards}. Fix: 0 or more.")
        super().check(config)

    @staticmethod
    def count_members(config: DQNConfig) -> int:
        """Members that see the picture, then wildcards."""
        assert isinstance(config, APEVConfig)
        return config.members + config.wildcards

    def build(self, **more: Any) -> QEnsemble:
        """Networks that read the belief; the wildcards' see no picture."""
        belief = "anchored" if self.config.surprise == "certain" else "input"
        return super().build(belief=belief, blind=self.config.wildcards, **more)

    @torch.no_grad()
    def td_errors(self, step: Batch, log_belief: Tensor, features: Tensor | None = None) -> Tensor:
        """[B, K]: how wrong each member was about this step."""
        features = self.encode(step.obs.pictures) if features is None else features
        if self.config.surprise == "certain":
            q = take(self.plain_values(features, step.obs), step.action)
            return (q - self.backup(step, self.plain_values(features, step.next_obs).amax(-1))).T
        belief = log_belief.exp()
        after = self.values(features, step.next_obs, belief)
        q = take(self.values(features, step.obs, belief), step.action)
        return (q - self.backup(step, take(after, self.mix(after, belief).argmax(-1)))).T

    def plain_values(self, features: Tensor | None, obs: Observations) -> Tensor:
        """[K, B, A]: what each member expects if it is trusted alone."""
        return self.net.plain(None if features is None else features[:, obs.picture], obs.vector)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step for all members, under beliefs drawn from p(b)."""
        self.check_batch(batch)
        if self.config.surprise == "certain":
            return self.update_certain(batch)
        shown, next_shown = self.encode_batch(batch)
        after = batch.next_obs.vector
        log_belief = self.draw_beliefs(len(batch.action))
        belief = log_belief.exp()
        q = take(self.net(shown, batch.obs.vector, belief), batch.action)  # [K, B]
        with torch.no_grad():
            errors = (q - self.backup(batch, self.followed(self.target(next_shown, after, belief), belief))).T  # [B, K]
            new_belief = self.filter.update(log_belief, errors).exp()
            target = self.backup(batch, self.followed(self.target(next_shown, after, new_belief), new_belief))
            moved = (new_belief - belief).abs().sum(-1).mean() / 2
        metrics = self.descend((q - target).square(), self.weigh(batch, errors))
        return metrics | {"value": q.detach().mean(), "belief_moved": moved, "scale": self.scale.mean()}

    def update_certain(self, batch: Batch) -> dict[str, Tensor]:
        """The same with surprise under certainty: a row also teaches members their plain values; that error is the surprise."""
        shown, next_shown = self.encode_batch(batch)
        vector, after = batch.obs.vector, batch.next_obs.vector
        plain = self.net.plain(shown, vector)
        own = take(plain, batch.action)  # [K, B]
        with torch.no_grad():
            next_plain = self.target.plain(next_shown, after)
            own_target = self.backup(batch, next_plain.amax(-1))
            errors = (own - own_target).T  # [B, K]
            log_belief = self.from_evidence(batch, errors, self.draw_beliefs(len(errors)))
            weight = self.weigh(batch, errors)
            belief, new_belief = log_belief.exp(), self.filter.update(log_belief, errors).exp()
            following = self.target.corrected(next_plain, next_shown, after, new_belief)
            target = self.backup(batch, self.followed(following, new_belief))
            moved = (new_belief - belief).abs().sum(-1).mean() / 2
        q = take(self.net.corrected(plain, shown, vector, belief), batch.action)
        metrics = self.descend((own - own_target).square() + (q - target).square(), weight)
        return metrics | {"value": q.detach().mean(), "belief_moved": moved, "scale": self.scale.mean()}

    def draw_beliefs(self, rows: int) -> Tensor:
        """p(b): [B, K] log-beliefs from the Dirichlet, no weight below the filter's floor."""
        drawn = sample_dirichlet(self.config.alpha, rows, self.members, self.generator, self.device)
        return self.filter.apply_floor(drawn)

    def followed(self, q: Tensor, belief: Tensor) -> Tensor:
        """[K, B]: what each member's values q [K, B, A] expect of the policy that acts on `belief`."""
        return take(q, self.mix(q, belief).argmax(-1))

    def from_evidence(self, batch: Batch, errors: Tensor, log_belief: Tensor) -> Tensor:
        """Replace a share of the beliefs by ones that logged evidence leads to.

        A row's context shows in other rows of the batch too. A random part of those, from none (the uniform belief an episode
        starts with) to all, is taken as already seen. The end of an episode is never seen before another step. A row whose
        context shows in no other row keeps its belief. (A belief drawn apart from the context contradicts it: a member that
        is unsure what the picture shows then learns that a door found locked may still open.)
        """
        rows, device, draws = len(errors), self.device, self.generator
        others = (batch.group[:, None] == batch.group) & (batch.terminated == 0)  # [B, B]
        others.fill_diagonal_(False)
        # One history in ten has seen nothing, one in ten all there is.
        part = 1.25 * torch.rand(rows, 1, generator=draws, device=device) - 0.125
        seen = others & (torch.rand(rows, rows, generator=draws, device=device) < part)
        evidence = normalise(seen.float() @ self.filter.log_likelihood(errors).clamp_min(-1e4))
        replaced = torch.rand(rows, 1, generator=draws, device=device) < self.config.evidence_share
        return torch.where(replaced & others.any(1, keepdim=True), self.filter.apply_floor(evidence), log_belief)

    @torch.no_grad()
    def weigh(self, batch: Batch, errors: Tensor) -> Tensor:
        """Who trains on which row, [K, B]; on the way, how wrong members are on contexts held out from them."""
        weight = self.trains_on[batch.group].T.float()
        seeing = self.config.members
        held_out = (1 - weight[:seeing]) if self.config.bootstrap < 1 else torch.ones_like(weight[:seeing])
        squared = errors.T.square()  # [K, B]
        count, old = held_out.sum(1), self.scale[:seeing].square()
        # A batch without a row held out from a member says nothing about its scale.
        mean = torch.where(count > 0, (squared[:seeing] * held_out).sum(1) / count.clamp_min(1), old)
        scale = old.lerp(mean, 0.02).sqrt().clamp_min(1e-6)
        self.scale.copy_(torch.cat([scale, scale.mean().expand(self.config.wildcards)]))
        if self.config.wildcards:
            wildcard = torch.arange(self.config.wildcards, device=self.device)
            weight[seeing:] = (self.kinds[batch.group] == wildcard[:, None]).float()
        return weight
