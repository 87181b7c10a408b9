"""Putting the pieces of answers together, and counting their tokens."""

from __future__ import annotations

from contextlib import aclosing
from typing import NamedTuple

from msgspec import UNSET

from chiasm.engine.frontend.answers import append_answer
from chiasm.schema.output import CompletionOutput, Logprob, RequestOutput
from chiasm.server.bodies import CompletionTokensDetails, PromptTokensDetails, Usage
from chiasm.server.generation import Outputs


class Tally:
    """Counts the tokens of a request, over all its prompts and answers."""

    def __init__(self) -> None:
        self._latest: dict[str, RequestOutput] = {}  # by prompt: each output repeats the prompt's numbers
        self._completion_tokens = 0

    def add(self, output: RequestOutput) -> None:
        """Count what is new."""
        self._latest[output.request_id] = output
        self._completion_tokens += sum(len(answer.token_ids) for answer in output.outputs)

    def usage(self, num_reasoning: int | None = None) -> Usage:
        """The counts so far.

        Args:
            num_reasoning: tokens of answers that are reasoning; None where none is told from content.
        """
        latest = self._latest.values()
        num_prompt = sum(len(output.prompt_token_ids) for output in latest)
        num_image = sum(output.num_image_tokens for output in latest)
        num_video = sum(output.num_video_tokens for output in latest)
        num_cached = sum(output.num_cached_tokens for output in latest)
        details = PromptTokensDetails(
            cached_tokens=num_cached,
            prompt_tokens=num_prompt - num_image - num_video,
            image_tokens=num_image,
            video_tokens=num_video,
            multimodal_tokens={"image": num_image, "video": num_video},
        )
        reasoning = UNSET if num_reasoning is None else CompletionTokensDetails(num_reasoning)
        return Usage(num_prompt, num_prompt + self._completion_tokens, self._completion_tokens, details, reasoning)


class Collected(NamedTuple):
    """All that came of a request.

    Attributes:
        answers: whole, in order of their indices.
        tally: tokens of all of them.
        latest: the last output; a chat has one prompt only, of which it tells.
        prompt_logprobs: of that prompt, if they were asked for.
    """

    answers: list[CompletionOutput]
    tally: Tally
    latest: RequestOutput | None
    prompt_logprobs: list[dict[int, Logprob] | None] | None


async def collect(outputs: Outputs) -> Collected:
    """Wait for all answers; each is whole, in order of their indices."""
    tally = Tally()
    latest, logprobs = None, None
    answers: dict[int, CompletionOutput] = {}
    async with aclosing(outputs):
        async for output in outputs:
            tally.add(output)
            latest, logprobs = output, logprobs or output.prompt_logprobs
            for news in output.outputs:
                if news.index not in answers:
                    answers[news.index] = CompletionOutput(news.index, "", [])
                append_answer(answers[news.index], news)
    return Collected([answers[index] for index in sorted(answers)], tally, latest, logprobs)
