"""Encoders of pictures: the paper's for photographs, Procgen's own for mazes."""

from __future__ import annotations

from torch import Tensor, nn


def door_encoder(channels: int = 3, height: int = 32, width: int = 32, features: int = 10) -> nn.Sequential:
    """Appendix C: three 3x3 convolutions of 32 channels, each with ReLU and average pooling, then a dense layer of 10."""
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(inplace=True)]
        if min(height, width) >= 2:  # pictures smaller than 8x8 run out of pixels to pool
            layers.append(nn.AvgPool2d(2))
            height, width = height // 2, width // 2
        channels = 32
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * height * width, features))


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[P, C, H, W] -> the same shape."""
        out: Tensor = x + self.second(self.first(x.relu()).relu_())
        return out


def impala_encoder(
    channels: int = 3,
    height: int = 64,
    width: int = 64,
    features: int = 256,
    depths: tuple[int, ...] = (16, 32, 32),
    pool: bool = False,
) -> nn.Sequential:
    """Procgen's own network (Cobbe et al., 2020; Espeholt et al., 2018): for each depth a convolution, max pooling and two
    residual blocks, then a dense layer; 622,144 parameters for 64 x 64 pixels in colour.

    With `pool` the dense layer reads each channel's maximum over the picture: what is learned of one place holds in all.
    """
    layers: list[nn.Module] = []
    for depth in depths:
        layers += [nn.Conv2d(channels, depth, 3, padding=1), nn.MaxPool2d(3, 2, padding=1), Residual(depth), Residual(depth)]
        channels, height, width = depth, (height + 1) // 2, (width + 1) // 2
    if pool:
        layers.append(nn.AdaptiveMaxPool2d(1))
        height = width = 1
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(channels * height * width, features), nn.ReLU())
