"""The tokens of a step in one packed batch, and what of it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from chiasm.engine.runner.records import SequenceRecord
from chiasm.engine.runner.steps import HostStep
from chiasm.ops.paged_attention import SequenceRows
from chiasm.schema.plan import ScheduledRequest


class Part(NamedTuple):
    """A sequence and what of it is computed in a step."""

    record: SequenceRecord
    scheduled: ScheduledRequest


class PackedStep(NamedTuple):
    """A step's batch.

    Attributes:
        step: its tokens. Of the rows that are asked for, those come first after which a token is sampled, then those
            of prompts that are scored.
        num_sampled: how many tokens are sampled.
    """

    step: HostStep
    num_sampled: int

    @property
    def asks_for_all(self) -> bool:
        """Whether all rows are asked for, in their own order."""
        return np.array_equal(self.step.asked_rows, np.arange(len(self.step.token_ids)))


def pack(parts: Sequence[Part]) -> PackedStep:
    """The batch of some sequences, in order."""
    token_ids: list[int] = []
    sequences, sampled = [], []
    scored: list[int] = []
    num_tokens = sum(part.num_new_tokens for _, part in parts)
    positions = np.empty((len(parts[0].record.prompt_positions), num_tokens), np.int64)
    for record, part in parts:
        start, stop = part.num_computed_tokens, part.num_computed_tokens + part.num_new_tokens
        first_row = len(token_ids)
        token_ids += record.token_ids[start:stop]
        record.write_positions(start, stop, positions[:, first_row : len(token_ids)])
        sequences.append(SequenceRows(start, part.num_new_tokens, record.block_ids))
        scored += (first_row + token - start for token in range(*part.scored))
        if part.is_sampling:
            sampled.append(len(token_ids) - 1)
    asked = np.array([*sampled, *scored], np.int64)
    return PackedStep(HostStep(np.array(token_ids, np.int64), positions, asked, sequences), len(sampled))
