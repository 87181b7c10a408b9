"""Ask about one or several pictures: python examples/server/ask_image.py ["QUESTION" FILE_OR_URL ...]"""

from __future__ import annotations

import sys

from common import CHARTS, connect, media, show, text


def main(question: str = "Which bar is the largest?", *pictures: str) -> None:
    client, model = connect()
    shown = pictures or (str(CHARTS / "bars.png"),)
    content = [*(media("image", picture) for picture in shown), text(question)]
    messages = [{"role": "user", "content": content}]
    show(client.chat.completions.create(model=model, messages=messages, max_tokens=64, temperature=0, stream=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
