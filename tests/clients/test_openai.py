"""OpenAI's own client: chat, streams, tools, forms, errors, retries."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.charts import Asked
from tests.clients.driven import Driven, drive
from tests.clients.environments import Environment
from tests.clients.scripted import ARGUMENTS, REASONING, RESULT
from tests.e2e.servers import Server

KEY = "a key"
PICTURE = "messages[0].content[1].image_url.url"
DETAILS = {"cached_tokens", "image_tokens", "multimodal_tokens"}


@pytest.fixture(scope="module")
def client(install: Callable[[str], Environment]) -> Environment:
    return install("openai")


@pytest.fixture(scope="module")
def driven(client: Environment, given: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Driven:
    folder = tmp_path_factory.mktemp("openai")
    with Server(None, folder / "log", "-tp", "2", "--max-num-queued-reqs", "1", "--api-key", KEY) as busy:
        return drive(client, "openai_client.py", folder, {**given, "busy_url": busy.url, "key": KEY})


@pytest.fixture(scope="module")
def responses(client: Environment, given: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Driven:
    return drive(client, "openai_responses.py", tmp_path_factory.mktemp("responses"), given)


def test_models(driven: Driven) -> None:
    found = driven["models"]
    listed = found["listed"]
    assert found["same"]
    assert listed.keys() == {
        "id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission",
    }  # fmt: skip
    assert (listed["id"], listed["max_model_len"], type(listed["created"])) == ("chart-reader", 4096, int)


def test_answers_and_counts_are_the_servers(driven: Driven, charts: list[Asked]) -> None:
    for chart, (text, reason, usage, request_id) in zip(charts, driven["answers"], strict=True):
        assert (text, reason) == (chart.said, "stop")
        assert usage["prompt_tokens"] == chart.prompt_tokens
        assert usage["completion_tokens"] == chart.completion_tokens
        assert usage["total_tokens"] == chart.prompt_tokens + chart.completion_tokens
        assert usage["prompt_tokens_details"].keys() >= DETAILS
        assert request_id


def test_streams_say_the_same(driven: Driven, charts: list[Asked]) -> None:
    for chart, (text, roles, reasons, usages) in zip(charts, driven["streams"], strict=True):
        assert text == chart.said
        assert roles == ["assistant", *[None] * (len(roles) - 1)]
        assert reasons == [*[None] * (len(reasons) - 1), "stop"]
        [(num_choices, usage)] = usages
        assert (num_choices, usage["prompt_tokens"]) == (0, chart.prompt_tokens)
        assert usage["completion_tokens"] == chart.completion_tokens


def test_many_at_once(driven: Driven, charts: list[Asked]) -> None:
    assert driven["many_at_once"] == [chart.said for chart in charts] * 4


def test_several_answers_with_logprobs(driven: Driven) -> None:
    assert driven["several_answers"] == [[index, 5, True] for index in range(3)]


def test_request_ids_come_back(driven: Driven) -> None:
    assert driven["request_ids"] == "mine-1"


@pytest.mark.parametrize(
    ("name", "error", "status", "param"),
    [
        ("temperature", "BadRequestError", 400, "temperature"),
        ("stop", "BadRequestError", 400, "stop"),
        ("model", "NotFoundError", 404, "model"),
        ("garbage", "BadRequestError", 400, PICTURE),
        ("private", "BadRequestError", 400, PICTURE),
        ("streamed", "BadRequestError", 400, "temperature"),
        ("route", "NotFoundError", 404, None),
    ],
)
def test_errors_have_the_clients_classes(driven: Driven, name: str, error: str, status: int, param: str) -> None:
    found = driven["errors"][name]
    assert found[:3] == [error, status, param]
    assert found[3], "its type"
    assert found[5], "the request has an id"


def test_keys(driven: Driven) -> None:
    error, answered = driven["keys"]
    assert error[:2] == ["AuthenticationError", 401]
    assert answered == "chat.completion"


def test_a_busy_server_is_asked_again_after_the_time_it_names(driven: Driven) -> None:
    found = driven["retries"]
    assert found["refused"][:2] == ["InternalServerError", 503]
    assert found["retries"] >= 1
    assert found["seconds"] >= 0.9, "Retry-After is a second"
    assert found["object"] == "chat.completion"


def test_timeouts(driven: Driven, tools_server: Server) -> None:
    assert driven["timeouts"] == "APITimeoutError"
    tools_server.await_metric("chiasm:num_requests_running", 0)


@pytest.mark.parametrize("choice", ["required", "named"])
def test_forced_calls(driven: Driven, choice: str) -> None:
    whole, streamed = driven["forced_tools"][choice]
    assert whole == streamed
    [(kind, name, arguments)] = whole[1]
    assert (kind, name, whole[2]) == ("function", "get_weather", "tool_calls")
    assert json.loads(arguments).keys() == {"city", "unit"}


def test_a_conversation_in_which_the_model_calls_by_itself(driven: Driven) -> None:
    found = driven["conversation"]
    for whole, streamed in (found["called"], found["again"]):
        assert whole == streamed
        text, [(_, name, arguments)], reason = whole
        assert (text, name, json.loads(arguments), reason) == ("", "get_weather", ARGUMENTS, "tool_calls")
    assert found["reasoning"] == [REASONING, REASONING]
    num_reasoning, num_tokens = found["counts"]
    assert 0 < num_reasoning < num_tokens
    assert found["told"] == [[RESULT, [], "stop"]] * 2
    assert found["calls of none"] == []


def test_forms(driven: Driven) -> None:
    found = driven["forms"]
    for name in ("parsed", "streamed", "tool"):
        assert found[name]["verdict"] in ("yes", "no")
        assert found[name]["marks"] in (1, 2, 3)
    assert found["parsed"] == found["streamed"]
    text, reason = found["object"]
    assert text.startswith("{")
    assert reason == "length" or isinstance(json.loads(text), dict)


def test_completions(driven: Driven) -> None:
    found = driven["completions"]
    assert [index for index, _, _ in found] == [0, 1]
    for (_, text, logprobs), prompt in zip(found, ("What is", "How many"), strict=True):
        assert text.startswith(prompt)
        assert "".join(logprobs["tokens"]).removesuffix("<|im_end|>") == text
        assert logprobs["token_logprobs"][0] is None
        assert all(value <= 0 for value in logprobs["token_logprobs"][1:])


def test_responses(responses: Driven, charts: list[Asked]) -> None:
    expected = [
        [c.said, "completed", c.prompt_tokens, c.completion_tokens, c.prompt_tokens + c.completion_tokens]
        for c in charts
    ]
    assert responses["answers"] == expected
    assert responses["text_only"][0] == "response"


def test_responses_stream(responses: Driven, charts: list[Asked]) -> None:
    for chart, (deltas, text, kinds, is_counted) in zip(charts, responses["streams"], strict=True):
        assert deltas == text == chart.said
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"
        assert is_counted


def test_responses_call_tools(responses: Driven) -> None:
    found = responses["tools"]
    for name in ("called", "streamed"):
        [(function, arguments)] = found[name]
        assert (function, json.loads(arguments)) == ("get_weather", ARGUMENTS)
    [(function, _)] = found["forced"]
    assert function == "get_weather"
    assert found["kinds"] == ["reasoning", "function_call"]
    assert found["told"] == RESULT


def test_responses_in_a_form_and_errors(responses: Driven) -> None:
    assert responses["forms"]["verdict"] in ("yes", "no")
    assert responses["errors"] == [400, "temperature"]
