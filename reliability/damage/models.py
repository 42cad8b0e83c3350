"""Damage to policies, checkpoints and results."""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from apev import files
from damage.arrays import bomb
from damage.outside import ESCAPE, HUGE, Outside, files_of, seal, seal_folder, short
from damage.texts import join_safetensors, split_safetensors, weird_json


def damage_tensors(rng: random.Random, path: Path, outside: Outside) -> str:
    """Tensors that are missing, of other shapes or types, or not finite, with the right checksum."""
    file = rng.choice([p for p in files_of(path) if p.suffix == ".safetensors"])
    with safe_open(file, framework="pt") as opened:
        about = dict(opened.metadata() or {})
        tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118 (not a dict)
    name = rng.choice(sorted(tensors))
    tensor = tensors[name]
    how = rng.choice(
        (
            "missing",
            "renamed",
            "added",
            "nan",
            "inf",
            "huge",
            "zeros",
            "negative",
            "dtype",
            "shape",
            "empty",
            "about",
            "about",
            "bits",
        )
    )
    if how == "missing":
        del tensors[name]
    elif how == "renamed":
        tensors[rng.choice((f"x.{name}", ESCAPE, "", "sampler.x", "optimizer.999.exp_avg", "optimizer.x.step", "agent.x"))] = (
            tensors.pop(name)
        )
    elif how == "added":
        tensors[rng.choice(("more", "optimizer.77.step", "agent.more", "generator", "sampler.generator"))] = torch.zeros(3)
    elif how in ("nan", "inf", "huge", "zeros", "negative"):
        value = {"nan": float("nan"), "inf": float("inf"), "huge": 3e38, "zeros": 0.0, "negative": -1.0}[how]
        if tensor.is_floating_point():
            tensor.reshape(-1)[: max(1, rng.randrange(max(1, tensor.numel())))] = value
        else:
            tensor.fill_(0 if how == "zeros" else rng.choice((1, 127)))
    elif how == "dtype":
        tensors[name] = tensor.to(
            rng.choice((torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.uint8))
        )
    elif how == "shape":
        tensors[name] = rng.choice(
            (tensor.reshape(-1), tensor[None], tensor.reshape(-1)[:1], tensor.repeat(2, *[1] * max(0, tensor.ndim - 1)))
        )
    elif how == "empty":
        tensors[name] = torch.zeros(0)
    elif how == "bits":
        flat = tensor.reshape(-1).view(torch.uint8)
        flat[rng.randrange(max(1, len(flat)))] ^= 1 << rng.randrange(8)
    elif "policy" in about and rng.random() < 0.5:
        about["policy"], told = weird_json(rng, about["policy"])
        how = f"policy, {told}"
    else:
        which = rng.choice(("update", "logged", "saved", "unseen"))
        about[which] = rng.choice(("x", "-1", "", "1e9", str(10**30), "99999999", "0", "nan", " 7"))
        how = f"{which} {about[which]!r}"
    if "sha256" in about:
        rest = {key: value for key, value in about.items() if key != "sha256"}
        about = rest | {"sha256": files.tensor_digest(tensors, rest)}
    about = {key: value.encode(errors="replace").decode() for key, value in about.items()}
    save_file({key: value.contiguous().clone() for key, value in tensors.items()}, file, metadata=about or None)
    seal_folder(file.parent)
    return f"{file.name}, {name}: {how}"


CONFIG_SIZES = (
    "members", "hidden", "features", "critics", "atoms", "wildcards", "updates", "batch_size", "num_actions", "picture_shape",
    "vectors", "action_low", "action_high", "gamma", "seed", "log_every",
)  # fmt: skip


def huge_config(rng: random.Random, path: Path, outside: Outside) -> str:
    """A policy or run that says its networks are giants."""
    file = rng.choice([p for p in files_of(path) if p.suffix == ".json"])
    document = json.loads(file.read_text())
    places = [
        p
        for p in (
            document,
            document.get("config"),
            document.get("layout"),
            document.get("agent_config"),
            document.get("schedule"),
        )
        if isinstance(p, dict)
    ]
    found = [(p, key) for p in places for key in sorted(p) if key in CONFIG_SIZES]
    if not found:
        document["members"] = HUGE
        told = "members"
    else:
        holder, told = rng.choice(found)
        old = holder[told]
        values: tuple[Any, ...] = (HUGE, 10**12, 2**31, 2**63, 0, -1, 100_000)
        value = rng.choice(values)
        if told == "vectors":
            holder[told] = rng.choice(([["observation", value]], [["observation", 3]] * 200_000, [["x", value], ["x", value]]))
        elif isinstance(old, list):
            holder[told] = rng.choice(([value], [8, value], [value] * 3, [8] * 10_000))
        else:
            holder[told] = value
        told = f"{told} is {short(holder[told])}"
    file.write_text(json.dumps(seal(document)))
    return f"{file.name}: {told}"


def giant_safetensors(rng: random.Random, path: Path, outside: Outside) -> str:
    """Tensors whose header lies about sizes and places."""
    file = rng.choice([p for p in files_of(path) if p.suffix == ".safetensors"])
    data = file.read_bytes()
    header, rest = split_safetensors(data)
    facts = json.loads(header)
    name = rng.choice([key for key in sorted(facts) if key != "__metadata__"])
    how = rng.choice(("shape", "offsets", "overlap", "length", "dtype", "sparse"))
    if how == "shape":
        facts[name]["shape"] = rng.choice(([HUGE, HUGE], [2**62, 4], [-1], [0, 2**63], [1.5], ["x"], []))
    elif how == "offsets":
        facts[name]["data_offsets"] = rng.choice(([0, 2**62], [-8, 0], [8, 0], [0], [], "x", [2**63, 2**64]))
    elif how == "overlap":
        for fact in facts.values():
            if "data_offsets" in fact:
                fact["data_offsets"] = [0, fact["data_offsets"][1] - fact["data_offsets"][0]]
    elif how == "dtype":
        facts[name]["dtype"] = rng.choice(("F64", "F16", "BOOL", "X", "", 7, "F8_E4M3", "C64", "U64"))
    new = join_safetensors(json.dumps(facts), rest)
    if how == "length":
        new = rng.choice((2**63, 2**32, 0, 1, 10**9, 2**64 - 1)).to_bytes(8, "little") + data[8:]
    file.write_bytes(new)
    if how == "sparse":  # a tensor of 3 GB in a file with a hole
        start = len(rest)
        facts["more"] = {"dtype": "F32", "shape": [3 << 28], "data_offsets": [start, start + (3 << 30)]}
        new = join_safetensors(json.dumps(facts), rest)
        file.write_bytes(new)
        os.truncate(file, len(new) + (3 << 30))
    elif how != "length":
        seal_folder(file.parent)
    return f"{file.name}, {name}: {how}"


def gzip_bomb(rng: random.Random, path: Path, outside: Outside) -> str:
    """Episodes of a few megabytes that unpack to gigabytes, in one line or without a line."""
    packed = [p for p in files_of(path) if p.name.endswith(".gz")]
    file = packed[0] if packed else path / "episodes.jsonl.gz"
    (path / "episodes.jsonl").unlink(missing_ok=True)
    data, crc, size = bomb(4)
    file.write_bytes(b"\x1f\x8b\x08\0\0\0\0\0\x02\xff" + data + struct.pack("<II", crc, size & 0xFFFFFFFF))
    return f"{file.name} unpacks to 4 GB"
