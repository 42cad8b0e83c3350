"""Write a policy as `act.onnx`, `observe.onnx` and `about.json`: what they compute is in `graphs.py`.

`about.json` says the names, types and shapes of what goes in and comes out, the belief that an episode starts with, and what
the policy is. Each of its entries is in both ONNX files too (`custom_metadata_map`), as JSON.

A file is compared with Python on made-up rows before it is written.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

import apev
from apev.agents.registry import ALGORITHMS, stored_name, variants
from apev.export.graphs import Act, Graph, Observe
from apev.export.members import apart
from apev.files import brief, whole, write_json
from apev.policy import Policy
from apev.progress import progress_bar

ABOUT = "about.json"
ROWS = 3  # of the batch that is traced; any other number fits too
TRIED = (1, 4)  # rows of the batches that files are compared on
NEAR = 1e-2  # as far as what is compared may differ; errors of tracing are no rounding
EXCHANGED = ("bayes", "uniform", "member", "weights")  # behaviours that belief and observation alone decide


def export(policy: Policy, folder: str | Path, *, console: Console | None = None) -> Path:
    """Write the files of a policy; see `Policy.export`."""
    check_exportable(policy)
    folder = Path(folder)
    with quiet():
        graphs: dict[str, Graph] = {"act": Act(policy), "observe": Observe(policy)}
        about = describe(policy, graphs)
        made = {}
        with progress_bar(console) as progress:
            task = progress.add_task("export", total=len(graphs))
            for name, graph in graphs.items():
                try:
                    made[name] = to_onnx(graph, about)
                except RuntimeError as error:  # torch's, of something that it cannot translate
                    fix = "another version of torch and onnxscript, or other settings of the agent"
                    raise ValueError(f"{name} of this agent cannot be written as ONNX ({brief(error)}). Fix: {fix}.") from error
                compare(name, graph, made[name])
                progress.advance(task)
    for name, content in made.items():
        with whole(folder / f"{name}.onnx") as partial:
            partial.write_bytes(content)
    write_json(folder / ABOUT, about)
    return folder


def check_exportable(policy: Policy) -> None:
    """Refuse what two functions of the belief cannot say, and name packages that are missing."""
    word = policy.behaviour.word
    if policy.remember:
        raise ValueError("remember=True keeps the episode's steps, which no file does. Fix: export without it.")
    if word not in EXCHANGED:
        raise ValueError(f"adapt={word!r} is more than a belief, and files keep nothing else. Fix: bayes, uniform or member:K.")
    if policy.agent.device.type != "cpu":
        raise ValueError("files are made on the CPU. Fix: apev.load(folder), without a device.")
    try:
        import onnx
        import onnxruntime
        import onnxscript
    except ImportError as error:
        raise ImportError(f"ONNX files need {error.name}. Fix: pip install 'apev[onnx]'.") from error
    del onnx, onnxruntime, onnxscript


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what the exporter says about its own progress out of the terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


# ---------------------------------------------------------------------- what is said about a policy


def describe(policy: Policy, graphs: dict[str, Graph]) -> dict[str, Any]:
    """What somebody needs who has nothing but the files."""
    agent, layout = policy.agent, policy.agent.layout
    stored = stored_name(agent)
    observe = graphs["observe"]
    assert isinstance(observe, Observe)
    about: dict[str, Any] = {
        "apev": apev.__version__,
        "agent": stored,
        "algorithm": next((a.name for a in ALGORITHMS.values() if stored in [v.stored for v in variants(a)]), stored),
        "adapt": policy.adapt if isinstance(policy.adapt, str) else list(policy.adapt),
        "adapts": observe.follows,
        "evidence": getattr(agent.config, "evidence", "td"),
        "filter": {name: getattr(policy.filter, name) for name in ("likelihood", "temperature", "forgetting", "floor")},
        "members": policy.members,
        "members_are_worlds": agent.worlds is not None,
        "belief": "log-weights: numpy.exp of them sums to 1",
        "start_belief": policy.start_belief(1)[0].tolist(),
        "start_history": [0.0] * observe.memory or None,
        "observation": {
            **{key: {"shape": [width], "type": "float32"} for key, width in layout.vectors},
            **({layout.picture: pictures_of(layout.picture_shape)} if layout.picture else {}),
        },
        "observation_is_dict": not layout.bare,
        "normalisation": "inside the files: observations, actions and rewards go in as the environment gives them",
        "actions": {"kind": "discrete", "number": layout.num_actions}
        if layout.num_actions
        else {"kind": "continuous", "low": list(layout.action_low), "high": list(layout.action_high)},
        "noise": [
            {"name": noise.name, "distribution": f"standard {noise.distribution}", "shape": list(noise.shape)}
            for noise in observe.noises
        ],
    }
    for name in ("action_names", "observation_names", "environment"):
        if name in policy.source:
            about[name] = policy.source[name]
    for name, graph in graphs.items():
        example = graph.example(ROWS)
        given = {key: tensor_of(value) for key, value in example.items()}
        answers = zip(graph.outputs, graph(*example.values()), strict=True)
        about[name] = {"inputs": given, "outputs": {key: tensor_of(value) for key, value in answers}}
    return about


def pictures_of(shape: tuple[int, int, int] | None) -> dict[str, Any]:
    """Height, width and channels, as environments show pictures."""
    assert shape is not None
    channels, height, width = shape
    return {"shape": [height, width, channels], "type": "uint8"}


def tensor_of(value: Tensor) -> dict[str, Any]:
    """Type and shape of an input or output; the batch comes first."""
    return {"type": str(value.numpy().dtype), "shape": ["batch", *value.shape[1:]]}


# ---------------------------------------------------------------------- making and trying a file


def to_onnx(graph: Graph, about: dict[str, Any]) -> bytes:
    """The file of a graph, for batches of any size."""
    example = tuple(graph.example(ROWS).values())
    batch = torch.export.Dim("batch")
    with torch.no_grad():
        shapes = (tuple({0: batch} for _ in example),)
        program = torch.export.export(graph, example, dynamic_shapes=shapes, strict=False)
    made = torch.onnx.export(program, (), input_names=graph.inputs, output_names=graph.outputs, verbose=False)
    assert made is not None
    for node in made.model.graph.all_nodes():  # else the file tells where its code lay on the disk
        node.metadata_props.clear()
        node.doc_string = None
    for value in (*made.model.graph.inputs, *made.model.graph.outputs):
        value.metadata_props.clear()
    made.model.graph.metadata_props.clear()
    made.model.metadata_props.clear()
    made.model.metadata_props.update({key: json.dumps(value) for key, value in about.items()})
    model = made.model_proto
    apart(model)
    for value in (*model.graph.input, *model.graph.output):
        for place, size in enumerate(value.type.tensor_type.shape.dim):
            if not place:
                size.dim_param = "batch"
    content: bytes = model.SerializeToString()
    return content


def compare(name: str, graph: Graph, content: bytes) -> None:
    """Refuse a file that does not do what Python does. Of discrete actions a few may differ: two can be as good."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    same: list[bool] = []
    for rows in TRIED:
        example = graph.example(rows, seed=rows)
        expected = [answer.numpy() for answer in graph(*example.values())]
        found = session.run(None, {key: value.numpy() for key, value in example.items()})
        for key, one, other in zip(graph.outputs, expected, found, strict=True):
            one, other = (np.exp(x) if key == "new_belief" else x for x in (one, other))
            same += np.isclose(one, other, rtol=NEAR, atol=NEAR).reshape(rows, -1).all(1).tolist()
    wrong = len(same) - sum(same)
    if wrong > (len(same) // 4 if name == "act" and graph.layout.num_actions else 0):
        raise ValueError(
            f"{name}.onnx differs from Python in {wrong} of {len(same)} rows. Fix: another version of torch or onnxscript."
        )
