"""`apev report`: tables, figures and the page of a folder, made again from its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class Report:
    """Make report.html and the figures again from the files of a results folder, or of a run of your own."""

    folder: tyro.conf.Positional[Path]
    """A folder made by `apev demo`, `apev reproduce` or `apev train`."""
    page: Path | None = None
    """A Markdown page that quotes the folder: its table is refreshed between the markers."""

    def run(self) -> None:
        """Print the tables, write the page, refresh the Markdown."""
        from apev.experiments.common.kinds import show
        from apev.experiments.common.run_page import holds_run, write_run

        if not self.folder.is_dir():
            raise FileNotFoundError(f"no folder {self.folder}. Fix: name one that `apev demo` or `apev reproduce` made.")
        if not holds_run(self.folder):
            show(self.folder, self.page)
            return
        found, page = write_run(self.folder)
        if found is not None:
            Console().print(found.table())
        print(page)
