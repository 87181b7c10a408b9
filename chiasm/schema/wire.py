"""Messages between an engine's processes (msgpack over local sockets): frontend and core, core and ranks."""

from __future__ import annotations

import msgspec

from chiasm.config.engine import EngineConfig
from chiasm.schema.facts import EncoderRates, ModelFacts
from chiasm.schema.output import EngineStats, SequenceDelta
from chiasm.schema.plan import StepPlan, StepResult
from chiasm.schema.request import EngineRequest


class StartCore(msgspec.Struct, frozen=True, tag=True):
    """First message to a core: load and serve this."""

    config: EngineConfig


class AddRequest(msgspec.Struct, frozen=True, tag=True):
    """Take up a sequence."""

    request: EngineRequest


class AbortRequests(msgspec.Struct, frozen=True, tag=True):
    """Forget sequences; each is answered by a delta with ``finish_reason == "abort"`` unless it ended before."""

    request_ids: tuple[str, ...]


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Stop the ranks and end."""


ToCore = StartCore | AddRequest | AbortRequests | Shutdown


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded and the core serves.

    Attributes:
        facts: of the model.
        max_model_len: longest sequence, prompt and answer, in tokens.
        summary: what was chosen at start-up and why, a line each.
        rank_pids: process ids of the ranks.
        max_seen_rows: most rows of features that text of one prompt may attend to; None where it attends to none.
    """

    facts: ModelFacts
    max_model_len: int
    summary: tuple[str, ...]
    rank_pids: tuple[int, ...]
    max_seen_rows: int | None = None


class Outputs(msgspec.Struct, frozen=True, tag=True):
    """News after a step."""

    deltas: tuple[SequenceDelta, ...]
    stats: EngineStats


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The core ends: it could not start, or a rank died.

    Attributes:
        message: for the user.
        is_user_error: whether a setting is at fault (named in ``message``) rather than the engine.
    """

    message: str
    is_user_error: bool = False


FromCore = Ready | Outputs | Failed


class LoadModel(msgspec.Struct, frozen=True, tag=True):
    """First message to a rank: join the others and load the model.

    Attributes:
        config: the engine's settings.
        size: ranks in all.
    """

    config: EngineConfig
    size: int


class MeasureEncoder(msgspec.Struct, frozen=True, tag=True):
    """Measure how fast the encoder and the exchanges are; all ranks do it together."""


class AllocateBlocks(msgspec.Struct, frozen=True, tag=True):
    """Make a KV cache of so many blocks."""

    num_blocks: int


class Step(msgspec.Struct, frozen=True, tag=True):
    """Obey a plan."""

    plan: StepPlan


class StopRank(msgspec.Struct, frozen=True, tag=True):
    """End."""


ToRank = LoadModel | MeasureEncoder | AllocateBlocks | Step | StopRank


class RankInfo(msgspec.Struct, frozen=True, tag=True):
    """A rank has loaded the model.

    Attributes:
        facts: of the model.
        block_bytes: size of one block of its KV cache, all layers.
        feature_row_bytes: size of what a rank keeps of one row of the encoder's features: the row, or its keys and
            values in the layers that attend to it.
        cache_bytes: memory that it can give to the KV cache.
        cache_reason: how that was found, for the start-up lines.
        device: what it computes on, and why.
        dtype: what it computes in, and why.
        kernels: what it attends with and how it launches work, and why, a line each; none on a CPU.
    """

    facts: ModelFacts
    block_bytes: int
    feature_row_bytes: int
    cache_bytes: int
    cache_reason: str
    device: str
    dtype: str
    kernels: tuple[str, ...] = ()


class EncoderMeasured(msgspec.Struct, frozen=True, tag=True):
    """The same on every rank."""

    rates: EncoderRates


class BlocksAllocated(msgspec.Struct, frozen=True, tag=True):
    """A rank is ready for plans."""


class StepDone(msgspec.Struct, frozen=True, tag=True):
    """Rank 0 has obeyed a plan."""

    result: StepResult


class RankFailed(msgspec.Struct, frozen=True, tag=True):
    """A rank ends; see ``Failed``."""

    message: str
    is_user_error: bool = False


FromRank = RankInfo | EncoderMeasured | BlocksAllocated | StepDone | RankFailed
