"""How many cache blocks there are and how long a sequence may get, decided after the ranks have loaded the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chiasm.config.engine import EngineConfig
from chiasm.engine.cache.shortage import refuse_sequence
from chiasm.engine.cache.sizing import MemoryPlan, in_units
from chiasm.errors import UserError
from chiasm.schema.facts import ModelFacts
from chiasm.schema.wire import RankInfo


@dataclass(frozen=True)
class Capacity:
    """Sizes that the scheduler works with.

    Attributes:
        num_blocks: blocks of the KV cache.
        max_model_len: longest sequence in tokens.
        encoder_cache_bytes: most features that the encoder cache holds on a rank.
        encoder_kept_bytes: of these, what it may keep when no sequence reads it.
        summary: the choices, a line each.
    """

    num_blocks: int
    max_model_len: int
    encoder_cache_bytes: int
    encoder_kept_bytes: int
    summary: tuple[str, ...]


def decide_capacity(config: EngineConfig, infos: Sequence[RankInfo]) -> Capacity:
    """Fit the cache into the memory of the poorest rank.

    Raises:
        UserError: if a sequence of the asked length doesn't fit, naming the flags to change.
    """
    facts = infos[0].facts
    poorest = max(infos, key=lambda info: info.block_bytes)
    longest = config.max_model_len or facts.max_position_embeddings
    item_bytes = _largest_item(facts, longest) * poorest.feature_row_bytes
    is_seen = bool(facts.num_cross_layers)
    memories = [info.memory for info in infos]
    plan = MemoryPlan(config, memories, 0 if is_seen else item_bytes, item_bytes if is_seen else 0)
    budget = plan.budget()
    num_fitting = max(0, plan.token_bytes) // poorest.block_bytes
    max_model_len, length_reason = _sequence_length(plan, facts, num_fitting, poorest.block_bytes)
    most_useful = config.max_num_seqs * -(-max_model_len // config.block_size)
    num_blocks = min(num_fitting, most_useful)
    kept = round(config.mm_encoder_cache_gb * 2**30) + plan.lent_bytes(budget.num_bytes)
    largest_item = _largest_item(facts, max_model_len) * poorest.feature_row_bytes
    memory = num_blocks * poorest.block_bytes
    cache_reason = budget.reason if num_blocks == num_fitting else "all that max_num_seqs can use"
    summary = (
        f"KV cache: {num_blocks} blocks of {config.block_size} tokens, {memory / 2**20:.0f} MiB ({cache_reason})",
        f"encoder cache: {_encoder_cache_line(kept, largest_item, poorest)}",
        f"context: {max_model_len} tokens ({length_reason})",
        f"memory: {plan.in_words()}, KV cache {in_units(memory)}",
    )
    return Capacity(num_blocks, max_model_len, max(kept, largest_item), kept, summary)


def _largest_item(facts: ModelFacts, max_model_len: int) -> int:
    """Rows of features of the largest image or slice that there can be."""
    return facts.max_unit_tokens if facts.num_cross_layers else min(facts.max_unit_tokens, max_model_len)


def _encoder_cache_line(kept: int, largest_item: int, poorest: RankInfo) -> str:
    row_bytes = poorest.feature_row_bytes
    if poorest.facts.num_cross_layers:
        most = max(kept, largest_item)
        return f"keys and values of {most // largest_item} images at a time, {most / 2**20:.0f} MiB on each rank"
    if kept < largest_item:
        more = f", while one is read {largest_item / 2**20:.0f} MiB, the largest that there can be"
    else:
        more = ""
    return f"{kept / 2**20:.0f} MiB of images on each rank, {kept // row_bytes} tokens{more}"


def _sequence_length(plan: MemoryPlan, facts: ModelFacts, num_blocks: int, block_bytes: int) -> tuple[int, str]:
    asked, model_len = plan.config.max_model_len, facts.max_position_embeddings
    if asked is not None and asked > model_len:
        raise UserError(
            f"max_model_len={asked} is above the {model_len} positions that the model was made for.",
            param="max_model_len",
        )
    block_size = plan.config.block_size
    cache_tokens = num_blocks * block_size
    if cache_tokens < (asked or 2):
        refuse_sequence(
            plan,
            needed_bytes=-(-(asked or 2) // block_size) * block_bytes,
            num_tokens=asked or 2,
            num_fitting=cache_tokens,
        )
    if asked is not None:
        return asked, "as asked"
    if cache_tokens < model_len:
        return cache_tokens, f"what the KV cache holds; the model could take {model_len}"
    return model_len, "the model's own"
