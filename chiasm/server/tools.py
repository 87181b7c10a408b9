"""``tools``, ``tool_choice`` and ``parallel_tool_calls`` of a request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn

from chiasm.config.server import ServerConfig
from chiasm.errors import UserError, refuse
from chiasm.schema.structured import check_depth

MAX_TOOLS = 256
_NAME = re.compile(r"[a-zA-Z0-9_.\-]{1,64}")


@dataclass(frozen=True)
class ToolUse:
    """What a request lets the model call.

    Attributes:
        offered: the tools as the template gets them.
        schemas: the schema of each one's arguments, by name, of those that may be called.
        is_auto: whether the model decides; its answer is looked through for calls then.
        is_forced: whether the answer must be calls.
        is_parallel: whether it may be several.
    """

    offered: tuple[Mapping[str, Any], ...] = ()
    schemas: Mapping[str, Mapping[str, Any]] | None = None
    is_auto: bool = False
    is_forced: bool = False
    is_parallel: bool = True


class ToolFields(NamedTuple):
    """The fields of a request that are about tools.

    Attributes:
        tools: those on offer.
        choice: which of them to call.
        is_parallel: whether several may be called.
        shape: ``nested`` where a tool has its function in a field of that name, as in chats, else ``flat``.
    """

    tools: list[Any] | None
    choice: str | dict[str, Any] | None
    is_parallel: bool | None
    shape: Literal["nested", "flat"]


def parse_tool_use(asked: ToolFields, config: ServerConfig) -> ToolUse:
    """What a request says of tools; with ``tool_choice`` "none" the model isn't told of any.

    Raises:
        UserError: naming the field at fault, or the flags that the server lacks.
    """
    given = asked.tools or []
    if len(given) > MAX_TOOLS:
        refuse("tools", f"{len(given)} tools", f"at most {MAX_TOOLS} tools")
    schemas: dict[str, Mapping[str, Any]] = {}
    tools = []
    for index, tool in enumerate(given):
        function, param = _function_of(tool, f"tools[{index}]", asked.shape)
        name, schema = _parse_function(function, param)
        if name in schemas:
            refuse(f"{param}.name", name, "unlike the other tools' names")
        schemas[name] = schema
        tools.append(tool if asked.shape == "nested" else _nested(tool))
    choice = asked.choice or ("auto" if tools else "none")
    if choice == "none":
        return ToolUse()
    if not tools and choice != "auto":
        raise UserError("tool_choice needs tools.", param="tool_choice")
    is_parallel = asked.is_parallel is not False
    if choice == "auto":
        return _auto(tools, schemas, is_parallel, config)
    if choice == "required":
        return ToolUse(tuple(tools), schemas, is_forced=True, is_parallel=is_parallel)
    chosen, param = _chosen_name(choice, asked.shape)
    if chosen not in schemas:
        refuse(param, chosen, f"one of the tools: {', '.join(list(schemas)[:10])}")
    return ToolUse(tuple(tools), {chosen: schemas[chosen]}, is_forced=True, is_parallel=False)


def _auto(
    tools: list[Any], schemas: dict[str, Mapping[str, Any]], is_parallel: bool, config: ServerConfig
) -> ToolUse:
    if tools and not (config.enable_auto_tool_choice and config.tool_call_parser):
        message = 'tool_choice "auto" needs a server started with --enable-auto-tool-choice and --tool-call-parser.'
        raise UserError(message, param="tool_choice")
    return ToolUse(tuple(tools), schemas, is_auto=bool(tools), is_parallel=is_parallel)


def _function_of(tool: object, param: str, shape: str) -> tuple[Mapping[str, Any], str]:
    """The part of a tool that describes its function, and where it is."""
    if not isinstance(tool, Mapping):
        _refuse_tool(tool, param, shape)
    is_nested = shape == "nested"
    function = tool.get("function") if is_nested else tool
    if tool.get("type", "function" if is_nested else None) != "function" or not isinstance(function, Mapping):
        _refuse_tool(tool, param, shape)
    return function, f"{param}.function" if is_nested else param


def _refuse_tool(tool: object, param: str, shape: str) -> NoReturn:
    refuse(param, tool, f"an object with the type function and a {'function' if shape == 'nested' else 'name'}")


def _parse_function(function: Mapping[str, Any], param: str) -> tuple[str, Mapping[str, Any]]:
    """A function's name and the schema of its arguments."""
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        refuse(f"{param}.name", name, "1 to 64 letters, digits, underscores, dots or hyphens")
    schema = function.get("parameters")
    if schema is None:
        schema = {"type": "object", "properties": {}}
    if not isinstance(schema, Mapping):
        refuse(f"{param}.parameters", schema, "a JSON schema: an object")
    kind = schema.get("type")
    if kind not in (None, "object") and not (isinstance(kind, list) and "object" in kind):
        refuse(f"{param}.parameters.type", kind, "object: arguments have names")
    check_depth(schema, f"{param}.parameters")
    return name, schema


def _nested(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A flat tool as templates read it."""
    function = {key: value for key, value in tool.items() if key != "type" and value is not None}
    return {"type": "function", "function": function}


def _chosen_name(choice: object, shape: str) -> tuple[str, str]:
    """The one function that ``tool_choice`` names, and the field in which it does."""
    named = choice if isinstance(choice, Mapping) and choice.get("type") == "function" else {}
    function = named.get("function") if shape == "nested" else named
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        refuse("tool_choice", choice, "none, auto, required, or an object that names a function")
    return name, "tool_choice.function.name" if shape == "nested" else "tool_choice.name"
