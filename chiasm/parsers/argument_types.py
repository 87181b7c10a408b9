"""Which types a tool's JSON schema allows for an argument."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

_MAX_DEPTH = 64  # of schemas in schemas, and of references
_TYPE_NAMES: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    list: "array",
    dict: "object",
}


class ArgumentTypes:
    """The types that a schema names for each argument, by itself, in references to its own parts or in alternatives.

    Each argument and each reference is looked at once.

    Args:
        schema: of all arguments of a tool.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._of_argument: dict[str, frozenset[str]] = {}
        self._of_reference: dict[str, frozenset[str] | None] = {}

    def of(self, argument: str) -> frozenset[str]:
        """Names of types as JSON schema has them; empty if the schema names none, or none that goes with the rest."""
        if argument not in self._of_argument:
            told = [self._types(schema, 0) for schema in _about(self._schema, self._schema, argument, set())]
            self._of_argument[argument] = _both(told) or frozenset()
        return self._of_argument[argument]

    def _types(self, schema: object, depth: int) -> frozenset[str] | None:
        """The types that may be, or None if the schema says nothing of them."""
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return None
        told = [_named(schema)]
        if "const" in schema:
            told.append(_of_values([schema["const"]]))
        if isinstance(schema.get("enum"), list):
            told.append(_of_values(schema["enum"]))
        if isinstance(schema.get("$ref"), str):
            told.append(self._types_at(schema["$ref"], depth))
        told += [self._types(part, depth + 1) for part in _parts(schema, "allOf")]
        for word in ("anyOf", "oneOf"):
            options = [self._types(part, depth + 1) for part in _parts(schema, word)]
            told.append(frozenset().union(*(option for option in options if option)) or None)
        return _both(told)

    def _types_at(self, reference: str, depth: int) -> frozenset[str] | None:
        if reference not in self._of_reference:
            self._of_reference[reference] = None  # where it leads back to itself it says nothing more
            self._of_reference[reference] = self._types(_target(self._schema, reference), depth + 1)
        return self._of_reference[reference]


def _about(root: Mapping[str, Any], schema: object, argument: str, seen: set[str]) -> Iterator[object]:
    """The schemas of an argument: among the properties, or else of any other; also behind references not seen yet."""
    if not isinstance(schema, Mapping) or len(seen) > _MAX_DEPTH:
        return
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and argument in properties:
        yield properties[argument]
    elif isinstance(schema.get("additionalProperties"), Mapping):
        yield schema["additionalProperties"]
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        seen.add(reference)
        yield from _about(root, _target(root, reference), argument, seen)
    for part in _parts(schema, "allOf"):
        yield from _about(root, part, argument, seen)


def _target(root: Mapping[str, Any], reference: str) -> object:
    """What a JSON pointer within the schema (RFC 6901) leads to; None for any other reference."""
    if not reference.startswith("#"):
        return None
    target: object = root
    for escaped in unquote(reference.removeprefix("#")).split("/")[1:]:
        key = escaped.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and re.fullmatch("[0-9]{1,9}", key) and int(key) < len(target):
            target = target[int(key)]
        else:
            target = target.get(key) if isinstance(target, Mapping) else None
    return target


def _parts(schema: Mapping[str, Any], word: str) -> list[object]:
    parts = schema.get(word)
    return parts if isinstance(parts, list) else []


def _named(schema: Mapping[str, Any]) -> frozenset[str] | None:
    named = schema.get("type")
    return (
        frozenset(kind for kind in (named if isinstance(named, list) else [named]) if isinstance(kind, str)) or None
    )


def _of_values(values: list[object]) -> frozenset[str] | None:
    return frozenset(_TYPE_NAMES[type(value)] for value in values if type(value) in _TYPE_NAMES) or None


def _both(told: list[frozenset[str] | None]) -> frozenset[str] | None:
    """What all of those that say something allow."""
    known = [types for types in told if types is not None]
    return frozenset.intersection(*known) if known else None
