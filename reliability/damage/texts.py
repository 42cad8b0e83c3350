"""Damage to JSON, wherever it lies, and hostile environments in it."""

from __future__ import annotations

import gzip
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from damage.arrays import npy_bytes, read_zip, write_zip
from damage.outside import CANARY_MODULE, ESCAPE, HUGE, Outside, files_of, hdf5_of, seal, short

DEEP = 5000
WEIRD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 0.5, -0.0, 2**31, -(2**31), 2**63, 10**30, HUGE, 1e308, 1e-320,
    float("nan"), float("inf"), float("-inf"), "", "x", "0", "1", "-1", "NaN", "1e999", "true", "null", "\x00", "\ud800",
    "é" * 300, "a" * 100_000, ESCAPE, "[/a]", "[red]", "../../x", "/", "os:system", "{}", "[]", [], [None], [[]], [0], [-1],
    [HUGE], [0.5, "x"], [1, 2, 3, 4, 5, 6, 7], ["x", "y"], [[1, 2], [3]], {}, {"x": 1}, {"id": 1}, {"": {"": {}}}, [[[[[]]]]],
)  # fmt: skip


def _descend(rng: random.Random, value: Any) -> tuple[Any, Any] | None:
    """A random place in a document: the dict or list that holds it, and its key; None for an empty one."""
    while isinstance(value, dict | list) and value:
        key = rng.choice(sorted(value)) if isinstance(value, dict) else rng.randrange(len(value))
        inner = value[key]
        if not (isinstance(inner, dict | list) and inner) or rng.random() < 0.25:
            return value, key
        value = inner
    return None


def weird_json(rng: random.Random, text: str) -> tuple[str, str]:
    """JSON text with something wrong in it, and what."""
    try:
        document = json.loads(text)
    except ValueError:
        return rng.choice(("", "null", "{")), "replaced"
    how = rng.choice(("value",) * 8 + ("inner",) * 3 + ("missing", "missing", "renamed", "added", "whole", "text", "text"))
    if how == "text":
        return _weird_text(rng, text)
    if how == "whole":
        value = rng.choice(WEIRD)
        return json.dumps(value), f"all of it is {short(value)}"
    place = _descend(rng, document)
    if place is None:
        return json.dumps(rng.choice(WEIRD)), "all of it replaced"
    holder, key = place
    if how == "inner" and isinstance(holder[key], str) and holder[key][:1] == "{":  # JSON within JSON, as environments are
        holder[key], told = weird_json(rng, holder[key])
        return json.dumps(seal(document)), f"{key}: {told}"
    if how == "missing":
        del holder[key]
        told = f"{key} is missing"
    elif how == "renamed" and isinstance(holder, dict):
        holder[rng.choice((f"{key}s", str(key).upper(), ESCAPE, "[/a]", ""))] = holder.pop(key)
        told = f"{key} renamed"
    elif how == "added":
        value = rng.choice(WEIRD)
        if isinstance(holder, dict):
            holder[rng.choice(("more", ESCAPE, "__class__", "self", "device", "seed"))] = value
        else:
            holder.append(value)
        told = f"{short(value)} added beside {key}"
    else:
        value = rng.choice(WEIRD)
        holder[key] = value
        told = f"{key} is {short(value)}"
    return json.dumps(seal(document) if rng.random() < 0.8 else document), told


def _weird_text(rng: random.Random, text: str) -> tuple[str, str]:
    """Text that is hardly JSON."""
    choice: dict[str, Callable[[], str]] = {
        "deep lists": lambda: "[" * DEEP + "]" * DEEP,
        "deep dicts": lambda: '{"a":' * DEEP + "1" + "}" * DEEP,
        "deep within": lambda: text.replace(": ", ": " + "[" * DEEP + "]" * DEEP + ', "x": ', 1),
        "a number of 5,000 digits": lambda: text.replace(": ", ": " + "9" * 5000 + ', "x": ', 1),
        "a number of 400 digits": lambda: "".join(c if c not in "123456789" else "9" * 400 for c in text[:400]) + text[400:],
        "a byte order mark": lambda: "\ufeff" + text,
        "cut": lambda: text[: rng.randrange(max(1, len(text)))],
        "doubled": lambda: text + text,
        "single quotes": lambda: text.replace('"', "'"),
        "doubled keys": lambda: text.replace("{", '{"version": 99, "agent": "x", "update": -1,', 1),
        "nothing": lambda: "",
        "spaces": lambda: " " * 1000,
        "NaN": lambda: text.replace(": 0", ": NaN").replace(": 1", ": Infinity"),
    }
    name = rng.choice(sorted(choice))
    return choice[name](), name


def damage_json(rng: random.Random, path: Path, outside: Outside) -> str:
    """Something wrong in one of the JSON texts of a sample, wherever it lies."""
    places = [p for p in files_of(path) if p.suffix in (".json", ".jsonl", ".gz", ".safetensors", ".npz", ".hdf5")]
    weights = [1 if p.suffix in (".safetensors", ".gz") else 3 for p in places]
    file = rng.choices(places, weights)[0]
    told = change_text(file, lambda text: weird_json(rng, text), rng)
    return f"{file.name}: {told}"


def change_text(file: Path, change: Callable[[str], tuple[str, str]], rng: random.Random) -> str:
    """Put the JSON of a file through `change`; JSON lines lose or gain one line's sense."""
    if file.suffix == ".npz":
        entries = read_zip(file)
        name = "apev_header.npy"
        text = str(np.load(io.BytesIO(entries[name]))) if name in entries else "{}"
        new, told = change(text)
        with np.errstate(all="ignore"):
            entries[name] = npy_bytes(np.array(new.encode(errors="replace").decode()))
        write_zip(file, entries)
        return told
    if file.suffix == ".hdf5":
        with h5py.File(file, "a") as h5:
            new, told = change(str(h5.attrs.get("apev_header", "{}")))
            if rng.random() < 0.1:
                h5.attrs["apev_header"] = rng.choice((np.zeros(3), 7, np.bytes_(b"\xff\xfe"), h5py.Empty("f")))
                return "the attribute is no text"
            if len(new) < 60_000 and "\x00" not in new:  # HDF5's own limit on attributes
                h5.attrs["apev_header"] = new.encode(errors="replace").decode()
        return told
    if file.suffix == ".safetensors":
        header, rest = split_safetensors(file.read_bytes())
        new, told = change(header)
        file.write_bytes(join_safetensors(new, rest))
        return told
    packed = file.suffix == ".gz"
    text = (gzip.decompress(file.read_bytes()) if packed else file.read_bytes()).decode()
    if ".jsonl" in file.name:
        lines = text.split("\n")
        place = rng.randrange(max(1, len(lines) - 1))
        lines[place], told = change(lines[place])
        new, told = "\n".join(lines), f"line {place + 1}: {told}"
    else:
        new, told = change(text)
    data = new.encode(errors="surrogatepass")
    file.write_bytes(gzip.compress(data, mtime=0) if packed else data)
    return told


def split_safetensors(data: bytes) -> tuple[str, bytes]:
    """The header's JSON, and the tensors."""
    size = int.from_bytes(data[:8], "little")
    return data[8 : 8 + size].decode(), data[8 + size :]


def join_safetensors(header: str, rest: bytes) -> bytes:
    """A safetensors file of a header and tensors."""
    text = header.encode(errors="surrogatepass")
    return len(text).to_bytes(8, "little") + text + rest


# ---------------------------------------------------------------------- specs


KWARGS: tuple[Any, ...] = (
    7, "x", [], {"g": "x"}, {"g": float("nan")}, {"x": 1}, {"g": [1]}, {"render_mode": {"a": 1}}, {"g": 1e308}, {"self": 1},
    {"id": "x"}, {"spec": {}}, {"max_episode_steps": 10**12}, {"apply_api_compatibility": True}, {"disable_env_checker": 7},
)  # fmt: skip
IDS: tuple[Any, ...] = (
    7, None, "", "x", "X-v0", [], {}, "a:b:c", "../x-v0", "X-v" + "9" * 400, ESCAPE, "[/a]-v0", "CartPole-v99", "CartPole",
    "cartpole-v1", "NoNamespace/CartPole-v1", "CartPole-v1 ", "os:X-v0", "GymV21Environment-v0", "phys2d/CartPole-v1",
)  # fmt: skip


def hostile_spec(rng: random.Random, outside: Outside) -> tuple[Any, str]:
    """An environment that would run code, import a module, read a file or never end, and which."""
    plain: dict[str, Any] = {
        "id": "X-v0",
        "entry_point": "os:system",
        "kwargs": {"command": outside.touch},
        "additional_wrappers": [],
    }
    plain |= {"vector_entry_point": None, "reward_threshold": None, "nondeterministic": False, "max_episode_steps": None}
    plain |= {"order_enforce": False, "disable_env_checker": True}
    wrapper = {"name": "X", "entry_point": "os:system", "kwargs": {"command": outside.touch}}
    known: dict[str, Any] = {"id": rng.choice(("CartPole-v1", "Pendulum-v1")), "entry_point": None, "kwargs": {}}
    model, text = str(outside.bring("model.xml")), str(outside.bring("text.txt"))
    choices: dict[str, dict[str, Any]] = {
        "entry point": {},
        "known id, entry point": {"id": known["id"]},
        "subprocess": {"entry_point": "subprocess:getoutput", "kwargs": {"cmd": outside.touch}},
        "builtins": {"entry_point": "builtins:exec", "kwargs": {"source": f"open({str(outside.canary)!r}, 'w')"}},
        "module in id": {"id": f"{CANARY_MODULE}:Env-v0", "entry_point": None, "kwargs": {}},
        "module in entry point": {"entry_point": f"{CANARY_MODULE}:Env", "kwargs": {}},
        "vector entry point": known | {"vector_entry_point": f"{CANARY_MODULE}:Env"},
        "wrappers": known | {"additional_wrappers": [wrapper]},
        "wrapper module": known | {"additional_wrappers": [wrapper | {"entry_point": f"{CANARY_MODULE}:Env"}]},
        "wrappers of other types": known | {"additional_wrappers": rng.choice(("x", [1], [{}], [{"name": 1}], 7, {"a": 1}))},
        "xml": known | {"id": rng.choice(("Ant-v5", "Hopper-v5")), "kwargs": {"xml_file": model}},
        "images": known | {"id": "apev/LockedDoors-v0", "kwargs": {"images": text}},
        "size": known | {"id": "apev/LockedDoors-v0", "kwargs": {"size": HUGE, "horizon": HUGE}},
        "endless": known | {"id": "Pendulum-v1", "max_episode_steps": 10**12},
        "steps": known | {"max_episode_steps": rng.choice((-1, 0, "x", 1.5, [], True))},
        "render mode": known | {"kwargs": {"render_mode": rng.choice(("human", "rgb_array", "x", 7, ["human"]))}},
        "kwargs": known | {"kwargs": rng.choice(KWARGS)},
        "id": {"id": rng.choice(IDS)},
        "known id of another kind": known | {"id": rng.choice(("Acrobot-v1", "MountainCarContinuous-v0", "FrozenLake-v1"))},
        "unknown fields": known | {"__class__": "x", "self": 1},
        "as it should be": known,
        "nothing": dict.fromkeys(plain),
    }
    name = rng.choice(sorted(choices))
    spec = plain | choices[name]
    if rng.random() < 0.1:
        spec = {key: value for key, value in spec.items() if key == "id" or rng.random() < 0.5}
    return spec, name


def damage_spec(rng: random.Random, path: Path, outside: Outside) -> str:
    """A hostile environment in every place where a file names one."""
    spec, told = hostile_spec(rng, outside)
    text = json.dumps(spec) if rng.random() < 0.9 else rng.choice((spec, [spec], 7, "x", "{", "[]", "null", "{}"))
    identity = spec.get("id")
    only_id = rng.random() < 0.25

    def change(document: str) -> tuple[str, str]:
        value = json.loads(document)
        if "total_steps" in value:  # Minari's metadata
            value[rng.choice(("env_spec", "eval_env_spec"))] = text
        else:
            if "format" not in value and "agent_config" not in value:
                value = {"format": "apev.dataset", "version": 1, "num_actions": None} | value
            source = value.setdefault("source", {})
            source["environment_spec"] = text
            source["environment"] = identity
            if only_id:
                del source["environment_spec"]
            source.pop("action_low", None)  # or nobody would ask the environment for its bounds
        return json.dumps(seal(value)), told

    places = [p for p in files_of(path) if p.name in ("header.json", "metadata.json", "config.json") or p.suffix == ".npz"]
    for file in places or [hdf5_of(path)]:
        change_text(file, change, random.Random(0))
    return f"{told}{', id alone' if only_id else ''}"
