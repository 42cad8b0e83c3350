"""`report.html` of a fleet: what was found, a replay beside the best blind policy, returns, and how sure the belief may be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apev.experiments.common.html import asset, embed, escaped, figure, header, html_table, left_out, made, section, whole_page
from apev.experiments.common.tables import AGAIN, Rows, stored
from apev.experiments.fleet.figures import columns_chart, label, number, reliability_chart, returns_chart
from apev.experiments.fleet.filmstrip import write_filmstrip
from apev.experiments.fleet.replays import read_replays
from apev.files import reading, write_text

WORLDS = {  # what is hidden
    "customers": (
        "A customer comes eight times and is made an offer each time. Customers are of three segments that want different "
        "things, and nothing that is seen of them says which: only what they buy does."
    ),
    "pendulum": (
        "In half of these pendulums the motor is wired the wrong way round, and no sensor says in which. Whoever takes one for "
        "the other pushes down what swings up."
    ),
    "cheetah-wiring": (
        "The rear and the front leg of each of these robots may be wired the wrong way round. That makes four kinds of robots, "
        "and no sensor says which one this is."
    ),
    "unseen-wiring": (
        "The rear or the front leg of each robot in the log may be wired the wrong way round. Tested are robots in which both "
        "are, a kind that is in nobody’s log."
    ),
    "rewired": (
        "Half-cheetahs of four wirings, and in the middle of an episode the wiring changes. Nothing tells the policy: what it "
        "was sure of is wrong from one step to the next."
    ),
    "worn-joint": (
        "Some of these robots are healthy, others have a weak thigh, the rear one or the front one, each as worn as it happens "
        "to be. No sensor says which."
    ),
}


ROWS = {  # what rows are, where their names do not say it
    "adaptive, td": "td, both: evidence of TD errors, and of both, instead of next states and rewards.",
    "adaptive, forgetting": "Forgetting: the share of the evidence that is lost at each step.",
    "adaptive, committed": "Committed: changes its mind at odds of 20.",
    "adaptive, held": "Held: one member an episode, the most believed in at its start.",
    "adaptive, episode": "Episodes 2 and 5: of a machine that has run before, with what was believed then.",
}


def write_page(folder: Path, summary: Mapping[str, Any], table: Rows) -> Path:
    """Write report.html and figures/*.svg of a world's folder."""
    path = stored(folder, "traces.json")
    with reading(folder / "traces.json", AGAIN):
        replays = None if path is None else read_replays(path)
    with reading(folder / "summary.json", AGAIN):
        title = str(summary["title"])
        sections = [header(title, lead(summary), headline(summary)), replay_section(replays)]
        sections += [returns_section(summary), table_section(summary, table), *kinds_sections(summary)]
        sections.append(made({key: value for key, value in (summary.get("meta") or {}).items() if key != "runs"}))
        write_text(folder / "figures" / "returns.svg", returns_chart(summary, title=f"{title}: returns") + "\n")
    if replays is not None:
        write_filmstrip(folder / "figures" / "finds_out.svg", replays, title)
    page = folder / "report.html"
    write_text(page, whole_page(title, sections, asset("apev.experiments.fleet", "replay.js")))
    return page


def lead(summary: Mapping[str, Any]) -> str:
    """What is hidden, and what was found of it."""
    told, worlds = WORLDS.get(summary["world"], ""), summary["worlds"]
    if not worlds:
        return told
    found = f"From a log without labels APE-V found {worlds['found']:g} kinds, where there are {worlds['true']}."
    all_can_be = all(line.get("right") == line["agreement"] for line in worlds["by_seed"])
    of = "of the contexts" if all_can_be else "of those contexts that anybody can assign right"
    right = f"It assigned {worlds['agreement']:.1%} {of}{' right' if all_can_be else ''}."
    return f"{told} {found} {right}".strip()


def headline(summary: Mapping[str, Any]) -> str:
    """The numbers that matter."""
    policies, blind = summary["policies"], summary["best_blind"]
    numbers = []
    if "adaptive" in policies:
        ours = policies["adaptive"]
        low, high = ours["ci95"]
        told = f"return of the adaptive policy, 95% interval {number(low)} to {number(high)}"
        numbers.append(("hero", number(ours["return"]), told))
    if blind["return"] is not None:
        own = f" ({label(blind['policy'])})" if blind["policy"] else ""
        numbers.append(("", number(blind["return"]), f"return of the best blind policy{own}"))
    if "adaptive" in summary["recovered"]:
        numbers.append(("", f"{summary['recovered']['adaptive']:.0%}", "of the gap between best blind and ceiling"))
    steps = summary["worlds"].get("steps_to_95")
    if steps is not None:
        numbers.append(("", f"{steps:g}", "steps until it is 95% sure of its kind (median)"))
    items = (
        f"<li{f' class={mark}' if mark else ''}><b>{escaped(value)}</b>{escaped(told)}</li>" for mark, value, told in numbers
    )
    return f'<ul class="headline many">{"".join(items)}</ul>'


def replay_section(replays: Mapping[str, Any] | None) -> str:
    """An episode of each kind to step through: the adaptive policy, the blind one, and the belief."""
    heading = "Watch it find out"
    if replays is None or not replays["episodes"]:
        return left_out("replay", heading, "This folder has no traces.json, so there is nothing to replay.")
    leads = [episode["adaptive"]["return"] - episode["blind"]["return"] for episode in replays["episodes"]]
    options = "".join(
        f'<option value="{i}"{" selected" if i == leads.index(max(leads)) else ""}>{escaped(kind_in_words(replays, episode))}'
        "</option>"
        for i, episode in enumerate(replays["episodes"])
    )
    icon = '<svg viewBox="0 0 20 20" aria-hidden="true" class="{}"><path d="{}"/></svg>'
    scenes = "".join(
        f'<figure class="scene" id="scene-{name}"><figcaption><b>{escaped(told)}</b><span class="told"></span></figcaption>'
        f'<div class="drawn"></div></figure>'
        for name, told in (("adaptive", "Adaptive"), ("blind", f"Blind: {replays['blind']}"))
    )
    return f"""<section id="replay" aria-labelledby="replay-title">
<div class="replay-top"><div><h2 id="replay-title">{heading}</h2>
<p class="note">{escaped(replays["note"])}</p></div>
<label class="pick"><span class="note">Kind</span>
<select id="replay-select" autocomplete="off">{options}</select></label></div>
<div class="scenes">{scenes}</div>
<div class="say"><span id="replay-step" role="status"></span>
<span class="turn" id="replay-knows" hidden></span></div>
<p class="panel-title">Belief in each kind that was found</p><ul class="bars" id="replay-belief"></ul>
<div class="timeline">
<div class="buttons">
<button type="button" id="replay-back" aria-label="one step back">{icon.format("", "M13 3 5 10l8 7z")}</button>
<button type="button" id="replay-play" aria-label="play">{icon.format("play", "M5 2l13 8-13 8z")}
{icon.format("pause", "M4 3h4v14H4zM12 3h4v14h-4z")}</button>
<button type="button" id="replay-next" aria-label="one step on">{icon.format("", "M7 3l8 7-8 7z")}</button>
</div>
<div><div class="strip"><svg id="replay-strip" preserveAspectRatio="none" role="img"
aria-label="belief in each kind over the episode"></svg><div id="replay-marks"></div>
<div class="cursor" id="replay-cursor"></div></div>
<input type="range" id="replay-slider" min="0" max="1000" value="0" step="1" aria-label="time" autocomplete="off">
<div class="ticks" id="replay-ticks" aria-hidden="true"></div></div>
</div>
<p class="keys" id="replay-keys"></p>
<script type="application/json" id="replay-data">{embed(replays)}</script>
</section>"""


def kind_in_words(replays: Mapping[str, Any], episode: Mapping[str, Any]) -> str:
    """Of an episode's machine, and what it becomes where it changes."""
    kind = str(replays["kinds"][episode["kind"]])
    return kind if episode["change"] is None else f"{kind}, then {replays['kinds'][episode['change']['kind']]}"


def returns_section(summary: Mapping[str, Any]) -> str:
    """The bars."""
    note = "The policies that tell most; of members, of memory and of blind policies only the best. All rows are in the table."
    return figure("returns", "What it returns", note, lambda width: returns_chart(summary, width))


def table_section(summary: Mapping[str, Any], table: Rows) -> str:
    """Every policy."""
    note = "Seeds and episodes are drawn for the interval. Worst kind: the return in the kind where a policy is worst."
    if summary["recovered"]:
        note += " Recovered: how much of the gap between the best blind policy (0) and the ceiling (1)."
    note += " Steps to 95%: the median episode's until the kind that is believed in at its end first has 95%."
    believing = [row for name, row in summary["policies"].items() if name.startswith("adaptive")]
    if any("right" in row for row in believing):
        note += " Right at the end: how often that kind is the machine's."
    if any("return_after" in row for row in summary["policies"].values()):
        note += " Return and steps after: from the step on at which the machine changes."
    note += "".join(f" {said}" for start, said in ROWS.items() if any(name.startswith(start) for name in summary["policies"]))
    return section("results", "Every policy", note, html_table(table, hero="adaptive"))


def kinds_sections(summary: Mapping[str, Any]) -> list[str]:
    """What was found in the log of the first seed: whether the belief is as often right as it says, and what tells."""
    first: dict[str, Any] = next(iter(summary["worlds"].get("by_seed", [])), {})
    if not first.get("reliability") or not first.get("columns"):
        return [left_out("kinds", "What was found", "No kinds were found in the log, or none were looked for.")]
    charts = (
        (
            "Can the belief be trusted?",
            "On the dashed line it is as often right as it says.",
            reliability_chart(first["reliability"]),
        ),
        ("What tells kinds apart?", "The share of the evidence that each column brings.", columns_chart(first["columns"])),
    )
    body = "".join(
        f'<div><h3>{escaped(heading)}</h3><p class="note">{escaped(note)}</p>{chart}</div>' for heading, note, chart in charts
    )
    told = str(first.get("verdict", ""))
    return [section("kinds", "What was found in the log", told[:1].upper() + told[1:], f'<div class="halves">{body}</div>')]
