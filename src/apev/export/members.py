"""Ensembles in a file: K networks as K chains of two-dimensional products instead of one chain of stacks of matrices.

onnxruntime lays out a matrix for the processor when a file is loaded, but not a stack of them: with these chains a second row
costs next to nothing. So rows before and after a step, which go through the same networks, go together:

    x, y [K, B, in]  ->  MatMul(W [K, in, out]), Add, Relu, ... each        becomes
    x, y  ->  Concat [K, 2B, in]  ->  for each member Gather, Gemm, Relu, ...  ->  Concat, Reshape [K, 2B, out]  ->  Split
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

BETWEEN = ("Relu", "LayerNormalization")  # layers of no member of their own


@dataclass
class Chain:
    """MatMul and Add with the members' weights, and what lies between, up to the last Add."""

    nodes: list[Any] = field(default_factory=list)  # onnx.NodeProto

    @property
    def given(self) -> str:
        """What goes in."""
        return str(self.nodes[0].input[0])

    @property
    def result(self) -> str:
        """What comes out."""
        return str(self.nodes[-1].output[0])

    @property
    def key(self) -> tuple[Any, ...]:
        """Whatever has the same is the same network."""
        return tuple((node.op_type, *node.input[1:]) for node in self.nodes)


def apart(model: Any) -> None:
    """Write the networks of a model (onnx.ModelProto) member by member, in place."""
    from onnx import numpy_helper

    graph = model.graph
    held = {tensor.name: tensor for tensor in graph.initializer}
    same: dict[tuple[Any, ...], list[Chain]] = {}
    for chain in chains(graph, held):
        same.setdefault(chain.key, []).append(chain)
    groups = [group for alike in same.values() for group in independent(graph, alike)]
    gone = {id(node) for group in groups for chain in group for node in chain.nodes}
    nodes = [node for node in graph.node if id(node) not in gone]
    arrays: dict[str, np.ndarray] = {}
    for number, group in enumerate(groups):
        stacks = {name: numpy_helper.to_array(held[name]) for node in group[0].nodes for name in node.input if name in held}
        nodes += rewritten(f"net{number}", group, stacks, arrays)
    replace(graph.node, in_order(nodes))
    graph.initializer.extend(numpy_helper.from_array(array.copy(), name) for name, array in arrays.items())
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    made = {name for node in graph.node for name in node.output}
    replace(graph.initializer, [tensor for tensor in graph.initializer if tensor.name in read])
    replace(graph.value_info, [value for value in graph.value_info if value.name in made])


def rewritten(name: str, group: list[Chain], stacks: dict[str, np.ndarray], arrays: dict[str, np.ndarray]) -> list[Any]:
    """The nodes that stand for chains of the same network; what they read is added to `arrays`."""
    from onnx import helper

    first, several = group[0], len(group) > 1
    members = len(stacks[first.nodes[0].input[1]])
    x = f"{name}.rows" if several else first.given
    nodes = [helper.make_node("Concat", [chain.given for chain in group], [x], axis=1)] if several else []
    ends = []
    for k in range(members):
        h = f"{name}.{k}"
        arrays[f"member.{k}"] = np.array(k)
        nodes.append(helper.make_node("Gather", [x, f"member.{k}"], [h], axis=0))
        for place, node in enumerate(first.nodes):
            before, h = h, h if node.op_type == "Add" else f"{name}.{k}.{place}"  # Gemm adds
            if node.op_type == "MatMul":
                own = [node.input[1], first.nodes[place + 1].input[1]]  # weight and bias
                arrays |= {f"{stack}.{k}": stacks[stack][k] for stack in own}
                nodes.append(helper.make_node("Gemm", [before, *(f"{stack}.{k}" for stack in own)], [h]))
            elif node.op_type in BETWEEN:
                nodes.append(helper.make_node(node.op_type, [before, *node.input[1:]], [h]))
                nodes[-1].attribute.extend(node.attribute)
        ends.append(h)
    whole = f"{name}.whole" if several else first.result
    arrays[f"{name}.shape"] = np.array([members, -1, stacks[first.nodes[-2].input[1]].shape[2]])
    nodes.append(helper.make_node("Concat", ends, [f"{name}.all"], axis=0))
    nodes.append(helper.make_node("Reshape", [f"{name}.all", f"{name}.shape"], [whole]))
    if several:
        nodes.append(helper.make_node("Split", [whole], [chain.result for chain in group], axis=1, num_outputs=len(group)))
    return nodes


def replace(field_of: Any, values: list[Any]) -> None:
    """Let a repeated field of a message hold these."""
    kept = [*values]
    del field_of[:]
    field_of.extend(kept)


def chains(graph: Any, held: dict[str, Any]) -> list[Chain]:
    """Every chain; a chain ends where its value is used twice, or by anything else."""
    readers: dict[str, list[Any]] = {value.name: [None] for value in graph.output}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)

    def follower(node: Any) -> Any:
        after = readers.get(node.output[0], [])
        return after[0] if len(after) == 1 and after[0] is not None and after[0].input[0] == node.output[0] else None

    def stack(node: Any, dims: int = 3) -> bool:
        return len(node.input) > 1 and node.input[1] in held and len(held[node.input[1]].dims) == dims

    found, taken = [], set()
    for node in graph.node:
        if node.op_type != "MatMul" or not stack(node) or id(node) in taken:
            continue
        chain, last, at = Chain(), 0, node
        while at is not None:
            if at.op_type == "MatMul" and stack(at):
                bias = follower(at)
                if bias is None or bias.op_type != "Add" or not stack(bias):
                    break
                chain.nodes += [at, bias]
                last, at = len(chain.nodes), follower(bias)
            elif at.op_type in BETWEEN and chain.nodes:
                chain.nodes.append(at)
                at = follower(at)
            else:
                break
        del chain.nodes[last:]
        if chain.nodes:
            taken |= {id(part) for part in chain.nodes}
            found.append(chain)
    return found


def independent(graph: Any, same: list[Chain]) -> list[list[Chain]]:
    """Groups of chains of which none needs the result of another."""
    made = {name: node for node in graph.node for name in node.output}

    def needs(name: str, wanted: str, seen: set[str]) -> bool:
        if name == wanted:
            return True
        if name in seen or name not in made:
            return False
        seen.add(name)
        return any(needs(before, wanted, seen) for before in made[name].input)

    groups: list[list[Chain]] = []
    for chain in same:
        for group in groups:
            if not any(needs(chain.given, other.result, set()) or needs(other.given, chain.result, set()) for other in group):
                group.append(chain)
                break
        else:
            groups.append([chain])
    return groups


def in_order(nodes: list[Any]) -> list[Any]:
    """The nodes, each after those whose results it reads."""
    made = {name: node for node in nodes for name in node.output}
    ordered: list[Any] = []
    placed: set[int] = set()

    def place(node: Any) -> None:
        if id(node) in placed:
            return
        placed.add(id(node))
        for name in node.input:
            if name in made:
                place(made[name])
        ordered.append(node)

    for node in nodes:
        place(node)
    return ordered
