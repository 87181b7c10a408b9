"""JSON schemas in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apidocs.markdown import anchor, code

_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} entries",
    "maxItems": "at most {} entries",
    "minProperties": "at least {} keys",
    "maxProperties": "at most {} keys",
}


def type_of(schema: Mapping[str, Any], *, has_null: bool = False) -> str:
    """The type of a value; that it may be null is said if ``has_null``."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}]({anchor(name)})"
    if "enum" in schema or "const" in schema:
        return ", ".join(code(str(value)) for value in schema.get("enum", (schema.get("const"),)))
    if "anyOf" in schema:
        shown = [type_of(one) for one in schema["anyOf"] if has_null or one.get("type") != "null"]
        return " or ".join(dict.fromkeys(shown))
    kind = schema.get("type", "anything")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return "list" if not schema.get("items") else f"list of {_several(schema['items'])}"
    return str(kind)


def _several(schema: Mapping[str, Any]) -> str:
    """The type of the entries of a list."""
    if "anyOf" in schema:
        return " or ".join(_several(one) for one in schema["anyOf"])
    return type_of(schema) if "$ref" in schema or schema.get("type") == "array" else f"{type_of(schema)}s"


def limit_of(schema: Mapping[str, Any]) -> str:
    """What bounds a value."""
    parts = [schema, *schema.get("anyOf", ())]
    limits = [text.format(f"{part[key]:g}") for part in parts for key, text in _BOUNDS.items() if key in part]
    return ", ".join("not empty" if limit == "at least 1 entries" else limit for limit in dict.fromkeys(limits))
