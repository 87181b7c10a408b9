"""LangChain's ``ChatOpenAI``: chat, streams, tools, forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.charts import Asked
from tests.clients.driven import Driven, drive
from tests.clients.environments import Environment
from tests.clients.scripted import ARGUMENTS, RESULT


@pytest.fixture(scope="module")
def driven(
    install: Callable[[str], Environment], given: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Driven:
    return drive(install("langchain-openai"), "langchain_client.py", tmp_path_factory.mktemp("langchain"), given)


def found(chart: Asked) -> list[Any]:
    return [chart.said, chart.prompt_tokens, chart.completion_tokens]


@pytest.mark.parametrize("scenario", ["answers", "streams"])
def test_answers_and_counts_are_the_servers(driven: Driven, charts: list[Asked], scenario: str) -> None:
    assert driven[scenario] == [found(chart) for chart in charts]


def test_streams_without_usage_and_pictures_in_its_own_form(driven: Driven, charts: list[Asked]) -> None:
    assert driven["streams_without_usage"] == charts[0].said
    assert driven["pictures_in_langchains_form"] == found(charts[0])


def test_many_at_once(driven: Driven, charts: list[Asked]) -> None:
    assert driven["many_at_once"] == [chart.said for chart in charts]


def test_tools(driven: Driven) -> None:
    called = driven["tools"]
    assert called["called"] == [["get_weather", ARGUMENTS]] * 2
    assert (called["told"], called["forced"]) == (RESULT, ["get_weather"])


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_forms(driven: Driven, method: str) -> None:
    assert driven["forms"][method].keys() == {"verdict", "marks"}


def test_responses(driven: Driven, charts: list[Asked]) -> None:
    assert driven["responses"] == [found(chart) for chart in charts[:4]]
