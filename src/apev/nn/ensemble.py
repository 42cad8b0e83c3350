"""Layers with a leading member axis: K networks that are trained and evaluated as one.

MLPs of K members are batched matrix products, computed by `kernels.py`. Convolutional encoders are K separate channels-last
networks: a grouped convolution of the same size runs at half their speed. On a CPU they take a few pictures at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

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
    passes: Any = kernels  # where passes other than `forward` are computed; `compile` puts compiled ones in their place

    def __init__(self, members: int, inputs: int, hidden: Sequence[int], outputs: int) -> None:
        super().__init__()
        self.members = members
        self.layers = nn.ModuleList(EnsembleLinear(members, i, o) for i, o in pairwise([inputs, *hidden, outputs]))

    def forward(self, x: Tensor, frozen: bool = False) -> Tensor:
        """x: [K, B, in] -> [K, B, out]; frozen: the gradient reaches x and never the weights."""
        return kernels.mlp(x, [p.detach() for p in listed(self)] if frozen else listed(self))

    def chosen(self, x: Tensor, choose: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        """[B]: of all outputs for x [B, in] one a row, with its gradient by x and none by the weights.

        choose: from all outputs [K, B, out] the member and the output of each row, [B] both. All members are asked; the
        gradient is that of the chosen one, worked out from the same pass.
        """
        parameters = listed(self)
        with torch.no_grad():
            given = self.passes.activations(x.expand(self.members, *x.shape), parameters)
            member, output = choose(given[-1])
            value: Tensor = given[-1][member, torch.arange(len(x), device=x.device), output]
            gradient: Tensor = self.passes.chosen_gradient(given, parameters, member, output)
        return value + ((x - x.detach()) * gradient).sum(-1)  # the value, with that gradient

    def input_gradients(self, x: Tensor, columns: slice) -> Tensor:
        """[K, B, columns]: the gradient of each member's first output by these columns of x; differentiable by the weights."""
        gradients: Tensor = self.passes.input_gradients(x, listed(self), columns)
        return gradients

    def ask_one(self, x: Tensor, member: Tensor) -> Tensor:
        """[B, out]: what the one member says that each row asks: x [B, in], member [B]."""
        if not (kernels.asks_all(x.device) or torch.is_grad_enabled() or self.members == 1 or x.shape[0] > 1):
            return kernels.of_one(x, listed(self), int(member))
        return kernels.ask_one(self, self.members, x, member)

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile every pass through the networks, in place."""
        super().compile(*args, **options)
        plain = {name: getattr(kernels, name) for name in ("activations", "chosen_gradient", "input_gradients")}
        self.passes = SimpleNamespace(**{name: torch.compile(call, *args, **options) for name, call in plain.items()})


def listed(net: EnsembleMLP | NormedMLP) -> list[nn.Parameter]:
    """Weight, bias, weight, bias, ...: what `parameters()` gives, without a walk over all modules."""
    layers: Any = net.layers
    return [parameter for layer in layers for parameter in (layer.weight, layer.bias)]


class NormedMLP(nn.Module):
    """K multilayer perceptrons with layer norm before every ReLU: values that cannot grow without bound far from the data."""

    __call__: Callable[..., Tensor]  # torch says Any

    def __init__(self, members: int, inputs: int, hidden: Sequence[int], outputs: int) -> None:
        super().__init__()
        self.members = members
        self.layers = nn.ModuleList(EnsembleLinear(members, i, o) for i, o in pairwise([inputs, *hidden, outputs]))

    def forward(self, x: Tensor, frozen: bool = False) -> Tensor:
        """x: [K, B, in] -> [K, B, out]; frozen: the gradient reaches x and never the weights."""
        return kernels.normed_mlp(x, [p.detach() for p in listed(self)] if frozen else listed(self))

    def chosen(self, x: Tensor, choose: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        """[B]: of all outputs for x [B, in] one a row, with its gradient by x and none by the weights, as of `EnsembleMLP`."""
        with torch.no_grad():
            member, output = choose(self(x.expand(self.members, *x.shape)))
        own = kernels.ask_one(partial(self, frozen=True), self.members, x, member)  # each row asks its own once more
        return own.gather(1, output[:, None])[:, 0]

    def input_gradients(self, x: Tensor, columns: slice) -> Tensor:
        """[K, B, columns]: the gradient of each member's first output by these columns of x; differentiable by the weights."""
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
