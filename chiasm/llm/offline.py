"""The engine as a script uses it: ``LLM(model).generate(prompts)``."""

from __future__ import annotations

import asyncio
import random
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from tqdm import tqdm

from chiasm.engine.frontend.answers import merge_output
from chiasm.errors import EngineDeadError, UserError, refuse
from chiasm.llm.inputs import as_conversations, as_prompts
from chiasm.llm.serving import AsyncLLM
from chiasm.llm.settings import engine_config
from chiasm.schema.chat import PreparedPrompt
from chiasm.schema.facts import ModelFacts
from chiasm.schema.output import EngineStats, RequestOutput
from chiasm.schema.profile import EngineProfile
from chiasm.schema.sampling import MAX_SEED, SamplingParams

Result = TypeVar("Result")
_Prepare = Callable[[], Coroutine[Any, Any, PreparedPrompt]]


class LLM:
    """A loaded model for offline use.

    The engine runs in processes of its own and is stopped by ``close``, at the end of a ``with``, or with this
    process.

    Args:
        model: folder of a checkpoint or a name on the Hugging Face hub; None takes the built-in one.
        chat_template: a file or the text itself, in place of the checkpoint's.
        revision: of a hub checkpoint.
        settings: fields of ``EngineConfig`` and ``MediaConfig``, under the names of the server's flags, such as
            ``tensor_parallel_size``, ``mm_encoder_tp_mode``, ``max_model_len`` and ``limit_mm_per_prompt``.

    Raises:
        UserError: for an unknown setting, a value out of range or a checkpoint that can't be loaded.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        chat_template: str | None = None,
        revision: str | None = None,
        **settings: Any,
    ) -> None:
        config = engine_config(model, settings, revision=revision)
        self._seeds = random.Random(config.seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chiasm-llm", daemon=True)
        self._thread.start()
        try:
            self._engine = self._run(AsyncLLM.start(config, chat_template))
        except BaseException:
            self._stop_loop()
            raise
        # A script that just ends must not leave the loop's work half done; the reference is weak, so that an LLM
        # which nobody holds can go before.
        self._close_at_exit = weakref.finalize(self, _close, self._engine, self._loop, self._thread)

    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer plain prompts.

        Args:
            prompts: one or a list of: a text; token ids; or a dict with ``prompt`` or ``prompt_token_ids``, and with
                ``multi_modal_data``, ``mm_processor_kwargs``, ``media_io_kwargs`` and ``cache_salt``. The data are
                ``{"image": ..., "video": ...}``, one or a list of each: a PIL image, a uint8 array [height, width, 3]
                or a URL; a uint8 array [frames, height, width, 3], a pair of it and ``{"fps": ...}``, the bytes of a
                file or a URL. The prompt has one placeholder token for each.
            sampling_params: for all prompts, or a list with one for each; None takes the checkpoint's own.
            use_tqdm: whether to show progress.

        Returns:
            One result per prompt, in order.

        Raises:
            UserError: for the first prompt that can't be served.
        """
        parsed = as_prompts(prompts)
        prepares = [lambda p=prompt: self._engine.prepare_completion(**p._asdict()) for prompt in parsed]
        return self._answer(prepares, sampling_params, use_tqdm)

    def chat(
        self,
        messages: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, int] | None = None,
        media_io_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[RequestOutput]:
        """Answer conversations.

        Args:
            messages: one conversation or a list of them, in OpenAI's form; a part may also hold what ``generate``
                takes: ``{"type": "image", "image": picture}``, ``{"type": "video", "video": frames}``.
            sampling_params: for all conversations, or a list with one for each; None takes the checkpoint's own.
            use_tqdm: whether to show progress.
            add_generation_prompt: end the prompt with the head of an answer.
            continue_final_message: go on with the last message instead.
            chat_template_kwargs: names for the template.
            mm_processor_kwargs: ``min_pixels`` and ``max_pixels`` of images and frames.
            media_io_kwargs: how videos are sampled: ``{"video": {"fps": 2}}`` or ``{"video": {"num_frames": 32}}``.
            tools: that the template tells the model of, in OpenAI's form; calls stay in the text.

        Returns:
            One result per conversation, in order.

        Raises:
            UserError: for the first conversation that can't be served.
        """
        options: dict[str, Any] = {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "chat_template_kwargs": chat_template_kwargs or {},
            "mm_processor_kwargs": mm_processor_kwargs or {},
            "media_io_kwargs": media_io_kwargs or {},
            "tools": tools or (),
        }
        conversations = as_conversations(messages)
        prepares = [lambda c=conversation: self._engine.prepare_chat(c, **options) for conversation in conversations]
        return self._answer(prepares, sampling_params, use_tqdm)

    def default_sampling_params(self) -> SamplingParams:
        """What the checkpoint recommends, with answers up to the context's length."""
        return SamplingParams(max_tokens=None, **self._engine.default_sampling)

    @property
    def summary(self) -> tuple[str, ...]:
        """What was chosen at start-up and why, a line each."""
        return self._engine.summary

    @property
    def stats(self) -> EngineStats:
        """The engine's gauges and totals after its latest step."""
        return self._engine.stats

    @property
    def facts(self) -> ModelFacts:
        """Of the loaded model."""
        return self._engine.facts

    @property
    def max_model_len(self) -> int:
        """Longest prompt and answer together, in tokens."""
        return self._engine.max_model_len

    def tokenize(self, prompt: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a plain prompt, which may be longer than the context.

        Args:
            prompt: as for ``generate``.
            add_special_tokens: put around it what the tokenizer puts around a text, such as a token to begin.

        Raises:
            UserError: if it is far longer, or holds a media token.
        """
        return self._run(self._engine.tokenize(prompt, add_special_tokens=add_special_tokens))

    def start_profile(self) -> None:
        """Record what the ranks compute, until ``stop_profile``.

        Raises:
            UserError: if that is done already.
        """
        self._run(self._engine.start_profile())

    def stop_profile(self, folder: str | Path) -> EngineProfile:
        """End it; each rank writes a trace for Perfetto, ``rank-0.json`` and so on, into a folder.

        Raises:
            UserError: if nothing is recorded, or it can't be written.
        """
        return self._run(self._engine.stop_profile(Path(folder)))

    def close(self) -> None:
        """Stop the engine. May be called twice."""
        self._close_at_exit()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _answer(
        self,
        prepares: Sequence[_Prepare],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        params = self._params_for(len(prepares), sampling_params)
        with tqdm(
            total=len(prepares), desc="Processed prompts", disable=not use_tqdm, dynamic_ncols=True
        ) as progress:
            return self._run(self._answer_all(prepares, params, progress))

    async def _answer_all(
        self, prepares: Sequence[_Prepare], params: Sequence[SamplingParams], progress: Any
    ) -> list[RequestOutput]:
        tasks = [
            asyncio.create_task(self._answer_one(prepare, own, str(index), progress))
            for index, (prepare, own) in enumerate(zip(prepares, params, strict=True))
        ]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _answer_one(
        self, prepare: _Prepare, params: SamplingParams, request_id: str, progress: Any
    ) -> RequestOutput:
        total: RequestOutput | None = None
        async for news in self._engine.generate(await prepare(), params, request_id):
            total = merge_output(total, news, params.n)
        assert total is not None
        progress.update()
        return total

    def _params_for(
        self, count: int, params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[SamplingParams]:
        """One for each prompt; seeds are given in their order, so that a run can be repeated."""
        if params is None:
            params = self.default_sampling_params()
        each = [params] * count if isinstance(params, SamplingParams) else list(params)
        for own in each:
            if not isinstance(own, SamplingParams):
                refuse("sampling_params", type(own).__name__, "SamplingParams, one for all prompts or one for each")
        if len(each) != count:
            raise UserError(f"sampling_params has {len(each)} entries for {count} prompts.", param="sampling_params")
        drawn = [self._seeds.randrange(MAX_SEED) for _ in each]
        return [
            own if own.seed is not None else msgspec.structs.replace(own, seed=seed)
            for own, seed in zip(each, drawn, strict=True)
        ]

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the engine's loop; Ctrl-C cancels it there."""
        if not self._thread.is_alive():
            work.close()
            raise EngineDeadError("this LLM is closed.")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _stop_loop(self) -> None:
        _stop_loop(self._loop, self._thread)


def _close(engine: AsyncLLM, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    asyncio.run_coroutine_threadsafe(engine.shutdown(), loop).result()
    _stop_loop(loop, thread)


def _stop_loop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
