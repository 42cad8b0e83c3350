"""A machine that is found out, in one picture: some moments of a replay, each with the belief below it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apev.experiments.common.charts import _svg
from apev.experiments.common.html import escaped
from apev.files import write_text

COLOURS = ("#2f7fd8", "#d6336c", "#0b8a76", "#b86e00", "#845ef7", "#5f7d00")  # of kinds, as in page.css
PLAIN = (134, 142, 150)
FRAME, GAP, ROW, SHOWN = 220, 14, 20, 5


def write_filmstrip(path: Path, replays: Mapping[str, Any], title: str) -> Path | None:
    """Draw the episode of a wrong machine that took longest to know; None where there is nothing to draw."""
    known = [episode for episode in replays["episodes"] if episode["knows"]]
    if replays["body"] is None or not known:
        return None
    shown = max(known, key=lambda episode: (bool(_wrong(replays, episode)), int(episode["knows"]["step"])))
    write_text(path, draw(replays, shown, title) + "\n")
    return path


def key_steps(knows: int, length: int) -> list[int]:
    """The start, halfway to knowing, knowing, and later, further and further apart: at most five, in order."""
    known = sorted({0, knows // 2, knows})
    more = SHOWN - len(known)
    later = (max(knows, 1) * (length / max(knows, 1)) ** (i / more) for i in range(1, more + 1))
    return sorted({*known, *(min(length, round(step)) for step in later)})


def steps_of(episode: Mapping[str, Any]) -> list[int]:
    """The moments that are drawn of an episode: where a machine changes, those around it."""
    knows, length = episode["knows"]["step"], episode["adaptive"]["length"]
    if episode["change"] is None:
        return key_steps(knows, length)
    again = [] if episode["again"] is None else [episode["again"]["step"]]
    return sorted({0, knows, episode["change"]["step"], *again, length})


def draw(replays: Mapping[str, Any], episode: Mapping[str, Any], title: str) -> str:
    """The strip as SVG."""
    left, low, right, high = replays["body"]["box"]
    scale = FRAME / (right - left)
    tall, members = (high - low) * scale, replays["members"]
    told = episode["adaptive"]
    steps, top = steps_of(episode), 66
    parts = [
        f'<text class="soft" x="16" y="46">A machine of the kind “{escaped(replays["kinds"][episode["kind"]])}”. '
        f"Dashes are {escaped(replays['body']['wrong_is'])}, which no policy sees.</text>"
    ]
    for i, step in enumerate(steps):
        x = 16 + i * (FRAME + GAP)
        belief = told["belief"][step]
        parts.append(f'<g transform="translate({x} {top})">{_frame(replays, episode, step, scale, tall)}')
        for k, share in enumerate(belief):
            y = tall + 22 + ROW * k
            name = members[k] if len(members[k]) <= 12 else members[k][:11] + "…"
            parts.append(
                f'<text class="soft" x="0" y="{y + 4:.1f}" font-size="12">{escaped(name)}</text>'
                f'<rect x="86" y="{y - 6:.1f}" width="98" height="11" rx="3" fill="var(--line,#e9ebee)"/>'
                f'<rect x="86" y="{y - 6:.1f}" width="{98 * share:.1f}" height="11" rx="3" fill="{_colour(replays, k)}"/>'
                f'<text class="soft" x="{FRAME}" y="{y + 4:.1f}" font-size="12" text-anchor="end">{share:.2f}</text>'
            )
        caption = _caption(replays, episode, step)
        below = tall + 22 + ROW * len(belief) + 12
        parts.append(f'<text x="{FRAME / 2}" y="{below:.1f}" text-anchor="middle">{escaped(caption)}</text></g>')
    width = 32 + len(steps) * (FRAME + GAP) - GAP
    return _svg(
        width, top + tall + 22 + ROW * len(members) + 30, f"{title}: it finds out", "".join(parts), "moments of an episode"
    )


def _frame(replays: Mapping[str, Any], episode: Mapping[str, Any], step: int, scale: float, tall: float) -> str:
    """The machine at one step."""
    body, told = replays["body"], episode["adaptive"]
    points = told["points"][step]
    left, low, _, high = body["box"]
    zoom = max(1.0, (max(points[1::2]) + body["width"] - low) / (high - low))  # who jumps high is seen from afar
    left, high, scale = left * zoom, low + (high - low) * zoom, scale / zoom

    def at(point: int) -> str:
        return f"{(points[2 * point] - left) * scale:.1f} {(high - points[2 * point + 1]) * scale:.1f}"

    parts = [f'<rect width="{FRAME}" height="{tall:.1f}" rx="10" fill="var(--floor,#faf7f0)"/>']
    if body["ground"]:
        parts.append(f'<path d="M0 {high * scale:.1f}H{FRAME}" stroke="var(--wall,#4a4f5c)" stroke-width="2"/>')
    else:
        middle = f'cx="{-left * scale:.1f}" cy="{high * scale:.1f}" r="{1000 * scale:.1f}"'
        parts.append(f'<circle {middle} fill="none" stroke="var(--tile,#efe9dc)" stroke-width="2"/>')
    belief = told["belief"][step]
    best = max(range(len(belief)), key=lambda k: float(belief[k]))
    even = 1 / len(belief)
    sure = max(0.0, (belief[best] - even) / (1 - even)) if len(belief) > 1 else 1.0
    paint, wide = _mixed(_colour(replays, best), sure), body["width"] * scale
    wrong = _wrong(replays, episode, step)
    for bone, (a, b) in enumerate(body["bones"]):
        line = f'<path d="M{at(a)}L{at(b)}" fill="none" stroke'
        parts.append(f'{line}="{paint}" stroke-width="{wide:.1f}" stroke-linecap="round"/>')
        if bone in wrong:
            parts.append(
                f'{line}="#ffffff" stroke-width="{wide * 0.36:.1f}" stroke-dasharray="{wide / 2:.1f} {wide * 0.6:.1f}"/>'
            )
    return "".join(parts)


def _wrong(replays: Mapping[str, Any], episode: Mapping[str, Any], step: int = 0) -> tuple[int, ...]:
    """The bones that are wired the wrong way round."""
    change = episode["change"]
    wrong, kind = replays["body"]["wrong"], episode["kind"] if change is None or step <= change["step"] else change["kind"]
    return tuple(wrong[kind]) if kind < len(wrong) else ()


def _caption(replays: Mapping[str, Any], episode: Mapping[str, Any], step: int) -> str:
    if step == 0:
        return "start: it could be any kind"
    if episode["change"] is not None and step == episode["change"]["step"]:
        return f"step {step}: it becomes “{replays['kinds'][episode['change']['kind']]}”"
    if any(moment is not None and step == moment["step"] for moment in (episode["knows"], episode["again"])):
        return f"step {step}: 95% sure"
    way = f", {round(episode['adaptive']['way'][step])} m" if replays["body"]["ground"] else ""
    return f"step {step}{way}"


def _colour(replays: Mapping[str, Any], member: int) -> str:
    kind = replays["member_kinds"][member]
    return COLOURS[(kind if kind >= 0 else member) % len(COLOURS)]


def _mixed(colour: str, share: float) -> str:
    """A colour as strong as the belief is sure."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(p + (c - p) * share):02x}" for p, c in zip(PLAIN, parts, strict=True))
