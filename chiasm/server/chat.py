"""``/v1/chat/completions``."""

from __future__ import annotations

import time
from contextlib import aclosing
from functools import partial

from fastapi import APIRouter, Request
from msgspec import UNSET
from starlette.responses import Response

from chiasm.engine.frontend.messages import parse_messages
from chiasm.schema.chat import ChatMessage
from chiasm.schema.output import CompletionOutput
from chiasm.schema.sampling import SamplingParams
from chiasm.server.answers import Tally
from chiasm.server.body import read_request
from chiasm.server.generation import Outputs, run_prompt
from chiasm.server.logprobs import chat_logprobs
from chiasm.server.metrics import RequestWatch
from chiasm.server.openapi import ERROR_RESPONSES, body_schema
from chiasm.server.requests import ChatRequest
from chiasm.server.respond import Events, respond, stream, whole
from chiasm.server.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessageOut,
    Usage,
)
from chiasm.server.sampling import chat_sampling
from chiasm.server.state import AnswerHead, ServerState, answer_head


def chat_router(state: ServerState) -> APIRouter:
    """The chat endpoint of one server."""
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.post("/v1/chat/completions", openapi_extra=body_schema(ChatRequest))
    async def create_chat_completion(http: Request) -> Response:
        """Continue a conversation of text, images and videos."""
        watch = state.watch(http, time.perf_counter())
        request = await read_request(http, ChatRequest, state)
        head = answer_head(state, http, "chatcmpl", request.model)
        sampling = chat_sampling(request, state.engine.default_sampling)
        outputs = _answer(state, request, parse_messages(request.messages), sampling, head.id, watch)
        if request.stream:
            return await respond(state, http, stream(state, _chunks(outputs, head, request)))
        return await respond(state, http, whole(outputs, partial(_completion, head, request.top_logprobs or 0)))

    return router


async def _answer(
    state: ServerState,
    request: ChatRequest,
    messages: tuple[ChatMessage, ...],
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
            cache_salt=request.cache_salt or "",
        )
        async with aclosing(run_prompt(engine, prompt, sampling, request_id, watch)) as outputs:
            async for output in outputs:
                yield output


def _completion(head: AnswerHead, num_top: int, answers: list[CompletionOutput], usage: Usage) -> ChatCompletion:
    choices = [
        ChatChoice(
            index=answer.index,
            message=ChatMessageOut("assistant", answer.text),
            logprobs=chat_logprobs(answer, num_top),
            finish_reason=answer.finish_reason,
            stop_reason=answer.stop_reason,
        )
        for answer in answers
    ]
    return ChatCompletion(*head, choices, usage)


async def _chunks(outputs: Outputs, head: AnswerHead, request: ChatRequest) -> Events:
    """The events of a stream. An answer's role goes out with its first token, or clients would time the role."""
    tally = Tally()
    begun: set[int] = set()
    async with aclosing(outputs):
        async for output in outputs:
            tally.add(output)
            usage = tally.usage() if request.wants_usage_in_every_chunk else UNSET
            for answer in output.outputs:
                if answer.index not in begun:
                    begun.add(answer.index)
                    yield ChatChunk(*head, [ChatChunkChoice(answer.index, ChatDelta("assistant", ""))], usage)
                yield ChatChunk(*head, [_chunk_choice(answer, request.top_logprobs or 0)], usage)
    if request.wants_usage_chunk:
        yield ChatChunk(*head, [], tally.usage())


def _chunk_choice(answer: CompletionOutput, num_top: int) -> ChatChunkChoice:
    return ChatChunkChoice(
        answer.index,
        ChatDelta(content=answer.text),
        chat_logprobs(answer, num_top),
        answer.finish_reason,
        answer.stop_reason,
    )
