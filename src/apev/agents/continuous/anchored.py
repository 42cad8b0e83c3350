"""APE-V on SAC-N with anchored values: member k trusted alone *is* the SAC-n_k agent, whatever training for adaptation does.

Plain parts learn as if nobody doubted them, each with networks of its own, from every row:

    y_k      = r + gamma (1 - terminated) (Q-_k(s', a_k') - alpha_k log pi_k(a_k' | s'))     a_k' ~ pi_k(. | s')
    delta_k  = Q_k(s, a) - y_k                                                               Q_k: minimum over n_k critics
    L_Q      = sum over k and j <= n_k of (Q_kj(s, a) - y_k)^2
    L_pi     = sum_k alpha_k log pi_k(a_k | s) - Q_k(s, a_k)                                 a_k ~ pi_k(. | s)
    L_alpha  = -sum_k log alpha_k (log pi_k(a_k | s) + H)                                    H = -dim(A)

What adapting changes stands beside them, and vanishes where the belief is sure, at b_k = 1:

    Q_k(s, b, a)   = Q_k(s, a) + (1 - b_k) C_k(s, b, a)
    pi_k(. | s, b) = pi_k(. | s), its mean before tanh moved by (1 - b_k) D_k(s, b)
    b        ~ Dirichlet(1)
    b'       = BeliefUpdate(b, delta)                                                        as at deployment, without a floor
    y_k(b)   = r + gamma (1 - terminated) (Q-_k(s', b', a') - alpha_m log pi_m(a' | s', b'))   m ~ b', a' ~ pi_m(. | s', b')
    L_C      = sum_k (Q_k(s, b, a) - y_k(b))^2                                               trains C alone
    L_D      = alpha_m log pi_m(a | s, b) - sum_k b_k Q_k(s, b, a)                           m ~ b, a ~ pi_m(. | s, b);
                                                                                             trains D alone

With `near_log` L_pi and L_D have its term, each member's with the mean size of its own values.

Targets are held at or above the lowest return in the log (`target_floor`), or within bounds (`target_bounds`). C and D start at
nothing, and the plain part does not notice them: what they draw is taken back from the generator. So `eval_only`, which leaves
them out, trains the same members bit for bit, and D is all that training for adaptation adds to what is deployed.

In `apev.py` the values of one network know of the belief, and the targets at e_k of a belief that may leave it: no member is
exactly the agent it stands for. Here beliefs need not lie in corners, since corners do not depend on them.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from apev.agents.continuous.apev import APEVSAC, SCALE_RATE, APEVSACConfig
from apev.agents.continuous.base import parameters
from apev.agents.continuous.sac import Actors, Drawn, squash
from apev.data.batch import Batch, Layout
from apev.nn import kernels
from apev.nn.ensemble import EnsembleMLP, NormedMLP


@dataclass(frozen=True)
class AnchoredSACConfig(APEVSACConfig):
    """APE-V on SAC-n agents that training for adaptation cannot change."""

    shared: bool = False
    """Members never share networks here: each is an agent of its own."""
    concentration: float = 1.0
    """Of the Dirichlet that beliefs are drawn from in training: 1 is every belief alike."""


class AnchoredActors(Actors):
    """K actors whose actions move where the belief doubts them."""

    def __init__(self, members: int, inputs: int, hidden: tuple[int, ...], actions: int) -> None:
        super().__init__(members, inputs, hidden, actions)
        self.shifts = EnsembleMLP(members, inputs + members, hidden, actions)
        nothing_at_first(self.shifts)

    def forward(self, obs: Tensor, member: Tensor | None = None, belief: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and deviation before tanh, [B, A], of the actor that each row asks; one that is moved learns nothing itself."""
        mean, std = super().forward(obs, member)
        if member is None or belief is None:
            return mean, std
        doubt = 1 - belief.gather(1, member[:, None])  # [B, 1]
        return mean.detach() + doubt * kernels.ask_one(self.shifts, torch.cat([obs, belief], -1), member), std.detach()

    def all(self, obs: Tensor, belief: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The same of every actor, [K, B, A]."""
        mean, std = super().all(obs)
        if belief is None:
            return mean, std
        return mean.detach() + (1 - belief.T[..., None]) * self.shifts(obs, belief), std.detach()


class AnchoredAPEVSAC(APEVSAC):
    """K SAC-n agents, and how values and actions differ where the belief is not sure of one of them."""

    config: AnchoredSACConfig
    takes_blocks = False
    actor_type: ClassVar[type[Actors]] = AnchoredActors
    owner: Tensor  # [sum n_k] whose critic each network is
    targets = {"target": "critics", "correction_target": "correction"}  # noqa: RUF012

    def __init__(self, layout: Layout, config: AnchoredSACConfig, *, seed: int = 0) -> None:
        if config.shared or config.surprise != "certain":
            raise ValueError(
                f"shared is {config.shared} and surprise {config.surprise!r}. Fix: anchored members have networks of their own "
                "and are measured under certainty; --base sac-n can do otherwise."
            )
        super().__init__(layout, config, seed=seed)

    @property
    def critics_see(self) -> int:
        """Plain critics know of no belief."""
        return 0

    def build(self) -> None:
        """The plain agents, then what corrects their values."""
        super().build()
        K, inputs = self.members, self.layout.vector_dim + self.layout.action_dim + self.members
        networks = NormedMLP if self.config.layer_norm else EnsembleMLP
        self.correction = networks(K, inputs, self.config.hidden, 1)
        nothing_at_first(self.correction)
        self.correction_target = deepcopy(self.correction).requires_grad_(False)
        owner = torch.arange(K).repeat_interleave(torch.tensor(self.n), output_size=sum(self.n))
        self.register_buffer("owner", owner, persistent=False)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Adam over everything: what one parameter does is nothing to another."""
        trained = [*parameters(self.actors, self.critics, self.correction), self.log_alpha]
        return torch.optim.Adam(trained, lr=self.config.lr, fused=True)

    # ------------------------------------------------------------------ values and policy

    def own_actions(self, actors: Actors, obs: Tensor, generator: torch.Generator | None = None) -> Drawn:
        """An action of every actor in every state, as if it were trusted alone: [K, B, A], [K, B]."""
        mean, std = actors.all(obs)
        return Drawn(*squash(mean, std, self.noise(mean, generator)), self.log_alpha[:, None])

    def own_values(self, net: EnsembleMLP, obs: Tensor, action: Tensor) -> Tensor:
        """Q_k(s, a_k) [K, B] of every member's own actions [K, B, A]; no gradient by the weights."""
        x = torch.cat([obs.expand(self.members, *obs.shape), action], -1)
        return torch.stack([q.amin(0) for q in net(x[self.owner], frozen=True)[..., 0].split(self.n)])

    def own_target(self, net: EnsembleMLP, actors: Actors, step: Batch, generator: torch.Generator | None) -> Tensor:
        """y_k [K, B]: what each member expects of itself."""
        obs = step.next_obs.vector
        drawn = self.own_actions(actors, obs, generator)
        next_q = self.own_values(net, obs, drawn.action) - drawn.log_alpha.exp() * drawn.log_prob
        return step.reward + self.config.gamma * (1 - step.terminated) * next_q

    def doubts(self, net: EnsembleMLP, obs: Tensor, action: Tensor, belief: Tensor, frozen: bool = False) -> Tensor:
        """(1 - b_k) C_k(s, b, a): [K, B]."""
        return (1 - belief.T) * net(obs, action, belief, frozen=frozen)[..., 0]

    @torch.no_grad()
    def td_errors(
        self, step: Batch, log_belief: Tensor, features: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """[B, K]: those of the plain agents, whatever the belief."""
        q = self.reduce(self.values(self.critics, step.obs.vector, self.to_unit(step.action)))
        return (q - self.own_target(self.critics, self.deployed_actors, step, generator)).T

    # ------------------------------------------------------------------ learning

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step for the plain agents, and for what adapting changes."""
        self.check_batch(batch)
        loss, errors, q, metrics = self.plain_loss(batch)
        if not self.config.eval_only:
            state = self.generator.get_state()
            more, told = self.doubt_loss(batch, errors, q)
            self.generator.set_state(state)  # the plain agents draw as if nothing had been drawn here
            loss, metrics = loss + more, metrics | told
        self.descend(loss)
        return metrics

    def plain_loss(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """L_Q + L_pi + L_alpha of K agents; their errors [B, K] and values [K, B]; and what is logged."""
        obs = batch.obs.vector
        every = self.values(self.critics, obs, self.to_unit(batch.action))  # Q_kj(s, a): [K, N, B]
        with torch.no_grad():
            target_q = self.own_target(self.target, self.actors, batch, None).clamp(self.lowest, self.highest)
            q = self.reduce(every)
            errors = (q - target_q).T  # delta_k
            self.track_scale(self.filter.squares(errors), torch.ones_like(errors), SCALE_RATE)
        critic_loss = ((every - target_q[:, None]).square() * self.counts[:, :, None]).sum((0, 1)).mean()
        drawn = self.own_actions(self.actors, obs)
        value = self.own_values(self.critics, obs, drawn.action)
        actor_losses = (drawn.log_alpha.detach().exp() * drawn.log_prob - value).mean(1)  # [K]
        if self.config.near_log:
            actor_losses = torch.stack([self.near(*own, batch) for own in zip(actor_losses, value, drawn.action, strict=True)])
        alpha_loss = -(drawn.log_alpha * (drawn.log_prob.detach() - self.layout.action_dim)).sum(0).mean()
        by_member = value.detach().mean(1)
        metrics = {
            "critic_loss": critic_loss.detach() / sum(self.n),
            "value": by_member.mean(),
            "value_boldest": by_member[0],
            "value_most_careful": by_member[-1],
            "entropy": -drawn.log_prob.detach().mean(),
            "alpha": drawn.log_alpha.detach().exp().mean(),
        }
        return critic_loss + actor_losses.sum() + alpha_loss, errors, q, metrics

    def doubt_loss(self, batch: Batch, errors: Tensor, q: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """L_C + L_D at beliefs drawn for this step, from the plain errors [B, K] and values [K, B]; and what is logged."""
        obs, next_obs = batch.obs.vector, batch.next_obs.vector
        log_belief = self.draw_belief(len(obs))
        belief, new_belief = self.weights(log_belief), self.weights(self.new_belief(log_belief, errors))
        assert belief is not None
        assert new_belief is not None
        with torch.no_grad():
            drawn = self.sample(next_obs, new_belief)
            next_q = self.reduce(self.values(self.target, next_obs, drawn.action))
            next_q = next_q + self.doubts(self.correction_target, next_obs, drawn.action, new_belief)
            next_q = next_q - drawn.log_alpha.exp() * drawn.log_prob
            target_q = batch.reward + self.config.gamma * (1 - batch.terminated) * next_q
            target_q = target_q.clamp(self.lowest, self.highest)  # y_k(b)
        correction = self.doubts(self.correction, obs, self.to_unit(batch.action), belief)
        correction_loss = (q + correction - target_q).square().sum(0).mean()
        drawn = self.sample(obs, belief)
        value = self.policy_value(obs, drawn.action, belief)
        shift_loss = (drawn.log_alpha.detach().exp() * drawn.log_prob - value).mean()
        if self.config.near_log:
            shift_loss = self.near(shift_loss, value, drawn.action, batch)
        told = {"correction": correction.detach().abs().mean(), "value_in_doubt": value.detach().mean()}
        return correction_loss + shift_loss, told

    def policy_value(self, obs: Tensor, action: Tensor, belief: Tensor | None) -> Tensor:
        """[B]: sum_k b_k Q_k(s, b, a), differentiable by the action only."""
        assert belief is not None
        every = self.critics(obs, action, frozen=True)[..., 0]
        plain = torch.stack([q.amin(0) for q in every.split(self.n)])  # [K, B]
        return (belief.T * (plain + self.doubts(self.correction, obs, action, belief, frozen=True))).sum(0)


def nothing_at_first(net: EnsembleMLP) -> None:
    """Let a network's output be 0 before it has learned."""
    with torch.no_grad():
        for p in net.layers[-1].parameters():
            p.zero_()
