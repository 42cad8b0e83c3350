"""What people see: statistics, tables, figures and the HTML page, all remade from the files of a results folder."""

from apev.report.charts import write_figures
from apev.report.page import write_report
from apev.report.tables import markdown_table, print_table, read_folder, read_jsonl, summarise

__all__ = [
    "markdown_table",
    "print_table",
    "read_folder",
    "read_jsonl",
    "summarise",
    "write_figures",
    "write_report",
]
