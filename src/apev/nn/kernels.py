"""Where speed is: quick versions of what an ensemble of MLPs computes, each with its plain version beside it.

    quick            plain                    what it computes
    joined           plain_joined             the input of K MLPs from its parts, of which some are the same for all
    mlp              plain_mlp                the output of K MLPs, with gradients
    -                normed_mlp               the same with layer norm
    activations      plain_activations        what every layer gives, without gradients
    chosen_gradient  plain_chosen_gradient    the gradient by its input of the one output that each row asks of one member
    smallest         plain_smallest           the smallest of the outputs that each row asks for, with its gradient by the input
    input_gradients  plain_input_gradients    the gradient by its input of each member's first output, differentiable again
    ask_one, of_one  plain_ask_one            what the one member says that each row asks; `of_one` where there is one row

On a CPU a few members at a time go through all layers, so that what one layer gives is still in the core's cache when the next
one reads it. On a GPU all members go at once, and nothing is counted that the processor would have to wait for. Parameters are
listed layer by layer: weight [K, in, out], bias [K, 1, out], weight, bias, ...; between layers is a ReLU. Tests compare every
quick version with its plain one; nothing else needs to be read to understand an agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from apev.machine import quick_products

if TYPE_CHECKING:
    from apev.nn.ensemble import EnsembleMLP

NARROW = 16  # columns of a matrix product that are few
LARGE = 2**14  # entries of a matrix that takes long to read

quick_products()  # before the first product, so that all of them are computed alike


# ---------------------------------------------------------------------- K MLPs


def listed(net: EnsembleMLP, frozen: bool = False) -> list[Tensor]:
    """Weight, bias, weight, bias, ...: what `parameters()` gives, without a walk over all modules; frozen: detached."""
    layers: Any = net.layers
    parameters = [parameter for layer in layers for parameter in (layer.weight, layer.bias)]
    return [p.detach() for p in parameters] if frozen else parameters


def plain_joined(parts: Sequence[Tensor | None], members: int) -> Tensor:
    """[K, B, in]: parts side by side, [K, B, d] or [B, d] where all members read the same; None is left out."""
    return torch.cat([part.expand(members, -1, -1) for part in parts if part is not None], -1)


def joined(parts: Sequence[Tensor | None], members: int) -> Tensor:
    """The same, once for all members where they read the same."""
    given = [part for part in parts if part is not None]
    if len(given) > 1 and any(part.ndim == 3 for part in given):
        return plain_joined(given, members)
    x = given[0] if len(given) == 1 else torch.cat(given, -1)
    return x if x.ndim == 3 else x.expand(members, -1, -1)


def plain_mlp(x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """[K, B, in] -> [K, B, out], layer by layer for all members at once: what a compiler fuses, and quickest for one member."""
    return plain_activations(x, parameters)[-1]


def mlp(x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """[K, B, in] -> [K, B, out]."""
    if len(x) == 1 or torch.compiler.is_compiling():
        return plain_mlp(x, parameters)
    if not torch.is_grad_enabled():
        return _output(x, parameters)
    output: Tensor = _Chunked.apply(x, *parameters)  # type: ignore[no-untyped-call]
    return output


def plain_activations(x: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """[K, B, width] of every layer: ReLU of x W + b, and the last without ReLU."""
    given = []
    for weight, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        x = torch.baddbmm(bias, x, weight).relu()
        given.append(x)
    return [*given, torch.baddbmm(parameters[-1], x, parameters[-2])]


@torch.no_grad()
def activations(x: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """[K, B, width] of every layer, without gradient; the last is the output."""
    return plain_activations(x, parameters) if torch.compiler.is_compiling() else _activations(x, parameters)


def _chunk(x: Tensor, parameters: Sequence[Tensor]) -> int:
    """How many members go through all layers together: on a CPU as many as give 1.3 MB a layer and thread, at least one."""
    if x.device.type != "cpu":
        return len(x)
    widest = x.shape[1] * max(weight.shape[2] for weight in parameters[::2])
    return torch.get_num_threads() * max(1, 5 * 2**16 // max(widest, 1))


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """a @ b, [K, m, k] and [K, k, n]. On a CPU products with few columns, the last layer's, are much faster turned over."""
    if a.shape[2] == 1:
        return torch.mul(a, b, out=out)
    if b.shape[2] < NARROW and a.device.type == "cpu":
        turned = torch.bmm(b.mT.contiguous(), a.mT).mT
        return turned if out is None else out.copy_(turned)
    return torch.bmm(a, b, out=out)


def _activations(x: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    given = [x.new_empty(*x.shape[:2], weight.shape[2]) for weight in parameters[:-2:2]]
    last = []
    for h, *rest in zip(*(whole.split(_chunk(x, parameters)) for whole in (x, *given, *parameters)), strict=True):
        outs, weights, biases = rest[: len(given)], rest[len(given) :: 2], rest[len(given) + 1 :: 2]
        for weight, bias, out in zip(weights[:-1], biases[:-1], outs, strict=True):
            h = product(h, weight, out=out).add_(bias).relu_()
        last.append(product(h, weights[-1]).add_(biases[-1]))
    return [*given, torch.cat(last)]


def _output(x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """[K, B, out]: the last of the activations, where nobody needs the others, which then never leave the cache."""
    size = _chunk(x, parameters)
    if size >= len(x):
        return _through(x, parameters)
    return torch.cat([_through(h, part) for h, *part in zip(*(whole.split(size) for whole in (x, *parameters)), strict=True)])


def _through(h: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """[K, B, out] of all members at once."""
    for weight, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        h = product(h, weight).add_(bias).relu_()
    return product(h, parameters[-2]).add_(parameters[-1])


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
                    product(inputs[layer].mT, g, out=by_weight)
                if by_bias is not None:
                    torch.sum(g, 1, keepdim=True, out=by_bias)
                if layer:
                    g = product(g, weight[layer].mT)
                    torch.ops.aten.threshold_backward.grad_input(g, inputs[layer], 0, grad_input=g)  # ReLU's
                elif into_x is not None:
                    product(g, weight[0].mT, out=into_x)
        return (by_x, *by_parameter)


def normed_mlp(x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """[K, B, in] -> [K, B, out] with layer norm before every ReLU; plain, and as quick as the others without it."""
    for weight, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        x = torch.baddbmm(bias, x, weight)
        x = torch.nn.functional.layer_norm(x, x.shape[-1:]).relu()
    return torch.baddbmm(parameters[-1], x, parameters[-2])


# ---------------------------------------------------------------------- gradients by the input


def plain_chosen_gradient(x: Tensor, parameters: Sequence[Tensor], member: Tensor, output: Tensor) -> Tensor:
    """[B, in]: the gradient by x [B, in] of the one output that each row asks of one member: member, output [B]."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        q = plain_mlp(x.expand(len(parameters[0]), *x.shape), [p.detach() for p in parameters])
        (gradient,) = torch.autograd.grad(q[member, torch.arange(len(x), device=x.device), output].sum(), x)
    return gradient


@torch.no_grad()
def chosen_gradient(given: Sequence[Tensor], parameters: Sequence[Tensor], member: Tensor, output: Tensor) -> Tensor:
    """The same from the activations that are there already.

    On a CPU each member multiplies the rows that ask it; a GPU multiplies all rows by all members.
    """
    weights = parameters[::2]
    if asks_all(member.device):
        chosen = torch.arange(len(weights[0]), device=member.device)[:, None] == member  # [K, B]
        g = torch.where(chosen[..., None], weights[-1][:, :, output].mT, 0)
        for weight, h in zip(reversed(weights[:-1]), reversed(given[:-1]), strict=True):
            g = (g * (h > 0)) @ weight.mT
        return g.sum(0)
    order = member.argsort(stable=True)  # rows that ask the same member lie together
    member, output = member[order], output[order]
    counts = torch.bincount(member, minlength=len(weights[0])).tolist()
    last = weights[-1].mT  # [K, out, width]
    g = last.flatten(0, 1).index_select(0, member * last.shape[1] + output)  # [B, width]
    cell = member * len(order) + order
    for weight, h in zip(reversed(weights[:-1]), reversed(given[:-1]), strict=True):
        on = h.flatten(0, 1).index_select(0, cell)
        torch.ops.aten.threshold_backward.grad_input(g, on, 0, grad_input=g)  # ReLU's
        by_input = g.new_empty(len(g), weight.shape[1])
        for k, (rows, into) in enumerate(zip(g.split(counts), by_input.split(counts), strict=True)):
            if len(rows):
                torch.mm(rows, weight[k].T, out=into)
        g = by_input
    return torch.empty_like(g).index_copy_(0, order, g)


def plain_smallest(net: EnsembleMLP, x: Tensor, asked: Tensor, output: Tensor) -> Tensor:
    """[B]: for x [B, in] the smallest answer of the members [B, N] that each row asks for one output [B].

    Its gradient by x passes through that one member; the networks learn nothing of it.
    """
    row = torch.arange(len(x), device=x.device)[:, None]
    return net(x, frozen=True)[asked, row, output[:, None]].amin(1)


def smallest(net: EnsembleMLP, x: Tensor, asked: Tensor, output: Tensor) -> Tensor:
    """The same, with a way back through that one member alone."""
    row, parameters = torch.arange(len(x), device=x.device), listed(net)
    with torch.no_grad():
        every = joined([x], net.members)
        given = [net(every)] if net.normed else net.passes.activations(every, parameters)
        member = asked[row, given[-1][asked, row[:, None], output[:, None]].argmin(1)]  # [B]
    if net.normed:  # each row asks its own once more
        return ask_one(net, x, member, frozen=True).gather(1, output[:, None])[:, 0]
    value: Tensor = given[-1][member, row, output]
    gradient: Tensor = net.passes.chosen_gradient(given, parameters, member, output)
    return value + ((x - x.detach()) * gradient).sum(-1)  # the value, with that gradient


def plain_input_gradients(x: Tensor, parameters: Sequence[Tensor], columns: slice) -> Tensor:
    """[K, B, columns]: the gradient of each member's first output by these columns of x; differentiable by the weights."""
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(plain_mlp(x, parameters)[..., 0].sum(), x, create_graph=True)
    return gradient[..., columns]


def input_gradients(x: Tensor, parameters: Sequence[Tensor], columns: slice) -> Tensor:
    """The same as a product of weights.

    Which units are on does not change under a small step of the weights, so that the gradient of this needs no second pass
    through the network.
    """
    weights = [*parameters[::2]]
    weights[0] = weights[0][:, columns]
    g = weights[-1][:, None, :, 0].expand(*x.shape[:2], -1)
    for weight, h in zip(reversed(weights[:-1]), reversed(activations(x, parameters)[:-1]), strict=True):
        g = (g * (h > 0)) @ weight.mT
    return g


# ---------------------------------------------------------------------- rows that ask one member each


def plain_ask_one(net: EnsembleMLP, rows: Tensor, member: Tensor, frozen: bool = False) -> Tensor:
    """[B, out]: what the one member says that each row asks: rows [B, in], member [B]; frozen: it learns nothing of it."""
    return net(rows, frozen=frozen)[member, torch.arange(rows.shape[0], device=rows.device)]


def ask_one(net: EnsembleMLP, rows: Tensor, member: Tensor, frozen: bool = False) -> Tensor:
    """The same without asking the others."""
    if asks_all(rows.device):
        return plain_ask_one(net, rows, member, frozen)
    if len(rows) == 1 and net.members > 1 and not net.normed and not torch.is_grad_enabled():
        return of_one(rows, listed(net), int(member))
    groups = Groups.of(member, net.members)
    return groups.join(net(groups.split(rows), frozen=frozen))


def of_one(row: Tensor, parameters: Sequence[Tensor], member: int) -> Tensor:
    """[1, out]: what one member says of one row [1, in], without gradient.

    At the default widths it rounds as `ask_one` does: a stack of small products rounds otherwise than one alone, so they are
    made as often as there are members.
    """
    h = row
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        own, last = weight[member], weight is parameters[-2]
        if own.numel() >= LARGE and own.shape[1] >= NARROW:
            h = torch.mm(h, own)
        else:
            h = product(h.expand(len(weight), *h.shape), own.expand(len(weight), *own.shape))[0]
        h = h.add_(bias[member])
        h = h if last else h.relu_()
    return h


def asks_all(device: torch.device) -> bool:
    """Whether rows that want one network's answer ask all networks: more work, but a GPU is not waited for to count rows.

    So it is in files that other programs run (`apev.export`), where nothing can be counted.
    """
    return device.type != "cpu" or torch.compiler.is_exporting()


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
