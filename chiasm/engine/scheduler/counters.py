"""What the scheduler counts from its start on."""

from __future__ import annotations

import msgspec

from chiasm.schema.output import EngineStats
from chiasm.schema.plan import StepPlan, StepResult


class Counters:
    """Totals so far.

    Args:
        num_blocks: of the KV cache.
        encoder_bytes: that the encoder's cache may hold.

    Attributes:
        totals: gauges in it are not set, but for the capacities above.
    """

    def __init__(self, num_blocks: int, encoder_bytes: int) -> None:
        self.totals = EngineStats(kv_blocks=num_blocks, encoder_bytes=encoder_bytes)

    def add(self, **increments: int) -> None:
        """Count so many more, by field."""
        changed = {name: getattr(self.totals, name) + amount for name, amount in increments.items()}
        self.totals = msgspec.structs.replace(self.totals, **changed)

    def count(self, plan: StepPlan, result: StepResult, *, is_last: bool) -> None:
        """Count a step; ``is_last`` says whether it did the last stage of its vision plan."""
        self.add(steps=1)
        vision = plan.vision
        if vision is None:
            return
        if is_last:
            self.add(units_encoded=len(vision.plan.units))
        totals, reasons = self.totals, self.totals.plan_reasons
        if vision.start == 0:
            reasons = {**reasons, vision.plan.reason: reasons.get(vision.plan.reason, 0) + 1}
        seconds = totals.encoder_seconds or (0.0,) * len(result.encoder_seconds)
        num_bytes = totals.encoder_exchanged_bytes or (0,) * len(result.encoder_exchanged_bytes)
        self.totals = msgspec.structs.replace(
            totals,
            encoder_seconds=tuple(a + b for a, b in zip(seconds, result.encoder_seconds, strict=True)),
            encoder_exchanged_bytes=tuple(
                a + b for a, b in zip(num_bytes, result.encoder_exchanged_bytes, strict=True)
            ),
            encoder_makespan=totals.encoder_makespan + result.encoder_makespan,
            encoder_predicted=totals.encoder_predicted + vision.predicted_seconds,
            plan_reasons=reasons,
            encoder_passes=result.encoder_passes,
        )
