"""Dotted options become JSON."""

from __future__ import annotations

import pytest

from chiasm.cli.dotted import join_dotted
from chiasm.errors import UserError


@pytest.mark.parametrize(
    ("line", "joined"),
    [
        ("serve m --port 1", ["serve", "m", "--port", "1"]),
        ("serve m --limit-mm-per-prompt.image 4", ["serve", "--limit-mm-per-prompt", '{"image": 4}', "m"]),
        ("serve --limit_mm_per_prompt.image=4", ["serve", "--limit-mm-per-prompt", '{"image": 4}']),
        (
            "serve --mm-processor-kwargs.min_pixels 1 x --mm-processor-kwargs.max_pixels=2",
            ["serve", "--mm-processor-kwargs", '{"min_pixels": 1, "max_pixels": 2}', "x"],
        ),
        ("serve --limit-mm-per-prompt.image four", ["serve", "--limit-mm-per-prompt", '{"image": "four"}']),
        ("serve --port.x 4", ["serve", "--port.x", "4"]),
        ("generate m -- --limit-mm-per-prompt.image", ["generate", "m", "--", "--limit-mm-per-prompt.image"]),
        ("", []),
    ],
)
def test_joining(line: str, joined: list[str]) -> None:
    assert join_dotted(line.split()) == joined


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("serve --limit-mm-per-prompt.image", "--limit-mm-per-prompt.image needs a value."),
        (
            "serve --limit_mm_per_prompt {} --limit-mm-per-prompt.image 4",
            "--limit-mm-per-prompt is given both whole and by dotted keys.",
        ),
    ],
)
def test_mistakes(line: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        join_dotted(line.split())
    assert caught.value.message == message
