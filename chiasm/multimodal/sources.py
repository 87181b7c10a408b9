"""What a request's media URL points at, decided before anything is fetched, opened or decoded."""

from __future__ import annotations

import re
from typing import Literal, NoReturn
from urllib.parse import unquote_to_bytes

import msgspec

from chiasm.errors import UserError, refuse, shorten
from chiasm.schema.media import FrameTimes

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
# data:[type/subtype][;name=value]...;base64,
_DATA_HEADER = re.compile(r"[^,;]*(?:;[^,;]*)*;base64", re.IGNORECASE)
_FRAMES_HEADER = re.compile(r"data:video/jpeg[;,]", re.IGNORECASE)
_MAX_DATA_HEADER = 1024
# What tools put into base64 beside its characters: lines that end, and what a URL escapes.
_SPACES = b" \t\r\n\f"
_ESCAPES = {b"%2B": b"+", b"%2F": b"/", b"%3D": b"=", b"%0A": b"\n", b"%0D": b"\r", b"%09": b"\t", b"%20": b" "}
# Spaces with a character of base64 on either side.
_LOST_PLUS = re.compile(rb"[^, \t\r\n\f] +[^, \t\r\n\f]")
_FROM_URL_ALPHABET = bytes.maketrans(b"-_", b"+/")
_MAX_ESCAPED_BYTES = 8 << 20  # several passes over a text take their time, in which nobody else is served
_MAX_ESCAPED = 3  # bytes of a URL for a character of base64
# [//host]/path
_FILE_REST = re.compile(r"(?://(?P<host>[^/?#]*)|(?!//))(?P<path>/[^?#]*)", re.DOTALL)


SourceKind = Literal["bytes", "base64", "frames", "file", "rgb"]


class MediaSource(msgspec.Struct, frozen=True):
    """A picture or video that the preprocessing pool can get at by itself.

    Attributes:
        kind: what the payload is: an encoded file, its base64 text, such texts of the frames of a video, parted by
            commas, the path of a local file, or decoded pixels.
        payload: for "base64" and "frames" ASCII text, for "file" a path in the file system's encoding, for "rgb"
            uint8.
        shape: of decoded pixels: [height, width, 3] for a picture, [frames, height, width, 3] for a video.
        times: of decoded pixels of a video: when its frames are shown.
    """

    kind: SourceKind
    payload: bytes
    shape: tuple[int, ...] | None = None
    times: FrameTimes | None = None


class RemoteUrl(msgspec.Struct, frozen=True):
    """A picture or video that must be downloaded first, by ``fetch.MediaFetcher``."""

    url: str


def parse_source(url: str, *, max_bytes: int, param: str | None = None) -> MediaSource | RemoteUrl:
    """Sort a URL by its scheme. Cheap: nothing is decoded, and no file or network is touched.

    Args:
        url: of scheme ``data``, ``http``, ``https`` or ``file``.
        max_bytes: largest encoded file; longer base64 text is refused undecoded.
        param: the request's field that holds it, for errors.

    Raises:
        UserError: for another scheme or none, ``data`` that is not base64 or is too long, and ``file`` URLs that
            name a host or are malformed.

    Base64 may be in lines, percent-encoded, or in the alphabet of URLs; it is handed on without that. Spaces are read
    at the ends of lines only: anywhere else they may have been a ``+``, which decoding a form makes of it.
    """
    match = _SCHEME.match(url)
    scheme = match[1].lower() if match else ""
    if scheme in ("http", "https"):
        return RemoteUrl(url)
    if scheme == "data":
        return MediaSource("base64", _base64_text(url, len("data:"), max_bytes, param))
    if scheme == "file":
        return MediaSource("file", _local_path(url[len("file:") :], param))
    message = f"a media URL must begin with http:, https:, data: or file:, got {shorten(url)}."
    raise UserError(message, param=param)


def parse_frames(url: str, *, max_bytes: int, max_frames: int, param: str | None = None) -> MediaSource | None:
    """A video that is written as its frames: ``data:video/jpeg;base64,<frame>,<frame>``. Nothing is decoded yet.

    Args:
        url: of any scheme.
        max_bytes: largest size of all frames together.
        max_frames: most frames.
        param: the request's field that holds it, for errors.

    Returns:
        None if it is no such video; see ``parse_source`` then.

    Raises:
        UserError: if it is too long, or has too many frames.
    """
    if not _FRAMES_HEADER.match(url):
        return None
    text = _base64_text(url, len("data:"), max_bytes, param)
    num_frames = text.count(b",") + 1
    if num_frames > max_frames:
        refuse(param or "video", f"{num_frames} frames", f"of at most {max_frames} frames")
    return MediaSource("frames", text)


def _base64_text(url: str, start: int, max_bytes: int, param: str | None) -> bytes:
    # Looked for in a short prefix: a URL of megabytes without a comma must not cost a scan by the pattern.
    comma = url.find(",", start, start + _MAX_DATA_HEADER)
    if comma < 0 or not _DATA_HEADER.fullmatch(url, start, comma):
        _refuse("a data: URL must have the form data:image/png;base64,<data>.", param)
    max_length = (max_bytes + 2) // 3 * 4
    length = len(url) - comma - 1
    if length <= _MAX_ESCAPED * max_length:
        text = _plain_base64(url[comma + 1 :], param)
        length = len(text)
        if length <= max_length:
            return text
    message = f"a data: URL may hold at most {max_length} characters of base64 ({max_bytes} bytes), got {length}."
    raise UserError(message, param=param, status=422)


def _plain_base64(text: str, param: str | None) -> bytes:
    """Base64 in its own alphabet and nothing else; what needs no change is copied once."""
    try:
        found = text.encode("ascii")
    except UnicodeEncodeError:
        _refuse("the data: URL is not valid base64: it has characters beyond ASCII.", param)
    if b"%" in found:
        if len(found) > _MAX_ESCAPED_BYTES:
            limit = f"percent-encoded base64 may have at most {_MAX_ESCAPED_BYTES} characters"
            raise UserError(f"{limit}, got {len(found)}; plain base64 may have more.", param=param, status=422)
        # One replacement at a time, all in C: a text of nothing but escapes must not cost a step of Python for each.
        for escape, meant in _ESCAPES.items():
            found = found.replace(escape, meant).replace(escape.lower(), meant)
        if b"%" in found:
            _refuse("the data: URL is not valid base64: of escapes, only those of + / = and spaces are read.", param)
    if b" " in (found := found.strip(_SPACES)):
        _refuse_lost_pluses(found, param)
    if any(space in found for space in _SPACES):
        found = found.translate(None, _SPACES)
    if b"-" in found or b"_" in found:
        found = found.translate(_FROM_URL_ALPHABET)
    return found


def _refuse_lost_pluses(text: bytes, param: str | None) -> None:
    """Refuse spaces within a line of base64: without them it would be other bytes than with a + in their place."""
    if len(text) > _MAX_ESCAPED_BYTES:
        limit = f"base64 with spaces may have at most {_MAX_ESCAPED_BYTES} characters"
        raise UserError(f"{limit}, got {len(text)}; without it may have more.", param=param, status=422)
    if _LOST_PLUS.search(text):
        _refuse("the data: URL is not valid base64: it has spaces within a line. Was a + decoded to one?", param)


def _local_path(rest: str, param: str | None) -> bytes:
    match = _FILE_REST.fullmatch(rest)
    if not match:
        _refuse("a file: URL must have the form file:///folder/picture.png, with ? as %3F and # as %23.", param)
    if (match["host"] or "localhost").lower() != "localhost":
        _refuse(f"a file: URL can't name another host, got {shorten(match['host'])}.", param)
    try:
        path = unquote_to_bytes(match["path"])
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can spell
        path = b"\0"
    if b"\0" in path:
        _refuse("the file: URL holds a character that no path can hold.", param)
    return path


def _refuse(message: str, param: str | None) -> NoReturn:
    raise UserError(message, param=param)
