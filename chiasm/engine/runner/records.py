"""What a rank remembers of a sequence between steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from chiasm.sampling.masks import mask_of
from chiasm.sampling.rows import SamplingRow
from chiasm.schema.media import MediaItem
from chiasm.schema.plan import Failure, ScheduledRequest, StartedRequest
from chiasm.schema.sampling import SamplingParams
from chiasm.vision.frames import PlacedUnits

_ALL_EXCLUDED = "no token is left to sample: allowed_token_ids, bad_words, min_tokens and the form exclude all."


@dataclass(eq=False)
class SequenceRecord:
    """A sequence on a rank.

    Attributes:
        request_id: its name.
        token_ids: its tokens so far.
        num_prompt_tokens: how many of them are the prompt.
        items: its media.
        units: of these, by position.
        sampling: how to decode it.
        banned: token sequences that its answer may not hold.
        allowed: a bit for each token that it may; None allows all.
        prompt_positions: rotary positions of the prompt, [dims, num_prompt_tokens].
        position_delta: what a later token's index differs from its position by.
        block_ids: its cache blocks.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    items: Sequence[MediaItem]
    units: PlacedUnits
    sampling: SamplingParams
    banned: Sequence[Sequence[int]]
    allowed: bytes | None
    prompt_positions: npt.NDArray[np.int64]
    position_delta: int
    block_ids: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, started: StartedRequest, positions: npt.NDArray[np.int64], delta: int) -> SequenceRecord:
        """The record of a sequence that a plan starts."""
        allowed = started.sampling.allowed_token_ids
        return cls(
            request_id=started.request_id,
            token_ids=list(started.token_ids),
            num_prompt_tokens=started.num_prompt_tokens,
            items=started.items,
            units=PlacedUnits(started.items),
            sampling=started.sampling,
            banned=started.banned,
            allowed=None if allowed is None else mask_of(allowed),
            prompt_positions=positions,
            position_delta=delta,
        )

    def extend(self, scheduled: ScheduledRequest) -> None:
        """Take in the token and the blocks that a plan brings."""
        if scheduled.new_token_id is not None:
            self.token_ids.append(scheduled.new_token_id)
        self.block_ids += scheduled.new_block_ids

    def write_positions(self, start: int, stop: int, out: npt.NDArray[np.int64]) -> None:
        """Fill ``out`` [dims, stop - start] with the rotary positions of tokens ``start`` to ``stop``."""
        num_prompt = max(0, min(stop, self.num_prompt_tokens) - start)
        if num_prompt:
            out[:, :num_prompt] = self.prompt_positions[:, start : start + num_prompt]
        out[:, num_prompt:] = np.arange(start + num_prompt, stop) + self.position_delta

    def nothing_left(self) -> Failure:
        """Why no token can be sampled, if none can; named is the first field that excludes some."""
        params = self.sampling
        fields = {
            "allowed_token_ids": params.allowed_token_ids is not None,
            "bad_words": bool(params.bad_words),
            "min_tokens": params.min_tokens > 0,
        }
        form = None if params.structured_outputs is None else params.structured_outputs.param
        return Failure(_ALL_EXCLUDED, next((name for name, is_given in fields.items() if is_given), form))

    def sampling_row(self) -> SamplingRow:
        """What the sampler needs."""
        return SamplingRow(
            self.request_id, self.sampling, self.token_ids, self.num_prompt_tokens, self.banned, self.allowed
        )
