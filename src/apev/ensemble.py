"""Layers with a leading member axis: K networks that are trained and evaluated as one.

MLPs of K members are one batched matrix product a layer (`baddbmm`), which reaches the machine's matmul peak. Convolutional
encoders are K separate channels-last networks: a grouped convolution of the same size runs at half their speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

    def forward(self, x: Tensor, frozen: bool = False) -> Tensor:
        """x: [K, B, in] -> [K, B, out]; frozen: the gradient reaches x and never the weights."""
        if frozen:
            return torch.baddbmm(self.bias.detach(), x, self.weight.detach())
        return torch.baddbmm(self.bias, x, self.weight)


class EnsembleMLP(nn.Module):
    """K multilayer perceptrons with ReLU between the layers."""

    def __init__(self, members: int, inputs: int, hidden: Sequence[int], outputs: int) -> None:
        super().__init__()
        self.members = members
        self.layers = nn.ModuleList(EnsembleLinear(members, i, o) for i, o in pairwise([inputs, *hidden, outputs]))

    def forward(self, x: Tensor, frozen: bool = False) -> Tensor:
        """x: [K, B, in] -> [K, B, out]; frozen: the gradient reaches x and never the weights."""
        return self.activations(x, frozen)[-1]

    def activations(self, x: Tensor, frozen: bool = False) -> list[Tensor]:
        """What each layer gives, [K, B, width]; the last is the output."""
        layers = []
        for layer in self.layers[:-1]:
            x = layer(x, frozen).relu_()  # in place: the product does not need its own output to go backward
            layers.append(x)
        return [*layers, self.layers[-1](x, frozen)]

    @torch.no_grad()
    def slope(self, activations: list[Tensor], member: Tensor, output: Tensor, dense: bool | None = None) -> Tensor:
        """[B, in]: the gradient by its input of the one output that each row asks of one member: member, output [B].

        Worked out from the activations that are there already. On a CPU the rows are sorted by member and each member
        multiplies its own; a GPU multiplies all rows by all members (`dense`), which waits for nothing.
        """
        weights = [layer.get_parameter("weight") for layer in self.layers]
        dense = member.device.type != "cpu" if dense is None else dense
        if dense:
            chosen = torch.arange(self.members, device=member.device)[:, None] == member  # [K, B]
            g = torch.where(chosen[..., None], weights[-1][:, :, output].mT, 0)
            for weight, h in zip(reversed(weights[:-1]), reversed(activations[:-1]), strict=True):
                g = (g * (h > 0)) @ weight.mT
            return g.sum(0)
        order = member.argsort()
        member, counts = member[order], torch.bincount(member, minlength=self.members).tolist()
        g = weights[-1][member, :, output[order]]  # [B, width]
        for weight, h in zip(reversed(weights[:-1]), reversed(activations[:-1]), strict=True):
            own = (g * (h[member, order] > 0)).split(counts)
            g = torch.cat([rows @ w.T for rows, w in zip(own, weight, strict=True)])
        return torch.empty_like(g).index_copy_(0, order, g)


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
        width = int(count.max())  # waits for the device, but saves it the work of all other networks
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
