"""Every example runs, at a size that takes seconds."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from apev.agents import APEVSAC, DQN, Agent, APEVSACConfig, DQNConfig
from apev.data.batch import Layout
from apev.policy import Policy
from apev.rollout import GymnasiumBatch, rollout

EXAMPLES = Path(__file__).parent.parent / "examples"
DEPLOY = EXAMPLES / "deploy_onnx.py"  # it needs files
SWEEP = EXAMPLES / "sweep_ray.py"  # it needs Ray
SMALL: dict[str, dict[str, int]] = {
    "customers.py": {"customers": 60, "updates": 10, "episodes": 3},
    "decide_offline.py": {"customers": 60, "updates": 10, "fit": 20},
    "fleet.py": {"machines": 8, "updates": 10, "episodes": 2},
    "own_log.py": {"updates": 20, "episodes": 2},
    "own_environment.py": {"updates": 20, "episodes": 2},
    "watch_belief.py": {"updates": 10, "steps": 3},
}


@pytest.fixture(autouse=True)
def a_brief_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples are run, not judged: whether kinds are found is tested in test_worlds.py."""
    monkeypatch.setattr("apev.worlds.find.UPDATES", {"pooled": 10, "tried": 10, "final": 20})


@pytest.mark.parametrize("path", sorted(set(EXAMPLES.glob("*.py")) - {DEPLOY, SWEEP}), ids=lambda path: path.name)
def test_an_example_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = runpy.run_path(str(path))["main"](**SMALL[path.name])
    out = capsys.readouterr().out
    if path.name == "watch_belief.py":
        assert all(abs(np.sum(belief) - 1) < 1e-5 for belief in made)
        assert "belief" in out
    elif path.name == "decide_offline.py":
        assert made in ("ape-v", "bc", "cql")
        assert f"deploy {made}" in out
    else:
        assert "the log" in out


def test_the_notebook_runs_and_keeps_its_outputs() -> None:
    for package in ("nbformat", "nbclient", "ipykernel"):
        pytest.importorskip(package)
    import nbclient
    import nbformat

    notebook: Any = nbformat.read(EXAMPLES / "customers.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs for cell in code), "GitHub shows stored outputs: run the notebook and save it"
    assert any("text/html" in out.get("data", {}) for cell in code for out in cell.outputs)
    for large, small in (
        ("updates, episodes = 600, 200", "updates, episodes = 10, 3"),
        ("customers_frame()", "customers_frame(60)"),
    ):
        assert large in code[0].source
        code[0].source = code[0].source.replace(large, small)
    brief = "from apev.worlds.find import UPDATES\nUPDATES.update(pooled=10, tried=10, final=20)\n"
    code[0].source = brief + code[0].source
    nbclient.NotebookClient(notebook, timeout=200).execute()
    assert "belief" in code[-1].outputs[0]["text"]


def test_a_sweep_runs_on_ray(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray", reason="needs the extra: pip install 'apev[ray]'")
    made = runpy.run_path(str(SWEEP))["main"](out=str(tmp_path), updates=5, episodes=1, seeds=1)
    assert made.keys() == {"bc, seed 0", "iql, seed 0", "cql, seed 0"}
    out = capsys.readouterr().out
    assert all(f"{name}: {value:.1f}" in out for name, value in made.items())


TAXI = max(name for name in gymnasium.registry if name.startswith("Taxi-v"))  # whichever version there is
SMALL_SAC = APEVSACConfig(critics=4, hidden=(16,))
CARTPOLE = Layout((("observation", 4),), None, None, 2, True)
ONE_NUMBER = Layout((("observation", 1),), None, None, 6, True, masked=True)
PENDULUM = Layout((("observation", 3),), None, None, 0, True, (-2.0,), (2.0,))


@pytest.mark.parametrize(
    ("env", "layout"),
    [("CartPole-v1", CARTPOLE), (TAXI, ONE_NUMBER), ("Pendulum-v1", PENDULUM)],
    ids=["discrete", "masked", "continuous"],
)
def test_exported_files_run_an_episode(env: str, layout: Layout, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="needs the extra: pip install 'apev[onnx]'")
    agent: Agent = DQN(layout, DQNConfig(members=3, hidden=(16,))) if layout.num_actions else APEVSAC(layout, SMALL_SAC)
    policy = Policy(agent)
    policy.export(tmp_path)
    total, belief = runpy.run_path(str(DEPLOY))["main"](str(tmp_path), env)
    assert "belief" in capsys.readouterr().out
    if layout.num_actions:  # the other one's noise is another
        ours = rollout(policy, GymnasiumBatch(env, 1), trace=True)
        assert total == ours.returns[0]
        np.testing.assert_allclose(belief, ours.beliefs[-1][0], atol=1e-5)
