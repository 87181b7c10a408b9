"""Charts with questions whose answers the built-in model was never shown, as files that clients read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from chiasm.evals.charts.examples import Example, held_out_seed, make_example
from chiasm.evals.relaxed import is_right
from tests.e2e.servers import Server, data_url, image_message

NUM_CHARTS = 24
MAX_TOKENS = 24


@dataclass(frozen=True)
class Asked:
    """A chart, and what the server says of it when it is asked with no client in between.

    Attributes:
        picture: its file.
        url: the picture as clients send it.
        question: in words.
        expected: the right answer.
        said: the server's answer.
        prompt_tokens: as the server counts them; those of the picture are among them.
        completion_tokens: likewise.
    """

    picture: Path
    url: str
    question: str
    expected: str
    said: str
    prompt_tokens: int
    completion_tokens: int

    @property
    def is_right(self) -> bool:
        """Whether the answer counts."""
        return is_right(self.said, self.expected)


def ask_charts(server: Server, folder: Path) -> list[Asked]:
    """Draw charts, and ask the server about each."""
    asked = []
    for index, example in enumerate(islice(_examples(), NUM_CHARTS)):
        picture = folder / f"{index}.png"
        example.images[0].save(picture)
        url = data_url(example.images[0])
        fields = {"messages": [image_message(url, example.question)], "temperature": 0, "max_tokens": MAX_TOKENS}
        body = server.post("/v1/chat/completions", fields).json()
        usage, said = body["usage"], body["choices"][0]["message"]["content"]
        counts = (usage["prompt_tokens"], usage["completion_tokens"])
        asked.append(Asked(picture, url, example.question, example.answer, said, *counts))
    return asked


def _examples() -> Iterator[Example]:
    """Those with one picture, which all clients can ask about."""
    for seed in count():
        example = make_example(held_out_seed(seed))
        if len(example.images) == 1:
            yield example


def write_lines(path: Path, rows: list[dict[str, object]]) -> Path:
    """Write a file of JSON lines, which most clients read."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
