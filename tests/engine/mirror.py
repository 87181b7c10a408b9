"""A rank without tensors: it obeys plans, checks that each makes sense, and "samples" what can be foreseen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec

from chiasm.engine.scheduler.limits import SchedulerLimits
from chiasm.engine.scheduler.scheduler import Scheduler
from chiasm.schema.facts import EncoderRates, EncoderShape
from chiasm.schema.media import MediaItem, PixelRef, Unit
from chiasm.schema.output import SequenceDelta
from chiasm.schema.plan import (
    SampledToken,
    ScheduledRequest,
    StartedRequest,
    StepPlan,
    StepResult,
    TokenLogprob,
    VisionPlan,
)
from chiasm.schema.request import EngineRequest
from chiasm.schema.sampling import SamplingParams
from chiasm.vision.frames import PlacedUnits, seen_between, with_readers

BLOCK_SIZE = 4
SHAPE = EncoderShape(
    hidden_size=8,
    intermediate_size=16,
    mlp_matrices=3,
    num_layers=4,
    full_attention_layers=(1, 3),
    num_heads=2,
    feature_size=8,
    merge_size=2,
    window_blocks=2,
)
RATES = EncoderRates(1e-6, 1e-9, 1e-9, 1e-6, 1e-9, 4, can_overlap=False, packs_units=False)
PATCHES_PER_TOKEN = 4
ROW_BYTES = 32  # of a feature


def limits(**changes: object) -> SchedulerLimits:
    """Small limits, so that every one of them binds."""
    values: dict[str, object] = {
        "num_blocks": 16,
        "block_size": BLOCK_SIZE,
        "max_model_len": 48,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 12,
        "max_num_batched_patches": 32,
        "encoder_step_seconds": None,
        "encoder_step_patches": None,
        "feature_row_bytes": ROW_BYTES,
        "encoder_cache_bytes": 16 * ROW_BYTES,
        "encoder_kept_bytes": 16 * ROW_BYTES,
        "enable_prefix_caching": True,
        "num_ranks": 2,
        "encoder_mode": "data",
        "min_units_per_rank": 0,
        "encoder": SHAPE,
        "encoder_rates": RATES,
        "eos_token_ids": (7,),
    }
    return SchedulerLimits(**{**values, **changes})  # type: ignore[arg-type]


def image(offset: int, *units: tuple[str, int]) -> MediaItem:
    """An item of units (key, tokens)."""
    made = tuple(Unit(key, (2, 2 * n), n, PixelRef("", 0, n * PATCHES_PER_TOKEN, 1)) for key, n in units)
    return MediaItem("image", offset, sum(n for _, n in units), made)


def seen_images(*placed: tuple[int, str, int]) -> tuple[MediaItem, ...]:
    """Items of one token each that text attends to: (offset, key, rows)."""
    made = [image(offset, (key, rows)) for offset, key, rows in placed]
    return with_readers([msgspec.structs.replace(item, num_tokens=1) for item in made])


def request(
    name: str, num_tokens: int, *items: MediaItem, max_tokens: int = 3, first_token: int = 100
) -> EngineRequest:
    """A prompt of counted tokens."""
    tokens = tuple(range(first_token, first_token + num_tokens))
    return EngineRequest(name, tokens, items, SamplingParams(max_tokens=max_tokens, temperature=0))


@dataclass
class _Record:
    tokens: list[int]
    num_prompt_tokens: int
    items: tuple[MediaItem, ...]
    blocks: list[int] = field(default_factory=list)


class MirrorRank:
    """Keeps what a rank would keep.

    Attributes:
        records: sequences by name.
        features: rows of each unit that it holds.
        num_encoded: how often each unit was encoded.
        content: block -> the tokens and units in it, as far as written.
        failing: unit keys that can't be encoded.
        failing_stage: of a pass, the one in which that shows.
        under_way: the vision plan that has begun and has stages left.
        seconds: what it says that each rank took to encode.
        token_seconds: what it says that a token took to compute.
    """

    def __init__(self, limits: SchedulerLimits, failing: Collection[str] = (), failing_stage: int = 0) -> None:
        self._limits = limits
        self.failing = set(failing)
        self.failing_stage = failing_stage
        self.under_way: VisionPlan | None = None
        self._num_done = 0
        self.records: dict[str, _Record] = {}
        self.features: dict[str, int] = {}
        self.num_encoded: Counter[str] = Counter()
        self.seconds = (0.0,) * limits.num_ranks
        self.token_seconds = 0.0
        self.content: dict[int, list[object]] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        """Obey a plan, or fail the test."""
        for name in plan.dropped:
            del self.records[name]
        for key in plan.evicted:
            del self.features[key]
        for started in plan.started:
            self._start(started)
        failed = self._encode(plan)
        assert sum(part.num_new_tokens for part in plan.scheduled) <= self._limits.max_num_batched_tokens
        sampled = []
        scores = {}
        for part in plan.scheduled:
            record = self.records[part.request_id]
            if part.new_token_id is not None:
                record.tokens.append(part.new_token_id)
            record.blocks += part.new_block_ids
            start, stop = part.num_computed_tokens, part.num_computed_tokens + part.num_new_tokens
            assert part.num_new_tokens > 0
            assert part.is_sampling == (stop == len(record.tokens))
            read = [placed.unit.key for placed in PlacedUnits(record.items).between(start, stop)]
            if set(read) & failed:
                continue
            assert set(read) <= set(self.features), "it would read features that it does not have"
            self._write(record, start, stop)
            if part.scored != (0, 0):
                scores[part.request_id] = self._score(record, part)
            if part.is_sampling:
                sampled.append(SampledToken(part.request_id, next_token(record.tokens)))
        self._check_blocks_are_not_shared_while_written(plan)
        return StepResult(
            plan.step,
            tuple(sampled),
            dict.fromkeys(failed, "broken"),
            self.seconds if plan.vision else (),
            compute_seconds=self.token_seconds * sum(part.num_new_tokens for part in plan.scheduled),
            prompt_logprobs=scores,
        )

    def _score(self, record: _Record, part: ScheduledRequest) -> tuple[TokenLogprob, ...]:
        first, last = part.scored
        start, stop = part.num_computed_tokens, part.num_computed_tokens + part.num_new_tokens
        assert start <= first < last <= min(stop, record.num_prompt_tokens - 1)
        return tuple(score_of(record.tokens[position + 1], position + 1) for position in range(first, last))

    def _start(self, started: StartedRequest) -> None:
        assert started.request_id not in self.records
        self.records[started.request_id] = _Record(list(started.token_ids), started.num_prompt_tokens, started.items)

    def _encode(self, plan: StepPlan) -> set[str]:
        step = plan.vision
        if step is None:
            return set()
        units, keys = step.plan.units, {unit.key for unit in step.plan.units}
        if step.start == 0:
            self._begin(step.plan)
        assert (step.plan, step.start) == (self.under_way, self._num_done), "it goes on where it was left"
        assert step.start < step.stop <= self._limits.encoder.num_stages
        self._num_done = step.stop
        failed = keys & self.failing
        if step.stop == self._limits.encoder.num_stages:
            self.under_way = None
            self.features |= {unit.key: unit.num_tokens for unit in units if unit.key not in failed}
            assert sum(self.features.values()) * ROW_BYTES <= self._limits.encoder_cache_bytes
        return failed if step.start <= self.failing_stage < step.stop else set()

    def _begin(self, plan: VisionPlan) -> None:
        keys = [unit.key for unit in plan.units]
        assert len(set(keys)) == len(keys)
        assert len(keys) == 1 or sum(u.num_patches for u in plan.units) <= self._limits.max_num_batched_patches
        assert not set(keys) & set(self.features), "encoded again"
        self.num_encoded.update(keys)
        self.under_way, self._num_done = plan, 0

    def _write(self, record: _Record, start: int, stop: int) -> None:
        """Write keys and values, and check that the history is this sequence's own."""
        keys = _keys_by_position(record.items, stop)
        for position in range(stop):
            block, offset = record.blocks[position // BLOCK_SIZE], position % BLOCK_SIZE
            written = self.content.setdefault(block, [None] * BLOCK_SIZE)
            entry = (record.tokens[position], keys.get(position))
            if position >= start:
                written[offset] = entry
            assert written[offset] == entry, "the history in its blocks is not its own"

    def _check_blocks_are_not_shared_while_written(self, plan: StepPlan) -> None:
        written = [
            record.blocks[position // BLOCK_SIZE]
            for part in plan.scheduled
            for record in [self.records[part.request_id]]
            for position in range(
                part.num_computed_tokens, part.num_computed_tokens + part.num_new_tokens, BLOCK_SIZE
            )
        ]
        assert len(set(written)) == len(written)


def _keys_by_position(items: tuple[MediaItem, ...], stop: int) -> dict[int, tuple[str, ...]]:
    """The units that each token before ``stop`` depends on."""
    if items and items[0].seen_until is not None:
        return {
            position: tuple(unit.key for index in run.items for unit in items[index].units)
            for run in seen_between(items, 0, stop)
            for position in range(run.start, run.stop)
        }
    return {position: (placed.unit.key,) for placed in PlacedUnits(items).between(0, stop)
            for position in range(placed.start, placed.stop)}  # fmt: skip


def next_token(tokens: list[int]) -> int:
    """What the mirror samples: it depends on all tokens before, and is never the end of sequence."""
    return 1000 + (sum(tokens) * 31 + len(tokens)) % 997


def score_of(token: int, position: int) -> TokenLogprob:
    """What the mirror reports of a token of a prompt."""
    return TokenLogprob(-float(token), position, ())


def answer_of(request: EngineRequest) -> list[int]:
    """The tokens that a request must get, whatever is scheduled beside it."""
    tokens = list(request.token_ids)
    for _ in range(request.sampling.max_tokens or 0):
        tokens.append(next_token(tokens))
    return tokens[len(request.token_ids) :]


def run_until_idle(scheduler: Scheduler, rank: MirrorRank, max_steps: int = 500) -> dict[str, list[SequenceDelta]]:
    """Step until nothing is left; the deltas by sequence."""
    deltas: dict[str, list[SequenceDelta]] = {}
    for _ in range(max_steps):
        for delta in scheduler.take_deltas():
            deltas.setdefault(delta.request_id, []).append(delta)
        if not scheduler.has_work:
            return deltas
        plan = scheduler.schedule()
        assert plan.scheduled or plan.vision, "a step in which nothing happens would be repeated for ever"
        scheduler.apply(plan, rank.execute(plan))
    raise AssertionError("the scheduler does not come to an end")
