"""Layers with a leading member axis: K networks that are trained and evaluated as one.

MLPs of K members are batched matrix products, computed by `kernels.py`. Convolutional encoders are K separate channels-last
networks: a grouped convolution of the same size runs at half their speed. On a CPU they take a few pictures at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from apev.nn import kernels


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

    __call__: Callable[..., Tensor]  # torch says Any
    normed: ClassVar[bool] = False  # whether layers are normalised
    passes: Any = kernels  # where passes other than `forward` are computed; `compile` puts compiled ones in their place

    def __init__(self, members: int, inputs: int, hidden: Sequence[int], outputs: int) -> None:
        super().__init__()
        self.members = members
        self.layers = nn.ModuleList(EnsembleLinear(members, i, o) for i, o in pairwise([inputs, *hidden, outputs]))

    def forward(self, *parts: Tensor | None, frozen: bool = False) -> Tensor:
        """[K, B, out] from parts, side by side: [K, B, d], or [B, d] where all members read the same; None is left out.

        frozen: the gradient reaches the parts and never the weights.
        """
        compute = kernels.normed_mlp if self.normed else kernels.mlp
        return compute(kernels.joined(parts, self.members), kernels.listed(self, frozen))

    def input_gradients(self, x: Tensor, columns: slice) -> Tensor:
        """[K, B, columns]: the gradient of each member's first output by these columns of x; differentiable by the weights."""
        gradients: Tensor = self.passes.input_gradients(x, kernels.listed(self), columns)
        return gradients

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile every pass through the networks, in place."""
        super().compile(*args, **options)
        plain = {name: getattr(kernels, name) for name in ("activations", "chosen_gradient", "input_gradients")}
        self.passes = SimpleNamespace(**{name: torch.compile(call, *args, **options) for name, call in plain.items()})


class NormedMLP(EnsembleMLP):
    """The same with layer norm before every ReLU: values that cannot grow without bound far from the data."""

    normed = True

    def input_gradients(self, x: Tensor, columns: slice) -> Tensor:
        """[K, B, columns]: the same, by differentiating."""
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self(x)[..., 0].sum(), x, create_graph=True)
        return gradient[..., columns]


PIXELS = 2**17  # of the pictures that go through a convolutional encoder together on a CPU: 32 of 64 x 64


class EncoderEnsemble(nn.Module):
    """K picture encoders of their own weights, each seeing every picture once; on a CPU a few pictures at a time."""

    __call__: Callable[..., Tensor]  # torch says Any

    def __init__(self, members: int, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(
            make().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            for _ in range(members)
        )

    def forward(self, pictures: Tensor) -> Tensor:
        """pictures: [P, C, H, W] uint8 -> features [K, P, F]."""
        if pictures.device.type != "cpu" or torch.compiler.is_exporting():
            scaled = scale_pixels(pictures)
            return torch.stack([encoder(scaled) for encoder in self.encoders])
        size = max(1, PIXELS // math.prod(pictures.shape[-2:]))
        parts = [scale_pixels(part) for part in pictures.split(size)]
        return torch.stack([torch.cat([encoder(part) for part in parts]) for encoder in self.encoders])


def scale_pixels(pictures: Tensor) -> Tensor:
    """uint8 pixels to floats in [-1, 1], channels last."""
    return pictures.float().mul_(2 / 255).sub_(1).contiguous(memory_format=torch.channels_last)
