"""The engine as a server uses it: in processes of its own, from an event loop."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from chiasm.config.engine import EngineConfig
from chiasm.dist.runtime_dir import create_runtime_dir, remove_runtime_dir
from chiasm.engine.frontend.admission import engine_requests
from chiasm.engine.frontend.answers import Answers
from chiasm.engine.frontend.client import CoreClient
from chiasm.engine.frontend.frontend import Frontend, TextFiles
from chiasm.engine.frontend.leases import PixelGauge, PixelLease, pixel_bytes
from chiasm.engine.frontend.media_loader import MediaLoader
from chiasm.engine.frontend.template_renderer import TemplateRenderer
from chiasm.grammar.checker import GrammarChecker
from chiasm.llm.watching import StepWatchers
from chiasm.schema.chat import AddedToken, ChatMessage, MediaPart, PreparedPrompt, PrepareTimes, Truncation
from chiasm.schema.facts import ModelFacts
from chiasm.schema.media import MediaSpec, ProcessedItem
from chiasm.schema.output import EngineStats, RequestOutput, SequenceDelta
from chiasm.schema.profile import EngineProfile
from chiasm.schema.request import EngineRequest
from chiasm.schema.sampling import MAX_SEED, SamplingParams
from chiasm.schema.steps import NamedNews

_News = asyncio.Queue[tuple[int, SequenceDelta]]


class _Processes:
    """The engine's processes and their folder; started and stopped together."""

    def __init__(self, config: EngineConfig) -> None:
        self.runtime_dir: Path = create_runtime_dir()
        self.grammars: GrammarChecker | None = None
        self.templates: TemplateRenderer | None = None
        try:
            self.loader = MediaLoader(config.media, self.runtime_dir)
            self.client = CoreClient(self.runtime_dir)
        except BaseException:
            remove_runtime_dir(self.runtime_dir)
            raise

    async def stop(self) -> None:
        await self.client.close()
        await self.loader.close()
        if self.grammars is not None:
            await self.grammars.close()
        if self.templates is not None:
            await self.templates.close()
        remove_runtime_dir(self.runtime_dir)


class AsyncLLM:
    """A loaded model that answers prompts concurrently; made by ``start``.

    Its methods raise ``UserError`` for what a client did, ``EngineDeadError`` once the engine has stopped for good.

    Attributes:
        summary: what was chosen at start-up and why, a line each.
    """

    def __init__(
        self, config: EngineConfig, processes: _Processes, frontend: Frontend, summary: tuple[str, ...]
    ) -> None:
        self._processes = processes
        self._client = processes.client
        self._frontend = frontend
        self._grammars = processes.grammars = GrammarChecker(
            Path(config.model), frontend.facts.vocab_size, frontend.facts.eos_token_ids, processes.runtime_dir
        )
        self._templates = processes.templates = frontend.template_renderer(processes.runtime_dir)
        self._gauge = PixelGauge(config.media.max_pixel_bytes_in_flight)
        self._seeds = random.Random(config.seed)
        self._num_ranks = config.tensor_parallel_size
        self._names = itertools.count()
        self._num_preparing = 0
        self._prompts: dict[str, PreparedPrompt] = {}  # being answered
        self._watchers = StepWatchers(self._client, self._prompts)
        self.summary = summary

    @classmethod
    async def start(cls, config: EngineConfig, chat_template: str | None = None) -> AsyncLLM:
        """Start the engine's processes and load the model.

        Args:
            config: the engine's settings; ``model`` is a folder.
            chat_template: a file or the text itself, in place of the checkpoint's.

        Raises:
            UserError: if the model or a setting is at fault.
            EngineDeadError: if the engine could not start for another reason.
        """
        processes = _Processes(config)
        # The ranks load the weights while the text files are read here.
        loading = asyncio.create_task(processes.client.start(config))
        try:
            processes.loader.start()
            text = await asyncio.to_thread(TextFiles, config, chat_template)
            ready = await loading
            frontend = Frontend(config, text, ready)
        except BaseException:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            await processes.stop()
            raise
        return cls(config, processes, frontend, ready.summary)

    @property
    def facts(self) -> ModelFacts:
        """Of the loaded model."""
        return self._frontend.facts

    @property
    def max_model_len(self) -> int:
        """Longest sequence, prompt and answer, in tokens."""
        return self._frontend.max_model_len

    @property
    def num_ranks(self) -> int:
        """Ranks that share the model."""
        return self._num_ranks

    @property
    def default_sampling(self) -> Mapping[str, Any]:
        """Decoding parameters that the checkpoint recommends."""
        return self._frontend.default_sampling

    @property
    def added_tokens(self) -> Mapping[str, AddedToken]:
        """Tokens beside the vocabulary proper, by how they are written."""
        return self._frontend.tokenizer.added_tokens

    @property
    def tokenizer_info(self) -> Mapping[str, Any]:
        """The tokenizer's class, its special tokens by their names, and the chat template."""
        return self._frontend.tokenizer_info

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a plain prompt, which may be longer than the context.

        Raises:
            UserError: if it is far longer, or holds a media token.
        """
        return await asyncio.to_thread(self._frontend.tokenize, text, add_special_tokens=add_special_tokens)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special ones included.

        Raises:
            UserError: for an unknown id, or more than the context holds.
        """
        return await asyncio.to_thread(self._frontend.detokenize, token_ids)

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary writes it."""
        return [self._frontend.tokenizer.token_piece(token_id) for token_id in token_ids]

    @property
    def is_alive(self) -> bool:
        """Whether it can still answer: it has not ended, nor been silent for much longer than ever before."""
        return self._client.death is None and not self._client.is_stuck

    @property
    def stats(self) -> EngineStats:
        """The core's latest gauges and totals, and those of the media that are kept here."""
        loader = self._processes.loader
        return msgspec.structs.replace(
            self._client.stats,
            pixel_bytes=self._gauge.num_reserved,
            processor_queries=loader.num_cache_queries,
            processor_hits=loader.num_cache_hits,
        )

    async def prepare_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] = {},
        mm_processor_kwargs: Mapping[str, int] = {},
        media_io_kwargs: Mapping[str, Any] = {},
        tools: Sequence[Mapping[str, Any]] = (),
        cache_salt: str = "",
        chat_template: str | None = None,
        truncation: Truncation | None = None,
    ) -> PreparedPrompt:
        """Fetch and preprocess the media, render the template, tokenise, check the length.

        What it returns must be given to ``generate`` or ``release``. A ``chat_template`` in place of the model's own
        is a foreign program: it is rendered in a process of its own, in bounded time.

        Raises:
            UserError: for whatever of it can't be done, naming the field.
        """
        began, frontend = time.perf_counter(), self._frontend
        parts = frontend.media_parts(messages)
        specs = frontend.media_specs(parts, mm_processor_kwargs, media_io_kwargs)
        # Before anything is fetched: a conversation that the template refuses should cost nothing.
        conversation = frontend.seal_chat(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            chat_template_kwargs=chat_template_kwargs,
            tools=tools,
        )
        if chat_template is None:
            rendered = frontend.render_chat(conversation)
        else:
            rendered = await self._templates.render(chat_template, conversation)
        items, fetched = await self._load(parts, specs)
        prompt = await self._place(lambda: frontend.prepare_chat(rendered, items, cache_salt, truncation), items)
        return msgspec.structs.replace(prompt, times=PrepareTimes(began, fetched, time.perf_counter()))

    async def prepare_completion(
        self,
        prompt: str | Sequence[int],
        *,
        media: Sequence[MediaPart] = (),
        mm_processor_kwargs: Mapping[str, int] = {},
        media_io_kwargs: Mapping[str, Any] = {},
        cache_salt: str = "",
        truncation: Truncation | None = None,
        add_special_tokens: bool = True,
    ) -> PreparedPrompt:
        """Tokenise a plain prompt, or check one that is token ids already.

        Args:
            prompt: with media, it holds one placeholder token for each.
            media: its images and its videos, each in order.
            mm_processor_kwargs: sizes of images and frames.
            media_io_kwargs: how videos are sampled.
            cache_salt: see ``EngineRequest``.
            truncation: how long it may be before its beginning is cut off.
            add_special_tokens: put around a text what the tokenizer puts around one, such as a token to begin.

        Raises:
            UserError: if its placeholders and media do not match, or it is too long.
        """
        began = time.perf_counter()
        self._frontend.check_media(media, "prompt")
        specs = self._frontend.media_specs(media, mm_processor_kwargs, media_io_kwargs)
        items, fetched = await self._load(media, specs)
        placed = await self._place(
            lambda: self._frontend.prepare_completion(
                prompt, items, cache_salt, truncation, add_special_tokens=add_special_tokens
            ),
            items,
        )
        return msgspec.structs.replace(placed, times=PrepareTimes(began, fetched, time.perf_counter()))

    async def release(self, prompt: PreparedPrompt) -> None:
        """Free what a prepared prompt holds, if it will not be given to ``generate`` after all."""
        self._discard(prompt.media)

    async def generate(
        self, prompt: PreparedPrompt, sampling: SamplingParams, request_id: str
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer a prompt; each item holds what is new, the last one is ``finished``.

        Closing the generator aborts the request. The prompt's pixels are freed once no step can read them.

        Raises:
            UserError: for parameters that do not fit the model, or an image that could not be encoded.
            EngineDeadError: if the engine stops meanwhile.
        """
        try:
            requests = await self._sequences(prompt, sampling)
        except BaseException:
            self._discard(prompt.media)
            raise
        answers = Answers(request_id, prompt, sampling, self._frontend.tokenizer)
        lease = PixelLease(len(requests), lambda: self._discard(prompt.media))
        news: _News = asyncio.Queue()
        names = [request.request_id for request in requests]
        ended, num_added = set[int](), 0
        self._prompts[request_id] = prompt
        try:
            for index, request in enumerate(requests):
                await self._add(index, request, lease, news)
                num_added += 1
            while len(ended) < len(requests):
                index, delta = await news.get()
                output = answers.take(index, delta)
                if output is None:
                    continue
                yield output
                if output.outputs[0].finish_reason is not None:
                    ended.add(index)
                    if delta.finish_reason is None:  # a stop string, which the core knows nothing of
                        await self._client.abort((names[index],))
        finally:
            self._prompts.pop(request_id, None)
            for _ in range(num_added, len(requests)):
                lease.release()
            await self._client.abort(tuple(names[index] for index in answers.unfinished() if index < num_added))

    async def start_profile(self) -> None:
        """Record what the ranks compute, until ``stop_profile``.

        Raises:
            UserError: if that is done already.
        """
        await self._client.start_profile()

    async def stop_profile(self, folder: Path) -> EngineProfile:
        """End it; each rank writes a file into a folder.

        Raises:
            UserError: if nothing is recorded, or it can't be written.
        """
        return await self._client.stop_profile(folder)

    def watch_steps(self) -> AsyncGenerator[NamedNews, None]:
        """What the ranks do from now on, without end; closing the generator ends it."""
        return self._watchers.watch()

    async def wait_dead(self) -> str:
        """Wait until the engine has stopped by itself; returns why."""
        return await self._client.wait_dead()

    async def shutdown(self) -> None:
        """Stop the engine and its processes."""
        await self._processes.stop()

    async def _load(
        self, parts: Sequence[MediaPart], specs: Sequence[MediaSpec]
    ) -> tuple[list[ProcessedItem], float]:
        """Load media, with room reserved for the largest that they can be and cut to what they are after.

        Room is taken only when their bytes are here, so that nobody waits for somebody else's slow host.

        Returns:
            The items, and when their bytes were here.
        """
        if not parts:
            return [], time.perf_counter()
        loader = self._processes.loader
        async with loader.fetched(parts) as sources:
            fetched = time.perf_counter()
            reserved = self._gauge.estimate(sum(spec.max_bytes for spec in specs))
            await self._gauge.reserve(reserved)
            try:
                with self._preparing():
                    items = await loader.process(sources, parts, specs)
            except BaseException:
                self._gauge.release(reserved)
                raise
        self._gauge.release(reserved - pixel_bytes(items))
        return items, fetched

    def _discard(self, items: Sequence[ProcessedItem]) -> None:
        """Give back the pixels of a prompt that no sequence reads any more, and their room."""
        self._processes.loader.release(items)
        self._gauge.release(pixel_bytes(items))

    async def _place(self, prepare: Callable[[], PreparedPrompt], items: Sequence[ProcessedItem]) -> PreparedPrompt:
        """Tokenise, which for a long text takes long, beside the event loop."""
        try:
            with self._preparing():
                return await asyncio.to_thread(prepare)
        except BaseException:
            self._discard(items)
            raise

    @contextmanager
    def _preparing(self) -> Iterator[None]:
        """Count a request that will be here soon; see ``EngineRequest``."""
        self._num_preparing += 1
        try:
            yield
        finally:
            self._num_preparing -= 1

    async def _sequences(self, prompt: PreparedPrompt, sampling: SamplingParams) -> list[EngineRequest]:
        if sampling.structured_outputs is not None:
            await self._grammars.check(sampling.structured_outputs)
        name = f"seq-{next(self._names)}"
        seed = self._seeds.randrange(MAX_SEED)
        requests = engine_requests(prompt, sampling, name, self.facts, self.max_model_len, seed)
        banned = self._frontend.banned_sequences(sampling)
        return [msgspec.structs.replace(one, banned=banned, num_followers=self._num_preparing) for one in requests]

    async def _add(self, index: int, request: EngineRequest, lease: PixelLease, news: _News) -> None:
        def listen(delta: SequenceDelta) -> None:
            if delta.finish_reason is not None:
                lease.release()
            news.put_nowait((index, delta))

        await self._client.add(request, listen)
