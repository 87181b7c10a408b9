"""What a completion request gets to see of its prompts: their text, their tokens, their log-probabilities."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET

from chiasm.schema.chat import PreparedPrompt
from chiasm.schema.output import CompletionOutput, Logprob, RequestOutput
from chiasm.server.bodies import CompletionChoice, CompletionLogprobs
from chiasm.server.engine import Engine
from chiasm.server.generation import Outputs
from chiasm.server.logprobs import completion_logprobs, echoed_logprobs, joined_logprobs, prompt_logprobs
from chiasm.server.requests import CompletionRequest


@dataclass
class ShownPrompt:
    """A prompt while its answers are written.

    Attributes:
        token_ids: all of it.
        text: what is echoed of it; empty if nothing is.
        first: the text of its first token, if it is echoed.
        logprobs: of its tokens, once they are known and if they were asked for.
    """

    token_ids: tuple[int, ...]
    text: str = ""
    first: str = ""
    logprobs: list[dict[int, Logprob] | None] | None = None

    @classmethod
    async def of(cls, prompt: PreparedPrompt, engine: Engine, *, is_echoed: bool) -> ShownPrompt:
        """What a request is to see of a prompt; one of token ids is echoed as their text."""
        if not is_echoed:
            return cls(prompt.token_ids)
        text = await engine.detokenize(prompt.token_ids) if prompt.text is None else prompt.text
        return cls(prompt.token_ids, text, await engine.detokenize(prompt.token_ids[:1]))


async def with_logprobs(outputs: Outputs, shown: ShownPrompt) -> Outputs:
    """The outputs of a prompt, held back until its log-probabilities are known.

    They come with the first token of the first of its answers, and go out with the first piece of each.
    """
    held: list[RequestOutput] = []
    async with aclosing(outputs):
        async for output in outputs:
            held.append(output)
            shown.logprobs = shown.logprobs or output.prompt_logprobs
            if shown.logprobs is not None:
                for ready in held:
                    yield ready
                held.clear()


async def without_answer(outputs: Outputs) -> Outputs:
    """The outputs of a prompt that only is to be looked at, not continued."""
    async with aclosing(outputs):
        async for output in outputs:
            empty = [
                CompletionOutput(a.index, "", [], logprobs=None if a.logprobs is None else [], finish_reason="length")
                for a in output.outputs
                if a.finish_reason is not None
            ]
            yield msgspec.structs.replace(output, outputs=empty)


@dataclass
class Choices:
    """Makes choices of answers, the first piece of each with what is shown of its prompt.

    Attributes:
        request: what the client asked for.
        num_answers: of each prompt; those of the first come first.
        shown: the prompts, once they are known.
    """

    request: CompletionRequest
    num_answers: int
    shown: list[ShownPrompt] = field(default_factory=list)
    _offsets: dict[int, int] = field(default_factory=dict)  # of each answer's next token

    def make(self, answer: CompletionOutput) -> CompletionChoice:
        """A choice, of what is new of an answer or all of it."""
        request, shown = self.request, self.shown[answer.index // self.num_answers]
        is_first = answer.index not in self._offsets
        offset = self._offsets.get(answer.index, len(shown.text))
        as_ids = bool(request.return_tokens_as_token_ids)
        logprobs, self._offsets[answer.index] = completion_logprobs(answer, offset, as_ids=as_ids)
        is_reported = is_first and request.prompt_logprobs is not None and shown.logprobs is not None
        return CompletionChoice(
            index=answer.index,
            text=shown.text + answer.text if is_first else answer.text,
            logprobs=self._with_prompt(shown, logprobs) if is_first else logprobs,
            finish_reason=answer.finish_reason,
            stop_reason=answer.stop_reason,
            token_ids=answer.token_ids if request.return_token_ids else UNSET,
            prompt_token_ids=list(shown.token_ids) if request.return_token_ids and is_first else UNSET,
            prompt_logprobs=prompt_logprobs(shown.logprobs or ()) if is_reported else UNSET,
        )

    def _with_prompt(self, shown: ShownPrompt, logprobs: CompletionLogprobs | None) -> CompletionLogprobs | None:
        """Those of an answer behind those of its prompt, if both are asked for."""
        request = self.request
        if not request.echo or request.logprobs is None or shown.logprobs is None:
            return logprobs
        as_ids = bool(request.return_tokens_as_token_ids)
        echo = echoed_logprobs(shown.token_ids, shown.logprobs, shown.first, shown.text, as_ids=as_ids)
        return joined_logprobs(echo, logprobs)
