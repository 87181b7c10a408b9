"""What a schema says of an argument's types is found in bounded time."""

from __future__ import annotations

import time
from typing import Any

import pytest

from chiasm.parsers.argument_types import ArgumentTypes


def schema(argument: dict[str, Any], **parts: dict[str, Any]) -> dict[str, Any]:
    return {"properties": {"a": argument}, "$defs": parts}


def ref(name: object) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


@pytest.mark.parametrize(
    ("argument", "types"),
    [
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"const": None}, {"null"}),
        ({"enum": ["a", True, [], {}]}, {"string", "boolean", "array", "object"}),
        ({"enum": [1, 1.5, None]}, {"integer", "number", "null"}),
        ({"anyOf": [{"type": "string"}, {}]}, {"string"}),
        ({"$ref": "#/properties/b/anyOf/1"}, set()),
        ({"$ref": "#/properties/a/anyOf/1", "anyOf": [{}, {"type": "string"}]}, {"string"}),
        ({"type": "string", "allOf": [{"type": "integer"}]}, set()),
        ({"type": 5, "enum": 5, "$ref": 5, "allOf": 5, "anyOf": [5]}, set()),
        ({"$ref": "#/$defs/%"}, set()),
        ({}, set()),
    ],
)
def test_what_a_schema_says(argument: dict[str, Any], types: set[str]) -> None:
    assert ArgumentTypes(schema(argument)).of("a") == types
    assert ArgumentTypes(schema(argument)).of("other") == set()


@pytest.mark.parametrize("word", ["allOf", "anyOf", "oneOf"])
def test_references_that_multiply_take_linear_time(word: str) -> None:
    """Threat: quadratic time: a schema that doubles with each reference, and one that never ends."""
    doubling = {str(i): {word: [ref(i + 1), ref(i + 1)]} for i in range(30)}
    endless = {f"e{i}": {word: [ref(f"e{i + 1}")]} for i in range(5000)}
    roots = [
        schema(ref("0"), **doubling, **{"30": {"type": "string"}}),
        schema(ref("e0"), **endless),
        {**ref("0"), "$defs": {**doubling, "30": {"properties": {"a": {"type": "string"}}}}},
        {
            "allOf": [{"$ref": "#"}] * 500,
            "$defs": {},
            "properties": {"a": {"allOf": [{"$ref": "#/properties/a"}] * 500}},
        },
    ]
    start = time.process_time()
    found = [ArgumentTypes(root).of("a") for root in roots]
    assert time.process_time() - start < 2
    assert found[0] == {"string"}
