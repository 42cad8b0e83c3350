"""How the site is built: `make docs`. Pages are MyST Markdown, the reference comes from the docstrings.

The pages read on GitHub too, so links lead to files of the repository. On the site a link to a page that the site has goes
there, a link to another file is a download, and a link to a folder or to a page that the site has not is only its name.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT / "src"))  # the sources beside this file, whatever is installed

import apev  # noqa: E402

project, author, copyright = "apev", "The apev authors", "The apev authors, MIT licence"
version = release = apev.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary"]
exclude_patterns = ["_build"]
highlight_language = "none"  # blocks without a language are equations and listings
html_theme = "furo"
html_title = f"apev {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = False
html_show_sphinx = False
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
python_display_short_literal_types = True
maximum_signature_line_length = 80
add_module_names = False
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
PAGES = {"README.md": "index.md"} | {f"{name.upper()}.md": f"{name}.md" for name in ("contributing", "security", "changelog")}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")
MARKER = re.compile(r"<!-- runs in the tests.*?-->\n")


def on_the_site(text: str, folder: Path) -> str:
    """Markdown of the repository with links as the site has them; `folder` is where the text lies."""

    def there(found: re.Match[str]) -> str:
        picture, words, target, anchor = found[1], found[2], found[3], found[4] or ""
        if picture or "://" in target:
            return found[0]
        path = (folder / target).resolve()
        name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
        if path.parent == DOCS:
            return f"[{words}]({path.name}{anchor})"
        if name in PAGES:
            return f"[{words}]({PAGES[name]}{anchor})"
        return words if path.is_dir() or path.suffix == ".md" else f"[{words}](/../{name})"

    return LINK.sub(there, text)


def read_source(app: Any, name: str, source: list[str]) -> None:
    """Links, and markers that only the tests need."""
    source[0] = on_the_site(MARKER.sub("", source[0]), DOCS)


def read_include(app: Any, path: Path, parent: str, content: list[str]) -> None:
    """The same in files that a page includes."""
    content[0] = on_the_site(content[0], (DOCS / path).resolve().parent)


def read_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Our docstrings are plain text; here they become reStructuredText."""
    lines[:] = plain_to_rst(lines, getattr(getattr(obj, "__code__", None), "co_varnames", ()))


def plain_to_rst(lines: list[str], names: tuple[str, ...] = ()) -> list[str]:
    """Indented blocks and equations are literal, `names: ...` of arguments are fields, all else is prose."""
    told: list[str] = []
    literal = field = False
    for place, line in enumerate(lines):
        first = place == 0 or not lines[place - 1].strip()
        argument = re.match(r"([a-z_]+(?:, [a-z_]+)*): (.*)", line)
        if not line.strip():
            literal = field = False
            told.append("")
            continue
        if argument and all(each in names for each in argument[1].split(", ")):
            field = True
            told += [] if told and told[-1].startswith((":param", "    ")) else [""]
            told += [f":param {argument[1]}: {prose(argument[2])}"]
            continue
        if first and not field and (line.startswith("    ") or is_equation(line)):
            literal = True
            told += ["::", ""]
        told.append(f"    {line}" if literal else f"    {prose(line.strip())}" if field else prose(line))
    return told


def is_equation(line: str) -> bool:
    """Whether an unindented line is a formula or a call: docstrings lose the indentation that all their lines share."""
    return bool(re.match(r"[\w.()|' -]+ {1,}= ", line)) or bool(re.match(r"[a-z_. ]+\(.*\)$", line))


def prose(line: str) -> str:
    """One line of text, nothing in it taken for markup but names in backticks."""
    parts = line.split("`")
    if len(parts) % 2 == 0:  # a name that goes on in the next line
        return escaped(line)
    return "".join(f"``{part}``" if place % 2 else escaped(part) for place, part in enumerate(parts))


def escaped(text: str) -> str:
    """Characters that reStructuredText would read as markup."""
    return re.sub(r"([*|\\`])|(?<=\w)(_)(?=\W|$)", lambda found: "\\" + found[0], text)


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", read_source)
    app.connect("include-read", read_include)
    app.connect("autodoc-process-docstring", read_docstring)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
