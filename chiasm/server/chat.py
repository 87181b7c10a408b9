"""``/v1/chat/completions``."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from msgspec import UNSET
from starlette.responses import Response

from chiasm.engine.frontend.messages import parse_messages, unread_keys
from chiasm.errors import UserError
from chiasm.parsers.events import Event
from chiasm.schema.chat import ChatMessage, TextPart
from chiasm.schema.output import CompletionOutput
from chiasm.schema.sampling import SamplingParams
from chiasm.server.answers import Collected, Tally
from chiasm.server.bodies import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
)
from chiasm.server.body import read_request
from chiasm.server.conversation import Question, answer, effort_kwargs
from chiasm.server.generation import Outputs
from chiasm.server.logprobs import chat_logprobs, prompt_logprobs
from chiasm.server.messages import AnswersReading, News, Reading, call_format, delta_of, whole_message
from chiasm.server.openapi import ERROR_RESPONSES, answered_with, body_schema
from chiasm.server.requests import ChatRequest
from chiasm.server.respond import Events, respond, stream, whole
from chiasm.server.sampling import chat_sampling, truncation_of
from chiasm.server.state import AnswerHead, ServerState, answer_head
from chiasm.server.structured import answer_form, parse_structured_outputs
from chiasm.server.tools import ToolFields, parse_tool_use


def chat_router(state: ServerState) -> APIRouter:
    """The chat endpoint of one server."""
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.post(
        "/v1/chat/completions",
        openapi_extra=body_schema(ChatRequest),
        responses=answered_with(ChatCompletion, ChatChunk),
    )
    async def create_chat_completion(http: Request) -> Response:
        """Continue a conversation of text, images and videos."""
        watch = state.watch(http, time.perf_counter())
        request = await read_request(http, ChatRequest, state)
        head = answer_head(state, http, "chatcmpl", request.model)
        question = chat_question(state, request)
        answers = AnswersReading(question.reading)
        outputs = answer(state, question, head.id, watch)
        if request.stream:
            return await respond(state, http, stream(state, _chunks(outputs, head, request, answers)))
        events: defaultdict[int, list[Event]] = defaultdict(list)
        make = partial(_completion, head, request, answers, events)
        return await respond(state, http, whole(_read(outputs, answers, events), make))

    return router


def chat_question(state: ServerState, request: ChatRequest) -> Question:
    """What a request asks.

    Raises:
        UserError: naming the field at fault.
    """
    if request.chat_template and not state.config.trust_request_chat_template:
        message = "chat_template needs a server started with --trust-request-chat-template."
        raise UserError(message, param="chat_template")
    asked = ToolFields(request.tools, request.tool_choice, request.parallel_tool_calls, "nested")
    tools = parse_tool_use(asked, state.config)
    calls = call_format(state.config, tools)
    form = answer_form(parse_structured_outputs(request), tools, calls, state.engine.added_tokens)
    sampling = chat_sampling(request, state.engine.default_sampling, form)
    messages = parse_messages(request.messages)
    state.unknown_fields.warn(f"messages.{key}" for key in unread_keys(request.messages))
    settings = _settings(request, tools.offered, sampling)
    continued = None if settings["add_generation_prompt"] else _assistant_texts(messages[-1])
    tells_reasoning = request.include_reasoning is not False
    return Question(messages, settings, sampling, Reading(state, tools, form is not None, continued, tells_reasoning))


def _assistant_texts(message: ChatMessage) -> tuple[str, ...]:
    """The texts of a message; none if it isn't the assistant's."""
    if message.role != "assistant":
        return ()
    return tuple(part.text for part in message.content if isinstance(part, TextPart))


def _settings(request: ChatRequest, tools: Sequence[Mapping[str, Any]], sampling: SamplingParams) -> dict[str, Any]:
    """How a conversation becomes a prompt."""
    add_generation_prompt = request.add_generation_prompt
    if add_generation_prompt is None:
        add_generation_prompt = not request.continue_final_message
    return {
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": bool(request.continue_final_message),
        "chat_template_kwargs": {**effort_kwargs(request.reasoning_effort), **request.chat_template_kwargs},
        "mm_processor_kwargs": request.mm_processor_kwargs,
        "media_io_kwargs": request.media_io_kwargs,
        "chat_template": request.chat_template or None,
        "tools": tools,
        "cache_salt": request.cache_salt or "",
        "truncation": truncation_of(request, sampling),
    }


async def _read(outputs: Outputs, answers: AnswersReading, events: defaultdict[int, list[Event]]) -> Outputs:
    """The same outputs; what their texts are is put into ``events``, by the answer's index, as they pass."""
    async with aclosing(outputs):
        async for output in outputs:
            for news in answers.take(output):
                events[news.answer.index] += news.events
            yield output


def _completion(
    head: AnswerHead,
    request: ChatRequest,
    answers: AnswersReading,
    events: Mapping[int, list[Event]],
    done: Collected,
) -> ChatCompletion:
    choices = []
    for one in done.answers:
        choice = ChatChoice(
            index=one.index,
            message=whole_message(events[one.index]),
            logprobs=_logprobs(one, request),
            finish_reason=answers.answers[one.index].finish_reason,
            stop_reason=one.stop_reason,
            token_ids=one.token_ids if request.return_token_ids else UNSET,
        )
        choices.append(choice)
    prompt = done.latest
    return ChatCompletion(
        *head,
        choices,
        done.tally.usage(answers.num_reasoning_tokens),
        prompt_token_ids=prompt.prompt_token_ids if prompt and request.return_token_ids else UNSET,
        prompt_text=prompt.prompt if prompt and request.return_prompt_text else UNSET,
        prompt_logprobs=UNSET if done.prompt_logprobs is None else prompt_logprobs(done.prompt_logprobs),
    )


def _logprobs(answer: CompletionOutput, request: ChatRequest) -> ChatLogprobs | None:
    return chat_logprobs(answer, request.top_logprobs or 0, as_ids=bool(request.return_tokens_as_token_ids))


async def _chunks(outputs: Outputs, head: AnswerHead, request: ChatRequest, answers: AnswersReading) -> Events:
    """The events of a stream. An answer's role goes out with its first token, or clients would time the role."""
    tally = Tally()
    begun: set[int] = set()
    async with aclosing(outputs):
        async for output in outputs:
            tally.add(output)
            every_news = answers.take(output)
            usage = tally.usage(answers.num_reasoning_tokens) if request.wants_usage_in_every_chunk else UNSET
            for news in every_news:
                index = news.answer.index
                if index not in begun:
                    begun.add(index)
                    role = ChatChunkChoice(index, ChatDelta("assistant", ""))
                    prompt_ids = output.prompt_token_ids if request.return_token_ids else UNSET
                    text = output.prompt if request.return_prompt_text else UNSET
                    yield ChatChunk(*head, [role], usage, prompt_token_ids=prompt_ids, prompt_text=text)
                for choice in _chunk_choices(news, request):
                    yield ChatChunk(*head, [choice], usage)
    if request.wants_usage_chunk:
        yield ChatChunk(*head, [], tally.usage(answers.num_reasoning_tokens))


def _chunk_choices(news: News, request: ChatRequest) -> Iterator[ChatChunkChoice]:
    """What is new in an answer: one piece of content as a rule, none while a call is held back."""
    deltas = [delta_of(event) for event in news.events]
    logprobs = _logprobs(news.answer, request)
    token_ids = news.answer.token_ids if request.return_token_ids else UNSET
    if not deltas and (logprobs is not None or token_ids or news.finish_reason is not None):
        deltas = [ChatDelta()]
    for position, delta in enumerate(deltas, start=1):
        is_last = position == len(deltas)
        yield ChatChunkChoice(
            news.answer.index,
            delta,
            logprobs if position == 1 else None,
            news.finish_reason if is_last else None,
            news.answer.stop_reason if is_last else None,
            token_ids if position == 1 else UNSET,
        )
