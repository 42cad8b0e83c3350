"""Value functions of K members: action values, and distributions of the return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from apev.data.batch import Observations
from apev.nn.encoders import door_encoder, impala_encoder
from apev.nn.ensemble import EncoderEnsemble, EnsembleMLP, scale_pixels


class QEnsemble(nn.Module):
    """K action-value functions Q_k(s, b, a): an encoder for the picture, then two hidden layers of 256 (Appendix C).

    The last `blind` members see no picture: they have no encoder, and zeros stand where its features would. With
    `prior_scale` each member has a fixed random network added to it, so that members differ where no data says otherwise.

    APE-V's values depend on the belief. `belief="input"` makes it an input beside the features and the vector, as printed.
    `belief="anchored"` builds in what theory says about certainty, that trusting k alone the policy is k's own:

        Q_k(s, b, a) = Q_k(s, a) + (1 - b_k) C_k(s, b, a)

    with plain values Q_k(s, a) that learn from their own errors only, and a correction C_k beside them.

    With `cloning` each member has a head G_k(a | s) beside its values, that says what the log does. It learns nothing into
    the encoders.
    """

    __call__: Callable[..., Tensor]  # torch says Any

    def __init__(
        self,
        members: int,
        num_actions: int,
        vector_dim: int,
        picture_shape: tuple[int, int, int] | None = None,  # C, H, W
        *,
        blind: int = 0,
        belief: Literal["none", "input", "anchored"] = "none",
        hidden: tuple[int, ...] = (256, 256),
        features: int = 10,
        prior_scale: float = 0.0,
        cloning: bool = False,
    ) -> None:
        super().__init__()
        self.members, self.blind, self.belief, self.prior_scale = members, blind, belief, prior_scale
        self.features = features if picture_shape else 0
        self.encoder: EncoderEnsemble | None = None
        if picture_shape:
            self.encoder = EncoderEnsemble(members - blind, lambda: door_encoder(*picture_shape, features=features))
        inputs = self.features + vector_dim
        self.heads = EnsembleMLP(members, inputs + (members if belief == "input" else 0), hidden, num_actions)
        self.correction: EnsembleMLP | None = None
        if belief == "anchored":
            self.correction = EnsembleMLP(members, inputs + members, hidden, num_actions)
        self.prior: RandomPrior | None = None
        if prior_scale:
            self.prior = RandomPrior(members, num_actions, vector_dim, picture_shape, features)
        self.cloning = EnsembleMLP(members, inputs, hidden, num_actions) if cloning else None

    def encode(self, pictures: Tensor | None) -> Tensor | None:
        """pictures: [P, C, H, W] -> features [K, P, F]; None where observations have no picture."""
        if self.encoder is None or pictures is None:
            return None
        seen = self.encoder(pictures)
        if self.blind:
            seen = torch.cat([seen, seen.new_zeros(self.blind, *seen.shape[1:])])
        if self.prior is not None:
            random = self.prior.encode(pictures)
            if self.blind:  # a member that sees no picture does not see it through its prior either
                random[-self.blind :] = 0
            seen = torch.cat([seen, random], dim=-1)
        return seen

    def encode_rows(self, obs: Observations, shared: bool = False) -> Tensor | None:
        """Features [K, B, F] of the rows; shared: many rows show each picture, which is then encoded once."""
        if not shared:
            return self.encode(obs.of_rows())
        features = self.encode(obs.pictures)
        return None if features is None else features[:, obs.picture]

    def forward(self, features: Tensor | None, vector: Tensor, belief: Tensor) -> Tensor:
        """features: [K, B, F], vector: [B, D], belief: weights [B, K] (or [K, B, K]: a member's own) -> q: [K, B, A]."""
        if self.belief == "input":
            return self.plain(features, vector, belief)
        plain = self.plain(features, vector)
        return plain if self.correction is None else self.corrected(plain, features, vector, belief)

    def plain(self, features: Tensor | None, vector: Tensor, belief: Tensor | None = None) -> Tensor:
        """Q_k(s, a), whatever the belief: [K, B, A]; where the belief is an input, Q_k(s, b, a)."""
        seen = None if features is None else features[..., : self.features]
        q = self.heads(seen, vector, belief)
        if self.prior is None:
            return q
        random = None if features is None else features[..., self.features :]
        return q + self.prior_scale * self.prior(random, vector)

    def corrected(self, plain: Tensor, features: Tensor | None, vector: Tensor, belief: Tensor) -> Tensor:
        """Q_k(s, b, a) on top of plain values that were computed already; no gradient reaches these, nor the encoders."""
        assert self.correction is not None
        own = torch.diagonal(belief, dim1=0, dim2=2).T if belief.ndim == 3 else belief.T  # [K, B]
        seen = None if features is None else features[..., : self.features].detach()
        return plain.detach() + (1 - own).unsqueeze(-1) * self.correction(seen, vector, belief)

    def clone(self, features: Tensor | None, vector: Tensor, allowed: Tensor | None = None) -> Tensor | None:
        """log G_k(a | s), what the log does: [K, B, A]; None where nobody learns it.

        Given the actions that are `allowed` [B, A], it is how likely each of those is among them, -inf for others; where
        nobody learns it, all of them are alike: [1, B, A].
        """
        if self.cloning is None:
            return None if allowed is None else torch.zeros_like(allowed, dtype=vector.dtype).where(allowed, -torch.inf)[None]
        seen = None if features is None else features[..., : self.features].detach()
        logits = self.cloning(seen, vector)
        return (logits if allowed is None else logits.where(allowed, -torch.inf)).log_softmax(-1)


class RandomPrior(nn.Module):
    """A small fixed random network a member; it reads the picture through a fixed random projection of its 4x4 means."""

    __call__: Callable[..., Tensor]  # torch says Any

    def __init__(
        self,
        members: int,
        num_actions: int,
        vector_dim: int,
        picture_shape: tuple[int, int, int] | None,
        features: int,
    ) -> None:
        super().__init__()
        self.projection: nn.Parameter | None = None
        if picture_shape:
            pixels = picture_shape[0] * 16
            self.projection = nn.Parameter(torch.randn(members, pixels, features) / pixels**0.5)
        self.heads = EnsembleMLP(members, vector_dim + (features if picture_shape else 0), (64,), num_actions)
        self.requires_grad_(False)

    def encode(self, pictures: Tensor) -> Tensor:
        """pictures: [P, C, H, W] -> [K, P, F]."""
        assert self.projection is not None
        means = nn.functional.adaptive_avg_pool2d(scale_pixels(pictures), 4).flatten(1)
        means = (means - means.mean(1, keepdim=True)) / (means.std(1, keepdim=True) + 1e-3)
        return torch.einsum("pc,kcf->kpf", means, self.projection)

    def forward(self, features: Tensor | None, vector: Tensor) -> Tensor:
        """-> [K, B, A]."""
        return self.heads(features, vector)


class CategoricalEnsemble(nn.Module):
    """K distributions of the return, each a softmax over fixed atoms: an IMPALA encoder, then a linear readout (Appendix D).

    With `belief` the readout of APE-V reads it beside the features. `hidden` layers are none in the paper. Pictures are
    `enlarged` to so many pixels a side where that is given.
    """

    atoms: Tensor  # [N] the returns that probabilities are given for

    def __init__(
        self,
        members: int,
        num_actions: int,
        vector_dim: int,
        picture_shape: tuple[int, int, int] | None = None,  # C, H, W
        *,
        belief: bool = False,
        hidden: tuple[int, ...] = (),
        features: int = 256,
        pool: bool = False,
        enlarged: int | None = None,
        low: float = -31.0,
        high: float = 9.0,
        count: int = 81,
    ) -> None:
        super().__init__()
        self.members, self.num_actions, self.belief = members, num_actions, belief
        self.encoder: EncoderEnsemble | None = None
        if picture_shape:
            shape = picture_shape if enlarged is None else (picture_shape[0], enlarged, enlarged)
            self.encoder = EncoderEnsemble(members, lambda: impala_encoder(*shape, features=features, pool=pool))
        self.enlarged = enlarged
        inputs = (features if picture_shape else 0) + vector_dim + (members if belief else 0)
        self.readout = EnsembleMLP(members, inputs, hidden, num_actions * count)
        self.register_buffer("atoms", torch.linspace(low, high, count), persistent=False)

    def encode(self, pictures: Tensor | None) -> Tensor | None:
        """pictures: [P, C, H, W] -> features [K, P, F]; None where observations have no picture."""
        if self.encoder is None or pictures is None:
            return None
        if self.enlarged is not None:
            pictures = nn.functional.interpolate(pictures.float(), size=(self.enlarged, self.enlarged), mode="bilinear")
        return self.encoder(pictures)

    def logits(self, features: Tensor | None, vector: Tensor, belief: Tensor | None = None) -> Tensor:
        """features: [K, B, F], vector: [B, D], belief: weights [B, K] (or [K, B, K]: a member's own) -> [K, B, A, N]."""
        given = self.readout(features, vector, belief if self.belief else None)
        logits: Tensor = given.unflatten(-1, (self.num_actions, len(self.atoms)))
        return logits

    def forward(self, features: Tensor | None, vector: Tensor, belief: Tensor) -> Tensor:
        """Expected returns q: [K, B, A]."""
        return self.logits(features, vector, belief).softmax(-1) @ self.atoms
