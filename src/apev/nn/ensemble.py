"""Layers with a leading member axis: K networks that are trained and evaluated as one.

MLPs of K members are batched matrix products. On a CPU a few members at a time go through all layers, so that what one layer
gives is still in the core's cache when the next one reads it; forward and backward are written out for that
(`_Chunked`). On a GPU all members go at once. Convolutional encoders are K separate channels-last networks: a grouped
convolution of the same size runs at half their speed. They, too, take a few pictures at a time on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from apev.machine import quick_products

NARROW = 16  # columns of a matrix product that are few

quick_products()  # before the first product, so that all of them are computed alike


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
        self.members = members
        self.layers = nn.ModuleList(EnsembleLinear(members, i, o) for i, o in pairwise([inputs, *hidden, outputs]))

    def forward(self, x: Tensor, frozen: bool = False) -> Tensor:
        """x: [K, B, in] -> [K, B, out]; frozen: the gradient reaches x and never the weights."""
        if self.members == 1 or torch.compiler.is_compiling():
            return self.plain(x, frozen)
        parameters = [p.detach() if frozen else p for layer in self.layers for p in layer.parameters()]
        if not torch.is_grad_enabled():
            return _output(x, parameters)
        return _Chunked.apply(x, *parameters)

    def plain(self, x: Tensor, frozen: bool = False) -> Tensor:
        """The same, layer by layer for all members at once: what a compiler fuses, and what is quickest for one member."""
        for layer in self.layers:
            weight, bias = ((p.detach() if frozen else p) for p in layer.parameters())
            x = torch.baddbmm(bias, x, weight)
            if layer is not self.layers[-1]:
                x = x.relu()
        return x

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile every pass through the networks, in place."""
        super().compile(*args, **options)
        for name in ("activations", "slope", "slopes"):
            setattr(self, name, torch.compile(getattr(self, name), *args, **options))

    def slopes(self, x: Tensor, columns: slice) -> Tensor:
        """[K, B, columns]: the gradient of each member's first output by these columns of x; differentiable by the weights.

        Which units are on does not change under a small step of the weights, so that the gradient is a product of weights,
        and its own gradient needs no second pass through the network.
        """
        weights: list[Tensor] = [layer.get_parameter("weight") for layer in self.layers]
        weights[0] = weights[0][:, columns]
        g = weights[-1][:, None, :, 0].expand(*x.shape[:2], -1)
        for weight, h in zip(reversed(weights[:-1]), reversed(self.activations(x)[:-1]), strict=True):
            g = (g * (h > 0)) @ weight.mT
        return g

    @torch.no_grad()
    def activations(self, x: Tensor) -> list[Tensor]:
        """What each layer gives, [K, B, width], without gradient; the last is the output."""
        if torch.compiler.is_compiling():
            given = []
            for layer in self.layers:
                x = layer(x) if layer is self.layers[-1] else layer(x).relu()
                given.append(x)
            return given
        return _activations(x, [p for layer in self.layers for p in layer.parameters()])

    @torch.no_grad()
    def slope(self, activations: list[Tensor], member: Tensor, output: Tensor) -> Tensor:
        """[B, in]: the gradient by its input of the one output that each row asks of one member: member, output [B].

        Worked out from the activations that are there already. On a CPU each member multiplies the rows that ask it; a GPU
        multiplies all rows by all members.
        """
        weights = [layer.get_parameter("weight") for layer in self.layers]
        if asks_all(member.device):
            chosen = torch.arange(self.members, device=member.device)[:, None] == member  # [K, B]
            g = torch.where(chosen[..., None], weights[-1][:, :, output].mT, 0)
            for weight, h in zip(reversed(weights[:-1]), reversed(activations[:-1]), strict=True):
                g = (g * (h > 0)) @ weight.mT
            return g.sum(0)
        order = member.argsort(stable=True)  # rows that ask the same member lie together
        member, output = member[order], output[order]
        counts = torch.bincount(member, minlength=self.members).tolist()
        last = weights[-1].mT  # [K, out, width]
        g = last.flatten(0, 1).index_select(0, member * last.shape[1] + output)  # [B, width]
        cell = member * len(order) + order
        for weight, h in zip(reversed(weights[:-1]), reversed(activations[:-1]), strict=True):
            on = h.flatten(0, 1).index_select(0, cell)
            torch.ops.aten.threshold_backward.grad_input(g, on, 0, grad_input=g)  # ReLU's
            by_input = g.new_empty(len(g), weight.shape[1])
            for k, (rows, into) in enumerate(zip(g.split(counts), by_input.split(counts), strict=True)):
                if len(rows):
                    torch.mm(rows, weight[k].T, out=into)
            g = by_input
        return torch.empty_like(g).index_copy_(0, order, g)


def _chunk(x: Tensor, parameters: Sequence[Tensor]) -> int:
    """How many members go through all layers together: on a CPU as many as give 1.3 MB a layer and thread, at least one."""
    if x.device.type != "cpu":
        return len(x)
    widest = x.shape[1] * max(weight.shape[2] for weight in parameters[::2])
    return torch.get_num_threads() * max(1, 5 * 2**16 // max(widest, 1))


def _product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """a b, [K, m, k] and [K, k, n]. On a CPU products with few columns, the last layer's, are much faster turned over."""
    if a.shape[2] == 1:
        return torch.mul(a, b, out=out)
    if b.shape[2] < NARROW and a.device.type == "cpu":
        turned = torch.bmm(b.mT.contiguous(), a.mT).mT
        return turned if out is None else out.copy_(turned)
    return torch.bmm(a, b, out=out)


def _activations(x: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """[K, B, width] of every layer: ReLU of x W + b, and the last without ReLU; parameters: W, b, W, b, ..."""
    given = [x.new_empty(*x.shape[:2], weight.shape[2]) for weight in parameters[:-2:2]]
    last = []
    for h, *rest in zip(*(whole.split(_chunk(x, parameters)) for whole in (x, *given, *parameters)), strict=True):
        outs, weights, biases = rest[: len(given)], rest[len(given) :: 2], rest[len(given) + 1 :: 2]
        for weight, bias, out in zip(weights[:-1], biases[:-1], outs, strict=True):
            h = _product(h, weight, out=out).add_(bias).relu_()
        last.append(_product(h, weights[-1]).add_(biases[-1]))
    return [*given, torch.cat(last)]


def _output(x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """[K, B, out]: the last of the activations, where nobody needs the others, which then never leave the cache."""
    given = []
    for h, *part in zip(*(whole.split(_chunk(x, parameters)) for whole in (x, *parameters)), strict=True):
        for weight, bias in zip(part[:-2:2], part[1:-2:2], strict=True):
            h = _product(h, weight).add_(bias).relu_()
        given.append(_product(h, part[-2]).add_(part[-1]))
    return torch.cat(given)


class _Chunked(torch.autograd.Function):
    """An MLP of K members with its gradient, a few members at a time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        """[K, B, in] -> [K, B, out]."""
        given = _activations(x, parameters)
        ctx.save_for_backward(x, *given[:-1], *parameters)
        return given[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_output: Tensor) -> tuple[Tensor | None, ...]:
        """The chain rule, from the last layer to the first."""
        layers = len(ctx.saved_tensors) // 3  # for each: what it read, its weight and its bias
        read, parameters = ctx.saved_tensors[:layers], ctx.saved_tensors[layers:]
        weights = parameters[::2]
        by_input, *wanted = ctx.needs_input_grad
        by_parameter = [torch.empty_like(p) if want else None for p, want in zip(parameters, wanted, strict=True)]
        by_x = torch.empty_like(read[0], memory_format=torch.contiguous_format) if by_input else None
        size = _chunk(read[0], parameters)
        split = [part.split(size) for part in (by_output, *read, *weights)]
        split_by = [None if part is None else part.split(size) for part in (by_x, *by_parameter)]
        for i in range(len(split[0])):
            g, *rest = (parts[i] for parts in split)
            inputs, weight = rest[:layers], rest[layers:]
            into_x, *into = (None if parts is None else parts[i] for parts in split_by)
            for layer in reversed(range(layers)):
                by_weight, by_bias = into[2 * layer : 2 * layer + 2]
                if by_weight is not None:
                    _product(inputs[layer].mT, g, out=by_weight)
                if by_bias is not None:
                    torch.sum(g, 1, keepdim=True, out=by_bias)
                if layer:
                    g = _product(g, weight[layer].mT)
                    torch.ops.aten.threshold_backward.grad_input(g, inputs[layer], 0, grad_input=g)  # ReLU's
                elif into_x is not None:
                    _product(g, weight[0].mT, out=into_x)
        return (by_x, *by_parameter)


def asks_all(device: torch.device) -> bool:
    """Whether rows that want one network's answer ask all networks: more work, but a GPU is not waited for to count rows."""
    return device.type != "cpu"


def ask_one(net: EnsembleMLP, rows: Tensor, member: Tensor) -> Tensor:
    """[B, out]: what the one member says that each row asks: rows [B, in], member [B]."""
    if asks_all(rows.device):
        return net(rows.expand(net.members, *rows.shape))[member, torch.arange(len(rows), device=rows.device)]
    groups = Groups.of(member, net.members)
    return groups.join(net(groups.split(rows)))


@dataclass(frozen=True)
class Groups:
    """Rows that each ask one network of an ensemble, sorted by network, so that no network sees the rows of another.

    index  [B]     which of G networks row b asks     2 0 2 1
    slots  [G, P]  the rows of each network           1 . | 3 . | 0 2      padded to the largest group
    """

    slots: Tensor  # [G, P] row numbers; padding repeats row 0
    place: Tensor  # [B] where row b lies in the flattened slots

    @classmethod
    def of(cls, index: Tensor, groups: int) -> Groups:
        """Sort rows by the number of the network they ask."""
        order = index.argsort(stable=True)
        count = torch.bincount(index, minlength=groups)
        width = int(count.max())
        rows = torch.arange(len(index), device=index.device)
        place = torch.empty_like(order)
        place[order] = index[order] * width + rows - (count.cumsum(0) - count)[index[order]]
        slots = torch.zeros(groups * width, dtype=torch.int64, device=index.device)
        slots[place] = rows
        return cls(slots.view(groups, width), place)

    def split(self, rows: Tensor) -> Tensor:
        """[B, D] -> [G, P, D]."""
        return rows[self.slots]

    def join(self, groups: Tensor) -> Tensor:
        """[G, P, D] -> [B, D]."""
        return groups.flatten(0, 1)[self.place]


PIXELS = 2**17  # of the pictures that go through a convolutional encoder together on a CPU: 32 of 64 x 64


class EncoderEnsemble(nn.Module):
    """K picture encoders of their own weights, each seeing every picture once; on a CPU a few pictures at a time."""

    def __init__(self, members: int, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(
            make().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            for _ in range(members)
        )

    def forward(self, pictures: Tensor) -> Tensor:
        """pictures: [P, C, H, W] uint8 -> features [K, P, F]."""
        size = len(pictures) if pictures.device.type != "cpu" else max(1, PIXELS // math.prod(pictures.shape[-2:]))
        parts = [scale_pixels(part) for part in pictures.split(max(1, size))]
        return torch.stack([torch.cat([encoder(part) for part in parts]) for encoder in self.encoders])


def scale_pixels(pictures: Tensor) -> Tensor:
    """uint8 pixels to floats in [-1, 1], channels last."""
    return pictures.float().mul_(2 / 255).sub_(1).contiguous(memory_format=torch.channels_last)
