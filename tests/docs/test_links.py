"""Links between the pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from apidocs.markdown import anchor

_ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page.relative_to(_ROOT)
    for folder in (".", "docs", "docs/reference", "training", "chiasm/assets/chart-reader", "bench/peers")
    for page in (_ROOT / folder).glob("*.md")
)
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.M | re.S)


def _links(page: Path) -> set[str]:
    text = _CODE.sub("", (_ROOT / page).read_text(encoding="utf-8"))
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return {link for link in found if not re.match(r"\w+:", link)}


def _anchors(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in re.findall(r"^#+ (.*)$", text, re.M)]
    return {anchor(heading) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links(page: Path) -> None:
    for link in _links(page):
        path, _, name = link.partition("#")
        target = _ROOT / page.parent / path if path else _ROOT / page
        assert target.exists(), link
        assert not name or f"#{name}" in _anchors(target), link


def test_every_page_is_linked_from_another() -> None:
    linked = {(_ROOT / page.parent / link.partition("#")[0]).resolve() for page in PAGES for link in _links(page)}
    docs = [page for page in PAGES if page.parts[0] == "docs" and page.parent.name != "reference"]
    assert [page for page in docs if (_ROOT / page).resolve() not in linked] == []
