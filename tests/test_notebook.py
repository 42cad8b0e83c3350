"""What a notebook shows: tables of HTML, one-line representations, and bars that do not flood it."""

from __future__ import annotations

from io import StringIO
from xml.etree import ElementTree

import pytest
from rich.console import Console

import apev
from apev import progress
from apev.data import Dataset
from apev.evaluation import Evaluation, Row

QUIET = Console(quiet=True)


def cells(html: str) -> list[list[str]]:
    """The texts of a table, row by row; HTML that does not close its tags is refused."""
    root = ElementTree.fromstring(f"<div>{html}</div>")
    return [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")]


def test_an_evaluation_is_a_table() -> None:
    rows = [Row("adaptive", 12.5, 10.0, 15.0, 20, 33.0), Row("<b>mine</b> & yours", 1.0, 0.5, 1.5, 20)]
    found = Evaluation("Cart<Pole>", rows, records=[{"policy": "adaptive", "return": 1.0}] * 50)
    html = found._repr_html_()
    assert cells(html) == [
        ["policy", "return", "95% interval", "length"],
        ["adaptive", "12.5", "10.0 to 15.0", "33.0"],
        ["<b>mine</b> & yours", "1.00", "0.50 to 1.50", ""],
    ]
    assert "<b>mine" not in html
    assert "Cart&lt;Pole&gt;" in html
    assert repr(found) == str(found)
    assert "records" not in repr(found)
    assert "adaptive" in repr(found)


def test_kinds_are_a_verdict_and_tables() -> None:
    log = Dataset.example("customers")
    found = apev.kinds(log, count=2, console=QUIET)
    html = found._repr_html_()
    assert html.startswith("<p>2 kinds of episodes")
    assert ["column", "share of the evidence"] in cells(html)
    assert repr(found) == found.in_words()
    one = apev.kinds(log, count=1, console=QUIET)
    assert one._repr_html_().startswith("<p>one kind")


@pytest.mark.parametrize("widgets", [True, False])
def test_a_notebook_is_not_flooded(widgets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 100_000, 1))
    monkeypatch.setattr("apev.progress.time.monotonic", lambda: float(next(clock)))  # a second a look
    monkeypatch.setattr("apev.progress.find_spec", lambda name: object() if widgets else None)
    console = Console(file=StringIO(), force_jupyter=True, width=80)
    lines: list[str] = []
    monkeypatch.setattr(console, "print", lambda text, **style: lines.append(text))
    bars = progress.progress_bar(console)
    assert bars.disable is not widgets
    task = bars.add_task("learning", total=1000)
    for _ in range(1000):
        bars.advance(task)
    assert len(lines) == 0 if widgets else 10 <= len(lines) <= 20  # one a minute
