"""APE-V on SAC-N (the paper, Section 6.3 and Appendix E): K members, each a minimum over another number of critics.

    n_1 < ... < n_K     from hardly pessimistic to very: which pessimism fits is what the belief finds out
    b        ~ Dirichlet(.01)
    b'       = BeliefUpdate(b, delta)                                                       delta_k: TD errors at b
    y_k      = r + gamma (1 - terminated) (Q-_k(s', b', a') - alpha log pi(a' | s', b'))    a' ~ pi(. | s', b')
    L_Q      = sum over k and j <= n_k of (Q_jk(s, b, a) - max(y_k, lowest return))^2       each member its own target
    L_pi     = alpha log pi(a | s, b) - sum_k b_k Q_k(s, b, a)                              a ~ pi(. | s, b)
    L_alpha  = -log alpha (log pi(a | s, b) + H)                                            H = -dim(A)
    pi       = sum_k b_k pi_k(. | s)                                                        K actors, mixed

Q_k is the minimum over member k's critics. log pi(a | s, b) is that of the actor that was drawn, which for a belief in one
member is the mixture's, and alpha is that actor's own, so that the entropy of each comes to H. This is the loss that runs by
default. The paper's, `APEVSACConfig.paper()`, is the same without the maximum in L_Q, and with exp(-delta^2) as likelihood.

Beliefs of Dirichlet(.01) lie in corners: critics learn about policies that trust one member alone, and hardly ever see the
undecided beliefs an episode begins with. `surprise="certain"` therefore measures member k, at deployment, where it was
trained: at b = e_k, with its own actor, which is the TD error of the SAC-n_k agent that member k is. `surprise="paper"`
measures all members at b. In training b' is measured at b either way, with the filter of deployment but no floor under
weights: a floor would lift beliefs out of their corners, and TD errors have tails heavy enough to carry them into another one
again and again. Values would then be those of a policy that keeps changing its mind.

Every member learns at every belief alike, as printed. At beliefs that trust a bold actor a careful member judges actions that
all its critics disagree about: the smallest of them sinks, its target with it, and so on without end; where members share
networks, what it says where it is trusted sinks along. No target is therefore lower than the lowest return in the log,
where what was cut off goes on as badly (`target_floor`). To have a member learn only where it is trusted before a step, or
before and after it, was tried: values run away, since nothing corrects what a member says where large errors have carried the
belief off.

Where members are kinds of the world, all take their minimum over N critics, and member k learns from rows of its kind alone
(`Batch.blocks`); b and b' are what the worlds' models make of the log's own steps.

Shared weights: N = max n_k networks with K heads each, member k is the minimum of head k over the first n_k. Separate
weights: each member its own n_k networks (what the paper did for half-cheetah). All else is `sac.py`, of which SAC-N is the
case K = 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from apev.agents.agent import BeliefConfig
from apev.agents.continuous.sac import SAC, SACConfig
from apev.belief import Likelihood, one_hot, sample_dirichlet
from apev.data.batch import Batch, Layout
from apev.data.dataset import Dataset

SCALE_RATE = 0.01  # how far a batch moves the running scale of errors
LEAST_TRUSTED = 1e-3  # what an error counts for a member's scale where hardly anybody trusts it


@dataclass(frozen=True)
class APEVSACConfig(BeliefConfig, SACConfig):
    """APE-V: K actors and members of different pessimism, and a belief over them."""

    RENAMED: ClassVar[dict[str, str | None]] = {"dirichlet": "concentration"}

    likelihood: Likelihood = "student"
    """How TD errors become surprise. Here they are heavy-tailed noise around members of different sharpness, which 'student'
    weighs; 'gaussian' lets the few largest decide, 'calibrated' would trust a member for being wrong as much as usual. 'paper'
    is exp(-error^2) as printed."""
    critics: int = 10
    """N: the largest number of value functions a member takes its minimum over."""
    fewest: int = 2
    """Over how many value functions the first member takes its minimum. As many as `critics` make all members alike."""
    members: int = 0
    """K: members with numbers of critics spread from the fewest to N; 0 takes every number, N - 1 members where that is 2."""
    shared: bool = True
    """Whether members share N networks with a head each; else each has networks of its own, which costs K / 2 times as much."""
    concentration: float = 0.01
    """Of the Dirichlet that beliefs are drawn from in training: the smaller, the nearer to certainty they are."""
    surprise: Literal["certain", "paper"] = "certain"
    """Where TD errors are measured at deployment: 'certain' each member's where it is trusted alone, 'paper' at the belief."""
    target_floor: bool = True
    """Whether targets are held above the lowest discounted return in the log: careful members, asked about bold actors, would
    sink without end."""
    eval_only: bool = False
    """Train every member as if nobody doubted it: beliefs are corners and stay there, a member learns in its own corner only,
    and adapting is left to evaluation. The filter's scales then come from held-out episodes alone."""

    @classmethod
    def paper(cls) -> Self:
        """APE-V on SAC-N as the paper prints it, with the numbers of its Appendix E."""
        return cls(surprise="paper", likelihood="paper", concentration=0.01, floor=0.0, target_floor=False)


class APEVSAC(SAC):
    """K SAC-n agents of different n, and the policy that mixes their actors by its belief."""

    config: APEVSACConfig
    takes_blocks = True

    def __init__(self, layout: Layout, config: APEVSACConfig, *, seed: int = 0) -> None:
        if config.surprise not in ("certain", "paper"):
            raise ValueError(f"surprise is {config.surprise!r}. Fix: 'certain' or 'paper'.")
        if not config.concentration > 0:
            raise ValueError(f"concentration is {config.concentration}. Fix: a positive number.")
        super().__init__(layout, config, seed=seed)
        self.filter.apply_floor(torch.zeros(self.members))  # refuses a floor that leaves nothing to share

    @classmethod
    def for_data(cls, dataset: Dataset, config: Any, *, seed: int = 0) -> Self:
        """An untrained agent for this log, whose returns say how low targets may be."""
        agent = super().for_data(dataset, config, seed=seed)
        if config.target_floor:
            agent.lowest.fill_(dataset.lowest_return(config.gamma))
        return agent

    @property
    def shared(self) -> bool:
        """Whether members share networks, each with a head a member; else each has networks of its own."""
        return self.config.shared

    @staticmethod
    def sizes(config: SACConfig) -> tuple[int, ...]:
        """n_k for each member, from the fewest to N."""
        assert isinstance(config, APEVSACConfig)
        first, last = config.fewest, config.critics
        K = config.members or last - first + 1
        if K < 2 or not (last - first + 1 >= K or 1 <= first == last):
            raise ValueError(
                f"critics is {last}, fewest {first} and members {config.members}. "
                "Fix: at least 2 members, each with another number of critics (0: all of them), or fewest = critics."
            )
        return tuple(round(first + (last - first) * k / (K - 1)) for k in range(K))

    def draw_belief(self, rows: int) -> Tensor:
        """p(b): log-beliefs [B, K]."""
        drawn = sample_dirichlet(self.config.concentration, rows, self.members, self.generator, self.scale.device)
        return one_hot(drawn.argmax(-1), self.members) if self.config.eval_only else drawn

    @torch.no_grad()
    def td_errors(
        self, step: Batch, log_belief: Tensor, features: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """[B, K]: each member's where it is trusted alone, or all at the current belief."""
        if self.config.surprise == "paper":
            return super().td_errors(step, log_belief, features, generator)
        K, B = self.members, step.action.shape[0]
        member = torch.arange(K, device=self.device)[:, None].expand(K, B).flatten()  # the batch once for every member
        corner = one_hot(member, K).exp()
        obs, action = step.obs.vector.repeat(K, 1), self.to_unit(step.action).repeat(K, 1)
        next_obs = step.next_obs.vector.repeat(K, 1)
        drawn = self.sample(next_obs, member=member, generator=generator, actors=self.deployed_actors)
        next_action, log_prob, log_alpha = drawn

        def own(obs: Tensor, action: Tensor) -> Tensor:
            q = self.reduce(self.values(self.critics, obs, action, corner)).view(K, K, B)
            return q.diagonal().T  # [K, B]: member k at e_k

        next_q = own(next_obs, next_action) - (log_alpha.exp() * log_prob).view(K, B)
        return (own(obs, action) - (step.reward + self.config.gamma * (1 - step.terminated) * next_q)).T

    def critic_loss(self, batch: Batch, log_belief: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Squared TD errors with the next value at the new belief, summed over members and their critics."""
        assert log_belief is not None
        belief = new_belief = self.weights(log_belief)
        assert belief is not None
        q = self.values(self.critics, batch.obs.vector, self.to_unit(batch.action), belief)  # Q_jk(s, b, a): [K, N, B]
        counts = self.counts[:, :, None]  # [K, N, 1]: each member's own critics
        with torch.no_grad():
            if batch.blocks:
                counts = counts * self.own_rows(batch)[:, None]  # a member learns from contexts of its kind alone
            if batch.next_log_belief is not None:
                new_belief = self.weights(batch.next_log_belief)
            elif self.config.eval_only:
                counts = counts * belief.T[:, None]  # a member learns in its own corner alone, where it stays
            else:
                errors = (self.reduce(q) - self.backup(self.target, batch, belief)).T  # delta_k: [B, K]
                self.track_scale(self.filter.squares(errors), belief.clamp_min(LEAST_TRUSTED), SCALE_RATE)
                new_belief = self.weights(self.new_belief(log_belief, errors))
            target_q = self.backup(self.target, batch, new_belief).clamp(self.lowest, self.highest)  # y_k: [K, B]
        loss = ((q - target_q[:, None]).square() * counts).sum((0, 1)).mean() * (self.members if batch.blocks else 1)
        return loss, {"critic_loss": loss.detach() / sum(self.n)}

    def own_rows(self, batch: Batch) -> Tensor:
        """[K, B]: 1 where a row is of the member's own block."""
        block = torch.arange(len(batch.action), device=self.device) // (len(batch.action) // self.members)
        return (block == torch.arange(self.members, device=self.device)[:, None]).float()

    def new_belief(self, log_belief: Tensor, errors: Tensor) -> Tensor:
        """b' [B, K], log-weights, after TD errors [B, K] at b; no floor, which would lift beliefs out of their corners."""
        filter = replace(self.filter, floor=0.0)
        return filter.weigh(log_belief, filter.log_likelihood(errors))
