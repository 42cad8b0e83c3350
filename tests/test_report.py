import gzip
import io
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pytest
from report_fixture import make_curves, make_episodes, make_folder, make_replay, make_replays
from rich.console import Console

from apev.report import markdown_table, print_table, read_folder, read_jsonl, summarise, write_figures, write_report
from apev.report.charts import Series, bar_chart, learning_curves, line_chart, policy_colour
from apev.report.statistics import success_interval, wilson
from apev.report.tables import paired_values, success_by_members_correct


def row(policy="ape-v", seed=0, picture=0, success=True, **more):
    base = {"policy": policy, "seed": seed, "episode": picture, "picture": picture, "success": success}
    return base | {"return": -3.0, "length": 4, "members_correct": 2, "members": 5, "label": 0, "stalled": False} | more


def test_summarise_by_hand():
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


def test_summarise_knows_that_seeds_share_photographs():
    episodes = [row(seed=s, picture=i, success=i % 5 > 0) for s in range(3) for i in range(100)]
    low, high = summarise(episodes)["ape-v"]["ci95"]
    same = [[i % 5 > 0 for i in range(100)]] * 3
    assert [low, high] == pytest.approx(success_interval(same, [range(100)] * 3))
    pooled = wilson(240, 300)
    assert high - low > 1.4 * (pooled[1] - pooled[0])


def test_success_by_members_correct_by_hand():
    episodes = [row(picture=i, members_correct=i % 2 * 3, success=i % 4 == 1) for i in range(8)]
    episodes += [row("oracle", members_correct=None)]
    groups = success_by_members_correct(episodes)
    assert list(groups) == ["ape-v"]
    assert [(g["correct"], g["success"], g["episodes"]) for g in groups["ape-v"]] == [(0, 0.0, 4), (3, 0.5, 4)]
    assert groups["ape-v"][1]["ci95"] == pytest.approx(list(wilson(2, 4)))


def test_paired_values_average_repeats():
    episodes = [row(picture=1, success=True), row(picture=1, success=False), row(seed=2)]
    assert paired_values(episodes) == {(0, 1): 0.5, (2, 0): 1.0}


def test_the_lead_is_over_the_same_photographs():
    shown = [(0, True, False), (1, True, True), (2, False, False), (3, True, False)]
    episodes = [row("ape-v", picture=p, success=ours) for p, ours, _ in shown]
    episodes += [row("lcb", picture=p, success=theirs) for p, _, theirs in shown] + [row("lcb", picture=9, success=False)]
    summary = summarise(episodes)
    assert "lead" not in summary["ape-v"]
    assert summary["lcb"]["lead"]["mean"] == pytest.approx(0.5)
    assert "| LCB ensemble |" in markdown_table({"policies": summary})
    assert "+0.500 (" in markdown_table({"policies": summary})


def test_tables_show_every_policy_in_order():
    summary = {"title": "T", "policies": summarise(make_episodes())}
    text = io.StringIO()
    print_table(summary, Console(file=text, width=120))
    markdown = markdown_table(summary)
    for shown in (text.getvalue(), markdown):
        places = [shown.index(n) for n in ("Oracle", "APE-V ", "eval only", "Random member", "Average", "Single", "LCB")]
        assert places == sorted(places)
        assert f"{summary['policies']['ape-v']['success']:.3f}" in shown
    assert len({line.count("|") for line in markdown.strip().splitlines()}) == 1


def test_a_narrow_terminal_keeps_the_names_and_whole_numbers():
    summary = {"title": "T", "policies": summarise(make_episodes())}
    text = io.StringIO()
    print_table(summary, Console(file=text, width=80))
    assert "Oracle" in text.getvalue()
    assert "APE-V's lead" in text.getvalue()
    assert "…" not in text.getvalue()
    assert "stalled" not in text.getvalue()


def test_read_jsonl_plain_gzip_and_broken(tmp_path):
    rows = [{"a": 1}, {"a": 2}]
    text = "\n".join(json.dumps(r) for r in rows) + "\n\n"
    (tmp_path / "plain.jsonl").write_text(text)
    with gzip.open(tmp_path / "packed.jsonl.gz", "wt") as file:
        file.write(text)
    assert read_jsonl(tmp_path / "plain.jsonl") == read_jsonl(tmp_path / "packed.jsonl.gz") == rows
    (tmp_path / "cut.jsonl").write_text('{"a": 1}\n{"a": ')
    with pytest.raises(ValueError, match=r"cut\.jsonl, line 2"):
        read_jsonl(tmp_path / "cut.jsonl")


def test_read_folder_remakes_a_missing_summary_and_reads_gzip(tmp_path):
    folder = make_folder(tmp_path / "run")
    stored = read_folder(folder).summary["policies"]
    (folder / "summary.json").unlink()
    with gzip.open(folder / "episodes.jsonl.gz", "wb") as file:
        file.write((folder / "episodes.jsonl").read_bytes())
    (folder / "episodes.jsonl").unlink()
    results = read_folder(folder)
    assert results.summary["policies"] == stored
    assert results.summary["title"] == "run"


def test_read_folder_names_the_mistake(tmp_path):
    with pytest.raises(FileNotFoundError, match="not a folder"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="not a results folder"):
        read_folder(tmp_path)
    (tmp_path / "summary.json").write_text("[]")
    with pytest.raises(ValueError, match="policies"):
        read_folder(tmp_path)


def test_figures_are_valid_svg_with_the_policys_colour(tmp_path):
    paths = write_figures(make_folder(tmp_path))
    assert [p.name for p in paths] == ["success.svg", "learning_curves.svg", "members_correct.svg"]
    for path in paths:
        text = path.read_text()
        ET.fromstring(text)
        assert policy_colour("ape-v") in text
        assert "nan" not in text
        assert not re.search(r"(href|src|url)\s*[=(]", text)
    assert policy_colour("something new") == policy_colour("something new")


def test_bars_are_drawn_to_scale():
    root = ET.fromstring(bar_chart([("a", 0.5, 0.4, 0.6), ("b", 1.0, 0.9, 1.0)], x_label="x"))
    half, full = (float(r.get("width")) for r in root.iter("{http://www.w3.org/2000/svg}rect") if r.get("rx") == "3")
    assert full == pytest.approx(2 * half, abs=0.2)


def test_learning_curve_is_the_mean_of_the_seeds_and_the_band_their_range():
    curves = [
        {"policy": "lcb", "seed": s, "update": u, "success": v, "episodes": 50}
        for s, values in enumerate([(0.2, 0.4), (0.4, 0.8)])
        for u, v in enumerate(values)
    ]
    by_hand = Series("lcb", [0, 1], [0.3, 0.6], [0.2, 0.4], [0.4, 0.8])
    assert learning_curves(curves) == line_chart([by_hand], x_label="updates", y_label="success")


def test_charts_survive_one_point_and_refuse_none():
    ET.fromstring(line_chart([Series("lcb", [5], [1.0])], x_label="x", y_label="<y>"))
    ET.fromstring(learning_curves(make_curves(seeds=1), width=360))
    with pytest.raises(ValueError, match="no points"):
        line_chart([], x_label="x", y_label="y")


class Page(HTMLParser):
    """Collects tags, the cells' values and the embedded data."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.cells, self.data, self.policy, self.script = [], {}, "", None, False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        self.script = attributes.get("id") == "replay-data"
        if tag == "tr":
            self.policy = attributes.get("data-policy")
        if tag == "td":
            self.cells[self.policy, attributes["data-field"]] = json.loads(attributes["data-value"])

    def handle_data(self, data):
        if self.script:
            self.data += data
            self.script = False

    def ids(self):
        return {attributes["id"] for _, attributes in self.tags if "id" in attributes}


def test_page_carries_the_exact_numbers_and_nothing_from_outside(tmp_path):
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
            assert attributes.get(key, "data:").startswith("data:")
    assert "@import" not in text
    assert "0123456789abcdef0123456789abcdef01234567" in text
    assert path.stat().st_size < 400_000


def test_page_leaves_out_what_is_missing(tmp_path):
    text = write_report(make_folder(tmp_path, optional=False), tmp_path / "deep" / "page.html").read_text()
    page = Page(text)
    assert "replay-slider" not in page.ids()
    assert "no replays.json" in text
    assert "no curves.jsonl" in text
    assert "members" in page.ids()


def test_page_survives_hostile_text(tmp_path):
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


def test_page_stays_small_with_many_replays(tmp_path):
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
