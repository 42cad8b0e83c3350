"""The page of a fleet: what it says, what it draws, and that nothing in a folder is obeyed."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ET
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from narrow import there

from apev.api import train
from apev.cli import main
from apev.envs.fleet.customers import customers_log
from apev.envs.fleet.wiring import ENVIRONMENT as WIRING
from apev.envs.make import make
from apev.experiments.fleet.bodies import BODIES
from apev.experiments.fleet.filmstrip import key_steps
from apev.experiments.fleet.replays import read_replays
from apev.experiments.fleet.report import show, store, write_summary
from apev.experiments.fleet.rows import knows
from apev.experiments.fleet.traces import note_traces
from apev.experiments.fleet.worlds import WORLDS
from apev.files import FileError

STEPS = 60
EVIL = "</title></script><script>alert('1')</script><img src=x onerror=\"alert(2)\">\x1b[31m[/a]{{js}}|&amp;"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def make_traces(environment: str = WIRING) -> dict[str, Any]:
    """Two kinds of half-cheetahs that tremble; members stand for the kinds in another order, and are known at step 20."""
    rng = np.random.default_rng(0)
    told: dict[str, Any] = {"world": "cheetah-wiring", "environment": environment, "seed": 0, "blind_policy": "bc"}
    told["members"] = [1, 0]
    for name in ("adaptive", "blind"):
        told[name] = []
        for kind in range(2):
            right = np.where(np.arange(STEPS + 1) < 20, np.linspace(0.5, 1.0, STEPS + 1), 0.98)  # the right member's
            belief = np.stack([right, 1 - right] if kind else [1 - right, right], axis=1)
            told[name].append(
                {
                    "kind": kind,
                    "return": 12.0,
                    "observations": rng.normal(0, 0.1, size=(STEPS + 1, 17)).tolist(),
                    "belief": belief.tolist() if name == "adaptive" else [[1.0]] * (STEPS + 1),
                    "rewards": [0.2] * STEPS,
                }
            )
    return told


def make_folder(folder: Path, found: dict[str, Any] | None = None) -> Path:
    """A small results folder of a world."""
    folder.mkdir(parents=True, exist_ok=True)
    means = {
        "adaptive": 90.0,
        "knows the kind": 100.0,
        "average": -20.0,
        "bc": 10.0,
        "iql": 5.0,
        "bc-gru": 60.0,
        "member 0": 8.0,
    }
    lines = [
        {"policy": policy, "seed": 0, "kind": i % 4, "episode": i, "return": mean + i, "length": STEPS}
        for policy, mean in means.items()
        for i in range(8)
    ]
    world = {
        "seed": 0,
        "true": 4,
        "agreement": 0.95,
        "right": 0.95,
        "kinds": 4,
        "columns": [{"name": "speed of the rear thigh", "share": 0.7}, {"name": "reward", "share": 0.3}],
        "reliability": [{"stated": 0.5, "right": 0.45, "beliefs": 10}, {"stated": 0.98, "right": 0.97, "beliefs": 90}],
        "verdict": "4 kinds of contexts: adapting can pay.",
    }
    (folder / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "worlds.jsonl").write_text(json.dumps(world | (found or {})) + "\n")
    (folder / "traces.json").write_text(json.dumps(make_traces()))
    write_summary(folder, {"world": "cheetah-wiring", "command": "apev reproduce fleet"})
    return folder


def report(folder: Path) -> str:
    main(["report", str(folder)])
    return (folder / "report.html").read_text(encoding="utf-8")


def test_the_page_tells_what_was_found_and_needs_no_network(tmp_path: Path) -> None:
    page = report(make_folder(tmp_path))
    for said in ("Half-cheetahs", "four kinds of robots", "found 4 kinds, where there are 4", "95.0% of the contexts right"):
        assert said in page
    for said in (
        "4 kinds of contexts: adapting can pay.",
        "speed of the rear thigh",
        "knows the kind",
        "BC, GRU",
        "Blind: BC",
        "rear wrong",
    ):
        assert said in page
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?\s*(?!data:)[^"'\s>]+|url\(|@import|fetch\(""", page)
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) == {"http://www.w3.org/2000/svg"}


def test_pictures_for_the_docs_are_drawn_and_stored(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "made")
    report(folder)
    store(folder, tmp_path / "kept")
    for name in ("returns.svg", "finds_out.svg"):
        ET.parse(tmp_path / "kept" / "figures" / name)
    assert "step 20: 95% sure" in (folder / "figures" / "finds_out.svg").read_text()
    assert (tmp_path / "kept" / "report.html").exists()


def test_returns_below_zero_are_drawn_from_zero(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    report(folder)
    root = ET.parse(folder / "figures" / "returns.svg").getroot()
    bars = [bar for bar in root.iter("{http://www.w3.org/2000/svg}rect") if bar.get("height") == "20"]
    begins, ends = zip(
        *((float(there(b.get("x"))), float(there(b.get("x"))) + float(there(b.get("width")))) for b in bars), strict=True
    )
    zero = max(begins)
    assert sum(abs(begin - zero) < 0.2 for begin in begins) == len(bars) - 1
    assert [abs(end - zero) < 0.2 for end in ends].count(True) == 1  # the average's, to the left of it


def test_without_traces_the_page_has_no_replay(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    (folder / "traces.json").unlink()
    page = report(folder)
    assert "no traces.json" in page
    assert "replay-data" not in page.partition("<script>")[0]
    assert not (folder / "figures" / "finds_out.svg").exists()


def test_what_a_folder_says_is_shown_and_never_obeyed(tmp_path: Path) -> None:
    columns = [{"name": EVIL, "share": 1.0}]
    folder = make_folder(tmp_path, {"verdict": EVIL, "columns": columns})
    with (folder / "episodes.jsonl").open("a") as file:
        file.write(json.dumps({"policy": EVIL, "seed": 0, "kind": 0, "episode": 0, "return": 1.0, "length": 1}) + "\n")
    traces = make_traces() | {"blind_policy": EVIL}
    (folder / "traces.json").write_text(json.dumps(traces))
    write_summary(folder, {"world": "cheetah-wiring", "command": EVIL})
    page = report(folder)
    assert page.count(escape(EVIL.replace("\x1b", r"\x1b"))) >= 4
    for part in ("<script>alert", "<img src=x", "\x1b"):
        assert part not in page
    assert len(re.findall("<script", page)) == 2
    assert json.loads(page.partition('id="replay-data">')[2].partition("</script>")[0])["blind"] == EVIL


@pytest.mark.parametrize(
    "harm",
    [
        lambda told: told["adaptive"][0].update(belief=[[float("nan"), 0.5]] * (STEPS + 1)),
        lambda told: told["adaptive"][0].update(belief=[[0.5, 0.5]]),
        lambda told: told["adaptive"][1].update(belief=[[0.5, 0.3, 0.2]] * (STEPS + 1)),
        lambda told: told["blind"][0].update(observations=[[0.0] * 3] * (STEPS + 1)),
        lambda told: told["blind"][0].update(rewards=[1.0]),
        lambda told: told["adaptive"][0].update({"return": 1e300}),
        lambda told: told["adaptive"][0].update(kind=-1) or told["blind"][0].update(kind=-1),
        lambda told: told.pop("blind"),
    ],
)
def test_damaged_traces_are_named(tmp_path: Path, harm: Any) -> None:
    folder = make_folder(tmp_path)
    told = make_traces()
    harm(told)
    (folder / "traces.json").write_text(json.dumps(told))
    with pytest.raises(FileError, match=r"traces\.json"):
        show(folder)


def test_members_are_shown_in_the_order_of_the_kinds(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    replays = read_replays(folder / "traces.json")
    assert replays["members"] == ["right", "rear wrong"]
    for kind, episode in enumerate(replays["episodes"]):
        assert episode["kind"] == kind
        assert episode["knows"] == {"step": 20, "member": kind}


def test_a_machine_that_changes_is_known_twice(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    told = make_traces()
    told["adaptive"][0]["change"] = {"step": 40, "kind": 1}
    told["adaptive"][0]["belief"][45:] = [[0.99, 0.01]] * (STEPS + 1 - 45)  # the member of kind 1
    (folder / "traces.json").write_text(json.dumps(told))
    first, second = read_replays(folder / "traces.json")["episodes"]
    assert (first["knows"], first["again"]) == ({"step": 20, "member": 0}, {"step": 45, "member": 1})
    assert (second["change"], second["again"]) == (None, None)
    assert "right, then rear wrong" in report(folder)
    told["adaptive"][0]["change"] = {"step": 400, "kind": 1}
    (folder / "traces.json").write_text(json.dumps(told))
    with pytest.raises(FileError, match=r"traces\.json"):
        show(folder)


def test_an_environment_that_nobody_drew_shows_its_belief(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    (folder / "traces.json").write_text(json.dumps(make_traces("Own-v0") | {"members": []}))
    replays = read_replays(folder / "traces.json")
    assert replays["body"] is None
    assert replays["members"] == ["kind 1", "kind 2"]
    assert "replay-data" in report(folder)


def test_it_knows_when_what_it_ends_with_is_first_at_95() -> None:
    sure, unsure, wrong = [0.97, 0.03], [0.6, 0.4], [0.01, 0.99]
    assert knows(np.array([unsure, wrong, sure, unsure, sure])) == {"step": 2, "member": 0}
    assert knows(np.array([sure, sure])) == {"step": 0, "member": 0}
    assert knows(np.array([wrong, unsure])) is None
    assert key_steps(8, 1000) == [0, 4, 8, 89, 1000]
    assert key_steps(1, 1000) == [0, 1, 10, 100, 1000]
    assert key_steps(0, 1) == [0, 1]


def test_the_half_cheetah_stands_where_mujoco_has_it() -> None:
    mujoco = pytest.importorskip("mujoco")
    env, rng = make(WIRING, kind=0), np.random.default_rng(0)
    seen = [env.reset(seed=0)[0]]
    inside = env.unwrapped.inside  # type: ignore[attr-defined]
    places, begin = [], float(inside.data.qpos[0])
    for _ in range(40):
        seen.append(env.step(rng.uniform(-1, 1, 6).astype(np.float32))[0])
        mujoco.mj_kinematics(inside.model, inside.data)  # a step leaves the places of a moment before
        parts = [inside.data.body(name).xpos for name in ("bthigh", "fthigh", "bshin", "bfoot", "fshin", "ffoot")]
        places.append([[part[0] - inside.data.qpos[0], part[2]] for part in parts])
    body, observations = BODIES[WIRING], np.array(seen)
    joints = body.points(observations)[:, [0, 1, 3, 4, 6, 7]]
    np.testing.assert_allclose(joints[1:], np.array(places), atol=1e-6)
    assert body.way(observations)[-1] == pytest.approx(float(inside.data.qpos[0]) - begin, abs=0.15)


def test_traces_are_of_the_best_blind_policy_that_was_trained(tmp_path: Path) -> None:
    log, kinds = customers_log(customers=30)
    for name in ("ape-v", "bc", "iql"):
        train(log, "bc", out=tmp_path / "agents" / f"{name}-s0", updates=2)
    returns = {"bc": 1.0, "iql": 2.0, "cql": 3.0}  # of cql there is no run
    lines = [{"policy": name, "seed": 0, "return": value} for name, value in returns.items()]
    (tmp_path / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    note_traces(WORLDS["customers"], tmp_path, tmp_path / "agents", 0, kinds)
    told = json.loads((tmp_path / "traces.json").read_text())
    assert told["blind_policy"] == "iql"
    assert told["members"] == []
    for name in ("adaptive", "blind"):
        assert [episode["kind"] for episode in told[name]] == [0, 1, 2]
        for episode in told[name]:
            assert len(episode["observations"]) == len(episode["belief"]) == 9
            assert len(episode["actions"]) == len(episode["rewards"]) == 8
            assert sum(episode["rewards"]) == pytest.approx(episode["return"])
    assert read_replays(tmp_path / "traces.json")["offers"]


@pytest.mark.skipif(BROWSER is None, reason="needs a Chromium; on Debian: apt-get install chromium (package 'chromium')")
def test_the_replay_moves_in_a_browser(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'apev[test]'")
    folder = make_folder(tmp_path)
    report(folder)
    troubles: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"], timeout=180_000)
        page = browser.new_page(viewport={"width": 400, "height": 800})
        page.set_default_timeout(180_000)
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto((folder / "report.html").as_uri())
        page.select_option("#replay-select", "1")
        bone = page.locator("#scene-adaptive .bone").first
        before = bone.get_attribute("d")
        assert not page.locator("#replay-knows").is_visible()
        page.locator(".mark").click()
        assert bone.get_attribute("d") != before
        assert page.locator("#replay-step").inner_text().startswith("step 20 (1.0 s): it believes in rear wrong")
        assert page.locator("#replay-knows").inner_text() == "first 95% sure at step 20"
        page.keyboard.press("ArrowLeft")
        assert not page.locator("#replay-knows").is_visible()
        page.locator("#replay-play").click()
        page.wait_for_function("document.querySelector('#replay-step').textContent.startsWith('step 2')")
        page.locator("#replay-play").click()
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
        browser.close()
    assert troubles == []
