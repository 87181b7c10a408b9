"""Requests about pictures and videos with something wrong: seeded mutations of good ones.

URLs in them lead to this machine only, and are never mutated byte by byte: no number may become somebody's address.
"""

from __future__ import annotations

import base64
import io
import json
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from PIL import Image

from bench.media import encode_clip, moving_frames
from bench.soak_requests import CHAT, chat, media, text
from bench.wire import post

COMPLETIONS = "/v1/completions"
_MIMES = ("image/png", "image/jpeg", "image/gif", "video/mp4", "text/html", "", "application/x-%s%n", "image/png;q=1")
_URLS = (
    "", "http://", "http://127.0.0.1:9/x", "http://[::1]:9/x", "http://2130706433/", "http://0/", "http://localhost:9/",
    "http://127.0.0.1:99999/", "http://127.0.0.1:-1/", "http://user:pass@127.0.0.1:9/",
    "http://127.0.0.1:9\\@localhost/",
    "file:///etc/passwd", "file://localhost/../x", "ftp://127.0.0.1/x", "javascript:alert(1)", "data:", "data:,",
    "data:image/png;base64", "data:image/png,rawdata", "DATA:IMAGE/PNG;BASE64,", "//127.0.0.1/x",
    "http://127.0.0.1:9/\r\nX: y",
    "http://[::ffff:127.0.0.1]:9/", "http://[fe80::1%25eth0]:9/", "\x00", "http://\ud800:9/", "x" * 100_000,
)  # fmt: skip
_JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e308, "", " ", "\x00", "\ud800", "text",
    "🙂" * 50, "a" * 10_000, [], {}, [[]], [None], [{}], {"": ""}, {"type": "text"}, {"url": "data:,"},
    [1, "a", None],
    {"$ref": "#"}, "<|image_pad|>", "<|vision_start|>", "<|im_end|>", "{{ 7 * 7 }}", "%s%n", "auto", "none",
)  # fmt: skip
_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "n", "seed", "stop", "stop_token_ids", "max_tokens", "min_tokens",
    "stream",
    "stream_options", "logprobs", "top_logprobs", "logit_bias", "bad_words", "allowed_token_ids", "response_format",
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "tools", "tool_choice",
    "parallel_tool_calls", "chat_template", "chat_template_kwargs", "mm_processor_kwargs", "media_io_kwargs", "model",
    "add_generation_prompt", "continue_final_message", "cache_salt", "priority", "echo", "user", "prompt", "messages",
    "repetition_penalty", "presence_penalty", "ignore_eos", "skip_special_tokens", "max_completion_tokens",
    "unheard_of", "input", "instructions", "previous_response_id", "store", "text", "reasoning", "tokens", "include",
)  # fmt: skip
_HEADERS = (
    "X-Request-Id: " + "x" * 5000, "X-Request-Id: ../../etc", "Authorization: Bearer \x01",
    "Accept: text/event-stream",
    "Expect: 100-continue", "Content-Encoding: gzip", "Transfer-Encoding: gzip, chunked", "Content-Length: 5",
    "Bad Header",
    "traceparent: 00-zz", "Host: other", "Connection: upgrade\r\nUpgrade: h2c", "X: " + "y" * 70_000,
    "Cookie: " + "a=b; " * 50,
)  # fmt: skip


class Mutant(NamedTuple):
    """A request.

    Attributes:
        kind: what was done to it.
        request: its bytes.
        is_whole: whether an HTTP server can know where it ends; if not, it may wait for the rest.
    """

    kind: str
    request: bytes
    is_whole: bool = True


def encode_picture(form: str, mode: str, size: tuple[int, int], seed: int) -> bytes:
    """A small picture of noise in some format."""
    pixels = random.Random(seed).randbytes(size[0] * size[1] * 3)
    file = io.BytesIO()
    Image.frombytes("RGB", size, pixels).convert(mode).save(file, form)
    return file.getvalue()


class Mutator:
    """Makes mutants; the same seed makes the same.

    Args:
        seed: of the lots.
    """

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        forms = (("PNG", "RGB"), ("PNG", "P"), ("PNG", "LA"), ("JPEG", "RGB"), ("JPEG", "CMYK"), ("GIF", "P"),
                 ("WEBP", "RGB"), ("BMP", "RGB"), ("TIFF", "RGB"), ("ICO", "RGBA"), ("PPM", "L"))  # fmt: skip
        self._pictures = [encode_picture(form, mode, (56, 42), i) for i, (form, mode) in enumerate(forms)]
        self._pictures += [encode_picture("PNG", "RGB", size, 0) for size in ((1, 1), (1, 300), (3, 1), (700, 2))]
        self._videos = [encode_clip(moving_frames(4, 56, seed), fps=2) for seed in range(2)]
        self._ways: Sequence[Callable[[], Mutant]] = (
            self._value, self._value, self._field, self._part, self._bytes_of_json, self._base64, self._media,
            self._media, self._url, self._headers, self._framing, self._form, self._good,
        )  # fmt: skip

    def draw(self) -> Mutant:
        """The next one."""
        return self._rng.choice(self._ways)()

    def _body(self) -> dict[str, Any]:
        rng = self._rng
        parts = [text(rng.choice(("What is this?", "", "<image>Which?")))]
        for _ in range(rng.randrange(3)):
            kind = rng.choice(("image", "image", "video"))
            content = rng.choice(self._pictures if kind == "image" else self._videos)
            parts.insert(rng.randrange(len(parts) + 1), media(kind, _data_url(content)))
        return chat(*parts, max_tokens=2, stream=rng.random() < 0.3)

    def _good(self) -> Mutant:
        return Mutant("none", post(CHAT, _encode(self._body())))

    def _value(self) -> Mutant:
        """Another value somewhere in the tree, or one that is gone, comes twice, or is wrapped."""
        body = self._body()
        for _ in range(self._rng.randint(1, 3)):
            self._change(body)
        return Mutant("a value", post(CHAT, _encode(body)))

    def _change(self, tree: Any) -> None:
        rng = self._rng
        while isinstance(tree, dict | list) and tree:
            key = rng.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
            if rng.random() < 0.4 and isinstance(tree[key], dict | list) and tree[key]:
                tree = tree[key]
                continue
            way = rng.randrange(5)
            if way == 0:
                del tree[key]
            elif way == 1 and isinstance(tree, list):
                tree += [tree[key]] * rng.choice((1, 40))
            elif way == 2:
                tree[key] = [tree[key]]
            elif way == 3:
                tree[key] = _nested(rng.choice((20, 2000)), rng)
            else:
                tree[key] = rng.choice(_JUNK)
            return

    def _field(self) -> Mutant:
        """Fields with values that they can't have."""
        rng = self._rng
        picture = {"type": "input_image", "image_url": _data_url(self._pictures[0])}
        path, body = rng.choice((
            (CHAT, self._body()),
            (COMPLETIONS, {"prompt": "Hi", "max_tokens": 2}),
            ("/v1/responses", {"input": [{"role": "user", "content": [picture]}], "max_output_tokens": 16}),
            ("/tokenize", self._body()),
            ("/tokenize", {"prompt": "Hi"}),
            ("/detokenize", {"tokens": [1, 2]}),
        ))  # fmt: skip
        for _ in range(rng.randint(1, 3)):
            body[rng.choice(_FIELDS)] = rng.choice(_JUNK)
        return Mutant("a field", post(path, _encode(body)))

    def _part(self) -> Mutant:
        """Parts and roles as nobody has them."""
        rng = self._rng
        content = [rng.choice((text("a"), media("image", _data_url(self._pictures[0])), rng.choice(_JUNK)))
                   for _ in range(rng.choice((1, 3, 40)))]  # fmt: skip
        for part in content:
            if isinstance(part, dict) and rng.random() < 0.5:
                part["type"] = rng.choice(("image_url", "video_url", "text", "input_audio", "image", "", None, 7))
        roles = ("user", "system", "tool", "assistant", "developer", "", None, "x" * 1000)
        body = {"messages": [{"role": rng.choice(roles), "content": content} for _ in range(rng.choice((1, 2, 200)))]}
        return Mutant("parts", post(CHAT, _encode(body | {"max_tokens": 2})))

    def _bytes_of_json(self) -> Mutant:
        data = _encode(self._body())
        rng = self._rng
        way = rng.randrange(6)
        if way == 0:
            data = data[: rng.randrange(len(data))]
        elif way == 1:
            data = data.decode().encode(rng.choice(("utf-16", "utf-32", "utf-8-sig")))
        elif way == 2:
            data += rng.choice((b"}", b"\x00", b"{}", b" " * 1000, data))
        elif way == 3:
            data = data.replace(b"2", rng.choice((b"NaN", b"-Infinity", b"1e999", b"02", b"0x2", b"2" * 5000)), 1)
        else:
            data = self._corrupt(data)
        return Mutant("bytes of JSON", post(CHAT, data))

    def _base64(self) -> Mutant:
        rng = self._rng
        data = base64.b64encode(rng.choice(self._pictures)).decode()
        position = rng.randrange(len(data))
        data = rng.choice((
            data[:position], data[:position] + "*" + data[position:], data + "=", data.rstrip("=") + "===", data * 3,
            data.replace("A", "\n"), data.replace("/", "_"), "=" * 8, data[:position] + "é",
        ))  # fmt: skip
        return self._about(rng.choice(("image", "video")), f"data:{rng.choice(_MIMES)};base64,{data}", "base64")

    def _media(self) -> Mutant:
        rng = self._rng
        kind = rng.choice(("image", "video"))
        content = rng.choice((*self._pictures, *self._videos))
        for _ in range(rng.choice((0, 1, 1, 4))):
            content = self._corrupt(content)
        return self._about(kind, _data_url(content, rng.choice(_MIMES)), f"bytes of a {kind}")

    def _url(self) -> Mutant:
        return self._about(self._rng.choice(("image", "video")), self._rng.choice(_URLS), "URL")

    def _headers(self) -> Mutant:
        rng = self._rng
        types = (
            "application/json",
            "application/json; charset=utf-16",
            "text/plain",
            "multipart/form-data; boundary=x",
            "",
        )
        headers = [f"Content-Type: {rng.choice(types)}", *rng.sample(_HEADERS, rng.randrange(3))]
        return Mutant("headers", post(CHAT, _encode(self._body()), headers), is_whole=False)

    def _framing(self) -> Mutant:
        """Bodies in chunks, cut short, longer or shorter than they say; other methods and paths."""
        rng = self._rng
        body = _encode(self._body())
        whole = post(CHAT, body)
        head = (
            b"POST "
            + CHAT.encode()
            + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        )
        chunk = b"%x\r\n%s\r\n"
        half = len(body) // 2
        chunks = chunk % (half, body[:half]) + chunk % (len(body) - half, body[half:]) + b"0\r\n\r\n"
        chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
        ways = (
            chunked + chunks,
            chunked + chunks[: rng.randrange(len(chunks))],
            chunked + b"zz\r\n" + body,
            chunked + b"ffffffffffffffffff\r\n" + body,
            head + b"Content-Length: %d\r\n\r\n%s" % (len(body) + 10, body),
            head + b"Content-Length: %d\r\n\r\n%s" % (half, body),
            head + b"Content-Length: -1\r\n\r\n" + body,
            head + b"\r\n" + body,
            whole[: rng.randrange(1, len(whole))],
            whole.replace(b"POST", rng.choice((b"GET", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"HEAD", b"B")), 1),
            whole.replace(CHAT.encode(), rng.choice((b"/v1/chat", b"//v1/models", b"/%00", b"*", b"/../x")), 1),
            whole.replace(b"HTTP/1.1", rng.choice((b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"")), 1),
        )  # fmt: skip
        return Mutant("framing", rng.choice(ways), is_whole=False)

    def _form(self) -> Mutant:
        """Forms of answers, tools and stop strings that are hard to follow or make no sense."""
        rng = self._rng
        schema = rng.choice((
            {"type": "nope"}, {"type": "object", "properties": _nested(60, rng)}, {"$ref": "#/x"}, [], True,
            {"enum": ["a" * 100] * 50}, {"type": "string", "pattern": "(a+)+$"},
        ))  # fmt: skip
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        fields = rng.choice((
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
            {"response_format": {"type": rng.choice(("json_object", "xml", "", None))}},
            {"guided_regex": rng.choice(("(a+)+$", "[", "a{1000000}", "\\p{Greek}*", "(?=x)y", ""))},
            {"guided_choice": rng.choice(([], [""], ["a"] * 3000, [1]))},
            {"guided_grammar": rng.choice(("start: start", "root ::= root", "start: \"a\"*", "x" * 5000))},
            {"tools": [tool], "tool_choice": "required"},
            {"stop": rng.choice((["a"] * 1000, ["x" * 100_000], [""], "\x00"))},
        ))  # fmt: skip
        return Mutant("forms", post(CHAT, _encode(self._body() | fields)))

    def _about(self, kind: str, url: str, what: str) -> Mutant:
        body = chat(media(kind, url), text("What is this?"), max_tokens=2)
        return Mutant(what, post(CHAT, _encode(body)))

    def _corrupt(self, data: bytes) -> bytes:
        rng = self._rng
        if not data:
            return data
        start = rng.randrange(min(len(data), rng.choice((40, len(data)))))
        stop = min(len(data), start + rng.choice((1, 4, 100)))
        return rng.choice((
            data[:start],
            data[:start] + rng.randbytes(stop - start) + data[stop:],
            data[:start] + bytes([data[start] ^ 1 << rng.randrange(8)]) + data[start + 1 :],
            data[:start] + data[stop:],
            data[:start] + data[start:stop] * 3 + data[stop:],
            data[:start] + b"\xff\xff\xff\xff" + data[start + 4 :],
        ))  # fmt: skip


def _data_url(content: bytes, mime: str = "image/png") -> str:
    return f"data:{mime};base64,{base64.b64encode(content).decode()}"


def _encode(value: Any) -> bytes:
    return json.dumps(value).encode()


def _nested(depth: int, rng: random.Random) -> Any:
    # Not json's recursion but ours: 2,000 deep is beyond what either end would follow.
    value: Any = rng.choice(("x", 1, None))
    for _ in range(min(depth, 900)):
        value = [value] if rng.random() < 0.5 else {"type": value}
    return value
