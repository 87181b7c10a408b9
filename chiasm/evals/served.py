"""A server that is asked in place of the offline engine."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpcore2
import msgspec
from tqdm import tqdm

from chiasm.datasets.pictures import image_url
from chiasm.errors import UserError, refuse, shorten

_CONCURRENT = 8
_SECONDS = 600.0
_TIMEOUT = {"connect": 10.0, "read": _SECONDS, "write": _SECONDS, "pool": None}
_FAILURES = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, ValueError)
_OK = 200
_BUSY = (429, 503)
_WAITS = (1.0, 4.0, 16.0)  # seconds
_KEY = "OPENAI_API_KEY"


def ask_server(
    base_url: str,
    model: str | None,
    conversations: Sequence[Sequence[Mapping[str, Any]]],
    settings: Sequence[Mapping[str, Any]],
    *,
    use_tqdm: bool = False,
) -> list[str]:
    """Its answers; some questions are asked at a time.

    Args:
        base_url: of a server with ``/v1/chat/completions``. The key for it is OPENAI_API_KEY of the environment.
        model: as it calls it; None takes the first one that it lists.
        conversations: in the form of ``LLM.chat``, with pictures.
        settings: further fields of each request.
        use_tqdm: whether to show progress.

    Raises:
        UserError: if it doesn't answer, or refuses a question.
    """
    url = _url(base_url, "chat/completions")
    name = model or first_model(base_url)

    def ask(messages: Sequence[Mapping[str, Any]], own: Mapping[str, Any]) -> str:
        return _ask(pool, url, {"model": name, **own, "messages": [_message(message) for message in messages]})

    threads = ThreadPoolExecutor(_CONCURRENT)
    with httpcore2.ConnectionPool(max_connections=_CONCURRENT) as pool:
        try:
            answers = threads.map(ask, conversations, settings)
            return list(tqdm(answers, total=len(conversations), disable=not use_tqdm, dynamic_ncols=True))
        finally:
            threads.shutdown(cancel_futures=True)  # after the first failure, or Ctrl-C, the others aren't asked


def first_model(base_url: str) -> str:
    """The first one that a server lists.

    Raises:
        UserError: if there is none.
    """
    url = _url(base_url, "models")
    with httpcore2.ConnectionPool() as pool:
        listed = _exchange(pool, "GET", url, None)
    try:
        return str(listed["data"][0]["id"])
    except (TypeError, LookupError) as error:
        raise UserError(f"{url} lists no model.", param="base_url") from error


def _url(base_url: str, path: str) -> str:
    if not base_url.startswith(("http://", "https://")):
        refuse("base-url", base_url, "an http(s) URL")
    return f"{base_url.rstrip('/').removesuffix('/v1')}/v1/{path}"  # OpenAI's clients write it at the end


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message["content"]
    return {**message, "content": content if isinstance(content, str) else [_part(part) for part in content]}


def _part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    if part["type"] != "image":
        return part
    return {"type": "image_url", "image_url": {"url": image_url(part["image"], "PNG")}}


def _ask(pool: httpcore2.ConnectionPool, url: str, body: dict[str, Any]) -> str:
    answer = _exchange(pool, "POST", url, msgspec.json.encode(body), _WAITS)
    try:
        return str(answer["choices"][0]["message"]["content"] or "")
    except (TypeError, LookupError) as error:
        raise UserError(f"{url} does not answer as a chat endpoint does.", param="base_url") from error


def _exchange(
    pool: httpcore2.ConnectionPool, method: str, url: str, content: bytes | None, waits: Sequence[float] = ()
) -> Any:
    """The JSON that comes back.

    Args:
        pool: of connections.
        method: of HTTP.
        url: whom to ask.
        content: of the request.
        waits: seconds to wait before a busy server is asked again.

    Raises:
        UserError: if anything else comes back, or nothing.
    """
    answer = _send(pool, method, url, content)
    for seconds in waits:
        if answer.status not in _BUSY:
            break
        time.sleep(seconds)
        answer = _send(pool, method, url, content)
    if answer.status != _OK:
        said = shorten(answer.content.decode(errors="replace"))
        raise UserError(f"{url} answers with status {answer.status}: {said}", param="base_url")
    try:
        return msgspec.json.decode(answer.content)
    except msgspec.DecodeError as error:
        raise UserError(f"{url} does not answer with JSON.", param="base_url") from error


def _send(pool: httpcore2.ConnectionPool, method: str, url: str, content: bytes | None) -> httpcore2.Response:
    headers = [("Content-Type", "application/json")]
    if key := os.environ.get(_KEY):
        headers.append(("Authorization", f"Bearer {key}"))
    try:
        return pool.request(method, url, headers=headers, content=content, extensions={"timeout": _TIMEOUT})
    except _FAILURES as error:
        raise UserError(f"No answer from {url}: {type(error).__name__}.", param="base_url") from error
