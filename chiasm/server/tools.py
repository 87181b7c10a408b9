"""``tools``, ``tool_choice`` and ``parallel_tool_calls`` of a chat request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chiasm.config.server import ServerConfig
from chiasm.errors import UserError, refuse
from chiasm.schema.structured import check_depth
from chiasm.server.requests import ChatRequest

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


def parse_tool_use(request: ChatRequest, config: ServerConfig) -> ToolUse:
    """What a request says of tools; with ``tool_choice`` "none" the model isn't told of any.

    Raises:
        UserError: naming the field at fault, or the flags that the server lacks.
    """
    tools = request.tools or []
    if len(tools) > MAX_TOOLS:
        refuse("tools", f"{len(tools)} tools", f"at most {MAX_TOOLS} tools")
    schemas: dict[str, Mapping[str, Any]] = {}
    for index, tool in enumerate(tools):
        name, schema = _parse_tool(tool, f"tools[{index}]")
        if name in schemas:
            refuse(f"tools[{index}].function.name", name, "unlike the other tools' names")
        schemas[name] = schema
    choice = request.tool_choice or ("auto" if tools else "none")
    if choice == "none":
        return ToolUse()
    if not tools and choice != "auto":
        raise UserError("tool_choice needs tools.", param="tool_choice")
    is_parallel = request.parallel_tool_calls is not False
    if choice == "auto":
        return _auto(tools, schemas, is_parallel, config)
    if choice == "required":
        return ToolUse(tuple(tools), schemas, is_forced=True, is_parallel=is_parallel)
    chosen = _chosen_name(choice)
    if chosen not in schemas:
        refuse("tool_choice.function.name", chosen, f"one of the tools: {', '.join(list(schemas)[:10])}")
    return ToolUse(tuple(tools), {chosen: schemas[chosen]}, is_forced=True, is_parallel=False)


def _auto(
    tools: list[Any], schemas: dict[str, Mapping[str, Any]], is_parallel: bool, config: ServerConfig
) -> ToolUse:
    if tools and not (config.enable_auto_tool_choice and config.tool_call_parser):
        message = 'tool_choice "auto" needs a server started with --enable-auto-tool-choice and --tool-call-parser.'
        raise UserError(message, param="tool_choice")
    return ToolUse(tuple(tools), schemas, is_auto=bool(tools), is_parallel=is_parallel)


def _parse_tool(tool: object, param: str) -> tuple[str, Mapping[str, Any]]:
    """A tool's name and the schema of its arguments."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if (
        not isinstance(tool, Mapping)
        or tool.get("type", "function") != "function"
        or not isinstance(function, Mapping)
    ):
        refuse(param, tool, "an object with the type function and a function")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        refuse(f"{param}.function.name", name, "1 to 64 letters, digits, underscores, dots or hyphens")
    schema = function.get("parameters")
    if schema is None:
        schema = {"type": "object", "properties": {}}
    if not isinstance(schema, Mapping):
        refuse(f"{param}.function.parameters", schema, "a JSON schema: an object")
    check_depth(schema, f"{param}.function.parameters")
    return name, schema


def _chosen_name(choice: object) -> str:
    function = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        refuse("tool_choice", choice, "none, auto, required, or an object that names a function")
    return name
