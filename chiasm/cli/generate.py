"""``chiasm generate``: one question, answered on standard output as the tokens come."""

from __future__ import annotations

import asyncio
import base64
import mimetypes
import sys
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import typer

from chiasm.cli import engine as engines
from chiasm.cli.option_groups import with_option_groups
from chiasm.cli.options import ConfigFile, EngineOptions, SamplingOptions
from chiasm.cli.settings import sampling_params
from chiasm.errors import UserError
from chiasm.logs import configure_logging
from chiasm.schema.chat import ChatMessage, ContentPart, ImagePart, TextPart
from chiasm.server.engine import Engine

_URL_SCHEMES = ("http:", "https:", "data:")


@with_option_groups
def generate(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[MODEL] QUESTION", help="A checkpoint (the built-in one if not given); what to ask."),
    ],
    image: Annotated[list[str] | None, typer.Option(metavar="FILE", help="Picture, or its URL; repeatable.")] = None,
    *,
    config: ConfigFile = None,  # noqa: ARG001 - its callback has used it
    engine: EngineOptions,
    sampling: SamplingOptions,
) -> int:
    """Ask a model one question about pictures."""
    configure_logging("generate", "WARNING")
    *models, question = words
    if len(models) > 1:
        raise UserError(f"one MODEL and one QUESTION are taken, not {len(words)} words; quote the question.")
    message = _message(question, image or ())
    settings = engines.located_config(models[0] if models else None, engine)

    async def run() -> None:
        loaded = await engines.start_engine(settings, engine.chat_template)
        try:
            await _answer(loaded, message, sampling)
        finally:
            await loaded.shutdown()

    asyncio.run(run())
    return 0


async def _answer(engine: Engine, message: ChatMessage, options: SamplingOptions) -> None:
    sampling = sampling_params(options, engine.default_sampling)
    prompt = await engine.prepare_chat([message])
    async with aclosing(engine.generate(prompt, sampling, "generate")) as outputs:
        async for output in outputs:
            sys.stdout.write("".join(answer.text for answer in output.outputs))
            sys.stdout.flush()
    sys.stdout.write("\n")


def _message(question: str, images: Sequence[str]) -> ChatMessage:
    """The pictures in order, then the question: the order that models are trained on."""
    pictures: list[ContentPart] = [ImagePart(_as_url(image), f"--image {image[:80]}") for image in images]
    return ChatMessage("user", (*pictures, TextPart(question)), "question")


def _as_url(image: str) -> str:
    if image.lower().startswith(_URL_SCHEMES):
        return image
    try:
        content = Path(image).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"image {image[:80]!r} can't be read: {error.strerror}.", param="image") from error
    kind = mimetypes.guess_type(image)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
