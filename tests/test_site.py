"""The site builds without a warning, and the Python on its pages runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import apev

ROOT = Path(__file__).parent.parent
MARKED = re.compile(r"<!-- runs in the tests(?:: (\w+))? -->\n```python\n(.*?)```", re.DOTALL)
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md") if MARKED.search(path.read_text()))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short training that pages can load: customers, a member for each segment."""
    folder = tmp_path_factory.mktemp("site") / "runs" / "customers"
    log = apev.Dataset.example("customers")
    with pytest.MonkeyPatch.context() as patch:  # pages load and use it; how good it is they do not ask
        patch.setattr("apev.worlds.find.UPDATES", {"pooled": 50, "tried": 50, "final": 200})
        apev.train(log, out=folder, updates=20, kinds=3)
    log.save(folder.parent.parent / "log.npz")
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent.parent)
    names: dict[str, Any] = {"__name__": page}
    for package, code in MARKED.findall((ROOT / "docs" / page).read_text()):
        if package:
            pytest.importorskip(package)
        exec(compile(code, page, "exec"), names)


def test_most_python_on_pages_is_run() -> None:
    texts = [(ROOT / "docs" / name).read_text() for name in PAGES]
    assert len(PAGES) >= 5
    assert sum(len(MARKED.findall(text)) for text in texts) >= sum(text.count("```python\n") for text in texts) - 2


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    for package in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(package, reason="needs the extra: pip install 'apev[docs]'")
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        ROOT / "docs",
        tmp_path,
    ]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    index = (tmp_path / "index.html").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert (tmp_path / page.with_suffix(".html").name).exists()
        assert page.name == "index.md" or f'href="{page.stem}.html"' in index, f"{page.name} is in no menu"
    assert "apev.train" in (tmp_path / "api.html").read_text()
