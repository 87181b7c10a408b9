"""What the load generator makes of servers that answer in other ways than ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from chiasm.bench.serve.client import ChatClient
from chiasm.bench.serve.metrics import Outcome
from chiasm.errors import UserError


def event(fields: object) -> bytes:
    return b"data: " + json.dumps(fields, ensure_ascii=False).encode() + b"\n\n"


def said(text: str | None, **more: Any) -> bytes:
    return event({"choices": [{"delta": {"content": text, **more}}]})


ROLE = said(None, role="assistant")
USAGE = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}})
ANSWER = b"".join([ROLE, said("é"), said("€😀"), USAGE, b"data: [DONE]\n\n"])


def asked(pieces: Sequence[bytes], health: int = 200) -> Outcome:
    """What came of a request that a server answers with these pieces, each sent by itself."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"/health" in head:
            writer.write(f"HTTP/1.1 {health} Any\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        for piece in () if b"/health" in head else pieces:
            writer.write(piece)
            await writer.drain()
        writer.close()

    async def ask() -> Outcome:
        outcome = Outcome()
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with ChatClient(f"http://127.0.0.1:{port}") as client:
                await client.wait_until_ready(0)
                await client.ask({}, "one", outcome)
        return outcome

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "pieces",
    [
        [ANSWER],
        [ANSWER[index : index + 1] for index in range(len(ANSWER))],  # characters and lines are cut
        [ANSWER.replace(b"\n", b"\r\n")],
        [b": still here\n\n", *ANSWER.splitlines(keepends=True), b": still here\n\n"],
    ],
    ids=["at once", "byte by byte", "with carriage returns", "with comments"],
)
def test_events_are_read_however_they_come(pieces: list[bytes]) -> None:
    outcome = asked(pieces)
    assert outcome.error == ""
    assert (outcome.text, len(outcome.events)) == ("é€😀", 3)
    assert (outcome.prompt_tokens, outcome.completion_tokens) == (7, 2)


@pytest.mark.parametrize(
    ("odd", "error"),
    [
        (event({"choices": ["x"]}), "choices"),
        (event({"choices": {"a": 1}}), "choices"),
        (event({"choices": [], "usage": "many"}), "usage"),
        (event({"choices": [], "usage": {"prompt_tokens": "5"}}), "prompt_tokens"),
        (event({"choices": [], "usage": {"completion_tokens": -5}}), "completion_tokens"),
        (event({"choices": [{"delta": {"content": [1]}}]}), "content"),
        (event([1]), "got `array`"),
        (b"data: <html>\n\n", "malformed"),
        (event({"error": {"message": "full"}}), "full"),
    ],
)
def test_an_event_that_is_none_of_a_chat_fails_its_request_alone(odd: bytes, error: str) -> None:
    assert error in asked([ROLE, odd, said("x")]).error


def test_events_with_text_are_tokens_where_the_server_counts_none() -> None:
    outcome = asked([ROLE, said("a"), said(None, reasoning_content="b"), said("")])
    assert (outcome.num_tokens, len(outcome.events), outcome.text) == (2, 4, "ab")


@pytest.mark.parametrize("status", [401, 404, 405])
def test_a_server_without_a_health_path_is_ready_once_it_answers(status: int) -> None:
    assert asked([ANSWER], health=status).succeeded


def test_a_server_that_says_it_is_not_ready_is_not() -> None:
    with pytest.raises(UserError, match="No server is ready"):
        asked([ANSWER], health=503)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:99999", "http://[::1", "http://x:y", "http://a b", "http://exämple", "http://x?a", "http://"],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(UserError) as caught:
        ChatClient(url)
    assert caught.value.param == "base_url"


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"endpoint": "v1/chat"}, "endpoint"),
        ({"headers": {"X": "é"}}, "header"),
        ({"headers": {"X": "a\nb"}}, "header"),
    ],
)
def test_what_no_request_can_have_is_refused(settings: dict[str, Any], param: str) -> None:
    with pytest.raises(UserError) as caught:
        ChatClient("http://x", **settings)
    assert caught.value.param == param
