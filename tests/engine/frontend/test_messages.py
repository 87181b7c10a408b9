from __future__ import annotations

from typing import Any

import pytest

from chiasm.engine.frontend.messages import MAX_PARTS, parse_messages, unread_keys
from chiasm.schema.chat import ChatMessage, ContentPart, ImagePart, TextPart
from tests.engine.frontend.support import assistant, refused, text, user

URL = "https://example.com/a.png"


def parse(message: object) -> ChatMessage:
    (parsed,) = parse_messages([message])
    return parsed


def parts_of(*parts: object) -> tuple[ContentPart, ...]:
    return parse(user(list(parts))).content


@pytest.mark.parametrize(
    ("written", "read"),
    [("system", "system"), ("developer", "system"), ("user", "user"), ("assistant", "assistant"), ("tool", "tool")],
)
def test_roles(written: str, read: str) -> None:
    assert parse({"role": written, "content": "a"}) == ChatMessage(read, (TextPart("a"),), "messages[0]")


@pytest.mark.parametrize(
    "part",
    [
        "a",
        {"type": "text", "text": "a"},
        {"type": "input_text", "text": "a"},
        {"type": "output_text", "text": "a"},
        {"type": "refusal", "refusal": "a"},
        {"text": "a"},
        {"type": None, "text": "a"},
    ],
)
def test_spellings_of_text(part: object) -> None:
    assert parts_of(part) == (TextPart("a"),)


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"type": "image_url", "image_url": {"url": URL, "detail": "high"}}, "image_url.url"),
        ({"type": "image_url", "image_url": URL}, "image_url"),
        ({"type": "input_image", "image_url": URL, "detail": "auto"}, "image_url"),
        ({"type": "image", "image": URL}, "image"),
        ({"type": "image", "image": {"url": URL}}, "image.url"),
        ({"type": "image", "url": URL}, "url"),
        ({"type": "image_pil", "image_pil": URL}, "image_pil"),
        ({"image_url": {"url": URL}}, "image_url.url"),
        ({"image": URL}, "image"),
    ],
)
def test_spellings_of_an_image(part: dict[str, Any], field: str) -> None:
    assert parts_of(text("a"), part) == (TextPart("a"), ImagePart(URL, f"messages[0].content[1].{field}"))


def test_a_script_may_give_the_picture_itself() -> None:
    picture = object()
    assert parts_of({"type": "image", "image": picture}) == (ImagePart(picture, "messages[0].content[0].image"),)


def test_an_assistant_that_only_called_tools_has_no_content() -> None:
    assert parse({"role": "assistant", "content": None, "tool_calls": []}).content == ()
    assert parse({"role": "assistant"}).content == ()


def test_fields_that_templates_read_are_kept() -> None:
    message = {"role": "tool", "content": "1", "tool_call_id": "c", "name": "f", "refusal": None, "other": 1}
    assert parse(message).extra == {"tool_call_id": "c", "name": "f"}
    assert parse(assistant("a", reasoning="b")).extra == {"reasoning": "b"}
    assert parse(assistant("a", reasoning_content="b")).extra == {"reasoning": "b"}
    assert parse(assistant("a", reasoning="b", reasoning_content="c")).extra == {"reasoning": "b"}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
        ("{}", {}),
        ({"a": 1}, {"a": 1}),
        ("not json", "not json"),
        ("[1]", "[1]"),
        ("", {}),
        (" \n", {}),
        ("null", {}),
        ("5", "5"),
        ("[" * 100_000, "[" * 100_000),
        ("\ud800", "\ud800"),
        (None, {}),
    ],
)
def test_arguments_of_tool_calls_become_objects(written: object, read: object) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": written}}
    (parsed,) = parse(assistant(None, tool_calls=[call])).extra["tool_calls"]
    assert parsed == {**call, "function": {"name": "f", "arguments": read}}
    assert call["function"] == {"name": "f", "arguments": written}, "what the client sent is not changed"


def test_other_tool_calls_stay_as_they_are() -> None:
    calls = [{"name": "f", "arguments": {}}, {"function": "f"}]
    assert parse(assistant(None, tool_calls=calls)).extra["tool_calls"] == calls


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("hello", "messages[0]"),
        (None, "messages[0]"),
        ({"content": "a"}, "messages[0].role"),
        ({"role": "robot", "content": "a"}, "messages[0].role"),
        ({"role": ["user"], "content": "a"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "tool", "content": None}, "messages[0].content"),
        (user(5), "messages[0].content"),
        (user({"type": "text", "text": "a"}), "messages[0].content"),
        (user([5]), "messages[0].content[0]"),
        (user([None]), "messages[0].content[0]"),
        (user([text("a"), {}]), "messages[0].content[1].type"),
        (user([{"type": "audio_url", "audio_url": {"url": URL}}]), "messages[0].content[0].type"),
        (user([{"audio_url": {"url": URL}}]), "messages[0].content[0].type"),
        (user([{"image_url": URL, "text": "a"}]), "messages[0].content[0].type"),
        (user([{"type": "video_url", "video_url": {}}]), "messages[0].content[0].video_url.url"),
        (user([{"type": ["text"], "text": "a"}]), "messages[0].content[0].type"),
        (user([{"type": "text"}]), "messages[0].content[0].text"),
        (user([{"type": "text", "text": None}]), "messages[0].content[0].text"),
        (user([{"type": "text", "text": ["a"]}]), "messages[0].content[0].text"),
        (user([{"type": "image_url"}]), "messages[0].content[0].image_url"),
        (user([{"type": "image_url", "image_url": ""}]), "messages[0].content[0].image_url"),
        (user([{"type": "image_url", "image_url": {}}]), "messages[0].content[0].image_url.url"),
        (user([{"type": "image_url", "image_url": {"url": ""}}]), "messages[0].content[0].image_url.url"),
        (assistant(None, tool_calls="f()"), "messages[0].tool_calls"),
        (assistant(None, tool_calls=["f()"]), "messages[0].tool_calls"),
        (assistant(None, function_call={"name": "f", "arguments": "{}"}), "messages[0].function_call"),
        (assistant(None, audio={"id": "x"}), "messages[0].audio"),
        (assistant(None, refusal=7), "messages[0].content"),
    ],
)
def test_what_is_wrong_is_named(message: object, param: str) -> None:
    with refused(param):
        parse(message)


def test_the_message_at_fault_is_named() -> None:
    with refused("messages[2].content[1].type", "audio", "text", "image_url"):
        parse_messages([user("a"), assistant("b"), user([text("c"), {"type": "audio"}])])


def test_too_many_parts_are_refused_before_any_is_looked_at() -> None:
    many = [user([text("a")] * (MAX_PARTS // 2))] * 2
    assert len(parse_messages(many)) == 2
    with refused("messages", str(MAX_PARTS + 1), str(MAX_PARTS)):
        parse_messages([*many, user([{"type": "bad"}])])


def test_errors_stay_short() -> None:
    with refused("messages[0].content[0].type"):
        parse(user([{"type": "x" * 1_000_000}]))


@pytest.mark.parametrize("detail", ["auto", "low", "high", "original", None, 7])
@pytest.mark.parametrize("role", ["user", "system", "assistant", "tool"])
def test_details_and_names_of_media_change_nothing(role: str, detail: object) -> None:
    for part in (
        {"type": "image_url", "image_url": {"url": URL, "detail": detail}, "uuid": "x"},
        {"type": "image_url", "image_url": URL, "detail": detail},
        {"type": "input_image", "image_url": URL, "detail": detail, "uuid": 7},
        {"image_url": {"url": URL}, "detail": detail},
    ):
        (read,) = parse({"role": role, "content": [part]}).content
        assert isinstance(read, ImagePart)
        assert read.source == URL


def test_media_stay_where_they_are_written_in_every_message() -> None:
    image, video = {"type": "image_url", "image_url": URL}, {"video_url": {"url": "https://example.com/a.mp4"}}
    messages = parse_messages(
        [
            user([image, "a", video, {"text": "b"}, image]),
            assistant([video, "c"]),
            {"role": "tool", "tool_call_id": "1", "content": ["d", image]},
            user("e"),
        ]
    )
    kinds = [[type(part).__name__[0] for part in message.content] for message in messages]
    assert kinds == [["I", "T", "V", "T", "I"], ["V", "T"], ["T", "I"], ["T"]]


@pytest.mark.parametrize("thinking", ["Hm.", [{"type": "text", "text": "Hm."}]])
def test_thinking_parts_are_reasoning(thinking: object) -> None:
    part = {"type": "thinking", "thinking": thinking, "closed": True}
    message = parse(assistant([part, {"type": "text", "text": "a"}]))
    assert (message.content, message.extra) == ((TextPart("a"),), {"reasoning": "Hm."})
    assert parse(assistant([part], reasoning="Said twice.")).extra == {"reasoning": "Said twice."}
    with refused("messages[0].content[0].type", "assistant"):
        parse(user([part]))
    with refused("messages[0].content[0].thinking", "string"):
        parse(assistant([{"type": "thinking", "thinking": 7}]))


def test_reasoning_by_both_names() -> None:
    assert parse(assistant("a", reasoning_content="Hm.")).extra == {"reasoning": "Hm."}
    assert parse(assistant("a", reasoning="A", reasoning_content="B")).extra == {"reasoning": "A"}


def test_a_refusal_is_what_was_said() -> None:
    assert parse(assistant(None, refusal="I can't.")).content == (TextPart("I can't."),)
    assert parse(assistant("Yes.", refusal=None)).content == (TextPart("Yes."),)


def test_a_message_as_openais_client_dumps_it() -> None:
    dumped = assistant("a", refusal=None, annotations=[], audio=None, function_call=None, tool_calls=None)
    assert parse(dumped) == parse(assistant("a"))
    assert unread_keys([dumped]) == set()


@pytest.mark.parametrize(
    ("message", "keys"),
    [
        ({**user("a"), "cache_control": {"type": "ephemeral"}, "id": "x"}, set()),
        ({**user("a"), "prefix": True}, {"prefix"}),
        (user([{"type": "text", "text": "a", "cache_control": {}}, "b", 5]), set()),
        (user([{"type": "text", "text": "a", "note": 1}]), {"content.note"}),
        (user([{"type": "text", "text": "a", "image_url": URL}]), {"content.image_url"}),
        (user([{"type": "image_url", "image_url": {"url": URL, "detail": "low"}, "uuid": "x"}]), set()),
        (user([{"type": "image_url", "image_url": {"url": URL}, "max_pixels": 1, "min_pixels": 1}]), set()),
        (
            user([{"type": "image_url", "image_url": {"url": URL, "quality": 9}, "fps": 1}]),
            {"content.fps", "content.image_url.quality"},
        ),
        (user([{"type": "video_url", "video_url": {"url": URL, "fps": 1, "start": 2}}]), {"content.video_url.start"}),
        (assistant([{"type": "thinking", "thinking": "a", "closed": True, "signature": "x"}]), set()),
        ({"role": "tool", "content": "a", "tool_call_id": "c", "is_error": True}, {"is_error"}),
        ("hello", set()),
    ],
)
def test_what_nobody_reads_is_found(message: object, keys: set[str]) -> None:
    assert unread_keys([message]) == keys
