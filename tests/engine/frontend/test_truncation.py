"""Prompts of which the beginning is cut off."""

from __future__ import annotations

import pytest

from chiasm.engine.frontend.prompts import ExpandedPrompt
from chiasm.engine.frontend.truncation import truncated
from chiasm.schema.chat import FITTING, Truncation
from chiasm.vision.frames import NEVER, with_readers
from tests.engine.frontend.support import make_item, refused

START, PAD = 90, 91
MEDIA = (START, PAD)
TEXT = ExpandedPrompt(tuple(range(10)), ())
# Four tokens of text, an image of two tokens behind its tag, and three more of text.
PICTURE = ExpandedPrompt((0, 1, 2, 3, START, PAD, PAD, 7, 8, 9), (make_item(2).placed_at(5),))


def cut(prompt: ExpandedPrompt, most: int, num_answer: int = 1) -> ExpandedPrompt:
    return truncated(prompt, Truncation(most, num_answer), 8, MEDIA, "prompt")


@pytest.mark.parametrize(
    ("most", "num_answer", "kept"), [(20, 1, 10), (10, 1, 10), (3, 1, 3), (FITTING, 1, 7), (FITTING, 5, 3)]
)
def test_the_last_tokens_are_kept(most: int, num_answer: int, kept: int) -> None:
    assert cut(TEXT, most, num_answer) == ExpandedPrompt(TEXT.token_ids[-kept:], ())


def test_media_move_with_their_text() -> None:
    short = cut(PICTURE, 7)
    assert short.token_ids == PICTURE.token_ids[3:]
    assert [item.offset for item in short.items] == [2]
    assert short.token_ids[2:4] == (PAD, PAD)


def test_images_that_text_attends_to_are_seen_as_far_as_before() -> None:
    items = with_readers([make_item(1).placed_at(4), make_item(1, "other").placed_at(7)])
    short = cut(ExpandedPrompt(tuple(range(10)), items), 6)
    assert [(item.offset, item.seen_until) for item in short.items] == [(0, 3), (3, NEVER)]


@pytest.mark.parametrize("most", [5, 4, 2, 1])
def test_no_token_of_an_image_is_cut_off(most: int) -> None:
    with refused("truncate_prompt_tokens", f"truncate_prompt_tokens={most}", "10 tokens", "image"):
        cut(PICTURE, most)


@pytest.mark.parametrize(("most", "num_answer"), [(0, 1), (FITTING, 8), (FITTING, 2**62)])
def test_something_must_be_left(most: int, num_answer: int) -> None:
    with refused("truncate_prompt_tokens", "at least 1"):
        cut(TEXT, most, num_answer)
