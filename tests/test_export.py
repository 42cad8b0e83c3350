"""ONNX files do what the Python policy does, in a process that has neither torch nor apev."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Container, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agent_contract import ACTIONS, build, observation, puzzle, trained

from apev.agents import AGENTS, Agent
from apev.data.batch import Layout
from apev.export.graphs import Draws, named
from apev.policy import Policy

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="needs the extra: pip install 'apev[onnx]'")

# What a user's program does: numpy, onnxruntime and the files. It acts on every step and observes what was really done.
PROGRAM = """
import json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "apev"):
            raise ImportError(f"{name} is not allowed here")

sys.meta_path.insert(0, Blocked())
import numpy as np
import onnxruntime as ort

folder, steps, out = sys.argv[1:]
options = ort.SessionOptions()
options.intra_op_num_threads = 1
act, observe = (ort.InferenceSession(f"{folder}/{name}.onnx", options) for name in ("act", "observe"))
about = {key: json.loads(value) for key, value in act.get_modelmeta().custom_metadata_map.items()}
data = dict(np.load(steps))
rows = len(data["reward"][0])
state = {"belief": np.tile(np.float32(about["start_belief"]), (rows, 1))}
if about["start_history"] is not None:
    state["history"] = np.tile(np.float32(about["start_history"]), (rows, 1))
actions, beliefs = [], []
for t in range(len(data["reward"])):
    step = {name: column[t] for name, column in data.items()} | state
    actions.append(act.run(None, {i.name: step[i.name] for i in act.get_inputs()})[0])
    given = {i.name: step[i.name] for i in observe.get_inputs()}
    answers = observe.run(None, given)
    state = {o.name.removeprefix("new_"): a for o, a in zip(observe.get_outputs(), answers)}
    beliefs.append(state["belief"])
assert "torch" not in sys.modules and "apev" not in sys.modules
np.savez(out, actions=np.array(actions), beliefs=np.exp(beliefs))
"""


def some_observations(layout: Layout, rows: int, rng: np.random.Generator) -> Any:
    parts: dict[str, np.ndarray] = {key: rng.normal(size=(rows, width)).astype(np.float32) for key, width in layout.vectors}
    if layout.picture is not None:
        channels, height, width = layout.picture_shape or (0, 0, 0)
        parts[layout.picture] = rng.integers(256, size=(rows, height, width, channels)).astype(np.uint8)
    return parts["observation"] if layout.bare else parts


def columns_of(layout: Layout, prefix: str, obs: Any) -> dict[str, np.ndarray]:
    return {named(layout, prefix, key): part for key, part in ({"observation": obs} if layout.bare else obs).items()}


def drive(policy: Policy, steps: int, rows: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """(what went in, actions, beliefs) of the Python policy in a world of noise; every tenth action was not its own."""
    rng, layout = np.random.default_rng(0), policy.agent.layout
    policy.reset(num_envs=rows)
    obs = some_observations(layout, rows, rng)
    seen: list[dict[str, np.ndarray]] = []
    actions, beliefs = [], []
    masks = rng.random((steps + 1, rows, layout.num_actions)) < 0.7 if layout.masked else None
    if masks is not None:
        masks[..., -1] |= ~masks.any(-1)
    for t in range(steps):
        after = some_observations(layout, rows, rng)
        action = policy.act(obs, mask=None if masks is None else masks[t])
        actions.append(action)
        if t % 10 == 9:
            action = rng.integers(layout.num_actions, size=rows) if layout.num_actions else action * np.float32(0.5)
        reward, terminated = rng.normal(size=rows).astype(np.float32), rng.random(rows) < 0.1
        with Draws() as draws:
            policy.observe(reward, after, terminated, action=action, mask=None if masks is None else masks[t + 1])
        beliefs.append(policy.belief)
        noise = {}
        for kind, drawn in draws.seen:
            if drawn.ndim > 2:  # [K, B, A]
                drawn = drawn.transpose(0, 1)
            elif len(drawn) > rows:  # the same, flattened
                drawn = drawn.unflatten(0, (-1, rows)).transpose(0, 1)
            noise["noise" if kind == "normal" else kind] = drawn.numpy()
        step = {"action": action, "reward": reward, "terminated": terminated}
        step |= {} if masks is None else {"mask": masks[t], "next_mask": masks[t + 1] & ~terminated[:, None]}
        seen.append(columns_of(layout, "obs", obs) | columns_of(layout, "next_obs", after) | step | noise)
        obs = after
    return {name: np.array([step[name] for step in seen]) for name in seen[0]}, np.array(actions), np.array(beliefs)


def check(policy: Policy, folder: Path, *, steps: int, rows: int = 2) -> np.ndarray:
    """The files act and believe as Python does; returns the beliefs."""
    policy.export(folder)
    given, actions, beliefs = drive(policy, steps, rows)
    np.savez(folder / "steps.npz", **given)  # type: ignore[arg-type]
    words = [sys.executable, "-c", PROGRAM, str(folder), str(folder / "steps.npz"), str(folder / "out.npz")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = np.load(folder / "out.npz")
    np.testing.assert_allclose(found["beliefs"], beliefs, atol=1e-5)
    np.testing.assert_allclose(found["actions"], actions, atol=1e-5)
    return beliefs


def with_scales(agent: Agent) -> Agent:
    """Members that are not equally often wrong."""
    agent.scale.copy_(torch.linspace(0.6, 1.5, agent.members))
    return agent


KIND = {name: ("vector" if "discrete" in name or name in ("ape-v", "dqn", "lcb") else "continuous") for name in AGENTS}
KIND |= dict.fromkeys(("c51", "c51-lcb", "ape-v-c51"), "picture")
SETTINGS: dict[str, dict[str, Any]] = {
    "ape-v": {"members": 3, "support": 0.3},
    "ape-v-sac": {"critics": 4},
    "td3-bc": {"members": 3},
    "discrete-bc": {"members": 2},
}


def made(name: str, kind: str, **settings: Any) -> Agent:
    if KIND[name] == "picture":
        agent = AGENTS[name][0].for_data(puzzle(kind), AGENTS[name][1](**({"features": 8} | settings)))
        return with_scales(agent)
    return with_scales(build(name, SETTINGS.get(name, {}) | settings, puzzle(kind)))


SLOW = pytest.mark.slow  # an export takes seconds


def mostly_slow(names: Iterable[str], quick: Container[str]) -> list[Any]:
    """Names of agents; those that are not `quick` run with -m slow."""
    return [name if name in quick else pytest.param(name, marks=SLOW) for name in names]


# One of each way to act and to err; the others inherit from these.
FAMILIES = (
    "ape-v",
    "dqn",
    "discrete-iql",
    "ape-v-sac",
    "ape-v-sac-anchored",
    "td3-bc",
    "iql",
    "discrete-iql-gru",
    "bc-stacked",
    "c51",
)


@pytest.mark.parametrize("name", mostly_slow(AGENTS, FAMILIES))
def test_every_agent_acts_and_believes_the_same_without_torch(name: str, tmp_path: Path) -> None:
    agent = made(name, KIND[name])
    beliefs = check(Policy(agent), tmp_path, steps=12)
    if agent.members > 1 and agent.errs:
        assert np.abs(beliefs[-1] - 1 / agent.members).max() > 1e-3


@SLOW
@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_acts_and_believes_the_same_for_a_thousand_steps(name: str, tmp_path: Path) -> None:
    check(Policy(made(name, KIND[name])), tmp_path, steps=1000)


MASKED = ("ape-v", "discrete-iql-gru")  # of those below, the ones that act in ways of their own


@pytest.mark.parametrize("name", mostly_slow((name for name in AGENTS if KIND[name] == "vector"), MASKED))
def test_masks_go_into_the_files(name: str, tmp_path: Path) -> None:
    log = puzzle("vector")
    allowed = np.random.default_rng(0).random((len(log), ACTIONS)) < 0.5
    allowed[np.arange(len(log)), log.actions] = True
    log = replace(log, action_masks=allowed, given_next_masks=np.ones_like(allowed))
    policy = Policy(with_scales(build(name, SETTINGS.get(name, {}), log)))
    check(policy, tmp_path, steps=12, rows=16)
    about = json.loads((tmp_path / "about.json").read_text())
    assert about["act"]["inputs"]["mask"] == {"type": "bool", "shape": ["batch", ACTIONS]}
    assert "next_mask" in about["observe"]["inputs"]


@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        pytest.param("ape-v", "picture", {"members": 2}, marks=SLOW),
        ("ape-v", "dict", {"members": 2, "wildcards": 1, "prior_scale": 0.5}),
        ("ape-v", "vector", {"surprise": "paper", "likelihood": "paper", "evidence_share": 0.0, "floor": 0.0}),
        ("dqn", "vector", {"likelihood": "student", "temperature": 2.0, "forgetting": 0.05, "floor": 0.02}),
        pytest.param("lcb", "vector", {"likelihood": "gaussian"}, marks=SLOW),
        ("ape-v-sac", "continuous", {"surprise": "paper"}),
        pytest.param("ape-v-sac", "continuous", {"shared": False}, marks=SLOW),
        ("c51", "picture", {"views": 1, "pool": True, "enlarged": 16, "judged_by": "categorical"}),
        pytest.param("ape-v-c51", "picture", {"surprise": "certain"}, marks=SLOW),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else None,
)
def test_settings_are_in_the_files(name: str, kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    check(Policy(made(name, kind, **settings)), tmp_path, steps=12)


@pytest.mark.parametrize(
    ("name", "evidence"),
    [
        ("ape-v", "both"),
        ("td3-bc", "model"),
        pytest.param("ape-v", "model", marks=SLOW),
        pytest.param("td3-bc", "both", marks=SLOW),
    ],
)
def test_evidence_of_models_of_the_worlds(name: str, evidence: str, tmp_path: Path) -> None:
    agent = made(name, KIND[name], evidence=evidence, world_columns=4)
    assert agent.worlds is not None
    agent.worlds.units.kept.copy_(torch.tensor([0, 2, 3, 4]))  # of three observation columns, reward and end
    agent.worlds.units.in_scale.fill_(1.5)
    agent.worlds.temperature.fill_(3.0)
    check(Policy(agent), tmp_path, steps=12)


def test_beliefs_agree_over_a_thousand_steps_of_a_trained_policy(tmp_path: Path) -> None:
    agent, _ = trained("ape-v", (("members", 5),), "vector")
    beliefs = check(Policy(agent), tmp_path, steps=1000, rows=1)
    assert beliefs.max(-1).std() > 0.02  # it did move, there and back


def test_beliefs_agree_over_a_thousand_steps_of_continuous_actions(tmp_path: Path) -> None:
    agent, _ = trained("ape-v-sac", (("critics", 4), ("temperature", 5.0), ("forgetting", 0.01)), "continuous", 100)
    beliefs = check(Policy(agent), tmp_path, steps=1000, rows=1)
    assert beliefs.max(-1).std() > 0.02


@pytest.mark.parametrize(
    ("name", "adapt"),
    [("ape-v", (0.5, 0.3, 0.2)), ("td3-bc", "uniform"), ("ape-v", "member:1"), pytest.param("td3-bc", "member:1", marks=SLOW)],
)
def test_a_belief_that_stays_is_exported_as_such(name: str, adapt: Any, tmp_path: Path) -> None:
    policy = Policy(made(name, KIND[name]), adapt)
    beliefs = check(policy, tmp_path, steps=4)
    np.testing.assert_array_equal(beliefs[0], beliefs[-1])
    about = json.loads((tmp_path / "about.json").read_text())
    assert about["adapts"] is False
    np.testing.assert_allclose(np.exp(about["start_belief"]), policy.belief[0], atol=1e-6)


def test_a_policy_is_exported_with_another_behaviour_than_its_own(tmp_path: Path) -> None:
    policy = Policy(made("dqn", "vector"))
    policy.export(tmp_path, adapt="member:2")
    assert policy.adapt == "bayes"
    assert json.loads((tmp_path / "about.json").read_text())["adapt"] == "member:2"


def session(path: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def test_a_step_that_is_not_finite_leaves_the_belief_as_it_was(tmp_path: Path) -> None:
    policy = Policy(made("dqn", "vector"))
    policy.export(tmp_path)
    obs = np.ones((3, 3), np.float32)
    belief = np.log(np.tile(np.array([0.5, 0.3, 0.1, 0.05, 0.05], np.float32), (3, 1)))
    reward = np.array([np.nan, np.inf, 1.0], np.float32)
    step = {"obs": obs, "action": np.zeros(3, np.int64), "reward": reward, "next_obs": obs}
    (new,) = session(tmp_path / "observe.onnx").run(None, step | {"terminated": np.zeros(3, bool), "belief": belief})
    np.testing.assert_array_equal(new[:2], belief[:2])
    assert not np.allclose(new[2], belief[2])


def test_the_file_says_what_it_is_and_nothing_of_the_machine_it_was_made_on(tmp_path: Path) -> None:
    policy = Policy(made("ape-v", "dict"))
    policy.source = {"action_names": ["left", "stay", "right"], "environment": "Somewhere-v0"}
    policy.export(tmp_path)
    about = json.loads((tmp_path / "about.json").read_text())
    for name in ("act", "observe"):
        told = session(tmp_path / f"{name}.onnx").get_modelmeta().custom_metadata_map
        assert {key: json.loads(value) for key, value in told.items()} == about
        content = (tmp_path / f"{name}.onnx").read_bytes()
        assert b"site-packages" not in content
        assert str(Path(__file__).parents[1]).encode() not in content
        assert b"stack_trace" not in content
    assert about["action_names"] == ["left", "stay", "right"]
    assert about["members"] == 3
    assert about["algorithm"] == "ape-v"
    assert about["actions"] == {"kind": "discrete", "number": ACTIONS}
    assert about["observation"]["image"] == {"shape": [8, 8, 3], "type": "uint8"}
    assert about["act"]["inputs"]["obs_hint"] == {"type": "float32", "shape": ["batch", 3]}
    assert list(about["observe"]["outputs"]) == ["new_belief"]


@pytest.mark.parametrize("adapt", ["commit", "hold", "random-member", "random-member-step"])
def test_what_files_cannot_keep_is_refused(adapt: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is more than a belief.*Fix: bayes"):
        Policy(made("dqn", "vector")).export(tmp_path, adapt=adapt)
    assert list(tmp_path.iterdir()) == []


def test_a_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"remember=True.*Fix"):
        Policy(made("dqn", "vector"), remember=True).export(tmp_path)


def test_a_missing_package_is_named_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"onnxscript.*pip install 'apev\[onnx\]'"):
        Policy(made("dqn", "vector")).export(tmp_path)


def test_a_filter_of_ones_own_is_exported(tmp_path: Path) -> None:
    policy = Policy(made("dqn", "vector"))
    policy.filter = replace(policy.filter, floor=0.1)
    beliefs = check(policy, tmp_path, steps=12)
    assert beliefs.min() >= 0.1 - 1e-6


def test_the_command_prints_what_the_files_take_and_give(tmp_path: Path) -> None:
    Policy(made("dqn", "vector")).save(tmp_path / "policy")
    words = [sys.executable, "-m", "apev.cli", "export", str(tmp_path / "policy"), "--out", str(tmp_path / "files")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "act(obs, belief) -> action" in done.stdout
    assert "observe(obs, action, reward, next_obs, terminated, belief) -> new_belief" in done.stdout
    assert {line.split()[0] for line in done.stderr.splitlines() if line.strip()} <= {"export"}  # its progress, and no chatter
    assert {path.name for path in (tmp_path / "files").iterdir()} == {"act.onnx", "observe.onnx", "about.json"}


def test_observations_of_the_puzzle_are_what_the_files_read(tmp_path: Path) -> None:
    agent, _ = trained("dqn", (), "vector")
    Policy(agent).export(tmp_path)
    obs = observation("vector", np.arange(9))
    about = json.loads((tmp_path / "about.json").read_text())
    belief = np.tile(np.float32(about["start_belief"]), (9, 1))
    (action,) = session(tmp_path / "act.onnx").run(None, {"obs": obs, "belief": belief})
    assert (action == np.arange(9) % ACTIONS).all()
