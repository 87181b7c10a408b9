"""Grammars of answers that are calls of tools.

``chiasm.parsers.forced`` reads what ``calls_grammar`` makes; ``calls_or_form_grammar`` keeps to the model's own way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from chiasm.grammar.schemas import followed_schema
from chiasm.schema.structured import CallFrame


def calls_grammar(schemas: Mapping[str, Mapping[str, Any]], *, is_parallel: bool) -> str:
    """A Lark grammar of ``[{"name": "f", "arguments": {...}}, ...]`` with at least one call.

    Args:
        schemas: the schema of each function's arguments, by name.
        is_parallel: whether there may be several calls.
    """
    calls = 'call (", " call)*' if is_parallel else "call"
    rules = [f'start: "[" {calls} "]"', *_call_rules(schemas, CallFrame("", "arguments", "", ""), {})]
    return "\n".join(rules) + "\n"


def calls_or_form_grammar(
    schemas: Mapping[str, Mapping[str, Any]],
    frame: CallFrame,
    form: Mapping[str, Any],
    special: Mapping[str, int],
    *,
    is_parallel: bool,
) -> str:
    """A Lark grammar of calls as the model writes them by itself, or of JSON, and of nothing beside either.

    Args:
        schemas: the schema of each function's arguments, by name.
        frame: what the model writes around calls.
        form: the JSON's schema.
        special: ids of special tokens that the frame may have, by how they are written.
        is_parallel: whether there may be several calls.
    """
    calls = f"call ({json.dumps(frame.between)} call)*" if is_parallel else "call"
    rules = [f"start: form | {calls}", f"form: %json {json.dumps(followed_schema(form))}"]
    return "\n".join([*rules, *_call_rules(schemas, frame, special)]) + "\n"


def _call_rules(schemas: Mapping[str, Mapping[str, Any]], frame: CallFrame, special: Mapping[str, int]) -> list[str]:
    rules = ["call: " + " | ".join(f"call_{index}" for index in range(len(schemas)))]
    for index, (name, schema) in enumerate(schemas.items()):
        head = _terms(f'{frame.before}{{"name": "{name}", "{frame.arguments}": ', special)
        rules.append(f"call_{index}: {head} arguments_{index} {_terms('}' + frame.after, special)}")
        rules.append(f"arguments_{index}: %json {json.dumps(followed_schema({**schema, 'type': 'object'}))}")
    return rules


def _terms(text: str, special: Mapping[str, int]) -> str:
    """A text as Lark has it; special tokens in it are no text there."""
    pieces = re.split(f"({'|'.join(map(re.escape, special))})", text) if special else [text]
    return " ".join(f"<[{special[piece]}]>" if piece in special else json.dumps(piece) for piece in pieces if piece)
