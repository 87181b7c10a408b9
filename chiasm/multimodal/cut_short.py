"""Whether a video's file ends before it says that it does: what a broken download leaves would pass for a whole clip.

A file that doesn't say where it ends, as live recordings don't, is taken as far as it goes.
"""

from __future__ import annotations

import struct

_MEDIA_BOXES = (b"moov", b"moof", b"mdat")  # of an MP4; what is cut off of others shows nothing
_SEGMENT = b"\x18\x53\x80\x67"  # of a Matroska file: all but its header (RFC 8794, RFC 9559)
_MAX_EBML_HEADER = 4096
_GIF_HEADER = 13
_GIF_EXTENSION, _GIF_IMAGE, _GIF_TRAILER = 0x21, 0x2C, 0x3B


def is_cut_short(data: bytes | bytearray, container: str) -> bool:
    """Whether the end of a file is missing.

    Args:
        data: the file.
        container: FFmpeg's name for its format: "mov", "matroska" or "gif".
    """
    return {"mov": _is_mp4_cut, "matroska": _is_matroska_cut, "gif": _is_gif_cut}[container](data)


def _is_mp4_cut(data: bytes | bytearray) -> bool:
    """By the sizes of its boxes (ISO 14496-12, 4.2)."""
    start = 0
    while start + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, start)
        if size == 1 and start + 16 <= len(data):
            (size,) = struct.unpack_from(">Q", data, start + 8)
        if size < 8:  # up to the end of the file, or no box
            return False
        start += size
        if start > len(data):
            return kind in _MEDIA_BOXES
    return False


def _is_matroska_cut(data: bytes | bytearray) -> bool:
    """By the size of its segment, where it has one."""
    start = data.find(_SEGMENT, 0, _MAX_EBML_HEADER) + len(_SEGMENT)
    if start < len(_SEGMENT) or start >= len(data) or data[start] == 0:
        return False
    length = 9 - data[start].bit_length()  # of the number: one more than its zeros in front
    number = int.from_bytes(data[start : start + length], "big") & ((1 << 7 * length) - 1)
    is_known = number != (1 << 7 * length) - 1
    return is_known and start + length + number > len(data)


def _is_gif_cut(data: bytes | bytearray) -> bool:
    """By its blocks, of which the last is the trailer (GIF89a, appendix B)."""
    start = _GIF_HEADER + _colours(data, 10)
    while start < len(data) and data[start] != _GIF_TRAILER:
        if data[start] == _GIF_EXTENSION:
            start += 2
        elif data[start] == _GIF_IMAGE:
            start += 11 + _colours(data, start + 9)  # and the first code's size
        else:
            return False  # no GIF's, which is for the decoder to say
        while start < len(data) and data[start]:
            start += 1 + data[start]
        start += 1
    return start >= len(data)


def _colours(data: bytes | bytearray, start: int) -> int:
    """Bytes of the table of colours that the flags at ``start`` tell of."""
    flags = data[start] if start < len(data) else 0
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0
