import gzip
import io
import json
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from narrow import there
from report_fixture import make_curves, make_episodes, make_folder, make_replay, make_replays
from rich.console import Console

from apev.cli import main
from apev.experiments.common.charts import Series, bar_chart, learning_curves, line_chart, policy_colour, write_figures
from apev.experiments.common.statistics import success_interval, wilson
from apev.experiments.common.tables import (
    display_name,
    markdown_table,
    paired_values,
    print_table,
    read_folder,
    read_jsonl,
    success_by_members_correct,
    summarise,
)
from apev.experiments.locked_doors.page import write_report
from apev.files import FileError


def row(policy: str = "ape-v", seed: int = 0, picture: int = 0, success: bool = True, **more: Any) -> dict[str, Any]:
    base = {"policy": policy, "seed": seed, "episode": picture, "picture": picture, "success": success}
    return base | {"return": -3.0, "length": 4, "members_correct": 2, "members": 5, "label": 0, "stalled": False} | more


def test_summarise_by_hand() -> None:
    episodes = [row("lcb", picture=i, success=i < 3, length=10 * i, stalled=i == 4) for i in range(5)]
    episodes += [row("my-own"), row("ape-v", success=False), row("oracle")]
    summary = summarise(iter(episodes))
    assert list(summary) == ["oracle", "ape-v", "lcb", "my-own"]
    assert summary["lcb"]["success"] == pytest.approx(0.6)
    assert summary["lcb"]["ci95"] == pytest.approx(list(wilson(3, 5)))
    assert summary["lcb"]["mean_length"] == pytest.approx(20)
    assert summary["lcb"]["mean_return"] == -3
    assert summary["lcb"]["stalled"] == pytest.approx(0.2)
    assert (summary["lcb"]["episodes"], summary["lcb"]["seeds"]) == (5, 1)
    assert json.loads(json.dumps(summary)) == summary


def test_summarise_knows_that_seeds_share_photographs() -> None:
    episodes = [row(seed=s, picture=i, success=i % 5 > 0) for s in range(3) for i in range(100)]
    low, high = summarise(episodes)["ape-v"]["ci95"]
    same = [[i % 5 > 0 for i in range(100)]] * 3
    assert [low, high] == pytest.approx(success_interval(same, [range(100)] * 3))
    pooled = wilson(240, 300)
    assert high - low > 1.4 * (pooled[1] - pooled[0])


def test_success_by_members_correct_by_hand() -> None:
    episodes = [row(picture=i, members_correct=i % 2 * 3, success=i % 4 == 1) for i in range(8)]
    episodes += [row("oracle", members_correct=None)]
    groups = success_by_members_correct(episodes)
    assert list(groups) == ["ape-v"]
    assert [(g["correct"], g["success"], g["episodes"]) for g in groups["ape-v"]] == [(0, 0.0, 4), (3, 0.5, 4)]
    assert groups["ape-v"][1]["ci95"] == pytest.approx(list(wilson(2, 4)))


def test_paired_values_average_repeats() -> None:
    episodes = [row(picture=1, success=True), row(picture=1, success=False), row(seed=2)]
    assert paired_values(episodes) == {(0, 1): 0.5, (2, 0): 1.0}


def test_the_lead_is_over_the_same_photographs() -> None:
    shown = [(0, True, False), (1, True, True), (2, False, False), (3, True, False)]
    episodes = [row("ape-v", picture=p, success=ours) for p, ours, _ in shown]
    episodes += [row("lcb", picture=p, success=theirs) for p, _, theirs in shown] + [row("lcb", picture=9, success=False)]
    summary = summarise(episodes)
    assert "lead" not in summary["ape-v"]
    assert summary["lcb"]["lead"]["mean"] == pytest.approx(0.5)
    assert "| LCB ensemble |" in markdown_table({"policies": summary})
    assert "+0.500 (" in markdown_table({"policies": summary})


def test_tables_show_every_policy_in_order() -> None:
    summary: dict[str, Any] = {"title": "T", "policies": summarise(make_episodes())}
    text = io.StringIO()
    print_table(summary, Console(file=text, width=120))
    markdown = markdown_table(summary)
    for shown in (text.getvalue(), markdown):
        places = [shown.index(n) for n in ("Blind exact", "APE-V ", "eval only", "Random member", "Average", "Single", "LCB")]
        assert places == sorted(places)
        assert f"{summary['policies']['ape-v']['success']:.3f}" in shown
    assert len({line.count("|") for line in markdown.strip().splitlines()}) == 1


@pytest.mark.parametrize("width", [60, 80, 86, 98, 120])
def test_no_name_or_number_is_cut_in_two(width: int) -> None:
    summary: dict[str, Any] = {"title": "T", "policies": summarise(make_episodes())}
    text = io.StringIO()
    print_table(summary, Console(file=text, width=width))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in text.getvalue()
    for policy, row in summary["policies"].items():
        assert any(display_name(policy) in line and f"{row['success']:.3f}" in line for line in lines), policy


def test_a_narrow_terminal_keeps_the_names_and_whole_numbers() -> None:
    summary: dict[str, Any] = {"title": "T", "policies": summarise(make_episodes())}
    text = io.StringIO()
    print_table(summary, Console(file=text, width=90))
    assert "Blind exact search" in text.getvalue()
    assert "APE-V's lead" in text.getvalue()
    assert "…" not in text.getvalue()
    assert "stalled" not in text.getvalue()


def test_read_jsonl_plain_gzip_and_broken(tmp_path: Path) -> None:
    rows = [{"a": 1}, {"a": 2}]
    text = "\n".join(json.dumps(r) for r in rows) + "\n\n"
    (tmp_path / "plain.jsonl").write_text(text)
    with gzip.open(tmp_path / "packed.jsonl.gz", "wt") as file:
        file.write(text)
    assert read_jsonl(tmp_path / "plain.jsonl") == read_jsonl(tmp_path / "packed.jsonl.gz") == rows
    (tmp_path / "cut.jsonl").write_text('{"a": 1}\n{"a": ')  # as a crash leaves it
    assert read_jsonl(tmp_path / "cut.jsonl") == rows[:1]
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n{"a": \n{"a": 2}\n')
    with pytest.raises(FileError, match=r"bad\.jsonl: line 2 .*Fix"):
        read_jsonl(tmp_path / "bad.jsonl")


def test_read_folder_remakes_a_missing_summary_and_reads_gzip(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run")
    stored = read_folder(folder).summary["policies"]
    (folder / "summary.json").unlink()
    with gzip.open(folder / "episodes.jsonl.gz", "wb") as file:
        file.write((folder / "episodes.jsonl").read_bytes())
    (folder / "episodes.jsonl").unlink()
    results = read_folder(folder)
    assert results.summary["policies"] == stored
    assert results.summary["title"] == "run"


def test_read_folder_names_the_mistake(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not a folder"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="not a results folder"):
        read_folder(tmp_path)
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(FileError, match=r"summary\.json: has no \"policies\"\. Fix"):
        read_folder(tmp_path)


def test_figures_are_valid_svg_with_the_policys_colour(tmp_path: Path) -> None:
    paths = write_figures(make_folder(tmp_path))
    assert [p.name for p in paths] == ["success.svg", "learning_curves.svg", "members_correct.svg"]
    for path in paths:
        text = path.read_text()
        ET.fromstring(text)
        assert policy_colour("ape-v") in text
        assert "nan" not in text
        assert not re.search(r"(href|src|url)\s*[=(]", text)
    assert policy_colour("something new") == policy_colour("something new")


def test_bars_are_drawn_to_scale() -> None:
    root = ET.fromstring(bar_chart([("a", 0.5, 0.4, 0.6), ("b", 1.0, 0.9, 1.0)], x_label="x"))
    half, full = (float(there(r.get("width"))) for r in root.iter("{http://www.w3.org/2000/svg}rect") if r.get("rx") == "3")
    assert full == pytest.approx(2 * half, abs=0.2)


def test_learning_curve_is_the_mean_of_the_seeds_and_the_band_their_range() -> None:
    curves = [
        {"policy": "lcb", "seed": s, "update": u, "success": v, "episodes": 50}
        for s, values in enumerate([(0.2, 0.4), (0.4, 0.8)])
        for u, v in enumerate(values)
    ]
    by_hand = Series("lcb", [0, 1], [0.3, 0.6], [0.2, 0.4], [0.4, 0.8])
    assert learning_curves(curves) == line_chart([by_hand], x_label="updates", y_label="success")


def test_charts_survive_one_point_and_refuse_none() -> None:
    ET.fromstring(line_chart([Series("lcb", [5], [1.0])], x_label="x", y_label="<y>"))
    ET.fromstring(learning_curves(make_curves(seeds=1), width=360))
    with pytest.raises(ValueError, match="no points"):
        line_chart([], x_label="x", y_label="y")


class Page(HTMLParser):
    """Collects tags, the cells' values and the embedded data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: dict[tuple[str | None, str | None], Any] = {}
        self.policy: str | None = None
        self.data, self.script = "", False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        self.script = attributes.get("id") == "replay-data"
        if tag == "tr":
            self.policy = attributes.get("data-policy")
        if tag == "td" and "data-value" in attributes:
            self.cells[self.policy, attributes["data-field"]] = json.loads(there(attributes["data-value"]))

    def handle_data(self, data: str) -> None:
        if self.script:
            self.data += data
            self.script = False

    def ids(self) -> set[str | None]:
        return {attributes["id"] for _, attributes in self.tags if "id" in attributes}


def test_page_carries_the_exact_numbers_and_nothing_from_outside(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    path = write_report(folder)
    assert path == folder / "report.html"
    text = path.read_text()
    page = Page(text)
    for policy, numbers in read_folder(folder).summary["policies"].items():
        for key in ("success", "mean_length", "mean_return", "stalled", "episodes"):
            assert page.cells[policy, key] == numbers[key]
    assert {
        "replay-slider",
        "replay-step",
        "replay-select",
        "replay-play",
        "results",
        "curves",
        "members",
    } <= page.ids()
    for _, attributes in page.tags:
        for key in ("src", "href"):
            assert there(attributes.get(key, "data:")).startswith("data:")
    assert "@import" not in text
    assert "0123456789abcdef0123456789abcdef01234567" in text
    assert path.stat().st_size < 400_000


def test_page_leaves_out_what_is_missing(tmp_path: Path) -> None:
    text = write_report(make_folder(tmp_path, optional=False), tmp_path / "deep" / "page.html").read_text()
    page = Page(text)
    assert "replay-slider" not in page.ids()
    assert "no replays.json" in text
    assert "no curves.jsonl" in text
    assert "members" in page.ids()


def test_page_survives_hostile_text(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>{{js}}&amp;"
    folder = make_folder(tmp_path, title=evil)
    replays = make_replays()
    replays["classes"][0] = evil
    (folder / "replays.json").write_text(json.dumps(replays))
    text = write_report(folder).read_text()
    assert "<script>alert" not in text
    page = Page(text)
    assert json.loads(page.data)["classes"][0] == evil
    assert sum(tag == "script" for tag, _ in page.tags) == 2


def test_page_stays_small_with_many_replays(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    rng = np.random.default_rng(0)
    replay = make_replay(1, [2, 3, 2, 3, 2], (4, 4))
    for step in replay["steps"]:
        step["belief"] = rng.dirichlet(np.ones(5)).tolist()
    data = make_replays() | {"replays": [replay] * 600}
    (folder / "replays.json").write_text(json.dumps(data))
    path = write_report(folder)
    assert path.stat().st_size < 3_000_000
    kept = len(json.loads(Page(path.read_text()).data)["replays"])
    assert 0 < kept < 600
    assert f"{600 - kept} more are in replays.json" in path.read_text()


# ---------------------------------------------------------------------- folders that somebody else made

RESULTS = Path(__file__).parents[1] / "results"
STORED = {"mazes": "procgen/easy-200", "d4rl": "d4rl-style/hopper-medium-replay", "theory": "theory"}
EVIL = "</title></script><script>alert('1')</script><img src=x onerror=\"alert(2)\">\x1b[31m[/a]{{js}}|&amp;\ud800"
Change = Callable[[Any], Any]  # of what a JSON file says: in place, or by what it returns
SHOWN = escape(EVIL.replace("\x1b", r"\x1b").replace("\ud800", r"\ud800"))


def stored(kind: str, folder: Path) -> Path:
    """A results folder of this kind, to be changed at will."""
    if kind == "doors":
        return make_folder(folder)
    shutil.copytree(RESULTS / STORED[kind], folder)
    if kind == "d4rl":  # two algorithms are quicker than all
        for name in ("episodes.jsonl", "curves.jsonl"):
            change(folder / name, lambda lines: [line for line in lines if line["algorithm"] in ("bc", "ape-v")])
    return folder


def change(path: Path, how: Change) -> None:
    """Have a function change what a JSON file says."""
    packed = path.suffix == ".gz"
    text = gzip.decompress(path.read_bytes()).decode() if packed else path.read_text()
    many = ".jsonl" in path.name
    value = [json.loads(line) for line in text.splitlines()] if many else json.loads(text)
    value = how(value) or value
    text = "".join(json.dumps(line) + "\n" for line in value) if many else json.dumps(value)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())


def renamed(found: dict[str, Any], old: str, new: str = EVIL) -> dict[str, Any]:
    """A dict whose key `old` is called otherwise."""
    return {new if key == old else key: value for key, value in found.items()}


def hostile_doors(folder: Path) -> int:
    def summary(value: dict[str, Any]) -> None:
        value |= {"title": EVIL, "lead": EVIL, "policies": renamed(value["policies"], "single")}
        value["meta"] |= {"command": EVIL, "commit": EVIL, "seeds": [EVIL], "scale": EVIL, EVIL: EVIL}

    def lines(value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [line | {"policy": EVIL} if line["policy"] == "single" else line for line in value]

    def replays(value: dict[str, Any]) -> None:
        value["classes"][0] = EVIL
        value["room"]["actions"][0] = EVIL
        value["replays"][0] |= {"policy": EVIL, "picture": value["replays"][0]["picture"]}

    change(folder / "summary.json", summary)
    change(folder / "episodes.jsonl", lines)
    change(folder / "curves.jsonl", lines)
    change(folder / "replays.json", replays)
    return 10


def hostile_mazes(folder: Path) -> int:
    def summary(value: dict[str, Any]) -> None:
        value |= {"title": EVIL, "policies": renamed(value["policies"], "average, adapting")}
        for parts in value["policies"].values():
            for kind in ("by_size", "by_distance"):
                parts["test"][kind] = renamed(parts["test"][kind], next(iter(parts["test"][kind])))
        value["meta"] |= {"command": EVIL, "seeds": [EVIL], EVIL: {"a": EVIL}}

    def replays(value: dict[str, Any]) -> None:
        value["replays"][0] |= {"policy": EVIL, "level": EVIL}

    change(folder / "summary.json", summary)
    change(folder / "replays.json", replays)
    return 8


def hostile_d4rl(folder: Path) -> int:
    def lines(value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for line in value:
            line["algorithm"] = EVIL if line["algorithm"] == "bc" else line["algorithm"]
            if line.get("policy") == "ape-v, uniform":
                line["policy"] = f"ape-v, {EVIL}"
        return value

    def task(value: dict[str, Any]) -> None:
        value["data"] = EVIL
        value["log"]["returns"] |= {EVIL: 1.0}

    def meta(value: dict[str, Any]) -> None:
        value["runs"] = {EVIL: {"command": EVIL, "commit": EVIL, "updates": EVIL, "scale": [EVIL]}}

    change(folder / "episodes.jsonl", lines)
    change(folder / "curves.jsonl", lines)
    change(folder / "task.json", task)
    change(folder / "meta.json", meta)
    change(folder / "beliefs.json", lambda value: renamed(value, "ape-v, forgetting", f"ape-v, {EVIL}"))
    return 8


def hostile_theory(folder: Path) -> int:
    def summary(value: dict[str, Any]) -> None:
        value["title"] = EVIL
        value["meta"] |= {"seeds": [EVIL], "command": EVIL, "versions": {"torch": EVIL}}
        value["claims"][0] |= {"statement": EVIL, "expected": EVIL, "measured": EVIL}
        for agent, days in value["city"]["routes"].items():
            value["city"]["routes"][agent] = renamed(days, next(iter(days)))
            for by in ("by_seed", "exact_by_seed"):
                value["city"]["learned"][agent][by] = renamed(value["city"]["learned"][agent][by], "0")

    change(folder / "summary.json", summary)
    return 9


@pytest.mark.parametrize("kind", ["doors", *STORED])
def test_what_a_folder_says_is_shown_and_never_obeyed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    plain, hostile = stored(kind, tmp_path / "plain"), stored(kind, tmp_path / "hostile")
    least = globals()[f"hostile_{kind}"](hostile)
    main(["report", str(plain)])
    main(["report", str(hostile)])
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "[/a]" in printed
    page, expected = ((folder / "report.html").read_text(encoding="utf-8") for folder in (hostile, plain))
    assert page.count(SHOWN) >= least
    for part in ("<script>alert", "<img src=x", "\x1b"):
        assert part not in page
    tags = [
        [tag for tag, _ in Page(text).tags if tag in ("script", "style", "title", "img", "section")]
        for text in (page, expected)
    ]
    assert tags[0] == tags[1]
    drawn = list(hostile.rglob("*.svg"))
    assert len(drawn) >= (kind != "mazes") * 3
    for path in drawn:
        root = ET.fromstring(path.read_text(encoding="utf-8"))
        assert not [node.tag for node in root.iter() if node.tag.endswith(("script", "img"))]


def test_a_cell_of_a_markdown_page_stays_a_cell() -> None:
    summary = {"policies": {"a|<script>b\n": summarise([row("lcb")])["lcb"]}}
    *_, last = markdown_table(summary).strip().splitlines()
    assert last.startswith(r"| a\|&lt;script>b\n | ")


def drop(*path: str | int) -> Change:
    """Remove what is at this path."""

    def how(value: Any) -> None:
        for key in path[:-1]:
            value = value[key]
        del value[path[-1]]

    return how


def put(new: Any, *path: str | int) -> Change:
    """Put `new` at this path."""

    def how(value: Any) -> None:
        for key in path[:-1]:
            value = value[key]
        value[path[-1]] = new

    return how


DAMAGE: dict[str, dict[str, list[bytes | int | Change]]] = {
    "doors": {
        "summary.json": [
            b"",
            b"[]",
            b"{",
            b"\xff\xfe",
            b"[" * 100_000,
            b'{"policies": ' * 20_000,
            put([], "policies"),
            put({"x": 3}, "policies"),
            put("much", "policies", "ape-v", "success"),
            put([0.5], "policies", "ape-v", "ci95"),
            put("x", "policies", "lcb", "lead"),
            put("one", "policies", "lcb", "seeds"),
            put("soon", "meta", "seconds"),
            put(7, "meta"),
            drop("policies", "ape-v", "ci95"),
            drop("policies", "ape-v", "episodes"),
        ],
        "episodes.jsonl": [
            b'{"policy": 1\n{}\n',
            b"7\n",
            put("x", 200, "seed"),
            put({}, 200, "success"),
            put([], 200, "picture"),
        ],
        "curves.jsonl": [b"null\n\n", put("x", 0, "success"), put(None, 0, "update"), drop(0, "policy"), put([], 0, "seed")],
        "replays.json": [
            b"5",
            b"{}}",
            drop("room"),
            put(10**9, "room", "size"),
            put([], "classes"),
            put(9, "replays", 0, "label"),
            put("x", "replays"),
            put("bm8=", "replays", 0, "picture"),
            drop("replays", 0, "steps"),
            put(["x"], "replays", 0, "steps", 0, "belief"),
        ],
    },
    "mazes": {
        "summary.json": [
            put(3, "mazes"),
            drop("title"),
            drop("policies", "single", "test", "ci95"),
            put(None, "policies", "single", "test", "by_size"),
            put("x", "mazes", "known_tests"),
        ],
        "episodes.jsonl.gz": [b"no", 1000, drop(0, "split"), put(None, 0, "length")],
        "replays.json": [drop("replays", 0, "trusted"), put(5, "replays")],
    },
    "d4rl": {
        "task.json": [b"", b"[]", drop("log"), put("moon-landing", "task"), put("x", "log", "rows"), put(1, "data")],
        "episodes.jsonl": [b"{}\n", drop(0, "return"), put("x", 0, "seed"), put("sac", 0, "algorithm")],
        "curves.jsonl": [put([], 0, "returns"), put(["x"], 0, "returns"), put("x", 0, "update")],
        "beliefs.json": [
            put(3, "ape-v"),
            drop("ape-v", "curve"),
            put([[1.0], [1.0]], "ape-v", "first_episode"),
            put([1], "ape-v", "curve"),
        ],
        "meta.json": [b"[" * 100_000, put(3, "runs"), put({"x": 1}, "runs")],
    },
    "theory": {
        "summary.json": [
            b'{"claims": ' * 20_000,
            put(3, "claims"),
            drop("claims", 0, "holds"),
            drop("meta"),
            put([], "meta", "seeds"),
            drop("city"),
            put(10**9, "city", "map", "width"),
            put([], "chain"),
            put(0, "chain", 0, "n"),
            put("x", "surrogate", 0, "pairs_right"),
        ],
    },
}
CASES = [(kind, name, i) for kind, files in DAMAGE.items() for name, cases in files.items() for i in range(len(cases))]


@pytest.mark.parametrize(("kind", "name", "case"), CASES)
def test_a_damaged_folder_is_told_by_file_and_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, name: str, case: int
) -> None:
    folder, how = stored(kind, tmp_path / "run"), DAMAGE[kind][name][case]
    path = folder / name
    if isinstance(how, int):
        path.write_bytes(path.read_bytes()[:how])
    elif isinstance(how, bytes):
        path.write_bytes(how)
    else:
        change(path, how)
    with pytest.raises(SystemExit) as stopped:
        main(["report", str(folder)])
    told = capsys.readouterr().err
    assert stopped.value.code == 2
    assert f"error: {folder}" in told
    assert name in told or "of different runs" in told
    assert "Fix:" in told


def test_a_file_that_unpacks_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apev.experiments.common.tables.MOST_JSON", 1000)
    with gzip.open(tmp_path / "bomb.jsonl.gz", "wt") as file:
        file.write('{"a": 1}\n' * 1000)
    with pytest.raises(FileError, match="unpacks to more than"):
        read_jsonl(tmp_path / "bomb.jsonl.gz")


def test_a_report_reads_and_writes_nothing_outside_its_folder(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run")
    (tmp_path / "own.txt").write_text("mine")
    (folder / "report.html").symlink_to(tmp_path / "own.txt")
    write_report(folder)
    assert (tmp_path / "own.txt").read_text() == "mine"
    (tmp_path / "secret.json").write_text((folder / "replays.json").read_text())
    (folder / "replays.json").unlink()
    (folder / "replays.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(FileError, match="link out of its folder"):
        write_report(folder)
