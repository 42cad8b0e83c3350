"""`apev collect`: what ends up in a log, and that a killed teacher ends with the same data."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apev.agents import SACConfig
from apev.cli import main
from apev.collect.online import OnlineConfig, OnlineSAC
from apev.collect.record import record
from apev.collect.replay import Replay
from apev.commands.collect import by_luck, digest, medium_step
from apev.data import Dataset
from apev.data.batch import Layout
from apev.envs.make import make
from apev.policy import Policy
from apev.signals import Stop

TINY = OnlineConfig(steps=700, random_steps=100, batch_size=16, eval_every=200, eval_episodes=1, checkpoint_every=200)
NET = SACConfig(hidden=(16,))


def teacher(folder: Path, config: OnlineConfig = TINY) -> OnlineSAC:
    return OnlineSAC("Pendulum-v1", folder, config, NET, seed=3)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> OnlineSAC:
    made = teacher(tmp_path_factory.mktemp("whole"))
    made.run()
    return made


def test_replay_holds_what_the_environment_did(whole: OnlineSAC) -> None:
    rows = whole.replay.rows()
    assert len(rows["rewards"]) == 700
    assert np.flatnonzero(rows["truncated"]).tolist() == [199, 399, 599, 699]
    assert not rows["terminated"].any()
    inside = ~rows["truncated"][:-1]
    np.testing.assert_array_equal(rows["next_observations"][:-1][inside], rows["observations"][1:][inside])
    env = make("Pendulum-v1")
    obs, _ = env.reset(seed=3 * 1_000_003 + 1)
    np.testing.assert_allclose(rows["observations"][200], obs, rtol=1e-6)
    after, reward, *_ = env.step(rows["actions"][200])
    np.testing.assert_allclose(rows["next_observations"][200], after, rtol=1e-5, atol=1e-6)
    assert rows["rewards"][200] == pytest.approx(reward, rel=1e-5)
    assert np.abs(rows["actions"]).max() <= 2


def test_a_killed_teacher_ends_with_the_same_data(whole: OnlineSAC, tmp_path: Path) -> None:
    killed = teacher(tmp_path)
    episodes: list[int] = []

    def dies(stop: Stop) -> list[dict[str, Any]]:
        if len(episodes) == 2:
            killed.replay.add(np.ones(3), np.ones(1), 9.0, np.ones(3), False, False)  # half an episode that is lost
            raise MemoryError
        episodes.append(1)
        return OnlineSAC.episode(killed, stop)

    killed.episode = dies  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        killed.run()
    again = teacher(tmp_path)
    curve = again.run(resume=True)
    assert [line["update"] for line in curve] == [0, 200, 400, 600]
    for name, column in whole.replay.rows().items():
        np.testing.assert_array_equal(again.replay.rows()[name], column, err_msg=name)
    for (name, one), other in zip(whole.agent.state_dict().items(), again.agent.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, msg=name)
    lines = [(f / "curve.jsonl").read_text() for f in (whole.folder, tmp_path)]
    assert lines[0] == lines[1]


def test_training_stops_at_the_target_and_goes_on_from_there(tmp_path: Path) -> None:
    first = teacher(tmp_path)
    assert first.run(target=-1e9)[-1]["update"] == 400  # three evaluations are needed
    assert len(first.replay) == 400
    assert teacher(tmp_path).run(target=-1e9, resume=True)[-1]["update"] == 400
    assert teacher(tmp_path).run(resume=True)[-1]["update"] == 600
    with pytest.raises(FileExistsError, match="--resume"):
        teacher(tmp_path).run()


def test_the_medium_policy_is_the_first_good_enough() -> None:
    curve = [{"update": 10 * i, "return": r} for i, r in enumerate([0.0, 9.0, 1.0, 2.0, 3.0, 9.0])]
    assert medium_step(curve, 4.0) == 30  # (9 + 1 + 2) / 3
    assert medium_step(curve, None) == 10
    assert medium_step(curve[2:], None) == 50  # a third of the way from 1 to 9 is 3.67
    with pytest.raises(ValueError, match="reached 9, not 100"):
        medium_step(curve, 100.0)
    with pytest.raises(ValueError, match=r"did not improve.*Fix"):
        medium_step([{"update": 0, "return": 5.0}, {"update": 10, "return": 4.0}], None)


def test_a_teacher_that_was_only_lucky_is_told_from_one_that_learned() -> None:
    def curve(*returns: list[float]) -> list[dict[str, Any]]:
        return [{"update": i, "return": sum(r) / len(r), "returns": r} for i, r in enumerate(returns)]

    assert by_luck(curve([1.0, 9.0, 5.0], [2.0, 8.0, 7.0]))
    assert by_luck(curve([1.0, 9.0, 5.0], [0.0, 0.0, 0.0]))
    assert not by_luck(curve([1.0, 2.0, 3.0], [1.0, 2.0, 2.0], [11.0, 12.0, 13.0]))


def test_recorded_episodes_are_whole(whole: OnlineSAC) -> None:
    rows = record(Policy(whole.agent), "Pendulum-v1", 450, seed=1)
    data = Dataset.from_arrays(**rows)  # type: ignore[arg-type]
    assert len(data) == 450
    assert np.bincount(data.episodes).tolist() == [200, 200, 50]
    inside = ~rows["truncated"][:-1]
    np.testing.assert_array_equal(rows["next_observations"][:-1][inside], rows["observations"][1:][inside])


def test_replay_draws_from_all_rows_alike(tmp_path: Path) -> None:
    layout = Layout((("observation", 1),), None, None, 0, bare=True, action_low=(-1.0,), action_high=(1.0,))
    replay = Replay(tmp_path, 8, layout, 4000, seed=0)
    for i in range(5):
        replay.add([i], [0.5], float(i), [i + 1], i == 4, False)
    batch = replay.sample()
    assert torch.bincount(batch.reward.long(), minlength=8).tolist()[5:] == [0, 0, 0]
    assert torch.bincount(batch.reward.long()).min() > 700
    torch.testing.assert_close(batch.next_obs.vector[:, 0], batch.reward + 1)
    torch.testing.assert_close(batch.terminated, (batch.reward == 4).float())


def test_kinds_of_logs_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["collect", "Pendulum-v1", "--out", str(tmp_path), "--train-steps", "200", "--steps", "300", "--threads", "1"]
    with pytest.raises(SystemExit):  # a third of the way to nowhere
        main([*words, "--kind", "medium-replay"])
    assert "did not improve" in capsys.readouterr().err
    words[words.index("200")] = "240"  # what the message advises, works
    words += ["--medium-return", "-2000"]
    main([*words, "--kind", "medium-replay", "--resume"])
    assert "hardly learned" in capsys.readouterr().err
    main([*words, "--kind", "medium-expert", "--resume"])
    main([*words, "--kind", "random"])
    for kind, rows in (("medium-replay", None), ("medium-expert", 300), ("random", 300)):
        card = json.loads((tmp_path / kind / "card.json").read_text())
        data = Dataset.load(tmp_path / kind / "data.npz")
        assert card["rows"] == len(data) == (rows or card["teacher"]["steps"])
        assert card["environment"] == data.source["environment"] == "Pendulum-v1"
        assert data.source["action_high"] == [2.0]
        assert {"torch", "gymnasium"} <= set(card["versions"])
        assert "not D4RL's own" in card["what"]
        assert card["sha256"] == digest(data)
        data.rewards[-1] += 1e-3
        assert card["sha256"] != digest(data)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main([*words, "--kind", "random"])
    assert "already holds a log" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["CartPole-v1", "NoSuchEnv-v3"])
def test_an_environment_that_will_not_do_is_told(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["collect", name, "--out", str(tmp_path)])
    assert stop.value.code == 2
    assert ("Box" if name == "CartPole-v1" else "NoSuchEnv") in capsys.readouterr().err


def test_robots_are_made_without_noise(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mujoco", reason="pip install 'apev[mujoco]'")
    monkeypatch.chdir(tmp_path)
    make("HalfCheetah-v4").reset(seed=0)
    assert "".join(capfd.readouterr()) == ""
    assert not list(tmp_path.iterdir())


def test_a_missing_mujoco_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", None)
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'apev\[mujoco\]'"):
        make("HalfCheetah-v4")
