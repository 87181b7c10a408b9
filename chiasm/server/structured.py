"""The fields that ask for an answer in a certain form: OpenAI's ``response_format`` and the names that vLLM knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from chiasm.errors import UserError, refuse, require_known_keys
from chiasm.grammar.tools import calls_grammar, calls_or_form_grammar
from chiasm.parsers.calls import CallFormat
from chiasm.parsers.reasoning import ReasoningFormat
from chiasm.schema.chat import AddedToken
from chiasm.schema.structured import StructuredOutputs, Thinking, asks
from chiasm.server.requests import GenerationRequest
from chiasm.server.tools import ToolUse

_GUIDED = ("json", "regex", "choice", "grammar", "json_object")


def parse_structured_outputs(
    request: GenerationRequest, text_format: Mapping[str, Any] | None = None
) -> StructuredOutputs | None:
    """The form that a request asks for; None if any will do.

    Args:
        request: has the fields that all ways of asking share.
        text_format: ``text.format``, which says in ``/v1/responses`` what ``response_format`` does elsewhere.

    Raises:
        UserError: if two fields ask for one, or one can't be followed.
    """
    asked: list[StructuredOutputs] = []
    if text_format is not None:
        asked += _text_format(text_format)
    if request.response_format is not None:
        asked += _response_format(request.response_format)
    if request.structured_outputs:
        # null asks for nothing, and so does false of what can be true or false, of keys that aren't served, too.
        given = {key: value for key, value in request.structured_outputs.items() if asks(key, value)}
        require_known_keys("structured_outputs", given, _GUIDED)
        asked += [StructuredOutputs(**given, param="structured_outputs")] if given else []
    for kind in _GUIDED:
        value = getattr(request, f"guided_{kind}")
        if asks(kind, value):
            asked.append(StructuredOutputs(**{kind: value}, param=f"guided_{kind}"))
    if len(asked) > 1:
        raise UserError(f"{asked[0].param} and {asked[1].param} can't both be given.", param=asked[1].param)
    return asked[0] if asked else None


def _response_format(given: Mapping[str, Any]) -> list[StructuredOutputs]:
    kind = _format_type(given, "response_format", ("type", "json_schema", "schema"))
    if kind != "json_schema":
        return _plain_format(given, kind, "response_format")
    described = given.get("json_schema")
    if not isinstance(described, Mapping) or described.get("schema") is None:
        refuse("response_format.json_schema", described, "an object with a name and a schema")
    _refuse_beside(given, kind, "schema", "response_format")
    return [StructuredOutputs(json=described["schema"], param="response_format.json_schema.schema")]


def _text_format(given: Mapping[str, Any]) -> list[StructuredOutputs]:
    """The same without an object around the schema."""
    kind = _format_type({"type": "text", **given}, "text.format", ("type", "name", "description", "schema", "strict"))
    if kind != "json_schema":
        return _plain_format(given, kind, "text.format")
    if given.get("schema") is None:
        refuse("text.format.schema", None, "a JSON schema: an object")
    return [StructuredOutputs(json=given["schema"], param="text.format.schema")]


def _format_type(given: Mapping[str, Any], param: str, known: Sequence[str]) -> str:
    require_known_keys(param, (key for key, value in given.items() if value is not None), known)
    kind = given.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        refuse(f"{param}.type", kind, "text, json_object or json_schema")
    return str(kind)


def _plain_format(given: Mapping[str, Any], kind: str, param: str) -> list[StructuredOutputs]:
    """Text, or JSON mode, beside which a schema holds, as servers have it that took one there before OpenAI did."""
    _refuse_beside(given, kind, "json_schema", param)
    if kind == "text":
        _refuse_beside(given, kind, "schema", param)
        return []
    if given.get("schema") is None:
        return [StructuredOutputs(json_object=True, param=param)]
    return [StructuredOutputs(json=given["schema"], param=f"{param}.schema")]


def _refuse_beside(given: Mapping[str, Any], kind: str, key: str, param: str) -> None:
    if given.get(key) is not None:
        refuse(f"{param}.{key}", given[key], f"left out where the type is {kind}")


def answer_form(
    asked: StructuredOutputs | None,
    tools: ToolUse,
    calls: CallFormat | None,
    added: Mapping[str, AddedToken],
) -> StructuredOutputs | None:
    """The form of an answer: calls where the request demands them, calls or a form where it leaves that to the model.

    Args:
        asked: the form of what is said; an answer of calls says nothing.
        tools: what the model may call.
        calls: how it writes calls by itself; None where it may not.
        added: the tokenizer's added tokens.

    Raises:
        UserError: for a form beside tools that isn't JSON, or where calls aren't.
    """
    if tools.is_forced:
        assert tools.schemas is not None
        return StructuredOutputs(grammar=calls_grammar(tools.schemas, is_parallel=tools.is_parallel), param="tools")
    if asked is None or not tools.offered:
        return asked
    assert tools.schemas is not None
    if calls is None or calls.frame is None or not (asked.json is not None or asked.json_object):
        message = (
            f"{asked.param} beside tools must be JSON, on a server whose tool_call_parser is hermes, llama3_json or "
            "llama4_json, unless tool_choice is none or demands a call."
        )
        raise UserError(message, param=asked.param)
    schema = {"type": "object"} if asked.json is None else msgspec.json.decode(asked.json)
    special = {text: token.token_id for text, token in added.items() if token.is_special and text in calls.markers}
    grammar = calls_or_form_grammar(tools.schemas, calls.frame, schema, special, is_parallel=tools.is_parallel)
    return StructuredOutputs(grammar=grammar, param=asked.param)


def after_thinking(
    form: StructuredOutputs,
    marks: ReasoningFormat,
    calls: CallFormat | None,
    added: Mapping[str, AddedToken],
    *,
    is_open: bool,
) -> StructuredOutputs:
    """A form that begins where the model has stopped thinking.

    Args:
        form: what comes then.
        marks: around the reasoning; each is a token.
        calls: how the model writes calls, which must not begin before the reasoning is closed: no grammar binds it.
        added: the tokenizer's added tokens.
        is_open: whether the prompt has begun it.
    """
    barred = tuple(added[opener].token_id for opener in (calls.openers if calls else ()) if opener in added)
    thinking = Thinking(added[marks.start].token_id, added[marks.end].token_id, is_open, barred)
    return msgspec.structs.replace(form, thinking=thinking)
