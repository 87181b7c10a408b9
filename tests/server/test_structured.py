"""The fields that ask for an answer in a certain form."""

from __future__ import annotations

from typing import Any

import openai
import pydantic
import pytest

from chiasm.schema.structured import MAX_CHARS, StructuredOutputs
from tests.server.fake_engine import FakeEngine
from tests.server.running import RunningServer
from tests.server.test_chat import HELLO

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TEXT = '{"type":"object","properties":{"a":{"type":"integer"}}}'
STRICT = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True, "param": "response_format"}),
        ({"response_format": STRICT}, {"json": TEXT, "param": "response_format.json_schema.schema"}),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            {"json": TEXT, "param": "response_format.schema"},
        ),
        (
            {"response_format": {"type": "json_object", "schema": None, "json_schema": None}},
            {"json_object": True, "param": "response_format"},
        ),
        ({"structured_outputs": {"regex": "a+", "json": None}}, {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ("a", "b")}),
        ({"structured_outputs": {"json": TEXT}}, {"json": TEXT}),
        ({"structured_outputs": {"json_object": True}}, {"json_object": True}),
        ({"guided_json": SCHEMA}, {"json": TEXT, "param": "guided_json"}),
        ({"guided_json": TEXT}, {"json": TEXT, "param": "guided_json"}),
        ({"guided_regex": "a"}, {"regex": "a", "param": "guided_regex"}),
        ({"guided_choice": ["x"]}, {"choice": ("x",), "param": "guided_choice"}),
        ({"guided_grammar": "root ::= [a]"}, {"grammar": "root ::= [a]", "param": "guided_grammar"}),
        ({"guided_json_object": True}, {"json_object": True, "param": "guided_json_object"}),
        ({"guided_json_object": False, "guided_json": None}, None),
    ],
)
def test_what_the_engine_gets(
    server: RunningServer, engine: FakeEngine, fields: dict[str, Any], form: dict[str, Any] | None
) -> None:
    expected = None if form is None else StructuredOutputs(**form)
    assert server.chat(**fields).status_code == 200
    assert server.complete(**fields).status_code == 200
    assert [params.structured_outputs for params in engine.sampling] == [expected, expected]


class Point(pydantic.BaseModel):
    x: int
    label: str


def test_openais_client_parses_what_it_asked_for(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.words = ('{"x": 1,', ' "label": "a"}')
    answer = client.chat.completions.parse(model="org/fake-vl", messages=HELLO, response_format=Point)
    assert answer.choices[0].message.parsed == Point(x=1, label="a")
    form = engine.sampling[0].structured_outputs
    assert form is not None
    assert form.json is not None
    assert '"additionalProperties":false' in form.json


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", "'xml'"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "a schema"),
        ({"response_format": {"type": "json_object", "schema": 7}}, "response_format.schema", "a JSON schema"),
        (
            {"response_format": {"type": "json_object", "json_schema": {"schema": SCHEMA}}},
            "response_format.json_schema",
            "left out where the type is json_object",
        ),
        (
            {"response_format": {"type": "text", "schema": SCHEMA}},
            "response_format.schema",
            "left out where the type is text",
        ),
        ({"response_format": {**STRICT, "schema": SCHEMA}}, "response_format.schema", "the type is json_schema"),
        ({"response_format": {"type": "json_object", "value": SCHEMA}}, "response_format", "unknown key 'value'"),
        ({"guided_json": deep(200)}, "guided_json", "nested at most 32 deep"),
        ({"guided_json": {"enum": ["x" * 100] * 10_000}}, "guided_json", f"at most {MAX_CHARS} characters"),
        ({"guided_json": "{"}, "guided_json", "not valid JSON"),
        ({"guided_json": "[]"}, "guided_json", "a JSON schema"),
        ({"guided_regex": "a" * (MAX_CHARS + 1)}, "guided_regex", f"at most {MAX_CHARS} characters"),
        ({"guided_choice": ["a"] * 1025}, "guided_choice", "at most 1024 choices"),
        ({"guided_choice": [""]}, "guided_choice", "not empty"),
        ({"structured_outputs": {"regex": 7}}, "structured_outputs", "a text"),
        ({"structured_outputs": {"json_object": 7}}, "structured_outputs", "true or false"),
        ({"structured_outputs": {"json": False}}, "structured_outputs", "a JSON schema: an object, got False"),
        ({"structured_outputs": {"json": 0}}, "structured_outputs", "a JSON schema: an object, got 0"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs", "unknown key 'structural_tag'"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "regex and choice"),
        ({"guided_regex": "a", "response_format": STRICT}, "guided_regex", "can't both be given"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "false with guided_regex"),
        ({"guided_regex": "a", "min_tokens": 1}, "min_tokens", "0 with guided_regex"),
    ],
)
def test_mistakes_are_named(server: RunningServer, fields: dict[str, Any], param: str, words: str) -> None:
    error = server.chat(**fields).json()["error"]
    assert (error["code"], error["param"]) == (400, param)
    assert words in error["message"]
    assert len(error["message"]) < 500


def test_json_mode_of_responses_takes_a_schema_too(server: RunningServer, engine: FakeEngine) -> None:
    for asked, form in (
        ({"type": "json_object", "schema": SCHEMA}, {"json": TEXT, "param": "text.format.schema"}),
        ({"type": "json_object"}, {"json_object": True, "param": "text.format"}),
    ):
        answer = server.client.post("/v1/responses", json={"input": "Hi", "text": {"format": asked}})
        assert answer.status_code == 200
        assert engine.sampling[-1].structured_outputs == StructuredOutputs(**form)
    for asked, param in (
        ({"type": "text", "schema": SCHEMA}, "text.format.schema"),
        ({"type": "json_schema", "json_schema": {"schema": SCHEMA}}, "text.format"),
    ):
        answer = server.client.post("/v1/responses", json={"input": "Hi", "text": {"format": asked}})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
