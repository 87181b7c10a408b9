"""An engine without a model: it answers with given words, waits where told, and remembers what was asked of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import msgspec

from chiasm.errors import EngineDeadError, UserError
from chiasm.schema.chat import AddedToken, ChatMessage, ImagePart, PreparedPrompt, PrepareTimes, TextPart, Truncation
from chiasm.schema.facts import EncoderShape, ModelFacts
from chiasm.schema.media import MediaItem, PatchProcessorSpec
from chiasm.schema.output import CompletionOutput, EngineStats, Logprob, RequestOutput, RequestTimes
from chiasm.schema.sampling import SamplingParams
from chiasm.schema.steps import NamedNews

TOKENS_PER_IMAGE = 4
_WORDS = ("Hello", " big", " world", "!")
_FACTS = ModelFacts(
    model_type="fake",
    vocab_size=1000,
    max_position_embeddings=256,
    eos_token_ids=(0,),
    image_token_id=1,
    media_token_ids=(1,),
    processor=PatchProcessorSpec(patch_size=14, merge_size=2, temporal_patch_size=2, min_pixels=1, max_pixels=10**6),
    encoder=EncoderShape(8, 16, 3, 2, (1,), 16, 2),
)


class FakeEngine:
    """Satisfies ``chiasm.server.engine.Engine``; each token is a word, each step takes one turn of the loop.

    A test in another thread steers it by its plain attributes.
    """

    def __init__(self) -> None:
        self.facts = _FACTS
        self.max_model_len = 256
        self.num_ranks = 2
        self.summary: tuple[str, ...] = ("device: none",)
        self.is_alive = True
        self.stops = 0
        self.added_tokens: dict[str, AddedToken] = {}
        self.reset()

    def reset(self) -> None:
        """Forget what a test has set and what was asked."""
        self.default_sampling: dict[str, Any] = {}
        self.stats = EngineStats()
        self.words: tuple[str, ...] = _WORDS
        self.held_back = False  # whether all text comes with the last token
        self.prepare_error: Exception | None = None
        self.generate_error: Exception | None = None
        self.words_before_error = 0
        self.holds_prepare = False
        self.words_before_hold: int | None = None
        self.words_before_scores = 0  # before the prompt's log-probabilities are there
        self.cause_of_death: str | None = None
        self.conversations: list[tuple[tuple[ChatMessage, ...], dict[str, Any]]] = []
        self.truncations: list[Truncation | None] = []
        self.added_special: list[bool] = []
        self.prompts: list[str | list[int]] = []
        self.sampling: list[SamplingParams] = []
        self.request_ids: list[str] = []
        self.num_preparing = 0
        self.num_prepared = 0  # prompts that hold something and are neither generating nor released
        self.num_generating = 0
        self.num_aborted = 0
        self.news: list[NamedNews] = []
        self.num_watching = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held by anybody."""
        return not (self.num_preparing or self.num_prepared or self.num_generating or self.num_watching)

    async def prepare_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        cache_salt: str = "",
        truncation: Truncation | None = None,
        **settings: Any,
    ) -> PreparedPrompt:
        self.truncations.append(truncation)
        self.conversations.append((tuple(messages), {**settings, "cache_salt": cache_salt}))
        parts = [part for message in messages for part in message.content]
        text = " ".join(part.text for part in parts if isinstance(part, TextPart))
        num_images = sum(isinstance(part, ImagePart) for part in parts)
        return await self._prepare(text, len(text.split()), num_images, cache_salt)

    async def prepare_completion(
        self,
        prompt: str | Sequence[int],
        *,
        cache_salt: str = "",
        truncation: Truncation | None = None,
        add_special_tokens: bool = True,
    ) -> PreparedPrompt:
        self.truncations.append(truncation)
        self.added_special.append(add_special_tokens)
        self.prompts.append(prompt if isinstance(prompt, str) else list(prompt))
        if isinstance(prompt, str):
            return await self._prepare(prompt, len(prompt.split()), 0, cache_salt)
        prepared = await self._prepare(None, len(prompt), 0, cache_salt)
        return msgspec.structs.replace(prepared, token_ids=tuple(prompt))

    async def _prepare(self, text: str | None, num_words: int, num_images: int, salt: str) -> PreparedPrompt:
        self.num_preparing += 1
        try:
            while self.holds_prepare:
                await self._tick()
        finally:
            self.num_preparing -= 1
        if self.prepare_error is not None:
            raise self.prepare_error
        if text == "too long":
            raise UserError("The prompt has 300 tokens; max_model_len is 256.", param="messages")
        self.num_prepared += 1
        items = tuple(MediaItem("image", TOKENS_PER_IMAGE * i, TOKENS_PER_IMAGE, ()) for i in range(num_images))
        num_image_tokens = TOKENS_PER_IMAGE * num_images
        now = time.perf_counter()
        times = PrepareTimes(now, now, now)
        return PreparedPrompt(text, (1,) * num_image_tokens + (5,) * num_words, items, salt, times=times)

    @property
    def tokenizer_info(self) -> dict[str, Any]:
        return {"tokenizer_class": "Fake", "eos_token": "<eos>", "chat_template": "{{ messages }}"}

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if text == "too long":
            raise UserError("prompt has 9999 characters of text.", param="prompt")
        return [2] * add_special_tokens + [5] * len(text.split())

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids))

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        return [f"t{token_id}" for token_id in token_ids]

    async def release(self, prompt: PreparedPrompt) -> None:
        self.num_prepared -= 1

    async def generate(
        self, prompt: PreparedPrompt, sampling: SamplingParams, request_id: str
    ) -> AsyncGenerator[RequestOutput, None]:
        self.num_prepared -= 1
        self.num_generating += 1
        self.sampling.append(sampling)
        self.request_ids.append(request_id)
        finished = False
        try:
            words = self.words[: sampling.max_tokens]
            for position, word in enumerate(words):
                await self._step(position)
                finished = position == len(words) - 1
                yield self._output(prompt, sampling, request_id, position, word, finished=finished)
        finally:
            self.num_generating -= 1
            self.num_aborted += not finished

    async def _step(self, position: int) -> None:
        if self.generate_error is not None and position >= self.words_before_error:
            raise self.generate_error
        while self.words_before_hold is not None and position >= self.words_before_hold:
            await self._tick()
        await self._tick(0)

    async def _tick(self, seconds: float = 0.002) -> None:
        if not self.is_alive:
            raise EngineDeadError("a rank was killed")
        await asyncio.sleep(seconds)

    def _output(
        self, prompt: PreparedPrompt, p: SamplingParams, request_id: str, position: int, word: str, *, finished: bool
    ) -> RequestOutput:
        logprobs = None if p.logprobs is None else [_likely(position, word, p.logprobs)]
        reason = None if not finished else "length" if position + 1 == p.max_tokens else "stop"
        text = word if not self.held_back else "".join(self.words) if finished else ""
        answers = [
            CompletionOutput(i, text, [10 + position], logprobs=logprobs, finish_reason=reason) for i in range(p.n)
        ]
        num_image = sum(item.num_tokens for item in prompt.items)
        now = time.perf_counter()
        times = RequestTimes(now, now, now) if position == 0 else None
        token_ids = list(prompt.token_ids)
        scores = None
        if p.prompt_logprobs is not None and position == self.words_before_scores:
            scores = [None, *(_scored(token_id, p.prompt_logprobs) for token_id in token_ids[1:])]
        return RequestOutput(
            request_id, prompt.text, token_ids, answers, finished, 2, num_image, times=times, prompt_logprobs=scores
        )

    def die(self, cause: str = "rank 0 was killed") -> None:
        """Stop for good, as when a rank is killed."""
        self.is_alive = False
        self.cause_of_death = cause

    async def wait_dead(self) -> str:
        while self.cause_of_death is None:  # noqa: ASYNC110 - a test in another thread sets it
            await asyncio.sleep(0.005)
        return self.cause_of_death

    async def watch_steps(self) -> AsyncGenerator[NamedNews, None]:
        """All of ``news``, then what is appended to it."""
        self.num_watching += 1
        try:
            position = 0
            while True:
                while position >= len(self.news):
                    await self._tick()
                position += 1
                yield self.news[position - 1]
        finally:
            self.num_watching -= 1

    async def shutdown(self) -> None:
        self.stops += 1


def _likely(position: int, word: str, num_top: int) -> dict[int, Logprob]:
    """The sampled token, never among the likeliest, and ``num_top`` likelier ones, one of them impossible."""
    entries = {10 + position: Logprob(-2.5, 7, word, word.encode())}
    for rank in range(num_top):
        entries[500 + rank] = Logprob(
            -0.5 * (rank + 1) if rank < 3 else float("-inf"), rank + 1, f"t{rank}", f"t{rank}".encode()
        )
    return entries


def _scored(token_id: int, num_top: int) -> dict[int, Logprob]:
    """A token of a prompt, and as many likelier ones."""
    entries = {token_id: Logprob(-1.5, 9, f" {token_id}", b"x", is_special=True)}
    for rank in range(num_top):
        entries[500 + rank] = Logprob(-0.25 * (rank + 1), rank + 1, f"t{rank}", b"t")
    return entries


def conversation_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a conversation that differ from what a bare request gives."""
    bare = {
        "add_generation_prompt": True,
        "continue_final_message": False,
        "chat_template_kwargs": {},
        "mm_processor_kwargs": {},
        "media_io_kwargs": {},
        "tools": (),
        "cache_salt": "",
        "chat_template": None,
    }
    return {key: value for key, value in settings.items() if value != bare[key]}
