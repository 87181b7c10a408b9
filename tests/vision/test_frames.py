"""Where units stand in a prompt."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from chiasm.schema.media import MediaItem, PixelRef, Unit
from chiasm.vision.frames import NEVER, PlacedUnits, items_between, placed_units, seen_between, with_readers


@st.composite
def _prompts(draw: st.DrawFn) -> list[MediaItem]:
    items, position = [], 0
    for gap, count, length in draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 5)))):
        units = tuple(Unit(f"{position}/{i}", (2, 2 * length), length, PixelRef("", 0, 4, 1)) for i in range(count))
        items.append(MediaItem("video", position + gap, count * length, units))
        position = items[-1].end
    return items


@given(items=_prompts(), start=st.integers(0, 60), length=st.integers(1, 30))
def test_units_between_are_those_that_have_a_token_there(items: list[MediaItem], start: int, length: int) -> None:
    stop = start + length
    expected = [placed for placed in placed_units(items) if placed.start < stop and placed.stop > start]
    assert PlacedUnits(items).between(start, stop) == expected
    assert list(items_between(items, start, stop)) == [i for i in items if i.offset < stop and i.end > start]


_TOKENS = st.lists(st.booleans(), min_size=1, max_size=14)  # of a prompt, whether each is an image's


def _seen_items(is_image: list[bool]) -> tuple[MediaItem, ...]:
    places = [place for place, found in enumerate(is_image) if found]
    return with_readers(
        [MediaItem("image", at, 1, (Unit(f"{at}", (1, 1), 1, PixelRef("", 0, 1, 1)),)) for at in places]
    )


@settings(deadline=None)  # the first example imports transformers
@given(is_image=_TOKENS, data=st.data())
def test_tokens_see_the_images_that_hugging_face_lets_them_see(is_image: list[bool], data: st.DataObject) -> None:
    from transformers.models.mllama.processing_mllama import (
        convert_sparse_cross_attention_mask_to_dense,
        get_cross_attention_token_mask,
    )

    items, length = _seen_items(is_image), len(is_image)
    start = data.draw(st.integers(0, length - 1))
    stop = data.draw(st.integers(start + 1, length))
    found = seen_between(items, start, stop)
    if not items:
        assert found == []
        return
    sparse = get_cross_attention_token_mask(list(map(int, is_image)), 1)
    dense = convert_sparse_cross_attention_mask_to_dense([sparse], [[1] * len(items)], 1, length)[0, :, :, 0]
    by_token = {token: run for run in found for token in range(run.start, run.stop)}
    assert sorted(by_token) == list(range(start, stop))
    for token, run in by_token.items():
        expected = [index for index, sees in enumerate(dense[token]) if sees]
        assert run.is_before == (not expected)
        assert list(run.items) == (expected or list(range(len(items))))


@given(is_image=_TOKENS, start=st.integers(0, 16))
def test_units_that_text_attends_to_are_needed_until_no_later_token_sees_them(
    is_image: list[bool], start: int
) -> None:
    items = _seen_items(is_image)
    seen = {index for run in seen_between(items, start, NEVER - 1) for index in run.items}
    keys = [placed.unit.key for placed in PlacedUnits(items).between(start, start + 1)]
    assert keys == [items[index].units[0].key for index in sorted(seen)]
