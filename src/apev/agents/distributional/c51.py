"""C51 (Bellemare et al., 2017): deep Q-learning of whole return distributions, with K independent members.

    Z_k(s, a)  on atoms -31, -30.5, ..., 9                      a softmax a member, state and action
    y_k        = project(r + gamma Z-_k(s', argmax_a' E Z-_k(s', a')))
    L          = sum_k w_k  - sum_i y_k,i log p_k,i(s, a)       cross-entropy

It differs from `DQN` in the networks and the loss; the policy and the belief only see expected values. `C51LCB` is the paper's
conservative ensemble on top of it. Where a batch holds whole contexts (`PrioritisedSampler`), each picture is encoded once for
all the transitions that show it, and `backup_depth` looks further ahead than one step (see `backups.py`).

What helps to learn and to generalise, and is off in the paper's setting: `pool` and `ranking` find out which way to go long
before values are right; `augment` shows every context under a random symmetry; `views` lets a trained network look at a
picture under several symmetries, each a member of its own. Views cost no training and disagree where the network is unsure:
hypotheses for the belief to tell apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from apev import belief as beliefs
from apev.agents.discrete.dqn import DQN, DQNConfig, take
from apev.agents.distributional import symmetries
from apev.agents.distributional.backups import Graph, plan, project
from apev.belief import BeliefFilter
from apev.data.batch import Batch, Observations
from apev.nn.qnets import CategoricalEnsemble

LEAST_LIKELY = 1e-4  # no single step refutes a member further than this
SHARP = 0.5  # steps: by how many one action must be better than another to be e times as probable, where they are ranked
MISSING = 1e4  # worth of actions that a batch does not have, below all others


@dataclass(frozen=True)
class C51Config(DQNConfig):
    """C51 with the networks and numbers of the paper's Appendix D."""

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
    surprise: Literal["error", "categorical"] = "error"
    """What moves the belief: 'error' the TD error of expected returns, 'categorical' the likelihood of the observed return
    under a member's distribution."""
    softness: float = 0.05
    """Where actions are drawn instead of greedy: temperature of the softmax over values."""


class C51(DQN):
    """K return distributions trained side by side."""

    config: C51Config
    net: CategoricalEnsemble  # type: ignore[assignment]
    target: CategoricalEnsemble  # type: ignore[assignment]

    def check(self, config: DQNConfig) -> None:
        """Settings that could only fail later."""
        assert isinstance(config, C51Config)
        if config.prior_scale:
            raise ValueError("C51 has no randomised priors. Fix: prior_scale=0.")
        if config.backup_depth < 0:
            raise ValueError(f"backup_depth is {config.backup_depth}. Fix: 1 is the paper, 0 as far as the log goes.")
        if config.enlarged is not None and config.enlarged < 8:
            raise ValueError(f"enlarged is {config.enlarged}. Fix: at least 8 pixels a side.")
        if config.ranking < 0:
            raise ValueError(f"ranking is {config.ranking}. Fix: 0 or more.")
        if not 1 <= config.views <= symmetries.COUNT:
            raise ValueError(f"views is {config.views}. Fix: 1 to {symmetries.COUNT}.")
        if config.surprise not in ("error", "categorical"):
            raise ValueError(f"surprise is {config.surprise!r}. Fix: 'error' or 'categorical'.")
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
    def count_members(config: DQNConfig) -> int:
        """Every view of every network."""
        assert isinstance(config, C51Config)
        return config.members * config.views

    @property
    def measured(self) -> int:
        """All of them."""
        return self.members

    @property
    def filter(self) -> BeliefFilter:
        """As configured; a categorical likelihood has its own scale."""
        usual = super().filter
        return usual if self.config.surprise == "error" else replace(usual, scale=None)

    def build(self, **more: Any) -> CategoricalEnsemble:  # type: ignore[override]
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

    # ------------------------------------------------------------------ values: member v * K + k is network k's view v

    def encode(self, pictures: Tensor | None) -> Tensor | None:
        """Features [K * views, P, F] of pictures [P, C, H, W]."""
        if pictures is None:
            return None
        with torch.no_grad():
            seen = [self.net.encode(symmetries.transform(pictures, view)) for view in range(self.config.views)]
            return torch.cat([part for part in seen if part is not None])

    def logits(self, features: Tensor | None, obs: Observations, belief: Tensor | None) -> Tensor:
        """[K * views, B, A, N], with the actions of every view as they are in the picture itself."""
        shown = None if features is None else features[:, obs.picture]
        if self.config.views == 1:
            return self.net.logits(shown, obs.vector, belief)
        assert shown is not None
        parts = []
        for view, part in enumerate(shown.split(self.config.members)):
            action = symmetries.ACTION_AFTER[view].to(part.device)
            parts.append(self.net.logits(part, obs.vector, belief)[:, :, action])
        return torch.cat(parts)

    def values(self, features: Tensor | None, obs: Observations, belief: Tensor) -> Tensor:
        """q: [K * views, B, A]."""
        return self.logits(features, obs, belief).softmax(-1) @ self.net.atoms

    def backup(self, step: Batch, follow: Tensor) -> Tensor:
        """Shifted reward + gamma V(s'): [K, B]."""
        return step.reward + self.config.reward_shift + self.config.gamma * (1 - step.terminated) * follow

    @torch.no_grad()
    def td_errors(self, step: Batch, log_belief: Tensor, features: Tensor | None = None) -> Tensor:
        """[B, K]: each member's TD error; or, categorical, what its square stands for: twice the negative log-likelihood."""
        features = self.encode(step.obs.pictures) if features is None else features
        belief = log_belief.exp()
        now = take_logits(self.logits(features, step.obs, belief), step.action).softmax(-1)  # [K, B, N]
        after = self.logits(features, step.next_obs, belief).softmax(-1)  # [K, B, A, N]
        follow = self.chosen(after @ self.net.atoms, belief)
        return self.surprise_of(step, now, take_logits(after, follow))

    @torch.no_grad()
    def calibrate(self, steps: Iterable[Batch]) -> None:
        """Measure the filter's scale on steps that the policy itself would take: a log of every step has mostly others."""
        errors, own = [], []
        for step in steps:
            features = self.encode(step.obs.pictures)
            flat = beliefs.uniform(self.members, len(step.action), self.device)
            errors.append(self.td_errors(step, flat, features))
            own.append(self.act(step.obs, flat, features=features) == step.action)
        found, taken = torch.cat(errors), torch.cat(own)
        scale = self.filter.calibrate(found[taken] if bool(taken.any()) else found).scale
        if scale is not None:
            self.scale.copy_(scale)

    def chosen(self, q: Tensor, belief: Tensor) -> Tensor:
        """The action each member expects to follow, [K, B] or [B]: its own best."""
        return q.argmax(-1)

    def surprise_of(self, step: Batch, now: Tensor, after: Tensor) -> Tensor:
        """[B, K] from the distributions [K, B, N] of the step and of what follows."""
        if self.config.surprise == "error":
            return (now @ self.net.atoms - self.backup(step, after @ self.net.atoms)).T
        seen = project(after, *self.one_step(step, after), self.net.atoms)
        return (-2 * (now * seen).sum(-1).clamp_min(LEAST_LIKELY).log()).sqrt().T

    def one_step(self, step: Batch, like: Tensor) -> tuple[Tensor, Tensor]:
        """Gain and fade of a single step, [K, B]."""
        fade = self.config.gamma * (1 - step.terminated)
        return tuple(x.expand(like.shape[:-1]) for x in (step.reward + self.config.reward_shift, fade))  # type: ignore[return-value]

    # ------------------------------------------------------------------ learning

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step for all networks."""
        self.check_batch(batch)
        batch = self.augmented(batch) if self.config.augment else batch
        features = self.net.encode(batch.obs.pictures)
        known = self.target_features(batch, features)
        if features is not None and not self.layout.vector_dim:  # rows with one picture share their logits too
            table = self.table(self.net, features)  # [K, P, A, N]
            logits = table[:, batch.obs.picture, batch.action]  # [K, B, N]
            with torch.no_grad():
                shared = table.detach() if self.config.target_rate == 1 else self.table(self.target, known)
                target = self.targets(batch, shared.softmax(-1))
        else:
            logits = take_logits(self.net.logits(pick(features, batch.obs), batch.obs.vector), batch.action)
            with torch.no_grad():
                ahead = self.target.logits(pick(known, batch.next_obs), batch.next_obs.vector).softmax(-1)  # [K, B, A, N]
                target = self.one_step_target(batch, take_logits(ahead, self.followed_action(ahead @ self.net.atoms)))
        return self.learn(batch, logits, target, self.trains_on[batch.group, : self.config.members].T)

    def table(self, net: CategoricalEnsemble, features: Tensor | None) -> Tensor:
        """Logits of every picture of a batch and every action: [K, P, A, N]."""
        assert features is not None
        return net.logits(features, features.new_zeros(features.shape[1], 0))

    def target_features(self, batch: Batch, features: Tensor | None) -> Tensor | None:
        """[K, P, F] that targets are computed from: shared with the networks, or the slow copy's."""
        if self.config.target_rate < 1:
            with torch.no_grad():
                return self.target.encode(batch.obs.pictures)
        return None if features is None else features.detach()

    def targets(self, batch: Batch, table: Tensor) -> Tensor:
        """y: [K, B, N] from the distributions [K, P, A, N] of the batch's pictures."""
        if self.config.backup_depth == 0:
            return self.known_target(batch)
        q = table @ self.net.atoms
        follow = self.followed_action(q)  # [K, P], or [P] where all follow one policy
        if self.config.backup_depth == 1:
            ahead = take_logits(table, follow)  # [K, P, N]
            return self.one_step_target(batch, ahead[:, batch.next_obs.picture])
        graph = Graph.of(batch, q.shape[-1], self.config.gamma, self.config.reward_shift)
        ways = plan(graph, self.worth(q, follow), self.config.backup_depth)
        return deep_targets(batch, graph, table, follow, ways, self.net.atoms)

    def known_target(self, batch: Batch) -> Tensor:
        """y: [K, B, N] where the log itself says the return."""
        if batch.returns is None:
            raise ValueError(
                "backup_depth=0 needs a sampler with `returns=logged_returns(...)`. Fix: pass it, or a depth >= 1."
            )
        certain = torch.zeros(len(batch.returns), self.config.atoms, device=self.device)
        certain[:, 0] = 1
        known = project(certain, batch.returns, torch.zeros_like(batch.returns), self.net.atoms)
        return known.expand(self.config.members, -1, -1)

    def one_step_target(self, batch: Batch, after: Tensor) -> Tensor:
        """y: [K, B, N] from the distributions after the step."""
        return project(after, *self.one_step(batch, after), self.net.atoms)

    def followed_action(self, q: Tensor) -> Tensor:
        """The action of the policy that members learn the value of, from q [K, P, A]: each its own."""
        return q.argmax(-1)

    def worth(self, q: Tensor, follow: Tensor) -> Tensor:
        """What that policy maximises, [M, P] for M policies."""
        return take(q, follow)

    def learn(self, batch: Batch, logits: Tensor, target: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """Descend the cross-entropy of targets [K, B, N]; weight: [K, B] who trains on which row."""
        loss = -(target * logits.log_softmax(-1)).sum(-1)  # [K, B]
        if batch.learned is not None:
            batch.learned(loss.detach().mean(0))
        importance = weight.float() if batch.weight is None else weight * batch.weight
        q, y = logits.softmax(-1) @ self.net.atoms, target @ self.net.atoms  # [K, B]
        if not self.config.ranking:
            self.descend(loss, importance)
            ranking = {}
        else:
            order = self.ranking_loss(batch, q, y)
            self.descend(loss + self.config.ranking * order, importance)
            ranking = {"ranking_loss": order.detach().mean()}
        with torch.no_grad():
            return ranking | {"loss": loss.mean(), "error": (q - y).abs().mean(), "value": y.mean()}

    def ranking_loss(self, batch: Batch, q: Tensor, y: Tensor) -> Tensor:
        """[K, B]: for each row that of its state, the divergence of the actions' softmax by q from that by the targets.

        Only actions that the batch has count. Returns that the log proves are compared as they are, below the lowest atom too.
        """
        assert batch.obs.pictures is not None
        state = batch.obs.picture
        shape = len(q), len(batch.obs.pictures), self.layout.num_actions  # [K, P, A]
        cell = torch.arange(len(q), device=q.device)[:, None], state, batch.action
        worth = y if batch.returns is None else batch.returns.expand_as(y)
        missing = q.new_full(shape, -MISSING)
        wanted = missing.index_put(cell, worth / SHARP).log_softmax(-1)
        found = missing.index_put(cell, q / SHARP).log_softmax(-1)
        return (wanted.exp() * (wanted - found)).sum(-1)[:, state]

    def augmented(self, batch: Batch) -> Batch:
        """Every context under a symmetry of its own."""
        assert batch.obs.pictures is not None
        assert batch.obs.picture is not None
        drawn = torch.randint(symmetries.COUNT, (len(self.trains_on),), generator=self.generator, device=self.device)
        of_row = drawn[batch.group]
        of_picture = torch.zeros(len(batch.obs.pictures), dtype=torch.int64, device=self.device)
        of_picture[batch.obs.picture] = of_row
        if batch.next_obs.picture is not None:
            of_picture[batch.next_obs.picture] = of_row
        pictures = symmetries.transform_each(batch.obs.pictures, of_picture)
        action = symmetries.ACTION_AFTER.to(self.device)[of_row, batch.action]
        obs, after = replace(batch.obs, pictures=pictures), replace(batch.next_obs, pictures=pictures)
        return replace(batch, obs=obs, next_obs=after, action=action)


def deep_targets(batch: Batch, graph: Graph, table: Tensor, follow: Tensor, ahead: Any, atoms: Tensor) -> Tensor:
    """y [K, B, N]: the logged step, then the plan [M, P], then the distribution [K, P, A, N] of the action followed there."""
    members = len(table)
    now, then = (batch.obs.picture, batch.action), batch.next_obs.picture
    gain = graph.reward[now] + graph.fade[now] * ahead.gain[:, then]  # [M, B]
    fade = graph.fade[now] * ahead.fade[:, then]
    source = ahead.source[:, then].expand(members, -1)  # [K, B]
    action = follow.expand(members, -1).gather(1, source)  # [K, B]
    following = table[torch.arange(members, device=table.device)[:, None], source, action]  # [K, B, N]
    return project(following, gain.expand(members, -1), fade.expand(members, -1), atoms)


def pick(features: Tensor | None, obs: Observations) -> Tensor | None:
    """Features [K, B, F] of rows from those of their pictures."""
    return None if features is None else features[:, obs.picture]


def take_logits(logits: Tensor, action: Tensor) -> Tensor:
    """[K, B, A, N] at actions [B] (or [K, B]) -> [K, B, N]."""
    index = action.expand(logits.shape[0], -1)[..., None, None].expand(-1, -1, 1, logits.shape[-1])
    return logits.gather(2, index).squeeze(2)
