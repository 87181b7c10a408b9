"""``/tokenize``, ``/detokenize`` and ``/tokenizer_info``: what prompts are made of, as vLLM's clients ask for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from chiasm.server.bodies import Detokenized, Tokenized, json_response
from chiasm.server.body import read_fields, read_request, validate
from chiasm.server.chat import chat_question
from chiasm.server.conversation import Question
from chiasm.server.openapi import ERROR_RESPONSES, answered_with, body_schema
from chiasm.server.requests import DetokenizeRequest, TokenizeChatRequest, TokenizeTextRequest
from chiasm.server.respond import respond
from chiasm.server.state import ServerState, served_name


def token_router(state: ServerState) -> APIRouter:
    """The endpoints of one server that are about tokens."""
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.post(
        "/tokenize",
        openapi_extra=body_schema(TokenizeChatRequest, TokenizeTextRequest),
        responses=answered_with(Tokenized),
    )
    async def tokenize(http: Request) -> Response:
        """The tokens of a prompt, or of a conversation with its media, as an answer to it would count them."""
        fields = await read_fields(http, state)
        if fields.get("messages") is None:
            fields.pop("messages", None)  # null is left out
            text = validate(TokenizeTextRequest, fields, state)
            served_name(state, text.model)
            work = _prompt(state, text)
        else:
            chat = validate(TokenizeChatRequest, fields, state)
            served_name(state, chat.model)
            work = _conversation(state, chat_question(state, chat), bool(chat.return_token_strs))
        del fields
        return await respond(state, http, work)

    @router.post("/detokenize", openapi_extra=body_schema(DetokenizeRequest), responses=answered_with(Detokenized))
    async def detokenize(http: Request) -> Response:
        """The text of tokens."""
        request = await read_request(http, DetokenizeRequest, state)
        served_name(state, request.model)
        return await respond(state, http, _text(state, request.tokens))

    @router.get("/tokenizer_info", responses=answered_with(dict[str, Any]))
    async def tokenizer_info() -> Response:
        """The tokenizer's class and special tokens, and the chat template."""
        return Response(msgspec.json.encode(dict(state.engine.tokenizer_info)), media_type="application/json")

    return router


async def _conversation(state: ServerState, question: Question, with_strings: bool) -> Response:
    """Prepared as for an answer; what its images became is still at hand when that is asked for."""
    with state.admission.admit(1):
        prompt = await state.engine.prepare_chat(question.messages, **question.settings)
        await state.engine.release(prompt)
    return _tokenized(state, prompt.token_ids, with_strings)


async def _prompt(state: ServerState, request: TokenizeTextRequest) -> Response:
    with state.admission.admit(1):
        add_special_tokens = request.add_special_tokens is not False
        token_ids = await state.engine.tokenize(request.prompt, add_special_tokens=add_special_tokens)
    return _tokenized(state, token_ids, bool(request.return_token_strs))


async def _text(state: ServerState, token_ids: list[int]) -> Response:
    with state.admission.admit(1):
        return json_response(Detokenized(await state.engine.detokenize(token_ids)))


def _tokenized(state: ServerState, token_ids: Sequence[int], with_strings: bool) -> Response:
    strings = state.engine.token_strings(token_ids) if with_strings else None
    return json_response(Tokenized(len(token_ids), state.engine.max_model_len, list(token_ids), strings))
