"""``/v1/responses``: the questions of a chat in OpenAI's newer shape, and the responses that are kept."""

from __future__ import annotations

import time
import uuid
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from chiasm.errors import UserError, refuse
from chiasm.schema.chat import ChatMessage, TextPart
from chiasm.schema.sampling import SamplingParams
from chiasm.server.answers import Tally
from chiasm.server.bodies import json_response
from chiasm.server.body import read_request
from chiasm.server.conversation import Question, answer, effort_kwargs
from chiasm.server.generation import Outputs
from chiasm.server.logprobs import chat_logprobs
from chiasm.server.messages import AnswersReading, Reading, call_format
from chiasm.server.metrics import RequestWatch
from chiasm.server.openapi import ERROR_RESPONSES, answered_with, body_schema
from chiasm.server.requests import MAX_MESSAGES, ResponsesRequest
from chiasm.server.respond import Events, respond, stream
from chiasm.server.response_bodies import ResponseBody, ResponseDeleted, ResponseEvent, ResponseUsage
from chiasm.server.response_items import as_items, parse_items, unread_item_keys
from chiasm.server.response_store import ResponseStore, Turn
from chiasm.server.response_writer import ResponseWriter, response_usage
from chiasm.server.sampling import response_sampling
from chiasm.server.sse import StreamForm
from chiasm.server.state import ServerState, served_name
from chiasm.server.structured import answer_form, parse_structured_outputs
from chiasm.server.tools import ToolFields, parse_tool_use


def responses_router(state: ServerState) -> APIRouter:
    """The endpoints of responses of one server."""
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.post(
        "/v1/responses",
        openapi_extra=body_schema(ResponsesRequest),
        responses=answered_with(ResponseBody, ResponseEvent),
    )
    async def create_response(http: Request) -> Response:
        """Continue a conversation of text, images and videos."""
        watch = state.watch(http, time.perf_counter())
        return await _answer_request(state, http, await read_request(http, ResponsesRequest, state), watch)

    @router.get("/v1/responses/{response_id}", responses=answered_with(ResponseBody))
    async def retrieve_response(http: Request, response_id: str) -> Response:
        """A response that is kept."""
        stored = state.responses.find(response_id, _owner(http), "response_id")
        return Response(stored.body, media_type="application/json")

    @router.delete("/v1/responses/{response_id}", responses=answered_with(ResponseDeleted))
    async def delete_response(http: Request, response_id: str) -> Response:
        """Forget a response."""
        state.responses.delete(response_id, _owner(http), "response_id")
        return json_response(ResponseDeleted(response_id))

    @router.post("/v1/responses/{response_id}/cancel", status_code=400)
    async def cancel_response(http: Request, response_id: str) -> Response:
        """Refused for every response that there is: none is made in the background."""
        state.responses.find(response_id, _owner(http), "response_id")
        message = "Only responses made with background can be cancelled; close the connection of others."
        raise UserError(message, param="response_id")

    return router


async def _answer_request(
    state: ServerState, http: Request, request: ResponsesRequest, watch: RequestWatch
) -> Response:
    model = served_name(state, request.model)
    before = _turn_before(state, request, _owner(http))
    question = _question(state, request, before)
    writer = ResponseWriter(_body(state, request, question.sampling, model))
    keeper = _Keeper(state.responses, request, before, _owner(http))
    # The engine's name for it has the request's too, as that of a chat has.
    outputs = _naming_input(answer(state, question, f"{writer.body.id}-{http.state.request_id}", watch))
    events = _events(outputs, writer, AnswersReading(question.reading), request.top_logprobs or 0, keeper)
    if request.stream:
        form = StreamForm(is_named=True, failed=writer.fail, end=b"")
        return await respond(state, http, stream(state, events, form))
    return await respond(state, http, _whole(events, writer))


def _owner(http: Request) -> str:
    """Whose responses a request may see: those that came with the same key, where keys are needed."""
    return str(http.scope["state"].get("key") or "")


def _turn_before(state: ServerState, request: ResponsesRequest, owner: str) -> Turn | None:
    """The turn from which a request goes on.

    Raises:
        UserError: if it isn't kept, or the conversation is larger than one that could be sent in one request.
    """
    if request.store and not state.responses.is_on:
        refuse("store", True, "false: this server keeps no responses (max_stored_responses)")
    if request.previous_response_id is None:
        return None
    turn = state.responses.find(request.previous_response_id, owner, "previous_response_id").turn
    limit = state.config.max_body_bytes
    if turn.chain_bytes > limit:
        size = f"{turn.chain_bytes} bytes; at most {limit} are allowed"
        message = f"The conversation up to previous_response_id has {size}."
        raise UserError(message, param="previous_response_id")
    return turn


def _question(state: ServerState, request: ResponsesRequest, before: Turn | None) -> Question:
    asked = ToolFields(request.tools, request.tool_choice, request.parallel_tool_calls, "flat")
    tools = parse_tool_use(asked, state.config)
    asked_form = parse_structured_outputs(request, (request.text or {}).get("format"))
    form = answer_form(asked_form, tools, call_format(state.config, tools), state.engine.added_tokens)
    effort = effort_kwargs((request.reasoning or {}).get("effort"))
    messages = _messages(request, before)
    state.unknown_fields.warn(f"input.{key}" for key in unread_item_keys(as_items(request.input)))
    return Question(
        messages=messages,
        settings={
            "chat_template_kwargs": {**effort, **request.chat_template_kwargs},
            "mm_processor_kwargs": request.mm_processor_kwargs,
            "media_io_kwargs": request.media_io_kwargs,
            "tools": tools.offered,
            "cache_salt": request.cache_salt or "",
        },
        sampling=response_sampling(request, state.engine.default_sampling, form),
        reading=Reading(
            state, tools, has_form=form is not None, tells_reasoning=request.include_reasoning is not False
        ),
    )


def _messages(request: ResponsesRequest, before: Turn | None) -> tuple[ChatMessage, ...]:
    """The conversation so far. Instructions are those of this request alone."""
    messages: list[ChatMessage] = []
    if request.instructions is not None:
        messages.append(_text_message("system", request.instructions, "instructions"))
    for turn in before.so_far() if before is not None else ():
        items = [*msgspec.json.decode(turn.items), *msgspec.json.decode(turn.answer)]
        messages += parse_items(items, "previous_response_id")
    if isinstance(request.input, str):
        messages.append(_text_message("user", request.input, "input"))
    else:
        messages += parse_items(as_items(request.input), "input")
    if len(messages) > MAX_MESSAGES:
        refuse("previous_response_id", f"{len(messages)} messages", f"of at most {MAX_MESSAGES} messages")
    return tuple(messages)


def _text_message(role: str, text: str, param: str) -> ChatMessage:
    return ChatMessage(role, (TextPart(text),), param, content_field=param)


def _body(state: ServerState, request: ResponsesRequest, sampling: SamplingParams, model: str) -> ResponseBody:
    """The response before anything of it is there."""
    reasoning, text = request.reasoning or {}, request.text or {}
    return ResponseBody(
        id=f"resp_{uuid.uuid4().hex}",
        created_at=int(time.time()),
        model=model,
        status="in_progress",
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        metadata=request.metadata or {},
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        reasoning={"effort": reasoning.get("effort"), "summary": None},
        store=request.store is not False and state.responses.is_on,
        temperature=sampling.temperature,
        text={"format": text.get("format") or {"type": "text"}},
        tool_choice=request.tool_choice or "auto",
        tools=request.tools or [],
        top_logprobs=request.top_logprobs or 0,
        top_p=sampling.top_p,
    )


@dataclass(frozen=True)
class _Keeper:
    """Keeps a response, if it is to be kept.

    Attributes:
        responses: where.
        request: what it answers.
        before: the turn from which it goes on.
        owner: who may see it.
    """

    responses: ResponseStore
    request: ResponsesRequest
    before: Turn | None
    owner: str

    def making(self, body: ResponseBody) -> AbstractContextManager[None]:
        """The time until it is whole."""
        return self.responses.making(body.id, self.owner) if body.store else nullcontext()

    def keep(self, body: ResponseBody) -> bool:
        """Keep it now that it is whole; false if it can't be kept."""
        encode = msgspec.json.encode
        turn = Turn(encode(as_items(self.request.input)), encode(body.output), self.before)
        return self.responses.keep(body.id, self.owner, encode(body), turn)


async def _naming_input(outputs: Outputs) -> Outputs:
    """The same outputs; errors name the field by which the conversation goes here."""
    try:
        async with aclosing(outputs):
            async for output in outputs:
                yield output
    except UserError as error:
        if error.param != "messages":
            raise
        message = "input" + error.message.removeprefix("messages") if error.message.startswith("messages ") else None
        raise UserError(message or error.message, param="input", status=error.status) from error


async def _events(
    outputs: Outputs,
    writer: ResponseWriter,
    answers: AnswersReading,
    num_top: int,
    keeper: _Keeper,
) -> Events:
    """The events of a stream; the first goes out with the first token, so that earlier errors have a status."""
    tally = Tally()
    has_begun = False
    finish_reason: str | None = None
    with keeper.making(writer.body):
        async with aclosing(outputs):
            async for output in outputs:
                tally.add(output)
                for event in () if has_begun else writer.begin():
                    yield event
                has_begun = True
                for news in answers.take(output):
                    finish_reason = news.finish_reason
                    logprobs = chat_logprobs(news.answer, num_top) if news.is_said else None
                    for event in writer.take(news.events, logprobs.content if logprobs else ()):
                        yield event
        usage = response_usage(tally.usage(), answers.num_reasoning_tokens or 0)
        last = _last_events(writer, keeper, finish_reason, usage)
    for event in last:
        yield event


def _last_events(
    writer: ResponseWriter, keeper: _Keeper, finish_reason: str | None, usage: ResponseUsage
) -> list[ResponseEvent]:
    """The end of a response, which is kept before anybody can ask for it; the last event says whether it was."""
    *events, last = writer.end(finish_reason, usage)
    if writer.body.store and not keeper.keep(writer.body):
        writer.body = msgspec.structs.replace(writer.body, store=False)
        last = msgspec.structs.replace(last, response=writer.body)
    return [*events, last]


async def _whole(events: Events, writer: ResponseWriter) -> Response:
    async with aclosing(events):
        async for _ in events:
            continue
    return json_response(writer.body)
