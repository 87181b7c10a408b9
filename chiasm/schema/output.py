"""What the core tells the frontend, and what the frontend tells a user."""

from __future__ import annotations

from typing import Literal

import msgspec

from chiasm.schema.plan import TokenLogprob

FinishReason = Literal["stop", "length", "abort", "error"]


class RequestTimes(msgspec.Struct, frozen=True):
    """When things happened to a sequence, in seconds by ``time.perf_counter``, which all processes share.

    Attributes:
        added: the core heard of it.
        started: the first of its prompt was computed.
        first_token: its first token was there.
        encode_start: the first of its units that had to be encoded was begun; None where none had to.
        encode_end: the last of these was through.
        encode_seconds: of the steps in between that encoded any of these.
    """

    added: float
    started: float
    first_token: float
    encode_start: float | None = None
    encode_end: float | None = None
    encode_seconds: float = 0.0

    @property
    def taken_up(self) -> float:
        """When the engine did something for it first."""
        return self.started if self.encode_start is None else min(self.started, self.encode_start)


class SequenceDelta(msgspec.Struct, frozen=True):
    """News of one sequence after a step.

    Attributes:
        request_id: whose.
        token_ids: new tokens, oldest first.
        logprobs: one entry per new token, or empty when not asked for.
        finish_reason: set on the last delta of a sequence; after it the core has forgotten the sequence and no
            longer needs its pixels.
        stop_token_id: the token of ``stop_token_ids`` that ended it, if one did.
        num_cached_tokens: prompt tokens taken from the prefix cache.
        prompt_logprobs: of further tokens of the prompt, in order from its second one on.
        error: for ``finish_reason == "error"``: what went wrong, for the user.
        error_param: the field of the request at fault; None stands for what was asked.
        times: until its first token; on the delta with that token.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    error: str | None = None
    error_param: str | None = None
    times: RequestTimes | None = None


class EngineStats(msgspec.Struct, frozen=True):
    """Gauges and running totals of the core, after a step; of pixels and the processor cache they are the frontend's.

    Attributes:
        num_running: sequences with cache blocks.
        num_waiting: sequences without.
        kv_blocks: cache blocks in all.
        kv_blocks_used: blocks that a live sequence holds.
        encoder_bytes: bytes of features that the encoder cache can hold on a rank.
        encoder_bytes_used: of these, held for live sequences.
        pixel_bytes: of pixels that live requests hold or have room for.
        num_preemptions: so far.
        prefix_queries: prompt tokens looked up in the prefix cache so far.
        prefix_hits: of these, found.
        encoder_queries: units needed so far.
        encoder_hits: of these, found in the encoder cache.
        processor_queries: items looked for in the processor cache so far.
        processor_hits: of these, found there or in the making.
        units_encoded: so far.
        units_ahead: of these, through before a step that reads them.
        steps: so far.
        encoder_seconds: total encoder time of each rank so far.
        encoder_exchanged_bytes: received by each rank within layers of the tower so far, for cut units.
        encoder_makespan: total seconds from the start of a step's encoding to its last feature on every rank so far.
        encoder_predicted: the same, as the cost model predicted it.
        plan_reasons: how often each placement reason was given.
        encoder_passes: passes through the tower on rank 0 so far, by how they were launched.
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_blocks: int = 0
    kv_blocks_used: int = 0
    encoder_bytes: int = 0
    encoder_bytes_used: int = 0
    pixel_bytes: int = 0
    num_preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    encoder_queries: int = 0
    encoder_hits: int = 0
    processor_queries: int = 0
    processor_hits: int = 0
    units_encoded: int = 0
    units_ahead: int = 0
    steps: int = 0
    encoder_seconds: tuple[float, ...] = ()
    encoder_exchanged_bytes: tuple[int, ...] = ()
    encoder_makespan: float = 0.0
    encoder_predicted: float = 0.0
    plan_reasons: dict[str, int] = {}
    encoder_passes: dict[str, int] = {}


class Logprob(msgspec.Struct, frozen=True):
    """Log-probability of one token.

    Attributes:
        logprob: in nats.
        rank: 1 for the likeliest token of the vocabulary.
        decoded_token: its text alone; U+FFFD where its bytes are no whole character.
        token_bytes: its bytes, of which characters that several tokens make up can be put together.
        is_special: whether it is no text.
    """

    logprob: float
    rank: int
    decoded_token: str
    token_bytes: bytes = b""
    is_special: bool = False


class CompletionOutput(msgspec.Struct):
    """One answer.

    Attributes:
        index: which of the ``n`` answers.
        text: all of it so far, or in a stream only what is new.
        token_ids: its tokens, likewise.
        cumulative_logprob: sum over its tokens when logprobs were asked for.
        logprobs: per token, token id -> logprob: the sampled token and the likeliest ones.
        finish_reason: "stop" or "length"; None while it goes on.
        stop_reason: the stop string or stop token id that ended it; None for end of sequence.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class RequestOutput(msgspec.Struct):
    """A request's answers.

    Attributes:
        request_id: its name.
        prompt: the prompt's text, if it had one.
        prompt_token_ids: the prompt with every placeholder.
        outputs: one entry per answer; in a stream, one entry per answer that has news.
        finished: whether all answers have ended.
        num_cached_tokens: prompt tokens taken from the prefix cache.
        num_image_tokens: prompt tokens that are placeholders of images.
        num_video_tokens: prompt tokens that are placeholders of videos.
        times: of one of its sequences, in the output with the first token of that.
        prompt_logprobs: if they were asked for, per token of the prompt what could have come in its place, the token
            itself first; None for the first token. In a stream they come whole with the first token of the first
            answer.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    num_image_tokens: int = 0
    num_video_tokens: int = 0
    times: RequestTimes | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
