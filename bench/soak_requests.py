"""The requests of a soak: good ones whose answers are known, and all that can go wrong with one."""

from __future__ import annotations

import base64
import io
import json
import random
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from PIL import Image

from bench.media import encode_clip, moving_frames, video_url
from bench.media_host import MediaHost
from bench.wire import Response, events, post, post_json
from chiasm.evals.charts.examples import held_out_seed, make_example

CHAT = "/v1/chat/completions"
MAX_BODY_BYTES = 4 * 2**20
FETCH_TIMEOUT = 5

Check = Callable[[Response], str]
"""What is wrong with a response; nothing if it is empty."""
Body = dict[str, Any]


class Case(NamedTuple):
    """A request.

    Attributes:
        kind: a word for the report.
        request: its bytes.
        check: of its answer; None for a client that doesn't wait for it.
    """

    kind: str
    request: bytes
    check: Check | None


def picture_url(image: Image.Image) -> str:
    """A picture as clients send it."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def chat(*parts: dict[str, Any], **fields: Any) -> Body:
    """A body with one message, decoded greedily."""
    return {"messages": [{"role": "user", "content": list(parts)}], "temperature": 0, "max_tokens": 16, **fields}


def media(kind: str, url: str) -> dict[str, Any]:
    """A part with an image or a video."""
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url}}


def text(words: str) -> dict[str, Any]:
    """A part with text."""
    return {"type": "text", "text": words}


def good_bodies(num_charts: int, host: MediaHost) -> list[Body]:
    """Questions about charts, some of them clips; videos; a picture from elsewhere; text."""
    bodies = []
    for index in range(num_charts):
        example = make_example(held_out_seed(index))
        bodies.append(chat(*(media("image", picture_url(i)) for i in example.images), text(example.question)))
    for seed in range(3):
        clip = video_url(encode_clip(moving_frames(8 + 4 * seed, 112, seed), fps=2))
        bodies.append(chat(media("video", clip), text("Which bar grew?")))
    bodies.append(chat(media("image", host.url("picture")), text("Which bar is the largest?")))
    bodies.append(chat(text("Which bar is the largest?")))
    return bodies


def text_of(response: Response) -> str:
    """The answer in a whole response or in a stream.

    Raises:
        ValueError: if there is none.
    """
    if response.status != 200:
        raise ValueError(f"status {response.status}: {response.body[:300]!r}")
    if response.headers["content-type"].startswith("application/json"):
        return str(json.loads(response.body)["choices"][0]["message"]["content"])
    pieces = []
    for event in events(response.body):
        if "error" in event:
            raise ValueError(f"the stream ends with {event['error']}")
        pieces += [choice["delta"].get("content") or "" for choice in event["choices"]]
    return "".join(pieces)


def says(expected: str) -> Check:
    """A check of a good answer."""

    def check(response: Response) -> str:
        try:
            got = text_of(response)
        except ValueError as error:
            return str(error)
        return "" if got == expected else f"{got!r} in place of {expected!r}"

    return check


def refused(*statuses: int) -> Check:
    """A check of an error's shape and status."""

    def check(response: Response) -> str:
        if response.status not in statuses:
            return f"status {response.status} in place of {statuses}: {response.body[:300]!r}"
        try:
            error = json.loads(response.body)["error"]
        except (ValueError, KeyError):
            return f"not an error's body: {response.body[:300]!r}"
        return "" if error["code"] == response.status and error["message"] else f"a strange error: {error}"

    return check


def _ends_or_times_out(response: Response) -> str:
    """A check of a long stream."""
    if response.status == 504:  # before its first token
        return refused(504)(response)
    try:
        last = events(response.body)[-1]
    except ValueError as error:
        return str(error)
    return "" if last.get("error", {"code": 504})["code"] == 504 else f"it ends with {last['error']}"


class Mix:
    """Draws requests: about six of ten are good.

    Args:
        good: bodies with the answers that they get when they are alone.
        host: of media.
        rng: where the lots come from.

    Attributes:
        bad: by name, a request that is wrong and a check of its answer.
    """

    def __init__(self, good: list[tuple[Body, str]], host: MediaHost, rng: random.Random) -> None:
        self._good = good
        self._rng = rng
        self.bad = _bad_bodies(good[0][0], host)

    def draw(self) -> Case:
        """The next request."""
        kind = self._rng.choices(("good", "bad", "leaves", "silent", "long"), (60, 18, 18, 2, 2))[0]
        body, answer = self._rng.choice(self._good)
        stream = self._rng.random() < 0.5
        if kind == "good":
            return Case("good, streamed" if stream else "good, whole", post_json(CHAT, body | {"stream": stream}),
                        says(answer))  # fmt: skip
        if kind == "leaves":
            long = {"max_tokens": 400, "ignore_eos": True} if self._rng.random() < 0.5 else {}
            return Case("leaves", post_json(CHAT, body | {"stream": stream} | long), None)
        if kind == "long":
            fields = {"max_tokens": 2000, "ignore_eos": True, "stream": True}
            return Case("long stream", post_json(CHAT, body | fields), _ends_or_times_out)
        name = "silent video" if kind == "silent" else self._rng.choice(sorted(self.bad.keys() - {"silent video"}))
        request, check = self.bad[name]
        return Case(name, request, check)


def _bad_bodies(good: Body, host: MediaHost) -> Mapping[str, tuple[bytes, Check]]:
    png = base64.b64decode(good["messages"][0]["content"][0]["image_url"]["url"].partition(",")[2])

    def about(kind: str, url: str) -> bytes:
        return post_json(CHAT, chat(media(kind, url), text("What is this?")))

    def data(content: bytes, mime: str = "image/png") -> str:
        return f"data:{mime};base64,{base64.b64encode(content).decode()}"

    bad = refused(400, 422)
    cases: dict[str, tuple[bytes, Check]] = {
        "garbage picture": (about("image", data(b"\x89PNG\r\n\x1a\n" + bytes(range(200)))), bad),
        "picture cut short": (about("image", data(png[: len(png) // 2])), bad),
        "bad base64": (about("image", "data:image/png;base64,A*B"), bad),
        "bomb": (about("image", data(_bomb())), bad),
        "garbage video": (about("video", data(bytes(range(256)) * 8, "video/mp4")), bad),
        "bad JSON": (post(CHAT, b'{"messages": ['), bad),
        "no messages": (post_json(CHAT, {"messages": []}), bad),
        "n": (post_json(CHAT, good | {"n": 10**9}), bad),
        "too large": (post_json(CHAT, chat(text("x" * MAX_BODY_BYTES))), refused(413)),
        "too long": (post_json(CHAT, chat(text("word " * 20_000))), bad),
        "closed port": (about("image", "http://127.0.0.1:7/x.png"), refused(422)),
        "silent video": (about("video", host.url("silent")), refused(504)),
    }
    for name in ("missing", "silent", "drip", "endless", "short", "garbage", "loop"):
        cases[f"host: {name}"] = (about("image", host.url(name)), bad)
    return cases


def _bomb() -> bytes:
    """A PNG of 65 bytes that claims 20,000 x 20,000 pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 20000, 20000, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b""))
