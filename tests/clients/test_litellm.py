"""LiteLLM: chat, streams, tools, forms, errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.charts import Asked
from tests.clients.driven import Driven, drive
from tests.clients.environments import Environment
from tests.clients.scripted import ARGUMENTS, REASONING, RESULT


@pytest.fixture(scope="module")
def driven(
    install: Callable[[str], Environment], given: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Driven:
    folder = tmp_path_factory.mktemp("litellm")
    return drive(install("litellm"), "litellm_client.py", folder, given, LITELLM_LOCAL_MODEL_COST_MAP="True")


@pytest.mark.parametrize("scenario", ["answers", "answers_as_of_vllm", "streams"])
def test_answers_and_counts_are_the_servers(driven: Driven, charts: list[Asked], scenario: str) -> None:
    assert driven[scenario] == [[c.said, c.prompt_tokens, c.completion_tokens] for c in charts]


def test_many_at_once(driven: Driven, charts: list[Asked]) -> None:
    assert driven["many_at_once"] == [chart.said for chart in charts]


def test_tools(driven: Driven) -> None:
    found = driven["tools"]
    assert [(name, json.loads(arguments)) for name, arguments in found["called"]] == [("get_weather", ARGUMENTS)] * 2
    assert (found["reason"], found["reasoning"], found["told"]) == ("tool_calls", REASONING, RESULT)


def test_forms(driven: Driven) -> None:
    assert driven["forms"].keys() == {"verdict", "marks"}


def test_errors_have_the_clients_classes(driven: Driven) -> None:
    assert driven["errors"] == [["BadRequestError", 400], ["NotFoundError", 404]]


def test_responses(driven: Driven, charts: list[Asked]) -> None:
    assert driven["responses"] == [[c.said, c.prompt_tokens, c.completion_tokens] for c in charts[:4]]
