"""`report.html`: one self-contained page from a results folder, readable offline and by anyone.

A section is a function from `Results` to a piece of HTML. A new experiment adds its function to `SECTIONS`, with the file of
the folder that it tells of: whatever is wrong there is said of that file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from apev.experiments.common.charts import learning_curves, members_chart, policy_colour, write_figures
from apev.experiments.common.html import asset, embed, escaped, figure, header, left_out, made, whole_page
from apev.experiments.common.tables import (
    Results,
    display_name,
    fill_table,
    print_table,
    read_folder,
    success_by_members_correct,
    table_order,
)
from apev.experiments.locked_doors.filmstrip import write_filmstrip
from apev.files import write_text

# The page should stay small enough to mail around (3 MB); the charts and the style take less than the rest.
REPLAY_BYTES = 2_300_000
LEAD = (
    "A photograph decides which of four doors is unlocked, and the agent has only learned from logs with other ones. "
    "When a door turns out to be locked, the agent weighs its explanations of the world again and changes its mind."
)


def show(folder: Path, page: Path | None) -> None:
    """Print the table, write figures, film strip and page, and refresh a Markdown page."""
    print_table(read_folder(folder).summary)
    write_figures(folder)
    write_filmstrip(folder)
    print(write_report(folder))
    if page is not None:
        fill_table(page, folder)


def write_report(folder: str | Path, out: str | Path = "report.html") -> Path:
    """Write the page of a results folder; a relative `out` is inside the folder."""
    results = read_folder(folder)
    path = results.folder / out
    write_text(path, render(results))
    return path


def render(results: Results) -> str:
    """The page as a string."""
    drawn = []
    for section, file in SECTIONS:
        with results.part(file):
            drawn.append(section(results))
    return whole_page(_title(results), drawn, asset("apev.experiments.locked_doors", "page.js"))


def header_section(results: Results) -> str:
    """Title, what is seen in two sentences, and the numbers that matter."""
    policies = results.summary["policies"]
    lead = str(results.summary.get("lead", LEAD))
    numbers = [_headline(name, policies[name]) for name in ("ape-v", "average") if name in policies]
    ideas = f'<ul class="headline">{"".join(numbers)}</ul>' if numbers else ""
    return header(_title(results), lead, ideas)


def replay_section(results: Results) -> str:
    """Episodes to step through: the room, the photograph and the belief."""
    data = results.replays
    if not data or not data.get("replays"):
        return left_out("replay", "Watch it think", "This folder has no replays.json, so there is nothing to replay.")
    classes, replays = data["classes"], []
    size = 0
    for replay in data["replays"]:
        # Four digits of a belief are more than the eye sees, and halve the page.
        steps = [
            step | {"belief": [round(b, 4) for b in step["belief"]], "doors": [round(b, 4) for b in step["doors"]]}
            for step in replay["steps"]
        ]
        size += len(json.dumps(replay | {"steps": steps}))
        if size > REPLAY_BYTES:
            break
        replays.append(replay | {"steps": steps})
    options = "".join(
        f'<option value="{i}">{escaped(_replay_name(i, replay, classes))}</option>' for i, replay in enumerate(replays)
    )
    dropped = len(data["replays"]) - len(replays)
    note = f" {dropped} more are in replays.json." if dropped else ""
    payload = embed({"room": data["room"], "classes": classes, "replays": replays})
    icon = '<svg viewBox="0 0 20 20" aria-hidden="true" class="{}"><path d="{}"/></svg>'
    return f"""<section id="replay" aria-labelledby="replay-title">
<div class="replay-top"><div><h2 id="replay-title">Watch it think</h2>
<p class="note">The agent and its trail have the colour of the door it believes in; that door is framed.{note}</p></div>
<label class="pick"><span class="note">Episode</span>
<select id="replay-select" autocomplete="off">{options}</select></label></div>
<div class="stage">
<svg id="replay-room" role="img" aria-label="the room seen from above, with four doors and the agent"></svg>
<div>
<div class="evidence"><img id="replay-photo" alt="" width="132" height="132">
<p>This photograph unlocks <strong><span id="replay-label"></span></strong>but nobody tells the agent.</p></div>
<p class="panel-title">Belief in each door</p><ul class="bars" id="replay-doors"></ul>
<p class="panel-title">Belief in each member, and the door it believed in at the start</p>
<ul class="bars" id="replay-members"></ul>
</div></div>
<div class="say"><span id="replay-step" role="status"></span>
<span class="turn" id="replay-turn" hidden>changes its mind</span></div>
<div class="timeline">
<div class="buttons">
<button type="button" id="replay-back" aria-label="one step back">{icon.format("", "M13 3 5 10l8 7z")}</button>
<button type="button" id="replay-play" aria-label="play">{icon.format("play", "M5 2l13 8-13 8z")}
{icon.format("pause", "M4 3h4v14H4zM12 3h4v14h-4z")}</button>
<button type="button" id="replay-next" aria-label="one step on">{icon.format("", "M7 3l8 7-8 7z")}</button>
</div>
<div><div class="strip"><svg id="replay-strip" preserveAspectRatio="none" role="img"
aria-label="belief in each door over the episode"></svg><div id="replay-marks"></div>
<div class="cursor" id="replay-cursor"></div></div>
<input type="range" id="replay-slider" min="0" max="0" value="0" step="1" aria-label="step" autocomplete="off"></div>
</div>
<p class="keys">The strip is the belief in each door over the episode; a diamond is the moment it changes its mind.
The arrow keys step.</p>
<script type="application/json" id="replay-data">{payload}</script>
</section>"""


def table_section(results: Results) -> str:
    """The table of `summary.json`; each cell carries its exact value."""
    policies = results.summary["policies"]
    rows = "".join(_table_row(name, policies[name]) for name in table_order(policies))
    seeds = max((p.get("seeds", 1) for p in policies.values()), default=1)
    how = (
        f"The interval covers other photographs and other training seeds ({seeds} seeds, two-way bootstrap)."
        if seeds > 1
        else "The interval is Wilson’s: it covers other photographs, not other training seeds (one seed)."
    )
    return f"""<section id="results"><h2>Who finds the way out</h2>
<p class="note">Share of episodes that leave through the unlocked door, on photographs nobody trained on. {how}
Stalled: the episode ended with the agent stuck.</p>
<div class="scroll"><table><thead><tr><th scope="col">Policy</th>
<th scope="col">Success <small>95% interval</small></th>
<th scope="col">Mean steps</th><th scope="col">Stalled</th><th scope="col" class="optional">Mean return</th>
<th scope="col" class="optional">Episodes</th></tr></thead><tbody>{rows}</tbody></table></div></section>"""


def curves_section(results: Results) -> str:
    """Success during training."""
    name = "Learning curves"
    if not results.curves:
        return left_out("curves", name, "This folder has no curves.jsonl: nothing was evaluated during training.")
    many = len({row["seed"] for row in results.curves}) > 1
    lines = (
        "A line is the mean of the seeds; its band runs from the worst seed to the best."
        if many
        else "The band is the 95% interval of the evaluation episodes."
    )
    note = f"Success on test photographs during training. {lines}"
    return figure("curves", name, note, lambda width: learning_curves(results.curves, width=width))


def members_section(results: Results) -> str:
    """The paper's figure: what a policy makes of members that are right."""
    name = "When only some members are right"
    groups = success_by_members_correct(results.episodes)
    if not groups:
        return left_out("members", name, "The folder's episodes do not say how many members were right.")
    note = (
        "Success by the number of the policy’s members that read the photograph and point at the unlocked door. "
        "Averaging needs a majority; adapting can do with one member and some patience. "
        "Wildcards, where a policy has them, see no photograph and are not counted: with them a policy can succeed though no "
        "member is right, because one of them stands for each kind of room."
    )
    return figure("members", name, note, lambda width: members_chart(groups, width=width))


def made_section(results: Results) -> str:
    """How to make these numbers again."""
    return made(results.summary.get("meta") or {})


SECTIONS: tuple[tuple[Callable[[Results], str], str], ...] = (  # each with the file it is drawn from
    (header_section, "summary.json"),
    (replay_section, "replays.json"),
    (table_section, "summary.json"),
    (curves_section, "curves.jsonl"),
    (members_section, "episodes.jsonl"),
    (made_section, "summary.json"),
)


def _title(results: Results) -> str:
    return str(results.summary.get("title") or results.folder.resolve().name)


def _headline(policy: str, numbers: Mapping[str, Any]) -> str:
    low, high = numbers["ci95"]
    hero = ' class="hero"' if policy == "ape-v" else ""
    return (
        f"<li{hero}><b>{numbers['success']:.1%}</b>{escaped(display_name(policy))} finds the way out"
        f"<br>95% interval {low:.1%} – {high:.1%}</li>"
    )


def _table_row(policy: str, p: Mapping[str, Any]) -> str:
    low, high = p["ci95"]
    cells = [f"{_cell('success', p['success'])}{p['success']:.3f} <small>{low:.3f}–{high:.3f}</small></td>"]
    shown = (("mean_length", ".1f", ""), ("stalled", ".1%", ""), ("mean_return", ".2f", "optional"))
    for key, spec, extra in (*shown, ("episodes", ",", "optional")):
        value = p.get(key)
        cells.append(f"{_cell(key, value, extra)}{'' if value is None else format(value, spec)}</td>")
    hero = ' class="hero"' if policy == "ape-v" else ""
    swatch = f'<span class="swatch" style="background:{policy_colour(policy)}"></span>'
    name = f'<th scope="row">{swatch}{escaped(display_name(policy))}</th>'
    return f'<tr data-policy="{escaped(policy)}"{hero}>{name}{"".join(cells)}</tr>'


def _cell(field: str, value: Any, extra: str = "") -> str:
    attribute = f' class="{extra}"' if extra else ""
    return f'<td data-field="{field}" data-value="{escaped(json.dumps(value))}"{attribute}>'


def _replay_name(index: int, replay: Mapping[str, Any], classes: list[str]) -> str:
    believed = [step["believed_door"] for step in replay["steps"]]
    turns = sum(a != b for a, b in pairwise(believed))
    mind = {0: "never changes its mind", 1: "changes its mind once"}.get(turns, f"changes its mind {turns} times")
    end = f"out in {len(believed) - 1} steps" if replay["success"] else "does not get out"
    return f"{index + 1}. {display_name(replay['policy'])}, {classes[replay['label']]}: {mind}, {end}"
