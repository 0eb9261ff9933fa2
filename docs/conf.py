"""How `make docs` builds the site: Sphinx reads the Markdown as it stands (MyST), and the contents are made from the folders."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
project, author = "Duly", "the Duly authors"
copyright = f"%Y, {author}"
version = release = re.findall(r'"(.+)"', (ROOT / "src/duly/_version.py").read_text(encoding="utf-8"))[0]

extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["docs/**", "*.md", "examples/*.md", "examples/**/*.md"]
exclude_patterns = ["docs/*.py", "**/__pycache__"]
myst_heading_anchors = 4
# Code blocks are named after what runs them (`console run`); links into the source lead to files, which a site has not.
suppress_warnings = ["misc.highlighting_failure", "myst.xref_missing", "myst.header", "myst.strikethrough"]
highlight_language = "text"

html_theme = "furo"
html_title = f"Duly {version}"
html_show_copyright = html_show_sphinx = html_copy_source = False
html_favicon = "../src/duly/web/dashboard/static/icon.svg"

#: The parts of the contents, and the files that each begins with.
PARTS = (
    ("Learn it", "docs/tutorial/*", ("docs/tutorial/first-jobs",)),
    ("Do something", "docs/how-to/*", ()),
    ("Look something up", "docs/reference/*", ("docs/reference/cli", "docs/reference/settings", "docs/reference/api")),
    ("Understand it", "docs/explanation/*", ("docs/explanation/guarantees",)),
    ("Decisions", "docs/adr/*", ("docs/adr/README",)),
    ("Examples", "examples/**/README", ("examples/README",)),
    ("The project", "*", ("README",)),
)


def setup(app: Any) -> None:
    app.connect("source-read", add_contents)


def add_contents(app: Any, name: str, source: list[str]) -> None:
    """The first page gets the tables of contents, which its Markdown has no use for elsewhere; languages of code get their plain names."""
    source[0] = re.sub(r"^( *```)(\w+)[^\S\n]+\S.*$", r"\1\2", source[0], flags=re.MULTILINE)
    if name == root_doc:
        for caption, pattern, first in PARTS:
            lines = [*first, pattern]
            source[0] += (
                f"\n```{{toctree}}\n:caption: {caption}\n:hidden:\n:glob:\n\n"
                + "\n".join(f"/{one}" for one in lines)
                + "\n```\n"
            )
