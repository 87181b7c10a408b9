"""A conversation as the frontend takes it, whatever the client's spelling was."""

from __future__ import annotations

from typing import Any

import msgspec

from chiasm.schema.media import MediaItem, ProcessedItem


class TextPart(msgspec.Struct, frozen=True):
    """A piece of text in a message."""

    text: str


class OwnSettings(msgspec.Struct, frozen=True):
    """What a picture or a video asks for itself, in place of what its request does.

    Attributes:
        param: the field of the request that holds these settings, for errors (``messages[0].content[1]``).
        values: by name: ``min_pixels`` and ``max_pixels``, and of a video ``fps`` or ``num_frames``.
    """

    param: str
    values: dict[str, Any]


class ImagePart(msgspec.Struct, frozen=True):
    """An image in a message.

    Attributes:
        source: a URL (``http``, ``https``, ``data``, ``file``), or for the offline API a PIL image or an array.
        param: the field of the request that holds it, for errors (``messages[0].content[1].image_url.url``).
        own: what it asks for itself.
    """

    source: Any
    param: str
    own: OwnSettings | None = None


class VideoPart(msgspec.Struct, frozen=True):
    """A video in a message.

    Attributes:
        source: a URL as for images, or for the offline API an encoded video as bytes, its frames as an array
            [frames, height, width, 3], or such an array with a dict that says when they are shown.
        param: the field of the request that holds it, for errors.
        own: what it asks for itself.
    """

    source: Any
    param: str
    own: OwnSettings | None = None


MediaPart = ImagePart | VideoPart
ContentPart = TextPart | MediaPart


class ChatMessage(msgspec.Struct, frozen=True):
    """One message.

    Attributes:
        role: ``system``, ``user``, ``assistant`` or ``tool``.
        content: its parts as written; a plain string is one text part.
        param: the field of the request that holds it, for errors (``messages[0]``).
        extra: further fields that a template may read (``name``, ``tool_calls``, ``tool_call_id``, ``reasoning``).
        content_field: of the request, where its content is not in a field ``content`` of ``param``.
    """

    role: str
    content: tuple[ContentPart, ...]
    param: str
    extra: dict[str, Any] = {}
    content_field: str | None = None

    @property
    def content_param(self) -> str:
        """The field of the request that holds its content, for errors."""
        return self.content_field or f"{self.param}.content"


class AddedToken(msgspec.Struct, frozen=True):
    """A token that stands beside the vocabulary proper and is written as one piece.

    Attributes:
        token_id: its id.
        is_special: whether it is no text: answers are shown without it unless asked for.
    """

    token_id: int
    is_special: bool


FITTING = -1
"""In place of a number of tokens that a prompt is cut to: as many as leave room for the answer."""


class Truncation(msgspec.Struct, frozen=True):
    """How long a prompt may be before its beginning is cut off.

    Attributes:
        most: tokens that are kept, or ``FITTING``.
        num_answer: tokens of the answer that is to have room.
    """

    most: int
    num_answer: int = 1


class PrepareTimes(msgspec.Struct, frozen=True):
    """When a prompt was prepared, in seconds by ``time.perf_counter``.

    Attributes:
        began: the engine was given it.
        fetched: the bytes of its media were here.
        prepared: its media were decoded and its text tokenised.
    """

    began: float
    fetched: float
    prepared: float


class PreparedPrompt(msgspec.Struct, frozen=True):
    """A prompt ready for the engine: every placeholder in place, pixels on disk.

    Attributes:
        text: the prompt's text before tokenising, without what the tokenizer puts around it; None for a prompt of
            token ids, or a plain one that was cut.
        token_ids: with one id per placeholder token.
        items: its media with their offsets.
        cache_salt: see ``EngineRequest``.
        media: the items as they were lent by the pool, to which they are to be given back.
        times: when that was done; None where nobody took them.
    """

    text: str | None
    token_ids: tuple[int, ...]
    items: tuple[MediaItem, ...] = ()
    cache_salt: str = ""
    media: tuple[ProcessedItem, ...] = ()
    times: PrepareTimes | None = None
