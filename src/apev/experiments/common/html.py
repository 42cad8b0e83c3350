"""Pieces that every page is made of: the frame with its style, tables, figures, and where the numbers come from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from html import escape
from importlib.resources import files
from typing import Any

from apev.experiments.common.tables import Rows
from apev.terminal import plain

_MADE = {
    "command": "Command",
    "commit": "Commit",
    "version": "apev",
    "seeds": "Seeds",
    "scale": "Scale",
    "images": "Photographs",
    "train_images": "Training photographs",
    "test_images": "Test photographs",
    "updates": "Updates",
    "seconds": "Time",
}


def escaped(value: Any) -> str:
    """Any stored value as text of a page or a chart, or as an attribute: what looks like a tag in it is shown, not obeyed.

    The one way in. Characters that XML does not allow are written out, so that a chart stays a chart.
    """
    return escape(plain(str(value), lines=True))


def whole_page(title: str, sections: Iterable[str], js: str = "") -> str:
    """A self-contained page; js: its script (`asset` reads one)."""
    parts = {
        "title": escaped(title),
        "css": asset("apev.experiments.common", "page.css"),
        "js": js,
        "sections": "\n".join(sections),
    }
    # One pass: a title that contains {{js}} stays a title.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], asset("apev.experiments.common", "page.html"))


def header(title: str, lead: str, ideas: str) -> str:
    """The top of a page: its title, what is seen in a few sentences, and `ideas`, the numbers that matter, as HTML."""
    return f'<header><h1>{escaped(title)}</h1><p class="lead">{escaped(lead)}</p>{ideas}</header>'


def html_table(rows: Rows, wrap: bool = False, hero: str = "") -> str:
    """A table; wrap: its cells are sentences; hero: the name of the row that stands out."""
    heading, *body = rows
    style = ' style="white-space:normal;text-align:left"' if wrap else ""
    head = "".join(f'<th scope="col"{style}>{escaped(cell)}</th>' for cell in heading)
    lines = []
    for first, *cells in body:
        tail = "".join(f"<td{style}>{escaped(cell)}</td>" for cell in cells)
        mark = ' class="hero"' if hero and first == hero else ""
        lines.append(f'<tr{mark}><th scope="row"{style}>{escaped(first)}</th>{tail}</tr>')
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def section(name: str, heading: str, note: str, body: str) -> str:
    """A card of the page; its heading and note are text, its body is HTML."""
    told = f'<p class="note">{escaped(note)}</p>' if note else ""
    return f'<section id="{escaped(name)}"><h2>{escaped(heading)}</h2>{told}{body}</section>'


def figure(name: str, heading: str, note: str, draw: Callable[[int], str]) -> str:
    """A chart drawn twice, so that its text is readable on a screen and on a phone."""
    wide = draw(820).replace('class="chart"', 'class="chart wide"', 1)
    narrow = draw(360).replace('class="chart"', 'class="chart narrow"', 1)
    return section(name, heading, note, wide + narrow)


def left_out(name: str, heading: str, why: str) -> str:
    """A card that says why it is empty."""
    note = f'<p class="note">{escaped(why)}</p>'
    return f'<section id="{escaped(name)}" data-empty><h2>{escaped(heading)}</h2>{note}</section>'


def made(meta: Mapping[str, Any]) -> str:
    """Command, commit, seeds and versions: how to make these numbers again."""
    if not meta:
        return left_out("made", "How it was made", "The folder does not say how it was made.")
    order = [k for k in _MADE if k in meta] + [k for k in meta if k not in _MADE]
    rows = "".join(f"<dt>{escaped(_MADE.get(k, k))}</dt><dd>{_made_value(k, meta[k])}</dd>" for k in order)
    return section("made", "How it was made", "", f'<dl class="made">{rows}</dl>')


def embed(data: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _made_value(key: str, value: Any) -> str:
    if value is None:
        return "unknown"
    if key in ("command", "commit"):
        return f"<code>{escaped(value)}</code>"
    if key == "seconds":
        minutes, seconds = divmod(round(float(value)), 60)
        return f"{minutes:,} min {seconds} s" if minutes else f"{seconds} s"
    if isinstance(value, list | tuple):
        return escaped(", ".join(map(str, value)))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return escaped(value if isinstance(value, str) else json.dumps(value))


def asset(package: str, name: str) -> str:
    """A file that is shipped in a package, as text."""
    return files(package).joinpath(name).read_text(encoding="utf-8")
