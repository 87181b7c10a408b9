"""Putting the pieces of answers together, and counting their tokens."""

from __future__ import annotations

from contextlib import aclosing
from typing import NamedTuple

from chiasm.engine.frontend.answers import append_answer
from chiasm.schema.output import CompletionOutput, RequestOutput
from chiasm.server.bodies import PromptTokensDetails, Usage
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

    def usage(self) -> Usage:
        """The counts so far."""
        latest = self._latest.values()
        num_prompt = sum(len(output.prompt_token_ids) for output in latest)
        num_image = sum(output.num_image_tokens for output in latest)
        num_video = sum(output.num_video_tokens for output in latest)
        num_cached = sum(output.num_cached_tokens for output in latest)
        details = PromptTokensDetails(num_cached, num_image, {"image": num_image, "video": num_video})
        return Usage(num_prompt, num_prompt + self._completion_tokens, self._completion_tokens, details)


class Collected(NamedTuple):
    """All that came of a request.

    Attributes:
        answers: whole, in order of their indices.
        usage: tokens of all of them.
        prompt: the text of the last prompt that had news, of which a chat has one only.
    """

    answers: list[CompletionOutput]
    usage: Usage
    prompt: str | None


async def collect(outputs: Outputs) -> Collected:
    """Wait for all answers; each is whole, in order of their indices."""
    tally = Tally()
    prompt = None
    answers: dict[int, CompletionOutput] = {}
    async with aclosing(outputs):
        async for output in outputs:
            tally.add(output)
            prompt = output.prompt
            for news in output.outputs:
                if news.index not in answers:
                    answers[news.index] = CompletionOutput(news.index, "", [])
                append_answer(answers[news.index], news)
    return Collected([answers[index] for index in sorted(answers)], tally.usage(), prompt)
