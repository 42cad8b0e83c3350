"""How results look in a notebook: tables of HTML, with every text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from apev.terminal import plain


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; its first column is text, the others are numbers."""
    head = "".join(f"<th>{_cell(word)}</th>" for word in header)
    body = "".join(f"<tr>{_row(cells)}</tr>" for cells in rows)
    return f"<table><caption>{_cell(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_words(text: str) -> str:
    """A paragraph."""
    return f"<p>{_cell(text)}</p>"


def _row(cells: Sequence[str]) -> str:
    first, *rest = (_cell(cell) for cell in cells)
    return f"<td style='text-align: left'>{first}</td>" + "".join(f"<td style='text-align: right'>{cell}</td>" for cell in rest)


def _cell(text: str) -> str:
    return escape(plain(text))
