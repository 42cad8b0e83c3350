"""Text from files and names on its way to a terminal, where some characters are commands and brackets may be markup."""

from __future__ import annotations

import os
import select
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.markup import escape

# Categories of Unicode that draw nothing, or steer what is drawn: controls, directions, halves of pairs, line separators.
UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
CLOSED_PIPE = 141  # what a shell reports of a tool that wrote to a reader that had gone


def plain(text: str, *, lines: bool = False) -> str:
    r"""The text with characters that a terminal would obey written out, as in \x1b; with `lines` its line breaks stay."""
    if text.isprintable():
        return text
    return "".join(c if not _unseen(c) or (lines and c in "\n\t") else _written(c) for c in text)


def markup(text: str, *, lines: bool = False) -> str:
    """`plain` text for rich, which shows it as it is: brackets in it are no tags."""
    return escape(plain(text, lines=lines))


def _unseen(character: str) -> bool:
    return unicodedata.category(character) in UNSEEN


def _written(character: str) -> str:
    r"""A character as Python writes it: \n, \x1b, \u202e."""
    return character.encode("unicode_escape").decode("ascii")


@contextmanager
def quiet_pipes() -> Iterator[None]:
    """Where nobody reads on (`apev ... | head`), a command ends without a word, as other tools do."""
    try:
        try:
            yield
        finally:
            if sys.stdout is not None and not sys.stdout.closed:
                sys.stdout.flush()  # here, not when Python exits: there it would be told as an error
    except BrokenPipeError:
        broken = [stream for stream in (sys.stdout, sys.stderr) if _is_broken(stream)]
        if not broken:  # a pipe between processes of ours: that is an error
            raise
        for stream in broken:
            nowhere = os.open(os.devnull, os.O_WRONLY)  # takes what is left in the buffer
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        sys.exit(CLOSED_PIPE)


def _is_broken(stream: Any) -> bool:
    """Whether nobody reads what is written there. A failed write empties the buffer, so that another would not tell."""
    try:
        asked = select.poll()
        asked.register(stream.fileno(), 0)
        return any(event & select.POLLERR for _, event in asked.poll(0))
    except (AttributeError, OSError, ValueError):  # no stream, or not one of the system's
        return False
