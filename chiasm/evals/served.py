"""A server that is asked in place of the offline engine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpcore2
import msgspec

from chiasm.datasets.pictures import image_url
from chiasm.errors import UserError, shorten
from chiasm.evals.charts.examples import Example

_CONCURRENT = 8
_SECONDS = 600.0
_TIMEOUT = {"connect": 10.0, "read": _SECONDS, "write": _SECONDS, "pool": None}
_FAILURES = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, ValueError)
_OK = 200
_KEY = "OPENAI_API_KEY"


def ask_server(base_url: str, model: str | None, examples: Sequence[Example], max_tokens: int) -> list[str]:
    """Its answers, decoded greedily; some questions are asked at a time.

    Args:
        base_url: of a server with ``/v1/chat/completions``. The key for it is OPENAI_API_KEY of the environment.
        model: as it calls it; None takes the first one that it lists.
        examples: questions.
        max_tokens: of each answer.

    Raises:
        UserError: if it doesn't answer, or refuses a question.
    """
    url = f"{base_url.rstrip('/')}/v1/chat/completions"
    fields = {"model": model or first_model(base_url), "temperature": 0, "max_tokens": max_tokens}
    bodies = [{**fields, "messages": [_message(example)]} for example in examples]
    with httpcore2.ConnectionPool(max_connections=_CONCURRENT) as pool, ThreadPoolExecutor(_CONCURRENT) as threads:
        return list(threads.map(lambda body: _ask(pool, url, body), bodies))


def first_model(base_url: str) -> str:
    """The first one that a server lists.

    Raises:
        UserError: if there is none.
    """
    url = f"{base_url.rstrip('/')}/v1/models"
    with httpcore2.ConnectionPool() as pool:
        listed = _exchange(pool, "GET", url, None)
    try:
        return str(listed["data"][0]["id"])
    except (TypeError, LookupError) as error:
        raise UserError(f"{url} lists no model.", param="base_url") from error


def _message(example: Example) -> dict[str, Any]:
    pictures = [{"type": "image_url", "image_url": {"url": image_url(image, "PNG")}} for image in example.images]
    return {"role": "user", "content": [*pictures, {"type": "text", "text": example.question}]}


def _ask(pool: httpcore2.ConnectionPool, url: str, body: dict[str, Any]) -> str:
    answer = _exchange(pool, "POST", url, msgspec.json.encode(body))
    try:
        return str(answer["choices"][0]["message"]["content"] or "")
    except (TypeError, LookupError) as error:
        raise UserError(f"{url} does not answer as a chat endpoint does.", param="base_url") from error


def _exchange(pool: httpcore2.ConnectionPool, method: str, url: str, content: bytes | None) -> Any:
    """The JSON that comes back.

    Raises:
        UserError: if anything else does, or nothing.
    """
    headers = [("Content-Type", "application/json")]
    if key := os.environ.get(_KEY):
        headers.append(("Authorization", f"Bearer {key}"))
    try:
        answer = pool.request(method, url, headers=headers, content=content, extensions={"timeout": _TIMEOUT})
    except _FAILURES as error:
        raise UserError(f"No answer from {url}: {type(error).__name__}.", param="base_url") from error
    if answer.status != _OK:
        said = shorten(answer.content.decode(errors="replace"))
        raise UserError(f"{url} answers with status {answer.status}: {said}", param="base_url")
    try:
        return msgspec.json.decode(answer.content)
    except msgspec.DecodeError as error:
        raise UserError(f"{url} does not answer with JSON.", param="base_url") from error
