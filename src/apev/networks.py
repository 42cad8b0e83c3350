"""The paper's networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from apev.ensemble import EncoderEnsemble, EnsembleMLP, scale_pixels


def door_encoder(channels: int = 3, height: int = 32, width: int = 32, features: int = 10) -> nn.Module:
    """Appendix C: three 3x3 convolutions of 32 channels, each with ReLU and average pooling, then a dense layer of 10."""
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(inplace=True)]
        if min(height, width) >= 2:  # pictures smaller than 8x8 run out of pixels to pool
            layers.append(nn.AvgPool2d(2))
            height, width = height // 2, width // 2
        channels = 32
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * height * width, features))


class QEnsemble(nn.Module):
    """K action-value functions Q_k(s, b, a): an encoder for the picture, then two hidden layers of 256 (Appendix C).

    The last `blind` members see no picture: they have no encoder, and zeros stand where its features would. With
    `conditioned` the belief is an input beside the features and the vector, as APE-V needs. With `prior_scale` each member
    has a fixed random network added to it, so that members differ where no data says otherwise.
    """

    def __init__(
        self,
        members: int,
        num_actions: int,
        vector_dim: int,
        picture_shape: tuple[int, int, int] | None = None,  # C, H, W
        *,
        blind: int = 0,
        conditioned: bool = False,
        hidden: tuple[int, ...] = (256, 256),
        features: int = 10,
        prior_scale: float = 0.0,
    ) -> None:
        super().__init__()
        self.members, self.blind, self.conditioned, self.prior_scale = members, blind, conditioned, prior_scale
        self.features = features if picture_shape else 0
        self.encoder: EncoderEnsemble | None = None
        if picture_shape:
            self.encoder = EncoderEnsemble(members - blind, lambda: door_encoder(*picture_shape, features=features))
        inputs = self.features + vector_dim + (members if conditioned else 0)
        self.heads = EnsembleMLP(members, inputs, hidden, num_actions)
        self.prior: RandomPrior | None = None
        if prior_scale:
            self.prior = RandomPrior(members, num_actions, vector_dim, picture_shape, features)

    def trained(self) -> list[Tensor]:
        """The parameters that learn; a random prior's are fixed."""
        return [p for name, p in self.named_parameters() if not name.startswith("prior.")]

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

    def forward(self, features: Tensor | None, vector: Tensor, belief: Tensor) -> Tensor:
        """features: [K, B, F], vector: [B, D], belief: weights [B, K] (or [K, B, K]: a member's own) -> q: [K, B, A]."""
        vectors = vector.expand(self.members, *vector.shape)
        parts = [vectors] if features is None else [features[..., : self.features], vectors]
        if self.conditioned:
            parts.append(belief.expand(self.members, -1, -1))
        q = self.heads(torch.cat(parts, dim=-1))
        if self.prior is None:
            return q
        return q + self.prior_scale * self.prior(None if features is None else features[..., self.features :], vectors)


class RandomPrior(nn.Module):
    """A small fixed random network a member; it reads the picture through a fixed random projection of its 4x4 means."""

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

    def forward(self, features: Tensor | None, vectors: Tensor) -> Tensor:
        """-> [K, B, A]."""
        return self.heads(vectors if features is None else torch.cat([features, vectors], dim=-1))
