"""What the cases are made of: the tools on offer, and one answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "zip": {"type": "string"}},
    },
    "now": {"type": "object", "properties": {}},
    "pick": {
        "properties": {
            "one": {"type": ["string", "null"]},
            "two": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "three": {"enum": ["1", "2"]},
            "four": {"oneOf": [{"type": "integer"}, {"type": "null"}]},
        }
    },
    "order": {
        "$defs": {
            "Size": {"type": "string", "enum": ["1", "2"]},
            "a/b c": {"$ref": "#/$defs/Size"},
            "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "string"}]},
            "More": {"properties": {"note": {"type": "string"}}},
        },
        "properties": {
            "size": {"$ref": "#/$defs/Size"},
            "path": {"$ref": "#/$defs/a~1b%20c"},
            "maybe": {"anyOf": [{"$ref": "#/$defs/Size"}, {"type": "null"}]},
            "loop": {"$ref": "#/$defs/Loop"},
            "self": {"$ref": "#/properties/self"},
            "away": {"$ref": "https://example.org/x#/y"},
            "fixed": {"const": "5"},
            "count": {"const": 5},
            "all": {"allOf": [{"type": "string"}, {"maxLength": 3}]},
            "both": {"allOf": [{"type": ["string", "integer"]}, {"type": "integer"}]},
            "some": {"type": ["string", "integer"], "enum": [1, 2]},
        },
        "allOf": [{"$ref": "#/$defs/More"}, {"$ref": "#"}],
    },
    "tag": {"additionalProperties": {"type": "string"}},
    "2fa-check": {},
    "ns.search-all": {"type": "object", "properties": {"query": {"type": "object"}}},
}


@dataclass(frozen=True)
class Case:
    """One answer.

    Attributes:
        calls: the format of its calls.
        text: what the model says.
        content: what of it is for the user.
        made: name and arguments of each call.
        reasoning: what of it is reasoning.
        thinks: whether the model has reasoning.
        is_open: whether the prompt has begun it.
    """

    calls: str | None
    text: str
    content: str = ""
    made: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    reasoning: str = ""
    thinks: bool = False
    is_open: bool = False
