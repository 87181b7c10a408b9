"""What is left of a step's limits while it is being planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from chiasm.engine.cache.encoder_cache import EncoderCache
from chiasm.engine.scheduler.sequence import Sequence
from chiasm.schema.media import Unit


@dataclass(frozen=True)
class VisionReach:
    """How far a sequence can go in this step as far as the encoder is concerned.

    Attributes:
        num_tokens: tokens that can be computed now.
        units: units that these tokens read, cached ones included.
    """

    num_tokens: int
    units: tuple[Unit, ...]


@dataclass
class StepBudget:
    """Tokens that the step may still take, and units that it may encode.

    Attributes:
        tokens: tokens left.
        granted: units that may be encoded in this step, by key.
        holds_first_tokens: whether the last token of a prompt waits, and with it the first of its answer.
        units: units to encode in this step, by key, in order of first need.
        evicted: unit keys evicted for them.
    """

    tokens: int
    granted: Mapping[str, Unit]
    holds_first_tokens: bool = False
    units: dict[str, Unit] = field(default_factory=dict)
    evicted: list[str] = field(default_factory=list)

    def wanted(self, sequence: Sequence) -> int:
        """Tokens of a sequence to compute now, if there is room for all."""
        is_held = self.holds_first_tokens and sequence.num_output_tokens == 0
        return sequence.num_uncomputed_tokens - is_held

    def vision_reach(self, sequence: Sequence, num_tokens: int, cache: EncoderCache) -> VisionReach:
        """Cut ``num_tokens`` where what is encoded or may be ends, or the encoder's cache does.

        Tokens before the first unit that can't be had in this step can still be computed. Where text attends to
        units, all are needed for the first token: then there may be units to encode and no tokens yet. Those that
        the sequence keeps already are no news.
        """
        start = sequence.num_computed_tokens
        if start >= sequence.reads_until or sequence.is_decoding:
            return VisionReach(num_tokens, ())
        reached: list[Unit] = []
        wanted: dict[str, int] = {}
        for placed in sequence.units.between(start, start + num_tokens):
            unit = placed.unit
            if sequence.keeps_units and cache.is_pinned_by(unit.key, sequence.request_id):
                continue
            if unit.key not in wanted:
                wanted[unit.key] = unit.num_tokens
                is_had = unit.key in cache or unit.key in self.granted
                if not is_had or not cache.can_pin(wanted):
                    return VisionReach(max(0, placed.start - start), tuple(reached))
            reached.append(unit)
        return VisionReach(num_tokens, tuple(reached))

    def take(self, sequence: Sequence, reach: VisionReach, cache: EncoderCache) -> None:
        """Spend the budget on what ``vision_reach`` allowed, and pin the units."""
        self.tokens -= reach.num_tokens
        # Cached units first: pinned, they can't be evicted to make room for the new ones.
        cached = [unit for unit in reach.units if unit.key in cache]
        for unit in (*cached, *reach.units):
            if unit.key not in cache:
                self.units[unit.key] = unit
            self.evicted += cache.pin(unit.key, unit.num_tokens, sequence.request_id)

    def keep_ahead(self, cache: EncoderCache) -> None:
        """Encode also what was granted and not read in this step, as far as it can be kept."""
        for unit in self.granted.values():
            if unit.key not in cache and cache.can_keep({unit.key: unit.num_tokens}):
                self.units[unit.key] = unit
                self.evicted += cache.keep(unit.key, unit.num_tokens)
