"""What all endpoints that go on with a conversation share: a question that has been checked, and its answers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from chiasm.schema.chat import ChatMessage
from chiasm.schema.sampling import SamplingParams
from chiasm.server.generation import Outputs, run_prompt
from chiasm.server.messages import Reading
from chiasm.server.metrics import RequestWatch
from chiasm.server.state import ServerState


@dataclass(frozen=True)
class Question:
    """A request of which every field has been checked that can be without the engine.

    Attributes:
        messages: the conversation so far.
        settings: how it becomes a prompt: what ``Engine.prepare_chat`` takes beside the messages.
        sampling: how answers are decoded.
        reading: how they are read.
    """

    messages: tuple[ChatMessage, ...]
    settings: Mapping[str, Any]
    sampling: SamplingParams
    reading: Reading


async def answer(state: ServerState, question: Question, request_id: str, watch: RequestWatch) -> Outputs:
    """The answers to a question as they come; nothing is begun before there is a place for them."""
    engine = state.engine
    with state.admission.admit(question.sampling.n):
        prompt = await engine.prepare_chat(question.messages, **question.settings)
        try:
            sampling = question.reading.sampling(question.sampling, prompt.text)
        except BaseException:
            await engine.release(prompt)
            raise
        async with aclosing(run_prompt(engine, prompt, sampling, request_id, watch)) as outputs:
            async for output in outputs:
                yield output


def effort_kwargs(effort: str | None) -> dict[str, Any]:
    """What a template is told of ``reasoning_effort``; many know another name for having none at all."""
    if effort is None:
        return {}
    return {"reasoning_effort": effort, **({"enable_thinking": False} if effort == "none" else {})}
