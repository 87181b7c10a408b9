from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chiasm.engine.frontend.stop_strings import StopStrings
from tests.clocks import assert_linear


def run(stops: list[str], pieces: list[str], *, keeps_stop: bool = False) -> tuple[str, str | None]:
    """The whole text of an answer that comes in pieces, and what stopped it."""
    strings = StopStrings(stops, keeps_stop=keeps_stop)
    given = ""
    for piece in pieces:
        text, stop = strings.add(piece, may_stop=True)
        given += text
        if stop is not None:
            return given, stop
    return given + strings.flush(), None


def expected(stops: list[str], text: str, *, keeps_stop: bool) -> tuple[str, str | None]:
    """The same by looking at every end of the text."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if keeps_stop else end - len(stop)], stop
    return text, None


few_letters = st.text("ab", max_size=8)


@settings(max_examples=500)
@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=4),
    pieces=st.lists(few_letters, max_size=6),
    keeps_stop=st.booleans(),
)
def test_equals_looking_at_every_end(stops: list[str], pieces: list[str], keeps_stop: bool) -> None:
    assert run(stops, pieces, keeps_stop=keeps_stop) == expected(stops, "".join(pieces), keeps_stop=keeps_stop)


@settings(max_examples=300)
@given(stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3), pieces=st.lists(few_letters))
def test_holds_back_no_more_than_may_become_a_stop_string(stops: list[str], pieces: list[str]) -> None:
    strings = StopStrings(stops, keeps_stop=False)
    given = seen = ""
    for piece in pieces:
        text, stop = strings.add(piece, may_stop=True)
        given, seen = given + text, seen + piece
        if stop is not None:
            return
        held = seen[len(given) :]
        assert seen.startswith(given)
        assert any(stop.startswith(held) for stop in stops), "what is held back is no beginning of a stop string"
        longest = max((n for s in stops for n in range(len(s)) if seen.endswith(s[:n])), default=0)
        assert len(held) == longest


@pytest.mark.parametrize(
    ("stops", "pieces", "text", "stop"),
    [
        (["END"], ["say E", "N", "D now"], "say ", "END"),
        (["END"], ["EN", "EN", "D"], "EN", "END"),
        (["aab"], ["a", "a", "a", "b"], "a", "aab"),
        (["abcd", "bc"], ["abcd"], "a", "bc"),  # complete first
        (["abcd", "bc"], ["a", "b", "c", "d"], "a", "bc"),
        (["d", "bcd", "cd"], ["abcd"], "a", "bcd"),  # together: the longest
        (["\n\n"], ["a\n", "\nb"], "a", "\n\n"),
        (["x"], ["x"], "", "x"),
        (["🙂"], ["a🙂b"], "a", "🙂"),
        (["END"], ["the EN"], "the EN", None),
        ([], ["a", "b"], "ab", None),
    ],
)
def test_examples(stops: list[str], pieces: list[str], text: str, stop: str | None) -> None:
    assert run(stops, pieces) == (text, stop)
    assert run(stops, pieces, keeps_stop=True) == (text + (stop or ""), stop)


def test_before_an_answer_may_stop_a_stop_string_is_text() -> None:
    strings = StopStrings(["END"], keeps_stop=False)
    assert strings.add("a END b E", may_stop=False) == ("a END b ", None)
    assert strings.add("ND", may_stop=True) == ("", "END")  # only its last character needs leave


def test_a_stop_string_that_was_just_text_may_be_the_beginning_of_another() -> None:
    strings = StopStrings(["aba"], keeps_stop=False)
    assert strings.add("aba", may_stop=False) == ("ab", None)
    assert strings.add("ba", may_stop=True) == ("", "aba")


def test_a_long_stop_string_and_text_that_nearly_is_one_take_a_moment() -> None:
    stop = "a" * 1_000_000 + "b"

    def nearly_come_to_it(count: int) -> None:
        strings = StopStrings([stop], keeps_stop=False)
        for _ in range(count):
            assert strings.add("aa", may_stop=True) == ("", None)
        assert strings.add("caaa", may_stop=True) == ("aa" * count + "c", None)
        assert strings.flush() == "aaa"

    assert_linear(nearly_come_to_it, 10_000)
