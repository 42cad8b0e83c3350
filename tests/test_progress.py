from io import StringIO

import pytest
from rich.console import Console

from apev import progress


def test_a_log_file_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 25))
    monkeypatch.setattr("apev.progress.time.monotonic", lambda: float(next(clock)))  # each look at the clock is 25 seconds on
    log = StringIO()
    with progress.progress_bar(Console(file=log, width=80)) as bars:
        task = bars.add_task("learning", total=1000)
        for _ in range(9):
            bars.advance(task, 100)
        said = log.getvalue().splitlines()
    assert 2 <= len(said) <= 4
    assert said[0].startswith("learning: ")
    assert " of 1,000, " in said[0]
    assert said[0].endswith(" left")


def test_short_work_and_terminals_get_no_lines() -> None:
    for console in (Console(file=StringIO()), Console(file=StringIO(), force_terminal=True, width=80)):
        with progress.progress_bar(console) as bars:
            for _ in bars.track(range(3), description="short"):
                pass
        assert isinstance(console.file, StringIO)
        assert "short: " not in console.file.getvalue()
