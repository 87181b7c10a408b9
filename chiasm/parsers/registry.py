"""The parsers by the names that ``--tool-call-parser`` and ``--reasoning-parser`` take."""

from __future__ import annotations

from chiasm.config.server import ReasoningParser, ToolCallParser
from chiasm.parsers.calls import CallFormat
from chiasm.parsers.glm45 import GLM45
from chiasm.parsers.json_calls import HERMES, LLAMA3_JSON
from chiasm.parsers.llama4 import LLAMA4_JSON, LLAMA4_PYTHONIC
from chiasm.parsers.reasoning import THINK, ReasoningFormat

CALL_FORMATS: dict[ToolCallParser, CallFormat] = {
    "glm45": GLM45,
    "hermes": HERMES,
    "llama3_json": LLAMA3_JSON,
    "llama4_json": LLAMA4_JSON,
    "llama4_pythonic": LLAMA4_PYTHONIC,
}
REASONING_FORMATS: dict[ReasoningParser, ReasoningFormat] = {"glm45": THINK, "qwen3": THINK}
