"""Layers with a leading member axis: K networks that are trained and evaluated as one.

MLPs of K members are one batched matrix product a layer (`baddbmm`), which reaches the machine's matmul peak. Convolutional
encoders are K separate channels-last networks: a grouped convolution of the same size runs at half their speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


class EnsembleLinear(nn.Module):
    """K linear layers: weights [K, in, out], biases [K, 1, out]."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(max(inputs, 1))  # torch's default for nn.Linear, for each member
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """x: [K, B, in] -> [K, B, out]."""
        return torch.baddbmm(self.bias, x, self.weight)


class EnsembleMLP(nn.Module):
    """K multilayer perceptrons with ReLU between the layers."""

    def __init__(self, members: int, inputs: int, hidden: Sequence[int], outputs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EnsembleLinear(members, i, o) for i, o in pairwise([inputs, *hidden, outputs]))

    def forward(self, x: Tensor) -> Tensor:
        """x: [K, B, in] -> [K, B, out]."""
        for layer in self.layers[:-1]:
            x = layer(x).relu_()  # in place: the product does not need its own output to go backward
        return self.layers[-1](x)


class EncoderEnsemble(nn.Module):
    """K picture encoders of their own weights, each seeing every picture once."""

    def __init__(self, members: int, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(
            make().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            for _ in range(members)
        )

    def forward(self, pictures: Tensor) -> Tensor:
        """pictures: [P, C, H, W] uint8 -> features [K, P, F]."""
        x = scale_pixels(pictures)
        return torch.stack([encoder(x) for encoder in self.encoders])


def scale_pixels(pictures: Tensor) -> Tensor:
    """uint8 pixels to floats in [-1, 1], channels last."""
    return pictures.float().mul_(2 / 255).sub_(1).contiguous(memory_format=torch.channels_last)
