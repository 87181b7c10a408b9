"""The scheduler: continuous batching with chunked prefill over a paged cache.

Each step first continues the running sequences in order of arrival, then admits waiting ones. A sequence gets as
many tokens as the step's budget, the encoder's budget and the free blocks allow: one when it decodes, a chunk when
it prefills. When blocks run out, the sequence that came last gives up its own and starts again later; what it
computed is often still in the prefix cache.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from itertools import islice

import msgspec

from chiasm.engine.cache.block_pool import BlockPool
from chiasm.engine.cache.encoder_cache import EncoderCache
from chiasm.engine.scheduler.budget import StepBudget, VisionReach
from chiasm.engine.scheduler.counters import Counters
from chiasm.engine.scheduler.encoder_policy import Claim, EncoderLimits, EncoderPolicy, Grant
from chiasm.engine.scheduler.finish import failed_delta, failure_of, finish_of
from chiasm.engine.scheduler.limits import SchedulerLimits
from chiasm.engine.scheduler.scoring import num_cacheable, part_to_score
from chiasm.engine.scheduler.sequence import Sequence
from chiasm.engine.scheduler.turn import Turn, charge, claim_of, turn_of
from chiasm.engine.scheduler.vision_work import VisionWork
from chiasm.schema.media import Unit
from chiasm.schema.output import EngineStats, SequenceDelta
from chiasm.schema.plan import (
    SampledToken,
    ScheduledRequest,
    StartedRequest,
    StepPlan,
    StepResult,
)
from chiasm.schema.request import EngineRequest
from chiasm.vision.cost import CostModel


class Scheduler:
    """Holds the sequences and both caches' accounting; turns them into plans."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self._limits = limits
        self._blocks = BlockPool(limits.num_blocks, is_caching=limits.enable_prefix_caching)
        self._encoder_cache = EncoderCache(
            limits.feature_row_bytes, limits.encoder_cache_bytes, limits.encoder_kept_bytes
        )
        cost_model = CostModel(limits.encoder, limits.encoder_rates, limits.num_ranks)
        self._encoder_policy = EncoderPolicy(
            EncoderLimits(limits.max_num_batched_patches, limits.encoder_step_seconds, limits.encoder_step_patches),
            cost_model,
            limits.encoder_mode,
        )
        self._vision = VisionWork(
            self._encoder_cache, self._encoder_policy, cost_model, limits.encoder_mode, limits.min_units_per_rank
        )
        self._num_arrived = 0
        self._held: Seq[Sequence] = ()  # in the step that is under way
        self._has_followers = False  # one that came since the last step
        self._is_decoding = False  # in the step that is under way
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._by_id: dict[str, Sequence] = {}
        self._dropped: list[str] = []
        self._deltas: list[SequenceDelta] = []
        self._counters = Counters(limits.num_blocks, limits.encoder_cache_bytes)

    @property
    def has_work(self) -> bool:
        """Whether any sequence is waiting or running."""
        return bool(self._by_id)

    def add(self, request: EngineRequest) -> None:
        """Queue a sequence. The frontend has checked that it fits the model and the cache."""
        assert request.request_id not in self._by_id, request.request_id
        sequence = Sequence(request, arrival=self._num_arrived)
        self._num_arrived += 1
        self._by_id[request.request_id] = sequence
        self._waiting.append(sequence)
        self._has_followers |= request.num_followers > 0

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget sequences; ids that ended before are ignored."""
        for request_id in request_ids:
            sequence = self._by_id.get(request_id)
            if sequence is not None:
                self._end(sequence, SequenceDelta(request_id, finish_reason="abort"))
        self._leave_off_unwanted()

    def take_deltas(self) -> tuple[SequenceDelta, ...]:
        """News since the last call."""
        deltas, self._deltas = tuple(self._deltas), []
        return deltas

    def stats(self) -> EngineStats:
        """Gauges now and totals so far."""
        return msgspec.structs.replace(
            self._counters.totals,
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            kv_blocks_used=self._blocks.num_held,
            encoder_bytes_used=self._encoder_cache.num_pinned_bytes,
        )

    def schedule(self) -> StepPlan:
        """Decide the next step; every sequence in it has at least one token to compute."""
        started: list[StartedRequest] = []
        scheduled: list[ScheduledRequest] = []
        found = self._found_tokens()
        sequences = self._with_place(found)
        claims, ahead = self._claims(sequences, found)
        self._encoder_cache.keep_ahead_only({need.unit.key for claim in (*claims, *ahead) for need in claim.needs})
        self._is_decoding = self._num_decoding() > 0
        turn = self._turn(sequences, claims, ahead)
        self._has_followers = False
        grant = self._grant(turn)
        holds = turn.holds(lambda key: key in self._encoder_cache or key in self._through(grant))
        budget, part = self._fill(grant, started, scheduled, holds=holds), self._vision.part(grant)
        while claims and not (scheduled or budget.units or part):
            # That a step gets somewhere goes before how long it takes.
            grant = self._grant(Turn([claims.pop(0)], (), is_awaited=False))
            budget, part = self._fill(grant, started, scheduled), self._vision.part(grant)
        budget.keep_ahead(self._encoder_cache)
        vision = part or self._vision.whole(list(budget.units.values()), grant)
        if vision is not None and vision.start == 0:
            charge(vision.plan.units, grant, turn, self._by_id)
        self._held = turn.waiting
        plan = StepPlan(
            step=self._counters.totals.steps,
            dropped=tuple(self._dropped),
            evicted=(*budget.evicted, *self._encoder_cache.trim(), *self._vision.take_in_unread(vision)),
            started=tuple(started),
            vision=vision,
            scheduled=tuple(scheduled),
        )
        self._dropped.clear()
        return plan

    def apply(self, plan: StepPlan, result: StepResult) -> None:
        """Take in what the ranks did."""
        assert result.step == plan.step, (result.step, plan.step)
        sampled = {token.request_id: token for token in result.sampled}
        failed = set(result.failed_units)
        for scheduled in plan.scheduled:
            sequence = self._by_id[scheduled.request_id]
            if failed and (reason := failure_of(sequence, scheduled, result.failed_units)):
                self._end(sequence, SequenceDelta(sequence.request_id, finish_reason="error", error=reason))
                continue
            self._advance(sequence, scheduled.num_new_tokens)
            if scores := result.prompt_logprobs.get(sequence.request_id):
                sequence.num_scored = scheduled.scored[1]
                self._deltas.append(SequenceDelta(sequence.request_id, prompt_logprobs=scores))
            if failure := result.failed_sequences.get(sequence.request_id):
                self._end(sequence, failed_delta(sequence, failure))
            elif scheduled.is_sampling:
                self._append(sequence, sampled[sequence.request_id])
        for key in failed:
            # Those that wait for more before their first token, or can't start yet.
            for holder in self._encoder_cache.forget(key) or [self._vision.asked_by[key]]:
                if holder in self._by_id:
                    reason = result.failed_units[key]
                    self._end(self._by_id[holder], SequenceDelta(holder, finish_reason="error", error=reason))
        vision = plan.vision
        for sequence in self._held:
            sequence.waited_seconds += result.encoder_makespan + result.compute_seconds
        if vision is not None:
            self._vision.advance(vision, failed)
        self._leave_off_unwanted()
        self._encoder_policy.observe(
            is_decoding=self._is_decoding,
            encoded=vision.plan.units if vision else (),
            stages=(vision.start, vision.stop) if vision else (0, 0),
            encoder_seconds=result.encoder_makespan,
            num_prompt_tokens=_num_prompt_tokens(plan),
            compute_seconds=result.compute_seconds,
        )
        self._counters.count(plan, result, is_last=vision is not None and self._vision.is_last(vision))

    def _through(self, grant: Grant) -> Mapping[str, Unit]:
        """What is encoded by the end of this step."""
        return grant.units if self._vision.is_last(grant) else {}

    def _fill(
        self,
        grant: Grant,
        started: list[StartedRequest],
        scheduled: list[ScheduledRequest],
        *,
        holds: bool = False,
    ) -> StepBudget:
        """Schedule all that can go on or start with what is encoded by the end of this step."""
        num_tokens: float = self._limits.max_num_batched_tokens
        num_decoding = self._num_decoding()
        if num_decoding:
            num_tokens = min(num_tokens, num_decoding + grant.num_tokens)
        budget = StepBudget(int(num_tokens), self._through(grant), holds)
        is_short = self._continue_running(budget, num_decoding, scheduled)
        if not is_short:
            self._admit_waiting(budget, started, scheduled)
        return budget

    def _grant(self, turn: Turn) -> Grant:
        return self._vision.grant(turn, num_tokens=self._limits.max_num_batched_tokens - self._num_decoding())

    def _num_decoding(self) -> int:
        return sum(sequence.is_decoding for sequence in self._running)

    def _turn(self, sequences: Seq[Sequence], claims: Seq[Claim], ahead: Seq[Claim]) -> Turn:
        """Who waits for whom, of those that run or find a place beside them."""
        if self._is_decoding:
            return Turn(claims, ahead, is_awaited=True)
        turn = turn_of(
            sequences,
            claims,
            ahead,
            self._encoder_policy,
            self._encoder_cache,
            has_followers=self._has_followers,
        )
        for sequence in turn.waiting:
            if sequence.waits_until is None:
                sequence.waits_until = self._num_arrived - 1
        return turn

    def _found_tokens(self) -> dict[str, int]:
        """Tokens that the prefix cache has of those that wait and might start, by name."""
        waiting = islice(self._waiting, self._limits.max_num_seqs)
        return {one.request_id: len(self._find_cached(one)) * self._limits.block_size for one in waiting}

    def _with_place(self, found: Mapping[str, int]) -> list[Sequence]:
        """Those that run, and those that can start beside them: places and blocks go in order."""
        limits, num_free = self._limits, self._blocks.num_free
        sequences = list(self._running)
        for sequence in islice(self._waiting, limits.max_num_seqs - len(sequences)):
            num_tokens = sequence.num_uncomputed_tokens - found[sequence.request_id]
            num_free -= -(-min(num_tokens, limits.max_num_batched_tokens) // limits.block_size)
            if num_free < 0:
                break
            sequences.append(sequence)
        return sequences

    def _claims(self, sequences: Seq[Sequence], found: Mapping[str, int]) -> tuple[list[Claim], list[Claim]]:
        """Of those that run or find a place beside them, and of those behind them."""
        num_running = len(self._running)
        behind = islice(self._waiting, len(sequences) - num_running, self._limits.max_num_seqs)
        own = [
            self._claim(sequence, sequence.num_computed_tokens)
            for sequence in self._running
            if not sequence.is_decoding  # its units are read, or kept
        ]
        own += [self._claim(sequence, found[sequence.request_id]) for sequence in sequences[num_running:]]
        ahead = [self._claim(sequence, found[sequence.request_id]) for sequence in behind]
        return [one for one in own if one.needs], [one for one in ahead if one.needs]

    def _claim(self, sequence: Sequence, start: int) -> Claim:
        return claim_of(sequence, start, self._limits.max_num_batched_tokens, self._encoder_cache)

    def _leave_off_unwanted(self) -> None:
        items = (item for sequence in self._by_id.values() for item in sequence.request.items)
        self._vision.leave_off_unless(self._by_id.keys(), items)

    def _continue_running(self, budget: StepBudget, num_decoding: int, scheduled: list[ScheduledRequest]) -> bool:
        """Give running sequences their tokens. Returns whether blocks ran short.

        A prefill leaves a token for each sequence behind it that decodes. One that the encoder can't serve in this
        step waits: between steps only units that are read in part are pinned, and whoever reads them can go on.
        """
        is_short = False
        index = 0
        while index < len(self._running) and budget.tokens > 0:
            sequence = self._running[index]
            num_decoding_behind = num_decoding - sequence.is_decoding
            wanted = min(budget.wanted(sequence), budget.tokens - num_decoding_behind)
            reach = budget.vision_reach(sequence, max(0, wanted), self._encoder_cache)
            new_blocks = self._blocks_for(sequence, reach.num_tokens)
            if new_blocks > self._blocks.num_free:
                is_short = True
                num_decoding -= self._running[-1].is_decoding
                self._preempt_last()
                continue  # the same sequence again, unless it was the last itself
            index += 1
            num_decoding = num_decoding_behind
            if reach.num_tokens > 0:
                scheduled.append(self._take(sequence, reach, new_blocks, budget))
        return is_short

    def _admit_waiting(
        self, budget: StepBudget, started: list[StartedRequest], scheduled: list[ScheduledRequest]
    ) -> None:
        """Start waiting sequences in order, as long as there are blocks for them.

        One that could do nothing in this step without a unit that is not encoded lets others pass. If it keeps its
        units, those others have none: it would else wait for theirs to be let go, again and again.
        """
        limits = self._limits
        is_held_up = False
        for sequence in list(self._waiting):
            if len(self._running) >= limits.max_num_seqs or budget.tokens <= 0:
                return
            if is_held_up and sequence.request.items:
                continue
            cached = self._find_cached(sequence)
            sequence.num_computed_tokens = len(cached) * limits.block_size
            wanted = min(budget.wanted(sequence), budget.tokens)
            if wanted == 0:
                continue
            reach = budget.vision_reach(sequence, wanted, self._encoder_cache)
            if reach.num_tokens == 0:
                sequence.num_computed_tokens = 0
                is_held_up = sequence.keeps_units
                if is_held_up:  # what it attends to is encoded ahead, over several steps if need be
                    self._take_units(sequence, reach, budget)
                continue
            new_blocks = self._blocks_for(sequence, reach.num_tokens) - len(cached)
            if not self._blocks.can_hold(cached, new_blocks):
                sequence.num_computed_tokens = 0
                return
            self._waiting.remove(sequence)
            self._running.append(sequence)
            self._start(sequence, cached, started)
            scheduled.append(self._take(sequence, reach, new_blocks, budget, cached))

    def _start(self, sequence: Sequence, cached: list[int], started: list[StartedRequest]) -> None:
        self._blocks.hold(cached)
        sequence.block_ids = list(cached)
        request = sequence.request
        if not sequence.was_started:
            sequence.was_started = True
            sequence.num_cached_tokens = sequence.num_computed_tokens
            self._counters.add(prefix_queries=sequence.num_prompt_tokens, prefix_hits=sequence.num_cached_tokens)
        sequence.is_known_to_ranks = True
        sequence.unsent_token_id = None
        started.append(
            StartedRequest(
                request.request_id,
                tuple(sequence.token_ids),
                sequence.num_prompt_tokens,
                request.items,
                request.sampling,
                request.banned,
            )
        )

    def _take(
        self,
        sequence: Sequence,
        reach: VisionReach,
        num_new_blocks: int,
        budget: StepBudget,
        cached: Iterable[int] = (),
    ) -> ScheduledRequest:
        """Commit a sequence to this step."""
        self._take_units(sequence, reach, budget)
        new_blocks = self._blocks.allocate(num_new_blocks) if num_new_blocks else []
        sequence.block_ids += new_blocks
        new_token_id, sequence.unsent_token_id = sequence.unsent_token_id, None
        return ScheduledRequest(
            request_id=sequence.request_id,
            num_computed_tokens=sequence.num_computed_tokens,
            num_new_tokens=reach.num_tokens,
            new_token_id=new_token_id,
            new_block_ids=(*cached, *new_blocks),
            is_sampling=reach.num_tokens == sequence.num_uncomputed_tokens,
            scored=part_to_score(sequence, reach.num_tokens),
        )

    def _take_units(self, sequence: Sequence, reach: VisionReach, budget: StepBudget) -> None:
        if not reach.units:
            budget.tokens -= reach.num_tokens
            return
        hits = sum(unit.key in self._encoder_cache for unit in reach.units)
        self._counters.add(encoder_queries=len(reach.units), encoder_hits=hits)
        budget.take(sequence, reach, self._encoder_cache)

    def _find_cached(self, sequence: Sequence) -> list[int]:
        """Blocks of the longest cached prefix that leaves all to compute that has to be."""
        if not self._limits.enable_prefix_caching:
            return []
        num_full = num_cacheable(sequence) // self._limits.block_size
        return self._blocks.find_prefix(sequence.block_hashes(num_full, self._limits.block_size))

    def _blocks_for(self, sequence: Sequence, num_new_tokens: int) -> int:
        """Blocks to add so that its computed and new tokens have a place."""
        num_tokens = sequence.num_computed_tokens + num_new_tokens
        return -(-num_tokens // self._limits.block_size) - len(sequence.block_ids)

    def _preempt_last(self) -> None:
        """Take the newest sequence's memory. None that this step has scheduled comes after the one being planned.

        It goes before those that wait; the first of these lets go of units that it had encoded ahead, so that two do
        not wait for each other's.
        """
        sequence = self._running.pop()
        if self._waiting:
            self._encoder_cache.unpin_all(self._waiting[0].request_id)
        self._waiting.appendleft(sequence)
        self._counters.add(num_preemptions=1)
        self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        """Give back all that a sequence holds, and have the ranks forget it."""
        self._blocks.release(sequence.block_ids)
        sequence.block_ids = []
        sequence.num_computed_tokens = 0
        self._encoder_cache.unpin_all(sequence.request_id)
        if sequence.is_known_to_ranks:
            sequence.is_known_to_ranks = False
            self._dropped.append(sequence.request_id)

    def _advance(self, sequence: Sequence, num_tokens: int) -> None:
        """Count tokens as computed: their blocks become findable, units behind them are no longer needed."""
        block_size = self._limits.block_size
        before = sequence.num_computed_tokens
        after = before + num_tokens
        sequence.num_computed_tokens = after
        first, last = before // block_size, after // block_size
        if self._limits.enable_prefix_caching and first < last:
            hashes = sequence.block_hashes(last, block_size)
            for index in range(first, last):
                self._blocks.remember(sequence.block_ids[index], hashes[index])
        if before < sequence.reads_until:
            self._unpin_read_units(sequence, before, after)

    def _unpin_read_units(self, sequence: Sequence, before: int, after: int) -> None:
        """Let go of units that are read to their end.

        Only a unit that is read in part stays pinned, so a sequence never pins more than one between steps; a unit
        that comes again later in the prompt is encoded again if it had to make room meanwhile.
        """
        between = sequence.units.between
        read_in_part = {placed.unit.key for placed in between(after, after + 1) if placed.start < after}
        for placed in between(before, after):
            if placed.stop <= after and placed.unit.key not in read_in_part:
                self._encoder_cache.unpin(placed.unit.key, sequence.request_id)

    def _append(self, sequence: Sequence, token: SampledToken) -> None:
        sequence.token_ids.append(token.token_id)
        sequence.unsent_token_id = token.token_id
        finish = finish_of(sequence, self._limits.eos_token_ids, self._limits.max_model_len)
        delta = SequenceDelta(
            request_id=sequence.request_id,
            token_ids=(token.token_id,),
            logprobs=(token.logprob,) if token.logprob is not None else (),
            finish_reason=finish.reason if finish else None,
            stop_token_id=finish.stop_token_id if finish else None,
            num_cached_tokens=sequence.num_cached_tokens,
        )
        if finish:
            self._end(sequence, delta)
        else:
            self._deltas.append(delta)

    def _end(self, sequence: Sequence, last: SequenceDelta) -> None:
        """Forget a sequence, wherever it is."""
        del self._by_id[sequence.request_id]
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._release(sequence)
        self._deltas.append(last)


def _num_prompt_tokens(plan: StepPlan) -> int:
    """Tokens of a step that are no sequence's newest."""
    return sum(one.num_new_tokens for one in plan.scheduled if one.new_token_id is None or one.num_new_tokens > 1)
