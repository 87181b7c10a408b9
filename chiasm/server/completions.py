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

from chiasm.engine.frontend.admission import check_prompt_logprobs
from chiasm.schema.chat import PreparedPrompt
from chiasm.schema.sampling import SamplingParams
from chiasm.server.answers import Collected, Tally
from chiasm.server.bodies import Completion
from chiasm.server.body import read_request
from chiasm.server.echo import Choices, ShownPrompt, with_logprobs, without_answer
from chiasm.server.engine import Engine
from chiasm.server.generation import Outputs, run_prompt, run_together
from chiasm.server.metrics import RequestWatch
from chiasm.server.openapi import ERROR_RESPONSES, answered_with, body_schema
from chiasm.server.prompts import Prompt, parse_prompts
from chiasm.server.requests import CompletionRequest
from chiasm.server.respond import Events, respond, stream, whole
from chiasm.server.sampling import completion_sampling, truncation_of
from chiasm.server.state import AnswerHead, ServerState, answer_head


def completion_router(state: ServerState) -> APIRouter:
    """The completion endpoint of one server."""
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.post(
        "/v1/completions",
        openapi_extra=body_schema(CompletionRequest),
        responses=answered_with(Completion, Completion),
    )
    async def create_completion(http: Request) -> Response:
        """Continue a prompt."""
        arrival = time.perf_counter()
        request = await read_request(http, CompletionRequest, state)
        head = answer_head(state, http, "cmpl", request.model)
        sampling = completion_sampling(request, state.engine.default_sampling)
        prompts = parse_prompts(request.prompt)
        choices = Choices(request, sampling.n)
        outputs = _answer(state, choices, prompts, sampling, head.id, partial(state.watch, http, arrival))
        if request.stream:
            return await respond(state, http, stream(state, _chunks(outputs, head, choices)))
        return await respond(state, http, whole(outputs, partial(_completion, head, choices)))

    return router


async def _answer(
    state: ServerState,
    choices: Choices,
    prompts: list[Prompt],
    sampling: SamplingParams,
    request_id: str,
    watch: Callable[[], RequestWatch],
) -> Outputs:
    """The outputs of all prompts; answer ``i`` of prompt ``p`` has the index ``p * n + i``."""
    engine, request = state.engine, choices.request

    async def start(index: int, prompt: PreparedPrompt) -> Outputs:
        outputs = run_prompt(engine, prompt, sampling, f"{request_id}-{index}", watch())
        if sampling.prompt_logprobs is not None:
            outputs = with_logprobs(outputs, choices.shown[index])
        if request.max_tokens == 0:
            outputs = without_answer(outputs)
        async with aclosing(outputs):
            async for output in outputs:
                shifted = [msgspec.structs.replace(a, index=index * sampling.n + a.index) for a in output.outputs]
                yield msgspec.structs.replace(output, outputs=shifted)

    asking = "prompt" if len(prompts) > 1 else "n"
    with state.admission.admit(len(prompts) * sampling.n, asking):
        prepared = await _prepare(engine, prompts, choices, sampling)
        async with aclosing(run_together(engine, prepared, start)) as outputs:
            async for output in outputs:
                yield output


async def _prepare(
    engine: Engine, prompts: list[Prompt], choices: Choices, sampling: SamplingParams
) -> list[PreparedPrompt]:
    """Prepare all prompts before any runs, so that a bad one costs no computation."""
    request = choices.request
    cache_salt, truncation = request.cache_salt or "", truncation_of(request, sampling)
    prepared: list[PreparedPrompt] = []
    try:
        for prompt in prompts:
            ready = await engine.prepare_completion(
                prompt,
                cache_salt=cache_salt,
                truncation=truncation,
                add_special_tokens=request.add_special_tokens is not False,
            )
            prepared.append(ready)
            choices.shown.append(await ShownPrompt.of(ready, engine, is_echoed=bool(request.echo)))
        check_prompt_logprobs(sum(len(ready.token_ids) for ready in prepared), sampling.prompt_logprobs)
    except BaseException:
        for ready in prepared:
            await engine.release(ready)
        raise
    return prepared


def _completion(head: AnswerHead, choices: Choices, done: Collected) -> Completion:
    return Completion(*head, [choices.make(answer) for answer in done.answers], done.tally.usage())


async def _chunks(outputs: Outputs, head: AnswerHead, choices: Choices) -> Events:
    tally = Tally()
    request = choices.request
    async with aclosing(outputs):
        async for output in outputs:
            tally.add(output)
            usage = tally.usage() if request.wants_usage_in_every_chunk else UNSET
            for answer in output.outputs:
                yield Completion(*head, [choices.make(answer)], usage)
    if request.wants_usage_chunk:
        yield Completion(*head, [], tally.usage())
