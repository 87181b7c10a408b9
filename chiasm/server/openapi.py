"""What ``/openapi.json`` says of bodies that the handlers read and write by themselves."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "code": {"type": "integer"},
            },
        }
    },
}
_ERROR_RESPONSE = {"description": "What went wrong.", "content": {"application/json": {"schema": _ERROR}}}
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {"4XX": _ERROR_RESPONSE, "5XX": _ERROR_RESPONSE}

# Fields that are taken apart by hand, for which pydantic knows no type.
MESSAGE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["object", "string"]}}]},
    },
}
TOOL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["function"],
    "properties": {
        "type": {"enum": ["function"]},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string"},
                "description": {"type": "string"},
                "parameters": {"type": "object"},
            },
        },
    },
}
_FUNCTION: dict[str, Any] = {
    "name": {"type": "string"},
    "description": {"type": ["string", "null"]},
    "parameters": {"type": ["object", "null"]},
}
FLAT_TOOL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["type", "name"],
    "properties": {"type": {"enum": ["function"]}, **_FUNCTION},
}
_ITEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"type": {"enum": ["message", "function_call", "function_call_output", "reasoning"]}},
}
INPUT_SCHEMA: dict[str, Any] = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": _ITEM_SCHEMA, "minItems": 1}]
}
_TOKEN_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
_TEXT: dict[str, Any] = {"type": "string"}
PROMPT_SCHEMA: dict[str, Any] = {
    "anyOf": [_TEXT, _TOKEN_IDS, {"type": "array", "items": {"anyOf": [_TEXT, _TOKEN_IDS]}, "minItems": 1}]
}


def body_schema(*models: type[BaseModel]) -> dict[str, Any]:
    """The part of an operation that describes its JSON body, which is one of these."""
    schemas = [model.model_json_schema() for model in models]
    for schema in schemas:
        assert "$defs" not in schema, "a nested model's references would not resolve inside an operation"
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
