"""Ask in words alone: python examples/server/ask_text.py ["QUESTION"]"""

from __future__ import annotations

import sys

from common import connect, show


def main(question: str = "What is the result of 111 * 5?") -> None:
    client, model = connect()
    messages = [{"role": "user", "content": question}]
    show(client.chat.completions.create(model=model, messages=messages, max_tokens=64, stream=True))


if __name__ == "__main__":
    main(*sys.argv[1:2])
