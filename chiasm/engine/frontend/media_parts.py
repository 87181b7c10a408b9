"""A picture or a video in a message, in the spellings that clients use -> the part that the engine takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chiasm.errors import UserError, refuse, refuse_unserved
from chiasm.schema.chat import ImagePart, MediaPart, OwnSettings, VideoPart

# "image", "image_pil" and "video" are the spellings of scripts, where the field may hold more than a URL.
IMAGE_FIELDS = {"image_url": "image_url", "input_image": "image_url", "image": "image", "image_pil": "image_pil"}
VIDEO_FIELDS = {"video_url": "video_url", "video": "video"}
MEDIA_FIELDS = {**IMAGE_FIELDS, **VIDEO_FIELDS}

# What a part may ask for itself, as scripts for Qwen's models write it, and what that is called in a request.
_IMAGE_SETTINGS = {"min_pixels": "min_pixels", "max_pixels": "max_pixels"}
_VIDEO_SETTINGS = {**_IMAGE_SETTINGS, "fps": "fps", "num_frames": "num_frames", "nframes": "num_frames"}
_UNSERVED = (
    "resized_height", "resized_width", "total_pixels", "min_frames", "max_frames", "video_start", "video_end",
    "file_id",
)  # fmt: skip
# A "detail" is about other servers' prices, and media are known again by their bytes, whatever their "uuid".
_WITHOUT_EFFECT = ("type", "url", "detail", "uuid", "cache_control")


def parse_media_part(part: Mapping[str, Any], kind: str, param: str) -> MediaPart:
    """A part of a type that is in ``MEDIA_FIELDS``.

    Args:
        part: as the client wrote it.
        kind: its type.
        param: the field of the request that holds it, for errors.

    Raises:
        UserError: if it holds no medium, or asks for something that isn't served.
    """
    field = MEDIA_FIELDS[kind]
    if kind in ("image", "video") and "url" in part:  # as transformers spells it
        field = "url"
    media, where = part.get(field), f"{param}.{field}"
    own = _own_settings(part, kind, param)
    if isinstance(media, dict):
        inner = _own_settings(media, kind, where)
        if own and inner:
            raise UserError(f"{inner.param} and {own.param} can't both have settings.", param=inner.param)
        own = own or inner
        media, where = media.get("url"), f"{where}.url"
    if media is None or (isinstance(media, str) and not media):
        refuse(where, media, "a URL: http(s) or data:")
    return VideoPart(media, where, own) if kind in VIDEO_FIELDS else ImagePart(media, where, own)


def unread_media_keys(part: Mapping[str, Any], kind: str) -> set[str]:
    """What of such a part nobody reads, as ``image_url.note`` where it is within another field."""
    field = MEDIA_FIELDS[kind]
    read = {*_WITHOUT_EFFECT, *_settings_of(kind), *_UNSERVED}
    media = part.get(field)
    inner = media.keys() - read if isinstance(media, dict) else set()
    return {str(key) for key in part.keys() - read - {field}} | {f"{field}.{key}" for key in inner}


def _settings_of(kind: str) -> Mapping[str, str]:
    return _VIDEO_SETTINGS if kind in VIDEO_FIELDS else _IMAGE_SETTINGS


def _own_settings(given: Mapping[str, Any], kind: str, param: str) -> OwnSettings | None:
    """What is asked for beside a medium; None if nothing.

    Raises:
        UserError: for a setting that isn't served.
    """
    for key in _UNSERVED:
        if given.get(key) is not None:
            refuse_unserved(f"{param}.{key}", given[key])
    names = _settings_of(kind)
    values = {names[key]: given[key] for key in names if given.get(key) is not None}
    return OwnSettings(param, values) if values else None
