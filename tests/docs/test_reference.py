"""The reference says what the code says."""

from __future__ import annotations

import pytest

from apidocs.docstrings import parse
from apidocs.http import undescribed_fields
from apidocs.pages import FOLDER, all_pages

_PAGES = all_pages()


@pytest.mark.parametrize("name", _PAGES)
def test_page_is_that_of_the_code(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == _PAGES[name], "run: make docs"


def test_there_are_no_other_pages() -> None:
    assert {file.name for file in FOLDER.iterdir()} == set(_PAGES)


def test_fields_of_requests_are_described() -> None:
    """In the ``Attributes`` of the models in ``chiasm/server/requests.py``, or those of ``SamplingParams``."""
    assert undescribed_fields() == []


def test_docstrings_are_taken_apart() -> None:
    described = parse(
        """First.

        Second, of
        two lines.

        Attributes:
            one: begins
                and ends.
            two: other.

        Third.

        Returns:
            What it is.
        """
    )
    assert described.text == "First.\n\nSecond, of\ntwo lines.\n\nThird."
    assert described.sections["Attributes"] == {"one": "begins and ends.", "two": "other."}
    assert described.entries("Returns") == {"": "What it is."}
    assert described.entries("Raises") == {}
