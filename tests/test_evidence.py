"""What a user may ask of a belief after training: another kind of evidence, forgetting, a life of several episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from rich.console import Console
from test_worlds import pushers

import apev
from apev.agents import APEVC51, APEVC51Config, APEVConfig
from apev.cli import main
from apev.data import Dataset
from apev.data.batch import Layout

QUIET = Console(quiet=True)
PUSHED = "apev-test/Pushed-v0"


class Pushed(gymnasium.Env[np.ndarray, np.ndarray]):
    """A point on a line of which a push counts the right or the wrong way round."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.sign = self.np_random.choice([-1.0, 1.0])
        self.at = self.np_random.normal(size=2).astype(np.float32)
        return self.at, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        place, speed = self.at
        self.at = np.array([place + 0.1 * speed, speed + self.sign * float(action[0])], dtype=np.float32)
        return self.at, -abs(float(self.at[1])), False, False, {}


gymnasium.register(PUSHED, lambda **_: Pushed(), max_episode_steps=6)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose members are two kinds."""
    folder = tmp_path_factory.mktemp("evidence") / "run"
    log, kind = pushers()
    apev.train(log, updates=20, kinds=kind.tolist(), hidden=(16,), out=folder, console=QUIET)
    return folder


def after(policy: apev.Policy, signs: list[float]) -> np.ndarray:
    """The belief after pushes that counted so."""
    policy.reset()
    for sign in signs:
        policy.act([0.0, 0.0])
        policy.observe(-0.5, [0.0, 0.5 * sign], False, action=[0.5])
    return policy.belief


def test_a_belief_that_forgets_changes_its_mind_sooner(run: Path) -> None:
    one, other = [1.0] * 40, [-1.0] * 3
    firm, forgetful = apev.load(run), apev.load(run, forgetting=0.1)
    assert after(firm, one).argmax() == after(forgetful, one).argmax()
    right = after(firm, other).argmax()
    assert after(firm, one + other).argmax() != right
    assert after(forgetful, one + other).argmax() == right
    assert forgetful.with_adapt("commit").filter.forgetting == 0.1


def test_evidence_may_be_another_than_in_training(run: Path) -> None:
    beliefs = {kind: after(apev.load(run, evidence=kind), [1.0])[0] for kind in ("td", "model", "both")}
    assert beliefs["model"] == after(apev.load(run), [1.0])[0]
    assert beliefs["td"] != beliefs["model"] != beliefs["both"]


def test_what_a_policy_cannot_follow_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="evidence='reward' is unknown"):
        apev.load(run, evidence="reward")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="forgetting"):
        apev.load(run, forgetting=2.0)
    log, _ = pushers()
    apev.train(log, updates=2, kinds=1, members=2, hidden=(8,), out=tmp_path / "pessimism", console=QUIET)
    with pytest.raises(ValueError, match="needs members that are kinds"):
        apev.load(tmp_path / "pessimism", evidence="model")
    assert apev.load(tmp_path / "pessimism", forgetting=0.1).filter.forgetting == 0.1
    apev.train(log, "bc", updates=2, hidden=(8,), out=tmp_path / "bc", console=QUIET)
    with pytest.raises(ValueError, match="no members to believe in"):
        apev.load(tmp_path / "bc", forgetting=0.1)


def test_the_command_asks_for_a_life_with_one_hypothesis_an_episode(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", str(run), "--env", PUSHED, "--episodes", "6", "--adapt", "hold", "bayes"]
    main([*words, "--life", "2", "--forgetting", "0.01", "--evidence", "model"])
    assert "held an episode" in capsys.readouterr().out
    policy = apev.load(run)
    first = apev.evaluate(policy, PUSHED, 6, adapt=["hold"], console=QUIET)
    second = apev.evaluate(policy, PUSHED, 6, adapt=["hold"], life=2, console=QUIET)
    undecided, known = (found.traces["adaptive, held an episode"][0] for found in (first, second))
    assert undecided == [0.5, 0.5]  # before the first step
    assert max(known) > 0.9  # it has been there for an episode


def test_models_are_asked_for_only_where_there_are_any() -> None:
    log, kind = pushers()
    with pytest.raises(ValueError, match="here members are no kinds"):
        apev.train(log, updates=2, kinds=1, evidence="model", console=QUIET)
    with pytest.raises(ValueError, match="settings say what else members are"):
        apev.train(log, updates=2, kinds=kind.tolist(), members=3, console=QUIET)
    pooled = apev.train(log, "td3-bc", updates=2, kinds=2, hidden=(8,), console=QUIET)  # of no use to it
    assert pooled.members == 1
    layout = Layout(vectors=(), picture="picture", picture_shape=(3, 16, 16), num_actions=4)
    with pytest.raises(ValueError, match="follow TD errors alone"):
        APEVC51(layout, APEVC51Config(members=2, evidence="both"))


def rooms(contexts: int = 16, seed: int = 0) -> tuple[Dataset, np.ndarray]:
    """Rooms with a picture that tells nothing and a place; one of two levers pays, by the kind of the room."""
    rng = np.random.default_rng(seed)
    rows, kind = 40, np.arange(contexts) % 2
    count = contexts * rows
    room, lever = np.repeat(np.arange(contexts), rows), rng.integers(2, size=count)
    last = np.tile(np.arange(rows) == rows - 1, contexts)
    place = rng.normal(size=(count, 1)).astype(np.float32)
    log = Dataset.from_arrays(
        {"place": place, "picture": room},
        lever,
        (lever == kind[room]).astype(np.float32),
        np.zeros(count, dtype=bool),
        last,
        pictures={"picture": rng.integers(256, size=(contexts, 16, 16, 3), dtype=np.uint8)},
        num_actions=2,
        contexts=room,
    )
    return log, kind


def test_pictures_have_kinds_where_their_number_is_known() -> None:
    log, kind = rooms()
    assert "observations are pictures" in apev.kinds(log, console=QUIET).in_words()
    found = apev.kinds(log, count=2, console=QUIET)
    assert found.count == 2
    assert max((found.kind == kind).mean(), (found.kind != kind).mean()) == 1.0
    policy = apev.train(log, updates=10, kinds=2, hidden=(16,), console=QUIET)
    assert log.pictures is not None
    seen = {"place": [0.0], "picture": log.pictures[0]}
    named = []
    for room in (0, 1):
        policy.reset()
        for lever in (0, 1, 0):
            policy.act(seen)
            policy.observe(float(lever == room), seen, False, action=lever)
        assert policy.belief.max() > 0.9
        named.append(int(policy.belief.argmax()))
    assert sorted(named) == [0, 1]
    with pytest.raises(ValueError, match="no kinds"):
        apev.train(log, updates=1, config=APEVConfig(evidence="model"), console=QUIET)
