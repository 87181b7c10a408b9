"""A question that needs a tool, its call, and the answer with the result.

The server needs a model whose template knows tools, and for tool_choice "auto" its parser:

    chiasm serve Qwen/Qwen3-VL-4B-Instruct --enable-auto-tool-choice --tool-call-parser hermes
    python examples/server/call_tools.py [auto|required]
"""

from __future__ import annotations

import json
import sys
from typing import Any

from common import connect

NUMBER = {"type": "integer", "minimum": 0, "maximum": 9999}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "multiply",
            "description": "The product of two whole numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": NUMBER, "b": NUMBER},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        },
    }
]


def multiply(a: int, b: int) -> int:
    return a * b


def main(tool_choice: str = "auto") -> None:
    client, model = connect()
    messages: list[Any] = [{"role": "user", "content": "What is 111 times 5?"}]
    first = client.chat.completions.create(
        model=model, messages=messages, tools=TOOLS, tool_choice=tool_choice, max_tokens=256
    )
    message = first.choices[0].message
    if not message.tool_calls:
        print(message.content)
        return
    messages.append(message.model_dump(exclude_none=True))
    for call in message.tool_calls:
        arguments = json.loads(call.function.arguments)
        result = multiply(**arguments)
        print(f"{call.function.name}({arguments}) = {result}")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
    last = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, max_tokens=128)
    print(last.choices[0].message.content)


if __name__ == "__main__":
    main(*sys.argv[1:2])
