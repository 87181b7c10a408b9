"""Messages between an engine's processes (msgpack over local sockets): frontend and core, core and ranks."""

from __future__ import annotations

from typing import Literal

import msgspec

from chiasm.config.engine import EngineConfig
from chiasm.schema.facts import EncoderRates, ModelFacts
from chiasm.schema.output import EngineStats, SequenceDelta
from chiasm.schema.plan import StepPlan, StepResult
from chiasm.schema.profile import EngineProfile, RankProfile
from chiasm.schema.request import EngineRequest
from chiasm.schema.steps import EncoderBegan, StepsEnded


class StartCore(msgspec.Struct, frozen=True, tag=True):
    """First message to a core: load and serve this."""

    config: EngineConfig


class AddRequest(msgspec.Struct, frozen=True, tag=True):
    """Take up a sequence."""

    request: EngineRequest


class AbortRequests(msgspec.Struct, frozen=True, tag=True):
    """Forget sequences; each is answered by a delta with ``finish_reason == "abort"`` unless it ended before."""

    request_ids: tuple[str, ...]


class StartProfile(msgspec.Struct, frozen=True, tag=True):
    """Record from now on what every rank computes; to a core or a rank."""


class StopProfile(msgspec.Struct, frozen=True, tag=True):
    """End that, and write what was recorded; to a core or a rank.

    Attributes:
        folder: for a file of each rank.
    """

    folder: str


class WatchSteps(msgspec.Struct, frozen=True, tag=True):
    """Tell of every step from now on, or no longer."""

    is_watching: bool


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Stop the ranks and end."""


ToCore = StartCore | AddRequest | AbortRequests | WatchSteps | StartProfile | StopProfile | Shutdown


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


class ProfileStarted(msgspec.Struct, frozen=True, tag=True):
    """All ranks, or this one, record."""


class ProfileTaken(msgspec.Struct, frozen=True, tag=True):
    """What was recorded."""

    profile: EngineProfile


class ProfileFailed(msgspec.Struct, frozen=True, tag=True):
    """There is nothing recorded or written; all else goes on.

    Attributes:
        message: for the user.
    """

    message: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The core ends: it could not start, or a rank died.

    Attributes:
        message: for the user.
        is_user_error: whether a setting is at fault (named in ``message``) rather than the engine.
    """

    message: str
    is_user_error: bool = False


FromCore = Ready | Outputs | EncoderBegan | StepsEnded | ProfileStarted | ProfileTaken | ProfileFailed | Failed


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


ToRank = LoadModel | MeasureEncoder | AllocateBlocks | Step | StartProfile | StopProfile | StopRank


class Growth(msgspec.Struct, frozen=True):
    """Bytes that grow with a number of rows.

    Attributes:
        points: (rows, bytes) as measured, rows ascending.
    """

    points: tuple[tuple[int, int], ...]

    def at(self, num_rows: int) -> int:
        """On the line between the two nearest points, rounded up; beyond all, as many as at the last one."""
        before = self.points[0]
        for point in self.points:
            if num_rows <= point[0]:
                span = max(1, point[0] - before[0])
                return point[1] - (point[1] - before[1]) * min(span, point[0] - num_rows) // span
            before = point
        return before[1]

    def times(self, factor: int) -> Growth:
        """All bytes times ``factor``."""
        return Growth(tuple((rows, factor * size) for rows, size in self.points))


class StepMemory(msgspec.Struct, frozen=True):
    """What the biggest step takes on a rank beside weights and caches, in bytes.

    Attributes:
        vision: peak of encoding, by patches.
        held: of an encoding that is left off between two layers, while the language model runs, by patches.
        forward: peak of the language model's layers, by tokens. It is no line: masks grow up to a size.
        kept: of them while tokens are chosen, by tokens.
        sampling: peak of choosing tokens, by sequences.
        is_beside: whether the encoder may compute while the language model does.
        num_tokens: that it computes.
        num_seqs: of which it samples.
        num_patches: that it encodes, but for a single unit that has more.
        unit_patches: of the largest unit.
    """

    vision: Growth
    held: Growth
    forward: Growth
    kept: Growth
    sampling: Growth
    is_beside: bool
    num_tokens: int
    num_seqs: int
    num_patches: int
    unit_patches: int

    @property
    def vision_bytes(self) -> int:
        """Peak of encoding."""
        return self.vision.at(self.most_patches)

    @property
    def held_bytes(self) -> int:
        """Of an encoding that is left off."""
        return self.held.at(self.most_patches)

    @property
    def forward_bytes(self) -> int:
        """Peak of the language model's layers."""
        return self.forward.at(self.num_tokens)

    @property
    def sampling_bytes(self) -> int:
        """Peak of choosing tokens."""
        return self.kept.at(self.num_tokens) + self.sampling.at(self.num_seqs)

    @property
    def peak_bytes(self) -> int:
        """Most at a time: of encoding and then language, or of both."""
        language = max(self.forward_bytes, self.sampling_bytes)
        if self.is_beside:
            return self.vision_bytes + language
        return max(self.vision_bytes, self.held_bytes + language)

    @property
    def decoding_bytes(self) -> int:
        """Peak of the language model's layers where each sequence has one token."""
        return self.forward.at(self.num_seqs)

    @property
    def most_patches(self) -> int:
        """Of a step."""
        return max(self.num_patches, self.unit_patches)

    def times(self, factor: int) -> StepMemory:
        """All bytes times ``factor``."""
        return msgspec.structs.replace(
            self,
            vision=self.vision.times(factor),
            held=self.held.times(factor),
            forward=self.forward.times(factor),
            kept=self.kept.times(factor),
            sampling=self.sampling.times(factor),
        )


class RankMemory(msgspec.Struct, frozen=True):
    """A rank's memory, in bytes.

    Attributes:
        device: what kind it computes on. On a CPU the ranks share the host's memory.
        total_bytes: that the device has.
        free_bytes: that could be taken once all ranks had loaded their weights, and recorded their encoder's passes.
        weight_bytes: of the weights.
        step: what the biggest step takes.
        has_graphs: whether decode steps are recorded.
    """

    device: Literal["cpu", "cuda"]
    total_bytes: int
    free_bytes: int
    weight_bytes: int
    step: StepMemory
    has_graphs: bool = False

    @property
    def working_bytes(self) -> int:
        """Beside weights and caches. Recorded steps have a pool of their own: as much as the largest takes."""
        return self.step.peak_bytes + (self.step.decoding_bytes if self.has_graphs else 0)


class RankInfo(msgspec.Struct, frozen=True, tag=True):
    """A rank has loaded the model.

    Attributes:
        facts: of the model.
        block_bytes: size of one block of its KV cache, all layers.
        feature_row_bytes: size of what a rank keeps of one row of the encoder's features: the row, or its keys and
            values in the layers that attend to it.
        memory: what it has and what it needs.
        device: what it computes on, and why.
        dtype: what it computes in, and why.
        kernels: what it attends with and how it launches work, and why, a line each; none on a CPU.
    """

    facts: ModelFacts
    block_bytes: int
    feature_row_bytes: int
    memory: RankMemory
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


class RankProfiled(msgspec.Struct, frozen=True, tag=True):
    """What a rank recorded."""

    profile: RankProfile


class RankFailed(msgspec.Struct, frozen=True, tag=True):
    """A rank ends; see ``Failed``."""

    message: str
    is_user_error: bool = False


FromRank = (
    RankInfo
    | EncoderMeasured
    | BlocksAllocated
    | StepDone
    | ProfileStarted
    | RankProfiled
    | ProfileFailed
    | RankFailed
)
