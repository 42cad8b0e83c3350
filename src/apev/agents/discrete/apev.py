"""APE-V on deep Q-learning: value functions that know the policy will change its mind (Algorithm 1 of the paper).

Both ways to train it draw a belief apart from the transition, move it by Bayes' rule with the members' TD errors as surprise,
and take the next value at the new belief:

    b      ~ p(b)
    b'     = BeliefUpdate(b, delta)
    y_k    = r + gamma (1 - terminated) Q-_k(s', b', argmax_a sum_j b'_j Q-_j(s', b', a))
    pi     = argmax_a sum_k b_k Q_k(s, b, a)

As printed, `APEVConfig.paper()`: p(b) is Dirichlet(.1), errors are measured at belief b on both sides:

    delta_k = Q_k(s, b, a) - r - gamma (1 - terminated) Q-_k(s', b, argmax_a sum_j b_j Q-_j(s', b, a))
    L       = sum_k (Q_k(s, b, a) - y_k)^2

By default, `surprise="certain"`: member k is measured at b = e_k, the belief that trusts k alone, with Q_k(s, e_k, a) written
Q_k(s, a):

    Q_k(s, b, a) = Q_k(s, a) + (1 - b_k) C_k(s, b, a)                      plain values and a correction (`QEnsemble`)
    delta_k      = Q_k(s, a) - r - gamma (1 - terminated) max_a' Q-_k(s', a')
    L            = sum_k w_k (delta_k^2 + (Q_k(s, b, a) - y_k)^2)          w_k: 1 where member k trains on this context

The second term trains C_k alone. p(b) is what other logged steps of the same context would have taught (`evidence_share`).
Where members are kinds of the world, b and b' are what the worlds' models make of the log's own steps, and w_k is 1 on contexts
of kind k alone. With `support`, as `apev.train` sets it, maxima run over actions that the log takes often enough, and L has the
cloning head's loss beside it (L_G in `base.py`).

Why: once values know about adaptation, errors at b are biased. A bump that every right member foresaw still raises *their*
values (the policy will now do better), and the raise counts as surprise. At e_k the policy is k's own and b' = e_k = b, so
the TD error is that of plain Q-learning: zero in k's own world, whatever the belief does. One network for both let bad values
at rare beliefs spoil the plain ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from apev.agents.discrete.base import DQNConfig, QAgent, of_rows, take
from apev.belief import normalise, sample_dirichlet
from apev.data.batch import Batch, Layout, Observations
from apev.data.dataset import Dataset
from apev.nn.qnets import QEnsemble
from apev.worlds.endings import UNKNOWN, kinds_of_contexts

SCALE_RATE = 0.02  # how far a batch moves the running scale of errors


@dataclass(frozen=True)
class APEVConfig(DQNConfig):
    """APE-V: an ensemble of value functions and a policy that adapts its belief over them."""

    RENAMED: ClassVar[dict[str, str | None]] = {"alpha": "concentration"}

    concentration: float = 0.1
    """Of the Dirichlet that beliefs are drawn from in training: the smaller, the nearer to certainty they are."""
    evidence_share: float = 1.0
    """Share of the training beliefs that come from logged evidence: what other transitions of the same context would have
    taught an agent that started uniform. The rest, and rows that stand alone, use the Dirichlet. Needs surprise='certain'."""
    surprise: Literal["certain", "paper"] = "certain"
    """Where TD errors are measured: 'certain' at e_k for member k, 'paper' at the current belief."""
    targets: Literal["policy", "own"] = "policy"
    """Whose next action a member's target takes: the policy's, as printed, or the one that the member itself holds for best.
    One policy for all makes members alike; their own keeps them apart."""
    wildcards: int = 0
    """Extra members that see no picture, each explaining one kind of context found in the log."""
    wildcard_weight: float = 1.0
    """How believable a wildcard is before any evidence, beside a member that sees the picture. With less than 1 the policy goes
    by what it sees, and by wildcards when that is refuted; `adapt="commit"` then tries one explanation after the other."""
    bootstrap: float = 0.8
    """Share of the contexts each member trains on; beliefs see the rest, and so learn what being wrong looks like."""

    @classmethod
    def paper(cls) -> Self:
        """APE-V as the paper prints it, with the numbers of its Appendix C."""
        printed: dict[str, Any] = {"surprise": "paper", "likelihood": "paper", "concentration": 0.1, "floor": 0.0}
        return cls(**printed, evidence_share=0.0, bootstrap=1.0, gamma=0.98, target_rate=0.005)


class APEV(QAgent):
    """K value functions Q_k(s, b, a) and the policy that maximises their belief-weighted mean."""

    config: APEVConfig
    takes_blocks = True
    kinds: Tensor  # [groups] which wildcard trains on which context; -1: none

    def __init__(self, layout: Layout, config: APEVConfig, *, num_groups: int = 0, seed: int = 0) -> None:
        super().__init__(layout, config, num_groups=num_groups, seed=seed)
        self.measured = config.members  # wildcards come last and are wrong by design
        self.register_buffer("kinds", torch.full((num_groups,), UNKNOWN))

    @classmethod
    def for_data(cls, dataset: Dataset, config: Any, *, seed: int = 0) -> Self:
        """An untrained agent for this log; its wildcards share out the kinds of contexts found there."""
        agent = super().for_data(dataset, config, seed=seed)
        if agent.config.wildcards:
            agent.kinds.copy_(torch.from_numpy(kinds_of_contexts(dataset, agent.config.wildcards, seed)))
        return agent

    def check(self, config: APEVConfig) -> None:
        """As for every ensemble, and what is APE-V's own."""
        if config.surprise not in ("certain", "paper"):
            raise ValueError(f"surprise is {config.surprise!r}. Fix: 'certain' or 'paper'.")
        if config.targets not in ("policy", "own"):
            raise ValueError(f"targets is {config.targets!r}. Fix: 'policy' or 'own'.")
        if not config.concentration > 0:
            raise ValueError(f"concentration is {config.concentration}. Fix: a positive number.")
        if config.wildcards < 0:
            raise ValueError(f"wildcards is {config.wildcards}. Fix: 0 or more.")
        if not 0 < config.wildcard_weight <= 1:
            raise ValueError(f"wildcard_weight is {config.wildcard_weight}. Fix: above 0, at most 1.")
        super().check(config)

    @staticmethod
    def count_members(config: APEVConfig) -> int:
        """Members that see the picture, then wildcards."""
        return config.members + config.wildcards

    def prior(self) -> Tensor | None:
        """Wildcards weigh `wildcard_weight` before any evidence."""
        if not self.config.wildcards or self.config.wildcard_weight == 1:
            return None
        weight = torch.ones(self.members, device=self.device)
        weight[self.measured :] = self.config.wildcard_weight
        return weight.log()

    def build(self, **more: Any) -> QEnsemble:
        """Networks that read the belief; the wildcards' see no picture."""
        belief = "anchored" if self.config.surprise == "certain" else "input"
        return super().build(belief=belief, blind=self.config.wildcards, **more)

    @torch.no_grad()
    def td_errors(
        self, step: Batch, log_belief: Tensor, features: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """[B, K]: how wrong each member was about this step, by the online networks."""
        features = self.encode(step.obs.pictures) if features is None else features
        log_clone = self.net.clone(of_rows(features, step.next_obs), step.next_obs.vector, step.next_obs.allowed)
        if self.config.surprise == "certain":
            q = take(self.plain_values(features, step.obs), step.action)
            next_q = self.likely(self.plain_values(features, step.next_obs), log_clone).amax(-1)
        else:
            belief = log_belief.exp()
            q = take(self.values(features, step.obs, belief), step.action)
            next_q = self.next_value(self.values(features, step.next_obs, belief), belief, log_clone)
        return (q - self.backup(step, next_q)).T

    def plain_values(self, features: Tensor | None, obs: Observations) -> Tensor:
        """[K, B, A]: what each member expects if it is trusted alone."""
        return self.net.plain(of_rows(features, obs), obs.vector)

    def next_value(self, q: Tensor, belief: Tensor, log_clone: Tensor | None) -> Tensor:
        """[K, B]: what each member's values q [K, B, A] expect of the policy, argmax_a sum_k b_k Q_k over likely actions.

        With targets="own": of member k's own argmax_a Q_k instead.
        """
        if self.config.targets == "own":
            return self.likely(q, log_clone).amax(-1)
        mixed = torch.einsum("bk,kba->ba", belief, q)
        return take(q, self.likely(mixed, log_clone, belief).argmax(-1))

    # ------------------------------------------------------------------ learning

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step for all members, under beliefs drawn from p(b)."""
        self.check_batch(batch)
        if self.config.surprise == "paper":
            return self.update_as_printed(batch)
        obs, next_obs = batch.obs.vector, batch.next_obs.vector
        discount = self.config.gamma * (1 - batch.terminated)
        features, next_features = self.encode_batch(batch)
        plain = self.net.plain(features, obs)
        own_q = take(plain, batch.action)  # Q_k(s, a): [K, B]
        with torch.no_grad():
            next_plain = self.target.plain(next_features, next_obs)
            log_clone = self.target.clone(next_features, next_obs, batch.next_obs.allowed)
            own_target = batch.reward + discount * self.likely(next_plain, log_clone).amax(-1)
            errors = (own_q - own_target).T  # delta_k: [B, K]
            log_belief = self.draw_beliefs(batch, errors)  # b
            weight, held_out = self.row_weights(batch)
            self.track_scale(errors.square(), held_out.T, SCALE_RATE)
            bayes = self.filter  # refuses a scale that is no number before anything else is spoiled by it
            if batch.next_log_belief is None:
                log_new = bayes.weigh(log_belief, bayes.log_likelihood(errors))  # b'
            else:  # models of the worlds said what the step teaches
                log_new = bayes.apply_floor(batch.next_log_belief)
            belief, new_belief = log_belief.exp(), log_new.exp()
            next_q = self.target.corrected(next_plain, next_features, next_obs, new_belief)
            target_q = batch.reward + discount * self.next_value(next_q, new_belief, log_clone)  # y_k
            moved = (new_belief - belief).abs().sum(-1).mean() / 2
        q = take(self.net.corrected(plain, features, obs, belief), batch.action)  # Q_k(s, b, a)
        loss = (own_q - own_target).square() + (q - target_q).square()
        metrics = self.descend(self.with_cloning(loss, features, batch), weight)
        return metrics | {"value": q.detach().mean(), "belief_moved": moved, "scale": self.scale.mean()}

    def update_as_printed(self, batch: Batch) -> dict[str, Tensor]:
        """As the paper prints it: errors at belief b on both sides."""
        obs, next_obs = batch.obs.vector, batch.next_obs.vector
        discount = self.config.gamma * (1 - batch.terminated)
        bayes = self.filter
        features, next_features = self.encode_batch(batch)
        c, rows = self.config, len(batch.action)
        drawn = sample_dirichlet(c.concentration, rows, self.members, self.generator, self.scale.device)
        log_belief = bayes.apply_floor(drawn)
        belief = log_belief.exp()
        q = take(self.net(features, obs, belief), batch.action)  # Q_k(s, b, a): [K, B]
        with torch.no_grad():
            log_clone = self.target.clone(next_features, next_obs, batch.next_obs.allowed)
            next_q = self.target(next_features, next_obs, belief)
            errors = (q - (batch.reward + discount * self.next_value(next_q, belief, log_clone))).T  # delta_k: [B, K]
            new_belief = bayes.weigh(log_belief, bayes.log_likelihood(errors)).exp()  # b'
            next_q = self.target(next_features, next_obs, new_belief)
            target_q = batch.reward + discount * self.next_value(next_q, new_belief, log_clone)  # y_k
            moved = (new_belief - belief).abs().sum(-1).mean() / 2
            weight, held_out = self.row_weights(batch)
            self.track_scale(errors.square(), held_out.T, SCALE_RATE)
        metrics = self.descend(self.with_cloning((q - target_q).square(), features, batch), weight)
        return metrics | {"value": q.detach().mean(), "belief_moved": moved, "scale": self.scale.mean()}

    def draw_beliefs(self, batch: Batch, errors: Tensor) -> Tensor:
        """p(b): [B, K] log-beliefs before the step.

        They are what the models of the worlds make of the steps before, where there are models. Else a share of them comes
        from logged evidence, the rest from the Dirichlet.

        A row's context shows in other rows of the batch too, whose TD errors [B, K] are evidence. A random part of these rows,
        from none (the uniform belief an episode starts with) to all, is taken as already seen. The end of an episode is never
        seen before another step. A row whose context shows in no other row keeps its belief from the Dirichlet. (A belief
        drawn apart from the context contradicts it: a member that is unsure what the picture shows then learns that a door
        found locked may still open.)
        """
        bayes, c = self.filter, self.config
        if batch.log_belief is not None:
            return bayes.apply_floor(batch.log_belief)
        rows, device, draws = len(batch.action), self.scale.device, self.generator
        drawn = sample_dirichlet(c.concentration, rows, self.members, draws, device)
        others = (batch.group[:, None] == batch.group) & (batch.terminated == 0)  # [B, B]
        others.fill_diagonal_(False)
        # The part that was seen is uniform on [-1/8, 9/8], cut off at 0 and 1: a tenth of the rows have seen no other row of
        # their context, a tenth all of them.
        part = 1.25 * torch.rand(rows, 1, generator=draws, device=device) - 0.125
        seen = others & (torch.rand(rows, rows, generator=draws, device=device) < part)
        told = seen.float() @ bayes.log_likelihood(errors).clamp_min(-1e4)
        prior = self.prior() if c.wildcards else None
        evidence = normalise(told if prior is None else told + prior)
        replaced = torch.rand(rows, 1, generator=draws, device=device) < c.evidence_share
        return bayes.apply_floor(torch.where(replaced & others.any(1, keepdim=True), evidence, drawn))

    def row_weights(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Who trains on which row, and whose scale is measured there, [K, B] both.

        Members train on their share of the contexts and are measured on the rest (on all where nothing is held out);
        wildcards train on contexts of their kind.
        """
        weight = self.trains_on[batch.group].T.float()
        if self.worlds is not None:  # a member knows nothing of other kinds
            return weight, weight
        held_out = 1 - weight if self.config.bootstrap < 1 else torch.ones_like(weight)
        if self.config.wildcards:
            wildcard = torch.arange(self.config.wildcards, device=weight.device)
            weight[self.measured :] = (self.kinds[batch.group] == wildcard[:, None]).float()
        return weight, held_out
