"""A rank: it holds the model and the caches, and does what the step's plan says.

Shapes: n tokens of the packed batch, d hidden size.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from chiasm.config.engine import EngineConfig
from chiasm.dist.group import SOLO, Group
from chiasm.engine.runner.decode_graphs import DecodeGraphs
from chiasm.engine.runner.device import choose_dtype, torch_dtype
from chiasm.engine.runner.encoder_graphs import EncoderGraphs
from chiasm.engine.runner.features import place_features
from chiasm.engine.runner.graphs import CudaRecorder
from chiasm.engine.runner.guides import Guides
from chiasm.engine.runner.launch import choose_encoder_launch, choose_launch, tower_kernel
from chiasm.engine.runner.memory import LoadedRank, check_weights, measure_memory
from chiasm.engine.runner.packing import Part, pack
from chiasm.engine.runner.profiler import RankProfiler
from chiasm.engine.runner.records import SequenceRecord
from chiasm.engine.runner.scoring import ScoredRows, score
from chiasm.engine.runner.steps import DeviceStep
from chiasm.models.entry import SeenUnit, SeenUnits, VisionLanguageModel
from chiasm.models.loader import load_model, weight_bytes
from chiasm.models.registry import Checkpoint, open_checkpoint
from chiasm.multimodal.bounds import served_facts
from chiasm.multimodal.pixels import read_rows
from chiasm.ops.paged_attention import KVCache
from chiasm.ops.varlen import SegmentKernel
from chiasm.sampling.sampler import sample
from chiasm.schema.facts import EncoderRates
from chiasm.schema.plan import Failure, SampledToken, ScheduledRequest, StepPlan, StepResult, TokenLogprob, VisionStep
from chiasm.schema.wire import RankInfo
from chiasm.vision.encode import EncodedUnits, PlanUnderWay, UnitEncoder
from chiasm.vision.fit import Fit
from chiasm.vision.frames import seen_between
from chiasm.vision.timeline import SpanLog

if TYPE_CHECKING:
    from chiasm.grammar.compile import GrammarCompiler

_FAILED_UNIT = "this image could not be encoded; the server's log has the reason."
_NOTHING = EncodedUnits({}, frozenset(), (), 0.0, (), ())


class Runner:
    """One rank's model, caches and records.

    Args:
        config: the engine's settings.
        group: the ranks of the engine; the language model is sharded over them.
        device: of this rank.
        device_reason: why that device, for the start-up lines.

    Attributes:
        profiler: of what it does; off until it is started.
    """

    def __init__(self, config: EngineConfig, group: Group, device: torch.device, device_reason: str) -> None:
        self._config = config
        self._group = group
        self._device = device
        self._dtype = choose_dtype(config.dtype, device.type)
        self._device_reason = device_reason
        self.profiler = RankProfiler(group.rank, device)
        self._is_encoder_sharded = config.mm_encoder_tp_mode == "weights"
        checkpoint = open_checkpoint(Path(config.model))
        self._facts = served_facts(checkpoint.facts, config.media)
        dtype = torch_dtype(self._dtype.value)
        segments = tower_kernel(checkpoint.facts.encoder, device, dtype)
        self._weight_bytes, self._model = self._load(checkpoint, segments.kernel)
        self._launch = choose_launch(
            self._model,
            tower_reason=segments.reason,
            block_size=config.block_size,
            enforce_eager=config.enforce_eager,
            device=device,
            dtype=dtype,
        )
        self._encoder_launch = choose_encoder_launch(
            self._model, segments.kernel, self._facts.encoder, config, device
        )
        self._graphs: DecodeGraphs | None = None
        # Before memory is measured, so that what they take is no longer free then.
        self._encoder_graphs = self._record_encoder()
        self._unit_encoder = self._make_unit_encoder()
        trace_dir = config.mm_encoder_trace_dir
        self._span_log = SpanLog(None if trace_dir is None else Path(trace_dir), group.rank)
        self._caches: list[KVCache] = []
        self._records: dict[str, SequenceRecord] = {}
        self._features: dict[str, Tensor] = {}
        self._under_way: PlanUnderWay | None = None
        self._guides = Guides(self._make_grammar_compiler)

    @torch.inference_mode()
    def _record_encoder(self) -> EncoderGraphs | None:
        if self._encoder_launch.tower is None:
            return None
        graphs = EncoderGraphs(
            *self._encoder_launch.tower,
            self._facts.encoder,
            row_bytes=self._facts.processor.row_bytes,
            sizes=self._encoder_launch.sizes,
            device=self._device,
            dtype=torch_dtype(self._dtype.value),
        )
        graphs.record(CudaRecorder(self._device))
        return graphs

    def _load(self, checkpoint: Checkpoint, segment_kernel: SegmentKernel) -> tuple[int, VisionLanguageModel]:
        """The weights' bytes, known before there are any, and the model."""
        vision_group = self._group if self._is_encoder_sharded else SOLO
        dtype, device = torch_dtype(self._dtype.value), self._device
        num_bytes = weight_bytes(
            checkpoint,
            dtype=dtype,
            device=device,
            text_group=self._group,
            vision_group=vision_group,
            load_format=self._config.load_format,
        )
        check_weights(self._config, num_bytes, device, self._group)
        loaded = load_model(
            checkpoint,
            dtype=dtype,
            device=device,
            text_group=self._group,
            vision_group=vision_group,
            segment_kernel=segment_kernel,
            load_format=self._config.load_format,
        )
        return num_bytes, loaded.model

    def _make_unit_encoder(self) -> UnitEncoder:
        graphs = self._encoder_graphs
        return UnitEncoder(
            encoder=self._model.encode_vision if graphs is None else graphs.encode,
            shape=self._facts.encoder,
            row_bytes=self._facts.processor.row_bytes,
            group=self._group,
            read_rows=read_rows,
            device=self._device,
            dtype=torch_dtype(self._dtype.value),
            packs_units=self._device.type != "cpu",
        )

    def _make_grammar_compiler(self) -> GrammarCompiler:
        from chiasm.grammar.compile import GrammarCompiler  # most ranks never need it

        return GrammarCompiler(Path(self._config.model), self._facts.vocab_size, self._facts.eos_token_ids)

    def info(self) -> RankInfo:
        """What the core needs to know to size the cache; every rank is asked at the same time.

        Raises:
            UserError: if the biggest step doesn't fit beside the weights.
        """
        model, dtype = self._model, torch_dtype(self._dtype.value)
        token_bytes = 2 * model.num_layers * model.num_kv_heads * model.head_dim * dtype.itemsize
        loaded = LoadedRank(
            model, self._facts, self._launch, self._group, self._device, dtype, token_bytes, self._weight_bytes
        )
        return RankInfo(
            facts=self._facts,
            block_bytes=token_bytes * self._config.block_size,
            feature_row_bytes=self._kept_columns * dtype.itemsize,
            memory=measure_memory(self._config, loaded),
            device=self._device_reason,
            dtype=str(self._dtype),
            kernels=(*self._launch.lines, *self._encoder_launch.lines),
        )

    @property
    def _kept_columns(self) -> int:
        """Of what is kept of a row of features."""
        model, facts = self._model, self._facts
        if facts.num_cross_layers:
            return 2 * facts.num_cross_layers * model.num_kv_heads * model.head_dim
        return facts.encoder.feature_size

    def measure_encoder(self) -> EncoderRates:
        """How fast the encoder and the ranks' exchanges are; every rank is asked at the same time."""
        encoder = self._unit_encoder
        fit = Fit(
            encoder.encoder,
            encoder.shape,
            encoder.row_bytes,
            encoder.group,
            self._is_encoder_sharded,
            encoder.device,
            encoder.dtype,
            encoder.packs_units,
        )
        rates = fit.rates()
        if self._encoder_graphs is not None:
            self._encoder_graphs.num_passes.clear()  # none of these was asked for
        return rates

    @torch.inference_mode()
    def allocate(self, num_blocks: int) -> None:
        """Make the KV cache, and record decode steps if there are to be any recorded."""
        model, config, launch = self._model, self._config, self._launch
        num_spare = 0 if launch.decoding is None else 1
        self._caches = [
            KVCache.empty(
                num_blocks + num_spare,
                config.block_size,
                model.num_kv_heads,
                model.head_dim,
                launch.shape.dtype,
                self._device,
            )
            for _ in range(model.num_layers)
        ]
        if launch.decoding is not None:
            longest = config.max_model_len or self._facts.max_position_embeddings
            self._graphs = DecodeGraphs(
                self._run_text,
                launch.decoding,
                launch.shape,
                num_position_dims=len(model.rope_positions(1, ()).positions),
                max_num_seqs=config.max_num_seqs,
                num_columns=min(num_blocks, -(-longest // config.block_size)),
                spare_block=num_blocks,
                device=self._device,
            )
            self._graphs.record(CudaRecorder(self._device))

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Obey a plan. Every rank of the group gets the same plan; only rank 0 samples."""
        self._forget(plan)
        self._start(plan)
        # What no token of this step reads can be encoded while the language model computes.
        is_beside = self._launch.encoder_stream.is_beside and not self._reads_what_it_encodes(plan)
        encoded = _NOTHING if is_beside else self._encode(plan.vision)
        scheduled = self._extend(plan.scheduled, encoded.failed)
        begin = time.perf_counter()
        with self.profiler.phase("language model"):
            logits, hidden = self._compute(scheduled) if scheduled else (None, None)
        if is_beside:
            encoded = self._encode(plan.vision)
        with self.profiler.phase("sampling"):
            scores = {} if hidden is None else self._score(hidden, scheduled)
            sampled, failed = ([], {}) if logits is None else self._sample(logits, scheduled)
        if logits is None and not scores and self._device.type == "cuda":
            torch.cuda.current_stream().synchronize()  # as nothing was read back: this is measured
        is_apart = encoded is _NOTHING or not is_beside
        return StepResult(
            step=plan.step,
            sampled=tuple(sampled),
            failed_units=dict.fromkeys(encoded.failed, _FAILED_UNIT),
            failed_sequences=failed,
            prompt_logprobs=scores,
            compute_seconds=time.perf_counter() - begin if is_apart else 0.0,
            encoder_seconds=encoded.seconds,
            encoder_makespan=encoded.makespan,
            encoder_exchanged_bytes=encoded.exchanged_bytes,
            encoder_passes={} if self._encoder_graphs is None else dict(self._encoder_graphs.num_passes),
        )

    def _reads_what_it_encodes(self, plan: StepPlan) -> bool:
        if plan.vision is None:
            return False
        encoded = {unit.key for unit in plan.vision.plan.units}
        for part in plan.scheduled:
            start, units = part.num_computed_tokens, self._records[part.request_id].units
            if any(read.unit.key in encoded for read in units.between(start, start + part.num_new_tokens)):
                return True
        return False

    def _forget(self, plan: StepPlan) -> None:
        for request_id in plan.dropped:
            del self._records[request_id]
        self._guides.forget(plan.dropped)
        for key in plan.evicted:
            del self._features[key]

    def _start(self, plan: StepPlan) -> None:
        for started in plan.started:
            positions, delta = self._model.rope_positions(started.num_prompt_tokens, started.items)
            self._records[started.request_id] = SequenceRecord.of(started, positions, delta)
            if self._group.rank == 0:
                self._guides.start(started.request_id, started.sampling)

    def _encode(self, step: VisionStep | None) -> EncodedUnits:
        if step is None:
            return _NOTHING
        stream = self._launch.encoder_stream
        with self.profiler.phase("vision"), stream.running():
            if step.start == 0:
                self._under_way = self._unit_encoder.begin(step.plan)
            assert self._under_way is not None
            encoded = self._under_way.advance(step.stop)
            if step.stop == self._facts.encoder.num_stages:
                self._under_way = None
            kept = {key: self._model.keep(features) for key, features in encoded.features.items()}
        stream.hand_over(kept.values())
        self._span_log.append(encoded.spans)
        self._features |= kept
        return encoded

    def _extend(self, scheduled: Sequence[ScheduledRequest], failed: Collection[str]) -> list[Part]:
        """Bring the records up to date, and leave out sequences that would read what could not be encoded."""
        kept = []
        for part in scheduled:
            record = self._records[part.request_id]
            record.extend(part)
            start = part.num_computed_tokens
            read = record.units.between(start, start + part.num_new_tokens)
            if not any(placed.unit.key in failed for placed in read):
                kept.append(Part(record, part))
        return kept

    def _compute(self, scheduled: Sequence[Part]) -> tuple[Tensor | None, Tensor | None]:
        """Run the language model over the packed batch.

        Returns:
            Logits [m, vocabulary] of what is to be sampled, and hidden states [s, d] of what is to be scored; None
            where there is nothing.
        """
        packed = pack(scheduled)
        host, num_sampled = packed.step, packed.num_sampled
        seen: list[SeenUnits] = []
        placed: list[tuple[int, Tensor]] = []
        if self._facts.num_cross_layers:
            seen = self._seen_units(scheduled)
        else:
            placed = self._placed_features(scheduled)
        if self._graphs is not None and not seen and not placed and self._graphs.can_run(host.sequences):
            hidden = self._graphs.run(host)
            if not packed.asks_for_all:
                hidden = hidden[torch.from_numpy(host.asked_rows).to(self._device)]
        else:
            step = self._launch.inputs.make(host)
            asked = step.asked_rows if len(host.asked_rows) else step.asked_rows.new_zeros(1)
            hidden = self._run_text(step, placed, seen, asked)
        logits = self._model.compute_logits(hidden[:num_sampled]) if num_sampled else None
        return logits, hidden[num_sampled:] if len(host.asked_rows) > num_sampled else None

    def _run_text(
        self,
        step: DeviceStep,
        placed: Sequence[tuple[int, Tensor]] = (),
        seen: Sequence[SeenUnits] = (),
        rows: Tensor | None = None,
    ) -> Tensor:
        """Hidden states [n, d] of a step's tokens, or [m, d] of ``rows``."""
        embeds = self._model.embed_tokens(step.token_ids)
        deep = place_features(embeds, placed)
        return self._model.forward(embeds, step.positions, self._caches, step.batch, deep, seen, rows)

    def _seen_units(self, scheduled: Sequence[Part]) -> list[SeenUnits]:
        """What rows of the packed batch attend to, where text attends to units."""
        found = []
        first_row = 0
        for record, part in scheduled:
            start = part.num_computed_tokens
            for run in seen_between(record.items, start, start + part.num_new_tokens):
                units = [unit for index in run.items for unit in record.items[index].units]
                seen = [SeenUnit(self._features[unit.key], unit.num_rows - unit.num_padding) for unit in units]
                low, high = (first_row + token - start for token in (run.start, run.stop))
                found.append(SeenUnits(low, high, tuple(seen), run.is_before))
            first_row += part.num_new_tokens
        return found

    def _placed_features(self, scheduled: Sequence[Part]) -> list[tuple[int, Tensor]]:
        """(first row of the packed batch, features) of the placeholders in it."""
        found = []
        first_row = 0
        for record, part in scheduled:
            start, stop = part.num_computed_tokens, part.num_computed_tokens + part.num_new_tokens
            for placed in record.units.between(start, stop):
                low, high = max(placed.start, start), min(placed.stop, stop)
                features = self._features[placed.unit.key][low - placed.start : high - placed.start]
                found.append((first_row + low - start, features))
            first_row += part.num_new_tokens
        return found

    def _score(self, hidden: Tensor, scheduled: Sequence[Part]) -> dict[str, tuple[TokenLogprob, ...]]:
        """Log-probabilities of prompts; every rank takes part, and rank 0 has them."""
        parts = [ScoredRows.of(record, part) for record, part in scheduled if part.scored != (0, 0)]
        # As many rows at a time as are sampled from, whose memory has been reckoned with.
        num_rows = self._config.max_num_seqs
        return score(hidden, parts, self._model.compute_logits, num_rows, is_reporting=self._group.rank == 0)

    def _sample(self, logits: Tensor, scheduled: Sequence[Part]) -> tuple[list[SampledToken], dict[str, Failure]]:
        """The new tokens, and why there is none for some sequences."""
        if self._group.rank != 0:
            return [], {}
        rows = [record.sampling_row() for record, part in scheduled if part.is_sampling]
        masks = self._guides.masks(rows)
        sampled = sample(logits, rows, self._facts.eos_token_ids, masks.allowed)
        stuck = [token.request_id for token in sampled if token.is_stuck]
        return sampled, {name: self._records[name].nothing_left() for name in stuck} | masks.failed
