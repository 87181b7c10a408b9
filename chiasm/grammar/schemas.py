"""JSON schemas as llguidance gets them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# White space enough to write JSON readably, and never so much that an answer is nothing else: a space, or a line
# break and an indentation.
_SPACING = r" |\n[ \t]{0,40}"

# Formats that JSON Schema defines (draft 2020-12, Validation, 7.3): these can be followed, or not, which is refused.
_DEFINED_FORMATS = frozenset(
    (
        "date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6",
        "uri", "uri-reference", "iri", "iri-reference", "uuid", "uri-template", "json-pointer",
        "relative-json-pointer", "regex",
    )
)  # fmt: skip
# Where a schema has others: in a field itself, in a list, by names (Core, 10.2 and 10.3, and what older drafts had).
_SCHEMA_FIELDS = (
    "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not",
    "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_LIST_FIELDS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_NAMED_FIELDS = ("$defs", "definitions", "dependentSchemas", "dependencies", "patternProperties", "properties")


def followed_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with the white space that answers may have, whatever it said before.

    Formats that JSON Schema doesn't define are left out, as it has it: they note something and demand nothing.
    """
    options = {"whitespace_flexible": True, "whitespace_pattern": _SPACING}
    return {**_without_notes(schema), "x-guidance": options}


def _without_notes(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    cleaned = dict(schema)
    kind = cleaned.get("format")
    if isinstance(kind, str) and kind not in _DEFINED_FORMATS:
        del cleaned["format"]
    for field, value in cleaned.items():
        if field in _LIST_FIELDS and isinstance(value, list):
            cleaned[field] = [_without_notes(entry) for entry in value]
        elif field in _SCHEMA_FIELDS:
            cleaned[field] = _without_notes(value)
        elif field in _NAMED_FIELDS and isinstance(value, Mapping):
            cleaned[field] = {name: _without_notes(entry) for name, entry in value.items()}
    return cleaned
