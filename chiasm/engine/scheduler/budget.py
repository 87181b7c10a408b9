"""What is left of a step's limits while it is being planned."""

from __future__ import annotations

from dataclasses import dataclass, field

from chiasm.engine.cache.encoder_cache import EncoderCache
from chiasm.engine.scheduler.sequence import Sequence
from chiasm.schema.media import Unit
from chiasm.vision.frames import units_between


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
    """Tokens and patches that the step may still take.

    Attributes:
        tokens: tokens left.
        patches: patches left to encode.
        units: units to encode in this step, by key, in order of first need.
        evicted: unit keys evicted for them.
    """

    tokens: int
    patches: int
    units: dict[str, Unit] = field(default_factory=dict)
    evicted: list[str] = field(default_factory=list)

    def vision_reach(self, sequence: Sequence, num_tokens: int, cache: EncoderCache) -> VisionReach:
        """Cut ``num_tokens`` where the encoder's budget or its cache ends.

        Tokens before the first unit that can't be had in this step can still be computed. A unit larger than the
        budget is taken when it is the step's first, so that it is not put off for ever. Where text attends to units,
        all are needed for the first token: then there may be units to encode and no tokens yet. Those that the
        sequence keeps already are no news.
        """
        start = sequence.num_computed_tokens
        patches, reached, wanted = self.patches, [], {}
        for placed in units_between(sequence.request.items, start, start + num_tokens):
            unit = placed.unit
            if sequence.keeps_units and cache.is_pinned_by(unit.key, sequence.request_id):
                continue
            if unit.key in wanted:
                reached.append(unit)
                continue
            needs_encoding = unit.key not in cache
            is_first = not self.units and patches == self.patches
            is_over_budget = needs_encoding and unit.num_rows > patches and not is_first
            wanted[unit.key] = unit.num_tokens
            if is_over_budget or not cache.can_pin(wanted):
                return VisionReach(max(0, placed.start - start), tuple(reached))
            patches -= unit.num_rows if needs_encoding else 0
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
                self.patches -= unit.num_rows
            self.evicted += cache.pin(unit.key, unit.num_tokens, sequence.request_id)
