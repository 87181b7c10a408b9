"""Bad requests: the shape of every error, its size, and that it names the field and the limit."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx2
import openai
import pytest

from chiasm.errors import EngineDeadError, OverloadedError, UserError
from tests.server.fake_engine import FakeEngine
from tests.server.running import RunningServer
from tests.server.test_chat import HELLO, events_of

JSON = {"content-type": "application/json"}


def error_of(response: httpx2.Response, status: int) -> dict[str, Any]:
    """The error in a response, whose shape and size are checked."""
    assert response.status_code == status, response.text[:300]
    assert len(response.content) < 4096
    body = response.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    assert response.headers["x-request-id"]
    return dict(error)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"temperature": 3.0}, "temperature", "temperature must be in [0, 2], got 3.0."),
        ({"n": 10**9}, "n", "n must be in [1, 16], got 1000000000."),
        ({"top_p": -0.5}, "top_p", "top_p must be in [0, 1], got -0.5."),
        ({"seed": 2**63}, "seed", "seed must be a whole number of at most 63 bits, got 9223372036854775808."),
        ({"max_tokens": 0}, "max_tokens", "max_tokens: Input should be greater than or equal to 1, got 0."),
        ({"stop": [""]}, "stop", "stop must be strings of 1 to 1000 characters, got ''."),
        ({"stop": ["a", 5]}, "stop", "stop[1]: Input should be a valid string, got 5."),
        ({"top_logprobs": 2}, "top_logprobs", "top_logprobs needs logprobs to be true."),
        (
            {"max_tokens": 2**63},
            "max_tokens",
            "max_tokens must be a whole number of at most 63 bits, got 9223372036854775808.",
        ),
        (
            {"min_tokens": 10**12, "max_tokens": 9},
            "min_tokens",
            "min_tokens must be in [0, max_tokens=9], got 1000000000000.",
        ),
        ({"logit_bias": {"-1": 5}}, "logit_bias", "logit_bias must be token ids with a number for each, got '-1'."),
        ({"logit_bias": {"x": 5}}, "logit_bias", "logit_bias must be token ids with a number for each, got 'x'."),
        ({"logit_bias": {"5": 101}}, "logit_bias", "logit_bias must be in [-100, 100], got 101.0."),
        (
            {"allowed_token_ids": []},
            "allowed_token_ids",
            "allowed_token_ids must be 1 to 65536 tokens, got '0 tokens'.",
        ),
        ({"bad_words": [""]}, "bad_words", "bad_words must be strings of 1 to 200 characters, got ''."),
        (
            {"prompt_logprobs": 1, "stream": True},
            "prompt_logprobs",
            "prompt_logprobs are not streamed; stream must be false, or echo with logprobs be asked for.",
        ),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream_options needs stream to be true."),
        (
            {"add_generation_prompt": True, "continue_final_message": True},
            "continue_final_message",
            "continue_final_message and add_generation_prompt can't both be true.",
        ),
    ],
)
def test_parameters(server: RunningServer, fields: dict[str, Any], param: str, message: str) -> None:
    error = error_of(server.chat(**fields), 400)
    assert error["param"] == param
    assert error["message"] == message
    assert error["type"] == "BadRequestError"


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (None, "messages[0].content"),
        (5, "messages[0].content"),
        ([5], "messages[0].content[0]"),
        ([{}], "messages[0].content[0].type"),
        ([{"type": "text"}], "messages[0].content[0].text"),
        ([{"type": "text", "text": 5}], "messages[0].content[0].text"),
        (["a", {"type": "image_url", "image_url": {}}], "messages[0].content[1].image_url.url"),
        ([{"type": "image_url", "image_url": None, "uuid": "x"}], "messages[0].content[0].image_url"),
        ([{"type": "input_audio", "input_audio": {}}], "messages[0].content[0].type"),
        ([{"audio_url": {"url": "data:"}}], "messages[0].content[0].type"),
        ([{"type": "video_url", "video_url": {}}], "messages[0].content[0].video_url.url"),
        ([{"type": ["text"]}], "messages[0].content[0].type"),
        (["a"] * 5000, "messages"),
    ],
)
def test_contents(server: RunningServer, content: Any, param: str) -> None:
    assert error_of(server.chat(content), 400)["param"] == param


@pytest.mark.parametrize("messages", [None, [], "hi", [5], [{"role": "king", "content": "hi"}], [{"content": "hi"}]])
def test_messages(server: RunningServer, messages: Any) -> None:
    error = error_of(server.client.post("/v1/chat/completions", json={"messages": messages}), 400)
    assert error["param"].startswith("messages")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b"null",
        b'{"messages": [], }',
        b'{"temperature": 1e999}',
        b'{"user": "\\ud800"}',
        b'{"user": "\xff"}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
    ],
)
def test_malformed_bodies(server: RunningServer, body: bytes) -> None:
    response = server.client.post("/v1/chat/completions", content=body, headers=JSON)
    assert "JSON" in error_of(response, 400)["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"logit_bias": {"5": "much"}}, "logit_bias"),
        ({"allowed_token_ids": [5] * 65_537}, "allowed_token_ids"),
        ({"allowed_token_ids": ["x"]}, "allowed_token_ids"),
        ({"stop_token_ids": [5] * 257}, "stop_token_ids"),
        ({"bad_words": ["x"] * 129}, "bad_words"),
        ({"bad_words": "x" * 201}, "bad_words"),
        ({"prompt_logprobs": 10**9}, "prompt_logprobs"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"cache_salt": "s" * 10_000_000}, "cache_salt"),
        ({"n": 2**63}, "n"),
        ({"min_tokens": -(2**63)}, "min_tokens"),
        ({"top_logprobs": 10**9, "logprobs": True}, "top_logprobs"),
    ],
)
def test_parameters_without_bounds(server: RunningServer, fields: dict[str, Any], param: str) -> None:
    assert error_of(server.chat(**fields), 400)["param"] == param


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity"])
def test_numbers_that_json_does_not_have_are_refused_by_the_name_of_their_field(
    server: RunningServer, value: bytes
) -> None:
    body = b'{"messages": [{"role": "user", "content": "Hi"}], "temperature": ' + value + b"}"
    error = error_of(server.client.post("/v1/chat/completions", content=body, headers=JSON), 400)
    assert error["param"] == "temperature"
    assert error["message"] == f"temperature must be a finite number, got {value.decode()}."


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_other_content_types(server: RunningServer, content_type: str) -> None:
    response = server.client.post(
        "/v1/chat/completions", content=json.dumps({"messages": HELLO}), headers={"content-type": content_type}
    )
    assert error_of(response, 400)["message"] == "Unsupported Media Type: Only 'application/json' is allowed."


def test_a_content_type_with_a_charset(server: RunningServer) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    response = server.client.post("/v1/chat/completions", content=json.dumps({"messages": HELLO}), headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": "x" * 1_000_000},
        {"messages": ["x" * 1_000_000]},
        {"messages": [{"role": "user", "content": [{"type": "x" * 1000}] * 4000}]},
        {"messages": [{"role": "user", "content": [5] * 4000}]},
        {"messages": [5] * 12_000},
        {"stop": [5] * 100_000},
        {"stop_token_ids": ["x"] * 100_000},
        {"x" * 100_000: 1, "temperature": 9},
        {"stream": True, "stream_options": {"y" * 100_000 + str(i): 7 for i in range(9)}},
        {"chat_template_kwargs": ["z" * 1000] * 1000},
        {"cache_salt": "s" * 1_000_000},
        {"model": "m" * 1_000_000},
        dict.fromkeys(("n", "seed", "top_k", "top_p", "min_p", "temperature", "max_tokens", "min_tokens", "logprobs",
                       "ignore_eos", "stream", "presence_penalty", "frequency_penalty"), "w" * 100_000),
    ],
)  # fmt: skip
def test_answers_to_huge_nonsense_are_small(server: RunningServer, fields: dict[str, Any]) -> None:
    """Threat: amplification."""
    response = server.client.post("/v1/chat/completions", json={"messages": HELLO, **fields})
    assert response.status_code in {400, 404}
    error_of(response, response.status_code)


def test_several_mistakes_are_listed(server: RunningServer) -> None:
    error = error_of(server.chat(temperature="hot", max_tokens="many"), 400)
    first, *rest = error["message"].split("\n")
    assert first == "2 validation errors:"
    assert [line.split(":")[0] for line in rest] == ["temperature", "max_tokens"]
    assert error["param"] == "temperature"


def test_an_unknown_model(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="The model 'gpt' does not exist") as caught:
        client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "Hi"}])
    assert caught.value.param == "model"


def test_unknown_routes_and_methods(server: RunningServer) -> None:
    assert error_of(server.client.get("/nowhere"), 404)["message"] == "Not Found"
    assert error_of(server.client.get("/health/"), 404)["type"] == "Not Found"
    response = server.client.get("/v1/chat/completions")
    assert error_of(response, 405)["type"] == "Method Not Allowed"
    assert response.headers["allow"] == "POST"


def test_errors_of_the_engine(server: RunningServer, engine: FakeEngine) -> None:
    engine.prepare_error = UserError("The image is broken.", param="messages[0].content[1].image_url.url", status=422)
    error = error_of(server.chat(), 422)
    assert (error["message"], error["type"]) == ("The image is broken.", "UnprocessableEntityError")
    engine.prepare_error = RuntimeError("secret at 0x7f00")
    assert error_of(server.chat(), 500)["message"] == "Internal server error."
    engine.prepare_error = EngineDeadError("rank 1 died")
    assert error_of(server.chat(), 500)["message"] == "The engine has stopped; this server is going down."


def test_overload_says_when_to_try_again(server: RunningServer, engine: FakeEngine) -> None:
    refused = 'chiasm:admission_rejections_total{reason="queue"}'
    before = server.metric(refused)
    engine.generate_error = OverloadedError("Too much.", retry_after=7)
    for stream in (False, True):
        response = server.chat(stream=stream)
        assert error_of(response, 503)["type"] == "Service Unavailable"
        assert response.headers["retry-after"] == "7"
    assert server.metric(refused) == before + 2


def test_an_error_before_the_first_token_of_a_stream_has_a_status(server: RunningServer, engine: FakeEngine) -> None:
    engine.generate_error = UserError("stop_token_ids must be below 1000, got 5000.", param="stop_token_ids")
    assert error_of(server.chat(stream=True), 400)["param"] == "stop_token_ids"


@pytest.mark.parametrize("error", [RuntimeError("secret"), EngineDeadError("rank 1 died")])
def test_an_error_within_a_stream_is_an_event(server: RunningServer, engine: FakeEngine, error: Exception) -> None:
    engine.generate_error = error
    engine.words_before_error = 2
    response = server.chat(stream=True)
    assert response.status_code == 200
    *_, last = events_of(response.text)
    assert last["error"]["code"] == 500
    assert last["error"]["type"] == "InternalServerError"
    assert "secret" not in response.text


def test_openai_raises_on_an_error_within_a_stream(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.generate_error = EngineDeadError("rank 1 died")
    engine.words_before_error = 2
    stream = client.chat.completions.create(
        model="org/fake-vl", messages=[{"role": "user", "content": "Hi"}], stream=True
    )
    with pytest.raises(openai.APIError, match="engine has stopped"):
        list(stream)


@pytest.fixture(scope="module")
def small_server() -> Any:
    """A server that takes bodies of at most 10,000 bytes."""
    with RunningServer(max_body_bytes=10_000) as server:
        yield server


def test_a_declared_body_that_is_too_large(small_server: RunningServer) -> None:
    response = small_server.chat("x" * 20_000_000)
    assert error_of(response, 413)["message"] == "The body must be at most 10000 bytes."


def test_a_chunked_body_without_end_is_cut_off(small_server: RunningServer) -> None:
    with small_server.connect() as sock:
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        piece = b"1000\r\n" + b" " * 0x1000 + b"\r\n"
        received = send_until_answered(sock, piece)
    assert received.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in received


def test_a_body_of_millions_of_values(server: RunningServer) -> None:
    """Threat: amplification: few bytes of JSON can become many of memory."""
    error = error_of(server.complete([[]] * 300_000), 413)
    assert error["message"] == "The body must hold at most 400000 JSON values."


def test_a_large_body_within_the_limit(server: RunningServer) -> None:
    assert server.chat("x" * 8_000_000).status_code == 200


@pytest.mark.parametrize("start", [b"GET /health HTTP/1.1\r\nX: ", b"GET /", b"GET /health HTTP/1.1\r\n"])
def test_a_head_without_end_is_cut_off(server: RunningServer, start: bytes) -> None:
    """Threat: header size (CVE-2025-48956)."""
    piece = b"Y: z\r\n" * 1000 if start.endswith(b"\r\n") else b"a" * 5000
    with server.connect() as sock:
        sock.sendall(start)
        received = send_until_answered(sock, piece)
    assert received.startswith(b"HTTP/1.1 431 ")
    assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"] == 431


def test_what_is_not_http(server: RunningServer) -> None:
    with server.connect() as sock:
        received = send_until_answered(sock, b"\x80\x04pickle\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 400 ")
    assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["message"] == "Invalid HTTP request received."


def send_until_answered(sock: socket.socket, piece: bytes) -> bytes:
    """Send the same over and over until the server answers; fail after 20 MB."""
    received = b""
    sock.settimeout(0.005)
    for _ in range(20_000_000 // len(piece)):
        try:
            sock.sendall(piece)
        except TimeoutError:
            pass
        except OSError:
            break
        try:
            received += sock.recv(65536)
        except TimeoutError:
            continue
        except OSError:
            break
        if received:
            break
    return received


def test_a_host_of_media_that_is_out_of_order_may_be_asked_again(server: RunningServer, engine: FakeEngine) -> None:
    engine.prepare_error = UserError("the media URL's host answered 503.", param="x", status=422, may_pass=True)
    response = server.chat()
    assert (response.status_code, response.headers["x-should-retry"]) == (422, "true")
    engine.prepare_error = UserError("the media URL's host answered 404.", param="x", status=422)
    assert "x-should-retry" not in server.chat().headers
