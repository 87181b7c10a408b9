"""Vision plans from the step that begins one to the step that ends it; most begin and end in the same step."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from chiasm.config.engine import EncoderMode
from chiasm.engine.cache.encoder_cache import EncoderCache
from chiasm.engine.scheduler.encoder_policy import EncoderPolicy, Grant
from chiasm.engine.scheduler.turn import Turn
from chiasm.schema.media import MediaItem, Unit
from chiasm.schema.plan import VisionPlan, VisionStep
from chiasm.vision.cost import CostModel
from chiasm.vision.plan import plan_vision


@dataclass
class _UnderWay:
    """How far a plan has come on every rank.

    Attributes:
        plan: what is encoded.
        units: by key, those that have not failed.
        asked_by: by key, for which sequence each was taken up; others may read it too.
        num_read: tokens that read them in the step that does the last stage.
        num_done: stages of the passes that are done.
    """

    plan: VisionPlan
    units: dict[str, Unit]
    asked_by: Mapping[str, str]
    num_read: int
    num_done: int = 0


class VisionWork:
    """Turns what the policy grants into plans, one at a time, and follows them to their end.

    A plan that takes several steps has room reserved in the encoder's cache, and its units are taken into it by the
    step that ends it.

    Args:
        cache: of features.
        policy: that grants.
        model: predicts what a plan takes.
        mode: how ranks share the encoder.
        min_units_per_rank: see ``plan_vision``.
    """

    def __init__(
        self,
        cache: EncoderCache,
        policy: EncoderPolicy,
        model: CostModel,
        mode: EncoderMode,
        min_units_per_rank: int,
    ) -> None:
        self._cache = cache
        self._policy = policy
        self._model = model
        self._mode = mode
        self._min_units_per_rank = min_units_per_rank
        self._under_way: _UnderWay | None = None

    @property
    def asked_by(self) -> Mapping[str, str]:
        """Units of the plan under way, failed ones included -> for which sequence each was taken up."""
        return self._under_way.asked_by if self._under_way else {}

    def is_last(self, step: Grant | VisionStep) -> bool:
        """Whether a step does the last stage, so that features are there."""
        return step.stop == self._model.shape.num_stages

    def grant(self, turn: Turn, *, num_tokens: int) -> Grant:
        """What may be encoded in this step, or how far what is under way goes on; see ``EncoderPolicy.grant``."""
        if self._under_way is not None:
            own = self._under_way
            grant = Grant(own.num_done, units=own.units, num_read=own.num_read)
            return self._policy.go_on(grant, own.num_done, is_decoding=turn.is_awaited)
        return self._policy.grant(
            turn.claims,
            turn.ahead,
            left_out=turn.left_out,
            num_tokens=num_tokens,
            is_decoding=turn.is_awaited,
            is_ready=self._cache.__contains__,
            can_pin=self._cache.can_pin,
            can_keep=self._cache.can_keep,
        )

    def part(self, grant: Grant) -> VisionStep | None:
        """The next stages of what takes several steps; none in a rest."""
        if self._under_way is None and not self.is_last(grant):
            # Room for it has to be there when it is through, whatever others take until then.
            units: dict[str, int] = {}
            for key, unit in grant.units.items():
                if self._cache.can_pin({**units, key: unit.num_tokens}):
                    units[key] = unit.num_tokens
            self._cache.reserve(units)
            self._begin([grant.units[key] for key in units], grant)
        if self._under_way is None or self._under_way.num_done == grant.stop:
            return None
        return self._step(self._under_way, grant.stop)

    def whole(self, units: Sequence[Unit], grant: Grant) -> VisionStep | None:
        """All stages of units that are in the cache's books already; none beside what is under way."""
        if self._under_way is not None:
            return None
        self._begin(units, grant)
        return None if self._under_way is None else self._step(self._under_way, self._model.shape.num_stages)

    def _begin(self, units: Sequence[Unit], grant: Grant) -> None:
        if not units:
            return
        plan = plan_vision(
            units,
            num_ranks=self._model.num_ranks,
            mode=self._mode,
            model=self._model,
            min_units_per_rank=self._min_units_per_rank,
        )
        self._under_way = _UnderWay(plan, {unit.key: unit for unit in units}, grant.asked_by, grant.num_read)

    def _step(self, own: _UnderWay, stop: int) -> VisionStep:
        works = [self._model.work(unit) for unit in own.plan.units]
        share = self._model.stages_share(works, own.num_done, stop)
        return VisionStep(own.plan, own.num_done, stop, own.plan.predicted_seconds * share)

    def take_in_unread(self, step: VisionStep | None) -> list[str]:
        """Have the cache take in units that are through with this step and that nobody reads yet.

        Returns:
            Keys that were evicted for them.
        """
        evicted: list[str] = []
        if self._under_way is None or step is None or not self.is_last(step):
            return evicted
        for key, unit in self._under_way.units.items():
            if key not in self._cache:
                evicted += self._cache.add_unread(key, unit.num_tokens)
        return evicted

    def advance(self, step: VisionStep, failed: Collection[str]) -> None:
        """A step has ended."""
        own = self._under_way
        assert own is not None
        assert step.start == own.num_done
        own.num_done = step.stop
        for key in failed:
            del own.units[key]
        if self.is_last(step) or not own.units:
            self._leave_off()

    def leave_off_unless(self, sequences: Collection[str], items: Iterable[MediaItem]) -> None:
        """Leave off what is under way if nobody reads any of it; ranks drop it when they begin another.

        Args:
            sequences: that are left.
            items: of theirs.
        """
        own = self._under_way
        if own is None or any(holder in sequences for holder in own.asked_by.values()):
            return
        if not any(unit.key in own.units for item in items for unit in item.units):
            self._leave_off()

    def _leave_off(self) -> None:
        self._under_way = None
        self._cache.release()
