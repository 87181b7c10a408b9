"""``/v1/completions``: plain continuation of one or several prompts."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import aclosing
from functools import partial

import msgspec
from fastapi import APIRouter, Request
from msgspec import UNSET
from starlette.responses import Response

from chiasm.errors import UserError
from chiasm.schema.chat import PreparedPrompt
from chiasm.schema.output import CompletionOutput
from chiasm.schema.sampling import SamplingParams
from chiasm.server.answers import Collected, Tally
from chiasm.server.bodies import Completion, CompletionChoice
from chiasm.server.body import read_request
from chiasm.server.engine import Engine
from chiasm.server.generation import Outputs, run_prompt, run_together
from chiasm.server.logprobs import completion_logprobs
from chiasm.server.metrics import RequestWatch
from chiasm.server.openapi import ERROR_RESPONSES, body_schema
from chiasm.server.prompts import Prompt, parse_prompts
from chiasm.server.requests import CompletionRequest
from chiasm.server.respond import Events, respond, stream, whole
from chiasm.server.sampling import completion_sampling
from chiasm.server.state import AnswerHead, ServerState, answer_head


def completion_router(state: ServerState) -> APIRouter:
    """The completion endpoint of one server."""
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.post("/v1/completions", openapi_extra=body_schema(CompletionRequest))
    async def create_completion(http: Request) -> Response:
        """Continue a prompt."""
        arrival = time.perf_counter()
        request = await read_request(http, CompletionRequest, state)
        head = answer_head(state, http, "cmpl", request.model)
        sampling = completion_sampling(request, state.engine.default_sampling)
        prompts = parse_prompts(request.prompt)
        echoes = _echoes(prompts) if request.echo else [""] * len(prompts)
        echoes = [echo for echo in echoes for _ in range(sampling.n)]
        outputs = _answer(state, request, prompts, sampling, head.id, partial(state.watch, http, arrival))
        if request.stream:
            return await respond(state, http, stream(state, _chunks(outputs, head, request, echoes)))
        return await respond(state, http, whole(outputs, partial(_completion, head, echoes)))

    return router


def _echoes(prompts: list[Prompt]) -> list[str]:
    if not all(isinstance(prompt, str) for prompt in prompts):
        raise UserError("echo needs prompts that are strings, not token ids.", param="echo")
    return [prompt for prompt in prompts if isinstance(prompt, str)]


async def _answer(
    state: ServerState,
    request: CompletionRequest,
    prompts: list[Prompt],
    sampling: SamplingParams,
    request_id: str,
    watch: Callable[[], RequestWatch],
) -> Outputs:
    """The outputs of all prompts; answer ``i`` of prompt ``p`` has the index ``p * n + i``."""

    async def start(index: int, prompt: PreparedPrompt) -> Outputs:
        outputs = run_prompt(state.engine, prompt, sampling, f"{request_id}-{index}", watch())
        async with aclosing(outputs):
            async for output in outputs:
                shifted = [msgspec.structs.replace(a, index=index * sampling.n + a.index) for a in output.outputs]
                yield msgspec.structs.replace(output, outputs=shifted)

    with state.admission.admit(len(prompts) * sampling.n):
        prepared = await _prepare(state.engine, prompts, request.cache_salt or "")
        async with aclosing(run_together(state.engine, prepared, start)) as outputs:
            async for output in outputs:
                yield output


async def _prepare(engine: Engine, prompts: list[Prompt], cache_salt: str) -> list[PreparedPrompt]:
    """Prepare all prompts before any runs, so that a bad one costs no computation."""
    prepared: list[PreparedPrompt] = []
    try:
        for prompt in prompts:
            ready = await engine.prepare_completion(prompt, cache_salt=cache_salt)
            prepared.append(ready)
    except BaseException:
        for ready in prepared:
            await engine.release(ready)
        raise
    return prepared


def _completion(head: AnswerHead, echoes: list[str], done: Collected) -> Completion:
    return Completion(
        *head, [_choice(answer, echoes[answer.index], offset=0) for answer in done.answers], done.tally.usage()
    )


async def _chunks(outputs: Outputs, head: AnswerHead, request: CompletionRequest, echoes: list[str]) -> Events:
    tally = Tally()
    offsets = [0] * len(echoes)  # characters already sent of each answer
    async with aclosing(outputs):
        async for output in outputs:
            tally.add(output)
            usage = tally.usage() if request.wants_usage_in_every_chunk else UNSET
            for answer in output.outputs:
                echo, echoes[answer.index] = echoes[answer.index], ""
                yield Completion(*head, [_choice(answer, echo, offsets[answer.index])], usage)
                offsets[answer.index] += len(answer.text)
    if request.wants_usage_chunk:
        yield Completion(*head, [], tally.usage())


def _choice(answer: CompletionOutput, echo: str, offset: int) -> CompletionChoice:
    return CompletionChoice(
        index=answer.index,
        text=echo + answer.text,
        logprobs=completion_logprobs(answer, offset),
        finish_reason=answer.finish_reason,
        stop_reason=answer.stop_reason,
    )
