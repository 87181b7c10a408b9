"""``/v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import aclosing
from functools import partial

from fastapi import APIRouter, Request
from msgspec import UNSET
from starlette.responses import Response

from chiasm.engine.frontend.messages import parse_messages
from chiasm.schema.chat import ChatMessage
from chiasm.schema.output import CompletionOutput
from chiasm.schema.sampling import SamplingParams
from chiasm.server.answers import Collected, Tally
from chiasm.server.bodies import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
)
from chiasm.server.body import read_request
from chiasm.server.generation import Outputs, run_prompt
from chiasm.server.logprobs import chat_logprobs
from chiasm.server.messages import AnswerReading, Reading, delta_of, whole_message
from chiasm.server.metrics import RequestWatch
from chiasm.server.openapi import ERROR_RESPONSES, body_schema
from chiasm.server.requests import ChatRequest
from chiasm.server.respond import Events, respond, stream, whole
from chiasm.server.sampling import chat_sampling
from chiasm.server.state import AnswerHead, ServerState, answer_head
from chiasm.server.structured import chat_form
from chiasm.server.tools import parse_tool_use


def chat_router(state: ServerState) -> APIRouter:
    """The chat endpoint of one server."""
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.post("/v1/chat/completions", openapi_extra=body_schema(ChatRequest))
    async def create_chat_completion(http: Request) -> Response:
        """Continue a conversation of text, images and videos."""
        watch = state.watch(http, time.perf_counter())
        request = await read_request(http, ChatRequest, state)
        head = answer_head(state, http, "chatcmpl", request.model)
        tools = parse_tool_use(request, state.config)
        form = chat_form(request, tools)
        reading = Reading(state, tools, form is not None, bool(request.continue_final_message))
        sampling = chat_sampling(request, state.engine.default_sampling, form)
        messages = parse_messages(request.messages)
        outputs = _answer(state, request, messages, reading, sampling, head.id, watch)
        if request.stream:
            return await respond(state, http, stream(state, _chunks(outputs, head, request, reading)))
        make = partial(_completion, head, request.top_logprobs or 0, reading)
        return await respond(state, http, whole(outputs, make))

    return router


async def _answer(
    state: ServerState,
    request: ChatRequest,
    messages: tuple[ChatMessage, ...],
    reading: Reading,
    sampling: SamplingParams,
    request_id: str,
    watch: RequestWatch,
) -> Outputs:
    engine = state.engine
    add_generation_prompt = request.add_generation_prompt
    if add_generation_prompt is None:
        add_generation_prompt = not request.continue_final_message
    with state.admission.admit(sampling.n):
        prompt = await engine.prepare_chat(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=bool(request.continue_final_message),
            chat_template_kwargs=request.chat_template_kwargs,
            mm_processor_kwargs=request.mm_processor_kwargs,
            media_io_kwargs=request.media_io_kwargs,
            tools=reading.tools.offered,
            cache_salt=request.cache_salt or "",
        )
        sampling = reading.sampling(sampling, prompt.text)
        async with aclosing(run_prompt(engine, prompt, sampling, request_id, watch)) as outputs:
            async for output in outputs:
                yield output


def _completion(head: AnswerHead, num_top: int, reading: Reading, done: Collected) -> ChatCompletion:
    choices = []
    for answer in done.answers:
        own = reading.answer(done.prompt)
        choice = ChatChoice(
            index=answer.index,
            message=whole_message(own.take(answer)),
            logprobs=chat_logprobs(answer, num_top),
            finish_reason=own.finish_reason(answer),
            stop_reason=answer.stop_reason,
        )
        choices.append(choice)
    return ChatCompletion(*head, choices, done.usage)


async def _chunks(outputs: Outputs, head: AnswerHead, request: ChatRequest, reading: Reading) -> Events:
    """The events of a stream. An answer's role goes out with its first token, or clients would time the role."""
    tally = Tally()
    begun: dict[int, AnswerReading] = {}
    async with aclosing(outputs):
        async for output in outputs:
            tally.add(output)
            usage = tally.usage() if request.wants_usage_in_every_chunk else UNSET
            for answer in output.outputs:
                if answer.index not in begun:
                    begun[answer.index] = reading.answer(output.prompt)
                    yield ChatChunk(*head, [ChatChunkChoice(answer.index, ChatDelta("assistant", ""))], usage)
                for choice in _chunk_choices(answer, begun[answer.index], request.top_logprobs or 0):
                    yield ChatChunk(*head, [choice], usage)
    if request.wants_usage_chunk:
        yield ChatChunk(*head, [], tally.usage())


def _chunk_choices(answer: CompletionOutput, reading: AnswerReading, num_top: int) -> Iterator[ChatChunkChoice]:
    """What is new in an answer: one piece of content as a rule, none while a call is held back."""
    deltas = [delta_of(event) for event in reading.take(answer)]
    logprobs = chat_logprobs(answer, num_top)
    if not deltas and (logprobs is not None or answer.finish_reason is not None):
        deltas = [ChatDelta()]
    for position, delta in enumerate(deltas, start=1):
        is_last = position == len(deltas)
        yield ChatChunkChoice(
            answer.index,
            delta,
            logprobs if position == 1 else None,
            reading.finish_reason(answer) if is_last else None,
            answer.stop_reason if is_last else None,
        )
