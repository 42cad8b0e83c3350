"""Action masks: what is forbidden is never done, never bootstrapped from, and refused where the log did it all the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from rich.console import Console

import apev
from apev.agents import find
from apev.cli import main
from apev.data import DataError, Dataset
from apev.evaluation import Evaluation
from apev.policy import Policy

QUIET = Console(quiet=True)
ROWS, ACTIONS, FORBIDDEN = 60, 4, 2
AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "ape-v": ("ape-v", {"support": 0.0}),
    "ape-v, support": ("ape-v", {}),
    "ape-v, paper": ("ape-v", {"surprise": "paper", "evidence_share": 0.0}),
    "dqn": ("dqn", {"support": 0.0}),
    "dqn, support": ("dqn", {"support": 0.3}),
    "lcb": ("lcb", {}),
    "rem": ("rem", {}),
    "cql": ("cql", {}),
    "iql": ("iql", {}),
    "bc": ("bc", {}),
}
TAXI = max(name for name in gymnasium.registry if name.startswith("Taxi-v"))
HISTORIES = ["bc-stacked", "iql-stacked", "bc-gru", "iql-gru"]


def columns(seed: int = 0) -> dict[str, Any]:
    """A log in which one action is always forbidden, and others at random."""
    rng = np.random.default_rng(seed)
    masks = rng.random((ROWS, ACTIONS)) < 0.5
    masks[:, FORBIDDEN] = False
    actions = rng.choice([0, 1, 3], size=ROWS)
    masks[np.arange(ROWS), actions] = True
    return {
        "observations": rng.normal(size=(ROWS, 3)).astype(np.float32),
        "actions": actions,
        "rewards": rng.normal(size=ROWS),
        "terminated": np.arange(ROWS) % 20 == 9,
        "truncated": np.arange(ROWS) % 20 == 19,
        "action_masks": masks,
    }


def read(**changes: Any) -> Dataset:
    return Dataset.from_arrays(**{name: value for name, value in (columns() | changes).items() if value is not None})


def agent_for(name: str, log: Dataset, **more: Any) -> Any:
    algorithm, settings = AGENTS.get(name, (name, {}))
    variant = find(algorithm, discrete=True)
    small = {} if name in HISTORIES else {"hidden": (8,)}
    return variant.agent.for_data(log, variant.config(**(small | settings | more)), seed=0)


# ---------------------------------------------------------------------- logs


def test_what_follows_is_the_mask_of_the_next_row() -> None:
    log = read()
    assert log.action_masks is not None
    assert log.next_masks is not None
    assert log.num_actions == ACTIONS  # by the masks: the last may never have been taken
    np.testing.assert_array_equal(log.next_masks[:9], log.action_masks[1:10])
    assert log.next_masks[9].all()  # terminated: nothing follows
    assert not log.usable[19]  # cut off, and nobody knows what was allowed then


def test_the_end_of_a_cut_episode_needs_its_next_mask_too() -> None:
    after = columns()["observations"] + 1
    assert not read(next_observations=after).usable[19]
    given = np.ones((ROWS, ACTIONS), bool)
    given[9] = False  # the world ended there
    log = read(next_observations=after, next_action_masks=given)
    assert log.usable.all()
    assert log.next_masks is not None
    assert log.next_masks.all()


def broken(row: int, action: int | None) -> np.ndarray:
    masks: np.ndarray = columns()["action_masks"].copy()
    masks[row] = False if action is None else masks[row]
    if action is not None:
        masks[row, action] = False
    return masks


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"action_masks": broken(7, None)}, r"action_masks, row 7: every action is forbidden"),
        ({"action_masks": broken(5, columns()["actions"][5])}, r"action_masks, row 5: action \d was taken, but is forbidden"),
        ({"action_masks": columns()["action_masks"] * 2}, r"action_masks, row 0: holds a value"),
        ({"action_masks": np.ones(ROWS, bool)}, r"action_masks: shape is \(60,\)"),
        ({"num_actions": 5}, r"action_masks: tell of 4 actions.*each of the 5"),
        ({"actions": np.ones((ROWS, 1), np.float32)}, r"action"),
        ({"action_masks": None, "next_action_masks": np.ones((ROWS, 4), bool)}, r"next_action_masks: is there without"),
        (
            {"next_action_masks": broken(3, None)},
            r"next_action_masks, row 3: every action is forbidden, but the episode goes on",
        ),
        ({"next_action_masks": np.ones((ROWS, 3), bool)}, r"next_action_masks: has shape"),
    ],
)
def test_a_wrong_mask_is_named_by_its_row(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(DataError, match=match):
        read(**changes)


@pytest.mark.parametrize("name", ["log.npz", "log.hdf5", "log.apev"])
def test_masks_survive_files_and_splits(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = read(next_action_masks=np.ones((ROWS, ACTIONS), bool))
    log.save(tmp_path / name)
    again = Dataset.load(tmp_path / name)
    assert again.digest == log.digest != read().digest != read(action_masks=None).digest
    assert again.action_masks is not None
    np.testing.assert_array_equal(again.action_masks, columns()["action_masks"])
    kept, rest = log.split(0.3, seed=0)
    for part in (kept, rest):
        assert part.action_masks is not None
        assert part.action_masks[np.arange(len(part)), part.actions].all()
    main(["data", "verify", str(tmp_path / name)])
    main(["data", "info", str(tmp_path / name)])
    assert "of 4 allowed" in capsys.readouterr().out


def test_every_wrong_row_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    masks = columns()["action_masks"].copy()
    for row in (3, 8):
        masks[row, columns()["actions"][row]] = False
        masks[row, (columns()["actions"][row] + 1) % ACTIONS] = True
    np.savez(tmp_path / "log.npz", **(columns() | {"action_masks": masks}))
    with pytest.raises(SystemExit):
        main(["data", "verify", str(tmp_path / "log.npz")])
    assert "action_masks, rows 3, 8: action" in capsys.readouterr().out
    np.savez(tmp_path / "log.npz", **{"action_mask" if k == "action_masks" else k: v for k, v in columns().items()})
    with pytest.raises(DataError, match=r"action_mask: .*call it action_masks"):
        Dataset.load(tmp_path / "log.npz")


# ---------------------------------------------------------------------- learning and acting


def tempt(agent: Any) -> None:
    """Let every network think the world of the forbidden action."""

    def praise(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output.index_fill(-1, torch.tensor([FORBIDDEN]), 1e6)

    inner = getattr(agent, "inner", agent)
    for net in (inner.net, inner.target):
        net.heads.register_forward_hook(praise)


@pytest.mark.parametrize("name", [*AGENTS, *HISTORIES])
def test_a_forbidden_action_is_never_taken_and_never_bootstrapped_from(name: str) -> None:
    log = read()
    agent = agent_for(name, log)
    tempt(agent)
    sampler = agent.sampler(log, batch_size=32, seed=0)
    metrics = [agent.update(sampler.sample()) for _ in range(3)]
    for values in metrics:
        assert all(abs(float(value)) < 1e3 for value in values.values()), values
    policy = Policy(agent)
    obs, masks = columns()["observations"], columns()["action_masks"]
    rows = np.arange(ROWS)
    for greedy in (True, False):
        policy.reset(num_envs=ROWS)
        assert masks[rows, policy.act(obs, greedy, mask=masks)].all()
        policy.observe(np.zeros(ROWS), obs, np.zeros(ROWS, bool), mask=masks)
        assert np.isfinite(policy.belief).all()
    if name in AGENTS:
        step = agent.sampler(log, batch_size=32, seed=1).sample()
        flat = torch.zeros(len(step.action), agent.members)
        assert float(agent.td_errors(step, flat).abs().max()) < 1e3


def test_the_target_is_the_best_allowed_action_by_hand() -> None:
    log = Dataset.from_arrays([[0.0], [1.0]], [0, 1], [1.0, 5.0], [0, 1], [0, 0], action_masks=[[1, 1, 0], [0, 1, 0]])
    agent = agent_for("dqn", log, members=1, gamma=0.5)
    values = torch.tensor([3.0, 4.0, 9.0])
    for net in (agent.net, agent.target):
        net.heads.register_forward_hook(lambda module, inputs, output: output * 0 + values)
    step = agent.sampler(log, batch_size=1, seed=0).batch(torch.tensor([0, 1]))
    errors = agent.td_errors(step, torch.zeros(2, 1))
    torch.testing.assert_close(errors, torch.tensor([[3 - (1 + 0.5 * 4)], [4 - 5.0]]))  # not 9, which is forbidden


@pytest.mark.parametrize("name", [name for name in AGENTS if "support" not in name])
def test_masks_that_allow_all_change_nothing(name: str) -> None:
    after = columns()["observations"] + 1
    every = np.ones((ROWS, ACTIONS), bool)
    logs = [
        read(next_observations=after, action_masks=every, next_action_masks=every),
        read(next_observations=after, action_masks=None, num_actions=ACTIONS),
    ]
    agents = []
    for log in logs:
        agent = agent_for(name, log)
        sampler = agent.sampler(log, batch_size=32, seed=0)
        for _ in range(3):
            agent.update(sampler.sample())
        agents.append(agent.state_dict())
    assert all(torch.equal(agents[0][key], agents[1][key]) for key in agents[0])


@pytest.mark.parametrize(
    ("mask", "match"),
    [
        ([True] * 3, r"mask has shape \(3,\)"),
        ([False] * 4, r"mask forbids every action"),
        ([0.5] * 4, r"mask is .*True or False"),
        (["a"] * 4, r"no real numbers"),
    ],
)
def test_a_mask_that_makes_no_sense_is_refused(mask: Any, match: str) -> None:
    policy = Policy(agent_for("dqn", read()))
    with pytest.raises(ValueError, match=match):
        policy.act(np.zeros(3), mask=mask)
    assert policy.act(np.zeros(3), mask=[0, 0, 0, 1]) == 3


def test_who_knows_no_masks_says_so() -> None:
    from apev.agents import AGENTS as STORED

    log = read()
    kind, config = STORED["c51"]
    pictured = Dataset.from_arrays(**(columns() | {"observations": np.zeros((ROWS, 16, 16, 3), np.uint8)}))
    agent = kind.for_data(pictured, config(members=1), seed=0)
    with pytest.raises(ValueError, match=r"knows no masks.*Fix: ape-v"):
        agent.update(agent.sampler(pictured, batch_groups=2, per_group=4).sample())
    remembering = Policy(agent_for("dqn", log), remember=True)
    with pytest.raises(ValueError, match="remember=True knows no masks"):
        remembering.act(np.zeros(3), mask=np.ones(4))


# ---------------------------------------------------------------------- evaluation


class Strict(gymnasium.Env[np.ndarray, int]):
    """Forbids all but one action a step, which the observation does not tell; at its end it forbids everything."""

    observation_space = gymnasium.spaces.Box(-10, 10, (3,))
    action_space = gymnasium.spaces.Discrete(ACTIONS)  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(3, 8))
        return self.look()

    def look(self) -> tuple[np.ndarray, dict[str, Any]]:
        self.only = int(self.np_random.integers(ACTIONS))
        mask = np.arange(ACTIONS) == (self.only if self.left else -1)
        return np.zeros(3, np.float32), {"action_mask": mask.astype(np.int8)}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert action == self.only, "a forbidden action was taken"
        self.left -= 1
        obs, info = self.look()
        return obs, 1.0, self.left == 0, False, info


def test_evaluation_obeys_the_environments_masks() -> None:
    policy = apev.train(read(), "ape-v", updates=3, hidden=(8,), members=2, batch_size=16, console=QUIET)
    assert policy.agent.layout.masked
    found = apev.evaluate(policy, Strict, episodes=6, console=QUIET)
    assert isinstance(found, Evaluation)
    assert found["adaptive"].mean >= 3
    unmasked = apev.train(read(action_masks=None), "dqn", updates=3, hidden=(8,), members=1, batch_size=16, console=QUIET)
    with pytest.raises(AssertionError, match="forbidden action"):
        apev.evaluate(unmasked, Strict, episodes=6, console=QUIET)


def test_taxis_masks_are_understood(tmp_path: Path) -> None:
    env, rng, rows = gymnasium.make(TAXI), np.random.default_rng(0), []
    for episode in range(5):
        (obs, info), over = env.reset(seed=episode), False
        while not over:
            action = int(rng.choice(np.flatnonzero(info["action_mask"])))
            after, reward, ended, cut, new = env.step(action)
            rows.append((obs, action, reward, ended, cut and not ended, after, info["action_mask"], new["action_mask"]))
            obs, info, over = after, new, ended or cut
    names = ("observations", "actions", "rewards", "terminated", "truncated", "next_observations", "action_masks")
    arrays = [np.array(column) for column in zip(*rows, strict=True)]
    given: dict[str, Any] = dict(zip((*names, "next_action_masks"), arrays, strict=True))
    log = Dataset.from_arrays(**given, source={"environment": TAXI})
    policy = apev.train(log, "cql", out=tmp_path / "run", updates=5, hidden=(8,), console=QUIET)
    found = apev.evaluate(apev.load(tmp_path / "run"), TAXI, episodes=2, console=QUIET)
    assert found.rows[0].length is not None
    assert policy.agent.layout == apev.load(tmp_path / "run").agent.layout


# ---------------------------------------------------------------------- what no agent does yet


def test_continuous_actions_from_pictures_are_refused_with_ways_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures = np.random.default_rng(0).integers(0, 255, (ROWS, 16, 16, 3), dtype=np.uint8)
    given = {"observations": pictures, "actions": np.ones((ROWS, 1), np.float32), "action_masks": None}
    log = Dataset.from_arrays(**(columns() | given))
    told = r"no algorithm learns continuous actions from pictures.*Fix: .*features.*integers"
    for algorithm in ("ape-v", "td3-bc", "bc-gru", "iql-stacked"):
        with pytest.raises(ValueError, match=told):
            apev.train(log, algorithm, updates=1, console=QUIET)
    with pytest.raises(ValueError, match=told):
        apev.tune(log, trials=1, out=tmp_path / "tune", console=QUIET)
    log.save(tmp_path / "log.npz")
    with pytest.raises(SystemExit) as stopped:
        main(["train", "--data", str(tmp_path / "log.npz"), "--out", str(tmp_path / "run"), "--seeds", "0", "1"])
    err = capsys.readouterr().err
    assert stopped.value.code == 2
    assert re.search(told, err)
    assert err.count("Fix:") == 1  # not once a training
    chosen = read(observations=pictures, action_masks=None)  # the second way out works
    apev.train(chosen, "bc", updates=1, hidden=(8,), batch_size=16, console=QUIET)
