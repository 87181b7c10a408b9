"""What the scheduler takes."""

from __future__ import annotations

from bench.scheduling import step_seconds


def test_every_sequence_decodes_in_every_step_that_is_timed() -> None:
    """The scheduler would end one that has no room, and with it the steps."""
    seconds = step_seconds(num_sequences=3, num_steps=20)
    assert len(seconds) == 20
    assert min(seconds) > 0
