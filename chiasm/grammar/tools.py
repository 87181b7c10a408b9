"""The grammar of an answer that must be calls of tools; ``chiasm.parsers.forced`` reads what it makes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from chiasm.grammar.spacing import spaced_schema


def calls_grammar(schemas: Mapping[str, Mapping[str, Any]], *, is_parallel: bool) -> str:
    """A Lark grammar of ``[{"name": "f", "arguments": {...}}, ...]`` with at least one call.

    Args:
        schemas: the schema of each function's arguments, by name.
        is_parallel: whether there may be several calls.
    """
    rules = ['start: "[" call (", " call)* "]"' if is_parallel else 'start: "[" call "]"']
    rules.append("call: " + " | ".join(f"call_{index}" for index in range(len(schemas))))
    for index, (name, schema) in enumerate(schemas.items()):
        head, tail = json.dumps(f'{{"name": "{name}", "arguments": '), json.dumps("}")
        rules.append(f"call_{index}: {head} arguments_{index} {tail}")
        rules.append(f"arguments_{index}: %json {json.dumps(spaced_schema({'type': 'object', **schema}))}")
    return "\n".join(rules) + "\n"
