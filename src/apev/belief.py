"""The belief: how well each of K explanations has fitted what this episode has shown so far.

A belief is a row of log-weights `[..., K]` on the simplex. One observed transition gives K TD errors, and the filter is
Bayes' rule with those errors as surprise (the paper's surrogate likelihood):

    log b'_k  =  log b_k  +  log p_k(transition)  -  log sum_j exp(...)

    likelihood="paper"       log p_k = -delta_k^2                              as printed: no unit, the reward scale decides
    likelihood="calibrated"  log p_k = -delta_k^2 / (2 sigma_k^2)              sigma_k measured on held-out transitions
    likelihood="gaussian"    log p_k = -delta_k^2 / (2 sigma_k^2) - log sigma_k
    likelihood="student"     log p_k = -2 log(1 + delta_k^2 / (3 sigma_k^2)) - log sigma_k

Everything stays in log space: Dirichlet(0.01) has entries far below float32's smallest number, and a member whose weight
becomes exactly zero could never return. Nothing here knows about networks, environments or data sets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

Likelihood = Literal["paper", "calibrated", "gaussian", "student"]

TAIL = 3.0  # degrees of freedom of Student's t: one error of ten scales is evidence, and not the end of a member

_TINY = 1e-6  # a member that never errs still gets a finite scale
_ROUNDS = 40  # of the search for the scale of Student's t, each of which halves its distance or so
_WORST = 1e12  # squared surprise beyond this is as impossible as it gets, and stays finite


def uniform(members: int, batch: int | tuple[int, ...] = (), device: torch.device | str = "cpu") -> Tensor:
    """The belief at the start of an episode, `[*batch, K]` log-weights: nothing seen, all explanations alike."""
    shape = (batch,) if isinstance(batch, int) else batch
    return torch.full((*shape, members), -math.log(members), device=device)


def one_hot(member: Tensor, members: int) -> Tensor:
    """Certainty in one explanation, e_k, for each entry of `member`: log-weights `[*member.shape, K]` with finite zeros."""
    hot = torch.nn.functional.one_hot(member, members).to(torch.float32)
    return torch.where(hot > 0, 0.0, math.log(1e-30))


def most_believed(belief: Tensor) -> Tensor:
    """[...] of weights or their logarithms [..., K]: the member with the largest, the last of equals."""
    return belief.shape[-1] - 1 - belief.flip(-1).argmax(-1)


def normalise(log_belief: Tensor) -> Tensor:
    """Put log-weights back on the simplex."""
    # The largest weight becomes 0 first: logsumexp of far-off numbers would round its last digits away.
    shifted = log_belief - log_belief.amax(-1, keepdim=True)
    return shifted - torch.logsumexp(shifted, dim=-1, keepdim=True)


def sample_dirichlet(
    concentration: float,
    batch: int,
    members: int,
    generator: torch.Generator | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Log-beliefs `[batch, K]` from the symmetric Dirichlet(c), finite however small its concentration c is.

    A Gamma(c) variate is Gamma(c + 1) * U^(1/c); its logarithm never underflows, where the variate itself is exactly 0 in a
    third of the draws at c = 0.01.
    """
    if concentration <= 0:
        raise ValueError(f"Dirichlet concentration must be positive, got {concentration}. Fix: use e.g. concentration=0.1.")
    shape = torch.full((batch, members), concentration + 1.0, device=device)
    gamma = torch._standard_gamma(shape, generator=generator)
    u = torch.rand(batch, members, generator=generator, device=device).clamp_min(torch.finfo(torch.float32).tiny)
    return normalise(gamma.log() + u.log() / concentration)


def draw_index(chances: Tensor, generator: torch.Generator) -> Tensor:
    """[B]: a column for each row of `[B, K]`, drawn with these probabilities.

    With exponential E_k, the largest p_k / E_k is that of k with probability p_k. torch.multinomial would check its input, and
    with that wait for a GPU.
    """
    return (chances / torch.empty_like(chances).exponential_(generator=generator)).argmax(-1)


@dataclass(frozen=True)
class BeliefFilter:
    """Bayes' rule over K members from their TD errors."""

    likelihood: Likelihood = "calibrated"  # which surrogate turns TD errors into surprise
    temperature: float = 1.0  # divides the log-likelihood: above 1 the agent makes up its mind more slowly
    forgetting: float = 0.0  # share of the log-belief lost at each step, so that old evidence fades
    floor: float = 0.0  # no member's weight falls below this: a refuted member can come back
    scale: Tensor | None = None  # [K] sigma_k of all likelihoods but the printed one; None counts as 1 for every member

    def __post_init__(self) -> None:
        if self.likelihood not in get_args(Likelihood):
            raise ValueError(f"likelihood must be one of {get_args(Likelihood)}, got {self.likelihood!r}.")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}.")
        if not 0 <= self.forgetting <= 1:
            raise ValueError(f"forgetting must lie in [0, 1], got {self.forgetting}.")
        if not 0 <= self.floor < 1:
            raise ValueError(f"floor must lie in [0, 1/K), got {self.floor}.")
        # On a GPU this look would wait for the device at every step; scales there come from calibrate(), which is safe.
        scale = None if torch.compiler.is_exporting() else self.scale  # while it is traced it has no numbers to look at
        if scale is not None and scale.device.type == "cpu" and not bool((scale > 0).all()):
            raise ValueError("every scale must be positive. Fix: measure it with calibrate().")

    def log_likelihood(self, td_errors: Tensor) -> Tensor:
        """How little each member is surprised: `[..., K]` from TD errors `[..., K]`."""
        if self.likelihood == "paper":
            surprise = td_errors.square()
        else:
            scaled = (td_errors if self.scale is None else td_errors / self.scale).square()
            surprise = (TAIL + 1) / 2 * torch.log1p(scaled / TAIL) if self.likelihood == "student" else scaled / 2
            if self.likelihood != "calibrated" and self.scale is not None:
                surprise = surprise + self.scale.log()  # members that are usually less wrong predicted more sharply
        return -(surprise / self.temperature).clamp(max=_WORST)

    @torch.no_grad()
    def update(self, log_belief: Tensor, td_errors: Tensor, mask: Tensor | None = None) -> Tensor:
        """One step of Bayes' rule; rows where `mask` is False keep their belief. Carries no gradient."""
        return self.weigh(log_belief, self.log_likelihood(td_errors), mask)

    @torch.no_grad()
    def weigh(self, log_belief: Tensor, evidence: Tensor, mask: Tensor | None = None) -> Tensor:
        """The same from log-likelihoods `[..., K]`, whatever they were computed from."""
        old = log_belief * (1 - self.forgetting) if self.forgetting else log_belief
        # The best member's surprise is a common factor; taking it out first keeps huge errors exact.
        new = self.apply_floor(normalise(old + (evidence - evidence.amax(-1, keepdim=True))))
        return new if mask is None else torch.where(mask.unsqueeze(-1), new, log_belief)

    def apply_floor(self, log_belief: Tensor) -> Tensor:
        """Lift every weight to at least `floor`, then share out what is left."""
        if not self.floor:
            return log_belief
        members = log_belief.shape[-1]
        if self.floor * members >= 1:
            raise ValueError(f"floor {self.floor} leaves nothing to share among {members} members. Fix: floor < 1/{members}.")
        return torch.log(self.floor + (1 - members * self.floor) * log_belief.exp())

    def squares(self, td_errors: Tensor) -> Tensor:
        """Squared TD errors as the scale counts them: sigma_k^2 is their mean. Student's t counts those in its tails less."""
        squared = td_errors.square()
        if self.likelihood != "student":
            return squared
        return (TAIL + 1) / (TAIL / squared + (1 if self.scale is None else 1 / self.scale.square()))

    def calibrate(self, td_errors: Tensor) -> BeliefFilter:
        """The same filter with the likeliest sigma_k for held-out TD errors `[n, K]` (NaN = not held out).

        That is their root mean square, and for Student's t the fixed point of `squares`. A filter that has no scale, the
        printed one, becomes the calibrated one.
        """
        if td_errors.ndim != 2 or not len(td_errors):
            raise ValueError(f"calibration needs TD errors [n, K] with n > 0, got shape {tuple(td_errors.shape)}.")
        mean = torch.nanmean(td_errors.double().square(), dim=0)
        mean = torch.where(mean.isnan(), mean.nanmean(), mean)
        if bool(mean.isnan().any()):
            raise ValueError("no held-out TD error is a number. Fix: hold out some transitions (bootstrap < 1).")
        likelihood: Likelihood = "calibrated" if self.likelihood == "paper" else self.likelihood
        found = replace(self, likelihood=likelihood, scale=mean.sqrt().clamp_min(_TINY))
        for _ in range(_ROUNDS if likelihood == "student" else 0):
            mean = torch.nanmean(found.squares(td_errors.double()), dim=0)
            mean = torch.where(mean.isnan(), mean.nanmean(), mean)
            found = replace(found, scale=mean.sqrt().clamp_min(_TINY))
        assert found.scale is not None
        return replace(found, scale=found.scale.float())


def entropy(log_belief: Tensor) -> Tensor:
    """How undecided a belief is, in nats: 0 for certainty, log K for the uniform belief."""
    return -(log_belief.exp() * log_belief.clamp_min(-1e30)).sum(-1)


def effective_members(log_belief: Tensor) -> Tensor:
    """How many members the belief still entertains: exp(entropy), between 1 and K."""
    return entropy(log_belief).exp()


def confidence(log_belief: Tensor) -> Tensor:
    """The weight of the member most believed in."""
    return log_belief.amax(-1).exp()
