"""Following forms: what goes wrong with one answer is that answer's alone."""

from __future__ import annotations

from typing import Any

import pytest

from chiasm.engine.runner.guides import Guides
from chiasm.errors import UserError
from chiasm.sampling.rows import SamplingRow
from chiasm.schema.sampling import SamplingParams
from chiasm.schema.structured import StructuredOutputs


class _Matcher:
    """Allows everything, or breaks."""

    def __init__(self, *, breaks: bool) -> None:
        self._breaks = breaks

    def consume_token(self, token_id: int) -> None:
        if self._breaks:
            raise RuntimeError("a bug of the library")

    def compute_bitmask(self) -> bytes:
        return b"\xff"

    def is_error(self) -> bool:
        return False


class _Compiler:
    vocab_size = 8
    eos_token_ids = (0,)

    def compile(self, form: StructuredOutputs) -> Any:
        if form.regex == "broken":
            raise RuntimeError("a bug of the compiler")
        if form.regex == "too much":
            raise UserError("too\r\n  much", param=None)
        return _Matcher(breaks=form.regex == "breaks later")


def _row(request_id: str) -> SamplingRow:
    return SamplingRow(request_id, SamplingParams(), [1, 2, 3], 2)


def test_a_bug_in_one_form_fails_no_other() -> None:
    guides = Guides(_Compiler)  # type: ignore[arg-type]
    for name in ("fine", "broken", "breaks later"):
        guides.start(name, SamplingParams(structured_outputs=StructuredOutputs(regex=name)))
    guides.start("free", SamplingParams())
    rows = [_row(name) for name in ("broken", "fine", "free", "breaks later")]
    for _ in range(2):
        masks = guides.masks(rows)
        assert masks.allowed == {1: b"\xff"}
        assert masks.failed.keys() == {"broken", "breaks later"}
    guides.forget(["broken", "breaks later"])
    assert guides.masks(rows).failed == {}


def test_an_error_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    guides = Guides(_Compiler)  # type: ignore[arg-type]
    guides.start("one", SamplingParams(structured_outputs=StructuredOutputs(regex="too much")))
    assert guides.masks([_row("one")]).failed.keys() == {"one"}
    assert [record.getMessage() for record in caplog.records] == ["the form of one can't be followed: too much"]
