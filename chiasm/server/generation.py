"""From prepared prompts to their answers: streams of ``RequestOutput``, measured, closed whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from chiasm.schema.chat import PreparedPrompt
from chiasm.schema.output import RequestOutput
from chiasm.schema.sampling import SamplingParams
from chiasm.server.engine import Engine
from chiasm.server.metrics import RequestWatch

Outputs = AsyncGenerator[RequestOutput, None]
_QUEUED_PER_PROMPT = 4  # outputs that may wait for a slow reader before its prompts wait too


async def run_prompt(
    engine: Engine, prompt: PreparedPrompt, sampling: SamplingParams, request_id: str, watch: RequestWatch
) -> Outputs:
    """The outputs of one prompt; closing the generator aborts it in the engine."""
    async with aclosing(engine.generate(prompt, sampling, request_id)) as outputs:
        with watch:
            watch.prepared(prompt)
            async for output in outputs:
                watch.saw(output)
                yield output


async def run_together(
    engine: Engine, prompts: Sequence[PreparedPrompt], start: Callable[[int, PreparedPrompt], Outputs]
) -> Outputs:
    """The outputs of several prompts as they come; the first error ends all of them.

    Args:
        engine: takes back the prompts that were never started.
        prompts: what to run.
        start: makes the stream of one prompt from its index and itself.
    """
    queue: asyncio.Queue[RequestOutput | Exception | None] = asyncio.Queue(_QUEUED_PER_PROMPT * len(prompts))
    unstarted = dict(enumerate(prompts))

    async def pump(index: int) -> None:
        try:
            async with aclosing(start(index, unstarted.pop(index))) as outputs:
                async for output in outputs:
                    await queue.put(output)
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(None)

    tasks = [asyncio.create_task(pump(index)) for index in range(len(prompts))]
    num_left = len(tasks)
    try:
        while num_left:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_left -= 1
            else:
                yield item
    finally:
        item = None  # an error that is raised holds this frame, which must not hold it: see run_unless
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for prompt in unstarted.values():
            await engine.release(prompt)
