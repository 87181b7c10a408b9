"""An answer in a given form: python examples/server/structured_output.py [FILE_OR_URL]"""

from __future__ import annotations

import sys

from common import CHARTS, connect, media, text
from pydantic import BaseModel, Field


class Chart(BaseModel):
    """What the answer is to have in it."""

    kind: str = Field(pattern="^(bars|line|pie|table)$")
    number_of_parts: int = Field(ge=1, le=20)


def main(picture: str = str(CHARTS / "bars.png")) -> None:
    client, model = connect()
    done = client.chat.completions.parse(
        model=model,
        messages=[{"role": "user", "content": [media("image", picture), text("Describe this chart.")]}],
        max_tokens=128,
        response_format=Chart,
    )
    print(done.choices[0].message.parsed)


if __name__ == "__main__":
    main(*sys.argv[1:2])
