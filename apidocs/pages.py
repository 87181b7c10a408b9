"""The pages there are, and where they lie."""

from __future__ import annotations

from pathlib import Path

from apidocs.flags import flags_page
from apidocs.http import http_page
from apidocs.python import python_page

FOLDER = Path(__file__).parents[1] / "docs" / "reference"


def all_pages() -> dict[str, str]:
    """Each page's text, by the name of its file."""
    return {"http.md": http_page(), "python.md": python_page(), "flags.md": flags_page()}


def write_pages() -> list[str]:
    """Write all pages; returns their names."""
    pages = all_pages()
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return list(pages)
