"""What ``/openapi.json`` says of bodies that the handlers read and write by themselves."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import msgspec
from fastapi import FastAPI
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


def _error(text: str) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": _ERROR}}}


_RETRY_AFTER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
NOT_FOUND: dict[int | str, dict[str, Any]] = {404: _error("There is no such thing.")}
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    400: _error("A field, its value and what it may be."),
    **NOT_FOUND,
    408: _error("The body came too slowly."),
    413: _error("The body is too large."),
    422: _error("Media that can't be had."),
    500: _error("A fault of the server, or its engine has stopped."),
    503: {**_error("Too much to do, or the server is shutting down."), "headers": _RETRY_AFTER},
    504: _error("The whole request took too long."),
}
_UNAUTHORIZED = _error("A key is needed.")

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


def answered_with(body: Any, event: Any = None) -> dict[int | str, dict[str, Any]]:
    """What an operation answers with if all is well.

    Args:
        body: type of a whole answer.
        event: type of a stream's events, each but perhaps the last a JSON value after ``data: ``; None if there is
            no stream.
    """
    content: dict[str, Any] = {"application/json": {"schema": _inlined(body)}}
    if event is not None:
        text = 'Server-sent events: lines `data: JSON`, at the end `data: [DONE]`; an error is `{"error": ...}`.'
        content["text/event-stream"] = {
            "schema": {"type": "string", "description": text},
            "x-event-schema": _inlined(event),
        }
    return {200: {"description": "The answer.", "content": content}}


class DescribedApi(FastAPI):
    """An application whose document says what its handlers do, and nothing of what FastAPI would do for them.

    Args:
        open_paths: those that need no key; None where none does.
    """

    def __init__(self, *, open_paths: Set[str] | None) -> None:
        # No redirects: they would be built from the Host header. No docs pages: they load scripts from elsewhere.
        super().__init__(title="chiasm", docs_url=None, redoc_url=None, redirect_slashes=False)
        self._open_paths = open_paths

    def openapi(self) -> dict[str, Any]:
        """The document, made once."""
        if self.openapi_schema is None:
            document = super().openapi()
            for path, operations in document["paths"].items():
                for operation in operations.values():
                    self._correct(path, operation)
            components = document.pop("components", {})
            components.pop("schemas", None)  # of validation errors that never leave the server
            if self._open_paths is not None:
                components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            document["components"] = components
        assert self.openapi_schema is not None
        return self.openapi_schema

    def _correct(self, path: str, operation: dict[str, Any]) -> None:
        responses = operation["responses"]
        if "HTTPValidationError" in str(responses.get("422")):
            del responses["422"]
        if self._open_paths is not None and path not in self._open_paths:
            operation["security"] = [{"key": []}]
            responses["401"] = _UNAUTHORIZED


def _inlined(kind: Any) -> dict[str, Any]:
    """The schema of a type without references, which would not resolve inside an operation."""
    schema = msgspec.json.schema(kind)
    definitions = schema.pop("$defs", {})

    def inline(value: Any) -> Any:
        if isinstance(value, dict):
            if "$ref" in value:
                return inline(definitions[value["$ref"].rpartition("/")[2]])
            return {key: inline(entry) for key, entry in value.items() if key != "discriminator"}
        return [inline(entry) for entry in value] if isinstance(value, list) else value

    result: dict[str, Any] = inline(schema)
    return result
