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
        from apev.experiments.common.charts import write_figures
        from apev.experiments.common.run_page import holds_run, write_run
        from apev.experiments.common.tables import fill_table, print_table, read_folder
        from apev.experiments.d4rl.page import write_scores
        from apev.experiments.d4rl.report import fill_scores, holds_scores, print_scores
        from apev.experiments.locked_doors.filmstrip import write_filmstrip
        from apev.experiments.locked_doors.page import write_report
        from apev.experiments.procgen.report import fill_mazes, holds_mazes, print_mazes, write_mazes
        from apev.experiments.theory.report import fill_blocks, holds_claims, print_claims, read_theory, write_theory

        if not self.folder.is_dir():
            raise FileNotFoundError(f"no folder {self.folder}. Fix: name one that `apev demo` or `apev reproduce` made.")
        if holds_claims(self.folder):
            print_claims(read_theory(self.folder))
            print(write_theory(self.folder))
            if self.page is not None:
                fill_blocks(self.page, self.folder)
            return
        if holds_scores(self.folder):
            print_scores(write_scores(self.folder))
            print(self.folder / "report.html")
            if self.page is not None:
                fill_scores(self.page, self.folder)
            return
        if holds_mazes(self.folder):
            print_mazes(read_folder(self.folder).summary)
            print(write_mazes(self.folder))
            if self.page is not None:
                fill_mazes(self.page, self.folder)
            return
        if holds_run(self.folder):
            found, page = write_run(self.folder)
            if found is not None:
                Console().print(found.table())
            print(page)
            return
        print_table(read_folder(self.folder).summary)
        write_figures(self.folder)
        write_filmstrip(self.folder)
        print(write_report(self.folder))
        if self.page is not None:
            fill_table(self.page, self.folder)
