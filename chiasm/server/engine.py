"""What the server needs of an engine. ``chiasm.llm.serving.AsyncLLM`` is one; tests bring their own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from chiasm.schema.chat import AddedToken, ChatMessage, PreparedPrompt, Truncation
from chiasm.schema.facts import ModelFacts
from chiasm.schema.output import EngineStats, RequestOutput
from chiasm.schema.sampling import SamplingParams
from chiasm.schema.steps import NamedNews


class Engine(Protocol):
    """A loaded model that answers prompts.

    Its methods raise ``UserError`` for what a client did, ``OverloadedError`` when they take no more work, and
    ``EngineDeadError`` once it has stopped for good.
    """

    @property
    def facts(self) -> ModelFacts:
        """Of the loaded model."""
        ...

    @property
    def max_model_len(self) -> int:
        """Longest sequence, prompt and answer, in tokens."""
        ...

    @property
    def num_ranks(self) -> int:
        """Ranks that share the model."""
        ...

    @property
    def default_sampling(self) -> Mapping[str, Any]:
        """Decoding parameters that the checkpoint recommends, under the names of ``SamplingParams``."""
        ...

    @property
    def added_tokens(self) -> Mapping[str, AddedToken]:
        """Tokens beside the vocabulary proper, by how they are written."""
        ...

    @property
    def summary(self) -> tuple[str, ...]:
        """What was chosen at start-up and why, a line each."""
        ...

    @property
    def is_alive(self) -> bool:
        """Whether it can still answer: it has not ended, nor been silent for much longer than ever before."""
        ...

    @property
    def stats(self) -> EngineStats:
        """Its latest gauges and totals."""
        ...

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
        """Fetch and preprocess the media, render the template, tokenise, check the length."""
        ...

    @property
    def tokenizer_info(self) -> Mapping[str, Any]:
        """The tokenizer's class, its special tokens by their names, and the chat template."""
        ...

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a plain prompt, however long it is within reason."""
        ...

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included."""
        ...

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary writes it."""
        ...

    async def prepare_completion(
        self,
        prompt: str | Sequence[int],
        *,
        cache_salt: str = "",
        truncation: Truncation | None = None,
        add_special_tokens: bool = True,
    ) -> PreparedPrompt:
        """Tokenise a plain prompt, or check one that is token ids already."""
        ...

    def generate(
        self, prompt: PreparedPrompt, sampling: SamplingParams, request_id: str
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer a prompt; each item holds what is new. Closing the generator aborts the request."""
        ...

    async def release(self, prompt: PreparedPrompt) -> None:
        """Free what a prepared prompt holds, if it will not be given to ``generate`` after all."""
        ...

    def watch_steps(self) -> AsyncGenerator[NamedNews, None]:
        """What the ranks do from now on, without end; closing the generator ends it."""
        ...

    async def shutdown(self) -> None:
        """Stop the engine and its processes."""
        ...

    async def wait_dead(self) -> str:
        """Wait until the engine has died; returns what happened."""
        ...
