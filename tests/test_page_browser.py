"""The report in a real browser: it loads offline, the replay moves, and the numbers are those of summary.json."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from narrow import there
from report_fixture import make_folder

from apev.experiments.locked_doors.page import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'apev[test]'")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="needs a Chromium; on Debian: apt-get install chromium (package 'chromium')"
)
PATIENCE = 180_000  # milliseconds: a busy machine is not a broken page
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=ARGUMENTS, timeout=PATIENCE)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(make_folder(tmp_path_factory.mktemp("results")))


@pytest.fixture
def page(browser: Browser, report: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The open page; afterwards: no console errors, no exceptions, no request but the file itself."""
    width = getattr(request, "param", 1200)
    context = browser.new_context(viewport={"width": width, "height": 800})
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    troubles: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: troubles.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda r: requests.append(r.url) if not r.url.startswith("data:") else None)
    page.goto(report.as_uri())
    yield page
    context.close()
    assert troubles == []
    assert requests == [report.as_uri()]


def slide(page: Page, step: int) -> None:
    page.locator("#replay-slider").evaluate(
        "(slider, step) => { slider.value = step; slider.dispatchEvent(new Event('input')) }", step
    )


def position(page: Page) -> tuple[int, int]:
    agent = page.locator("#replay-agent")
    return int(there(agent.get_attribute("data-x"))), int(there(agent.get_attribute("data-y")))


def test_numbers_equal_summary(page: Page, report: Path) -> None:
    summary = json.loads((report.parent / "summary.json").read_text())
    assert page.locator("tr[data-policy]").count() == len(summary["policies"])
    for policy, numbers in summary["policies"].items():
        cell = page.locator(f"tr[data-policy='{policy}'] td[data-field=success]")
        assert float(there(cell.get_attribute("data-value"))) == numbers["success"]
        assert f"{numbers['success']:.3f}" in cell.inner_text()


def test_slider_moves_the_replay(page: Page, report: Path) -> None:
    steps = json.loads((report.parent / "replays.json").read_text())["replays"][0]["steps"]
    assert page.locator("#replay-slider").get_attribute("max") == str(len(steps) - 1)
    places, texts = set(), set()
    for index, step in enumerate(steps):
        slide(page, index)
        assert position(page) == (step["x"], step["y"])
        places.add(page.locator("#replay-agent").evaluate("agent => agent.style.transform"))
        texts.add(page.locator("#replay-step").inner_text())
        values = page.locator("#replay-doors .value").all_inner_texts()
        assert [float(v) for v in values] == pytest.approx(step["doors"], abs=0.0051)
    assert len(texts) == len(steps)
    assert len(places) > len(steps) / 2
    assert "leaves through the SHIP door" in page.locator("#replay-step").inner_text()


def test_the_moment_it_changes_its_mind_is_marked(page: Page, report: Path) -> None:
    steps = json.loads((report.parent / "replays.json").read_text())["replays"][0]["steps"]
    turn = next(i for i in range(1, len(steps)) if steps[i]["believed_door"] != steps[i - 1]["believed_door"])
    badge = page.locator("#replay-turn")
    tried = page.locator("[data-tried='1']")
    assert not badge.is_visible()
    assert not tried.is_visible()
    assert page.locator(".mark").count() == 1
    page.locator(".mark").click()
    assert page.locator("#replay-slider").input_value() == str(turn)
    assert badge.is_visible()
    assert tried.is_visible()
    text = page.locator("#replay-step").inner_text()
    assert text.startswith(f"step {turn}: bumped into the AUTOMOBILE door")
    assert f"belief moves to ship ({steps[turn]['doors'][2]:.2f})" in text


def test_play_advances_and_pauses(page: Page) -> None:
    play = page.locator("#replay-play")
    play.click()
    page.wait_for_function("document.querySelector('#replay-slider').value >= 2", timeout=10_000)
    play.click()
    stopped = page.locator("#replay-slider").input_value()
    page.wait_for_timeout(700)
    assert page.locator("#replay-slider").input_value() == stopped


def test_arrow_keys_step_with_and_without_focus_on_the_slider(page: Page) -> None:
    slider = page.locator("#replay-slider")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert slider.input_value() == "1"
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert slider.input_value() == "2"
    assert page.locator("#replay-step").inner_text().startswith("step 2:")


def test_another_episode_can_be_chosen(page: Page, report: Path) -> None:
    replays = json.loads((report.parent / "replays.json").read_text())["replays"]
    slide(page, 3)
    page.select_option("#replay-select", "3")
    assert page.locator("#replay-slider").input_value() == "0"
    slide(page, len(replays[3]["steps"]) - 1)
    assert "the time is up" in page.locator("#replay-step").inner_text()
    names = page.locator("#replay-select option").all_inner_texts()
    assert len(names) == len(replays)
    assert "Average ensemble" in names[3]


@pytest.mark.parametrize("page", [400, 1200], indirect=True)
def test_no_sideways_scrolling(page: Page) -> None:
    wide = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide[0] <= wide[1]
    shown = page.locator("#curves svg.chart:visible")
    assert shown.count() == 1
    # Letters stay readable: the drawing is not shrunk far below the size it was made for.
    assert shown.evaluate("svg => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width") > 0.85
