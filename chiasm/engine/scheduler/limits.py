"""What the scheduler must keep within."""

from __future__ import annotations

import msgspec

from chiasm.config.engine import EncoderMode
from chiasm.schema.facts import EncoderRates, EncoderShape


class SchedulerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers that a scheduler decides by; see ``EngineConfig`` for their meaning."""

    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_batched_patches: int
    encoder_step_seconds: float | None
    encoder_step_patches: int | None
    feature_row_bytes: int
    encoder_cache_bytes: int
    encoder_kept_bytes: int
    enable_prefix_caching: bool
    num_ranks: int
    encoder_mode: EncoderMode
    min_units_per_rank: int
    encoder: EncoderShape
    encoder_rates: EncoderRates
    eos_token_ids: tuple[int, ...]
