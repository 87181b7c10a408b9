from __future__ import annotations

from tests.isa import ROOT
from tests.quick import LEFT_OUT, ONE_ENGINE, chosen


def test_what_is_left_out_is_there() -> None:
    """Else a file that was renamed would make it slow."""
    assert [place for place in LEFT_OUT if not (ROOT / place).exists()] == []
    assert (ROOT / ONE_ENGINE.partition("::")[0]).exists()


def test_all_else_is_run() -> None:
    assert {"tests/server", "tests/models", "tests/test_quick.py"} <= set(chosen())
    assert not {"tests/e2e", "tests/clients"} & set(chosen())
