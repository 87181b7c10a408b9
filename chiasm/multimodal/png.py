"""PNG files chunk by chunk (W3C, Portable Network Graphics, third edition), for a decoder that trusts them.

Pillow checks no sum over a chunk of pixels, and the one at their end only where it comes to it. It refuses a picture
for the size of the notes beside it, and compares a transparent value as it is written with pixels that are scaled.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _COLOUR, _PALETTE = 0, 2, 3  # types of colour
_KNOWN = (b"IHDR", b"PLTE", b"IDAT")  # of the chunks that no decoder may pass over
_TURNING = (b"Raw profile type exif", b"XML:com.adobe.xmp")  # texts that may say how a picture is turned
_MAX_TEXT = 256 * 1024  # bytes of such a text
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by type of colour
# Of an interlaced picture, pass by pass: its first column and row, and how far apart they are (8.2, Adam7).
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
_STEP = 1 << 16  # bytes that are decompressed at a time
_MAX_SURPLUS = 1 << 20  # bytes behind the last row, which decoders pass over


class _Chunk(NamedTuple):
    name: bytes
    body: memoryview | bytes


class Png(NamedTuple):
    """A PNG whose chunks are whole.

    Attributes:
        data: the file, of which only what its pixels and their place depend on is left.
        transparent: of a picture with 16-bit colours, the red, green and blue of the transparent one, which ``data``
            doesn't tell; None if there is none.
    """

    data: bytes
    transparent: tuple[int, ...] | None


def is_png(data: bytes | bytearray) -> bool:
    """Whether a file begins as a PNG does."""
    return data[: len(_SIGNATURE)] == _SIGNATURE


def read_png(data: bytes | bytearray) -> Png:
    """Check a file and leave out what no pixel depends on. Its pixels are not decompressed.

    Of an animation the picture is left that is shown by decoders which know no animations.

    Raises:
        ValueError: if a chunk isn't what its sum says, or one is missing, or unknown where it may not be.
    """
    chunks = list(_chunks(memoryview(data)))
    names = [chunk.name for chunk in chunks]
    if b"IDAT" not in names or names[0] != b"IHDR" or len(chunks[0].body) != 13:
        raise ValueError("no picture")
    start = names.index(b"IDAT")
    head = {chunk.name: chunk for chunk in reversed(chunks[:start])}  # of several with a name the first counts
    bits, colour = head[b"IHDR"].body[8:10]
    if colour == _PALETTE and b"PLTE" not in head:
        raise ValueError("no palette")
    values = _transparent_values(head.get(b"tRNS"), bits, colour)
    is_deep = colour == _COLOUR and bits == 16
    kept = [head[b"IHDR"]]
    if colour == _PALETTE:
        kept += [head[name] for name in (b"PLTE", b"tRNS") if name in head]
    elif values and not is_deep:
        kept.append(_Chunk(b"tRNS", struct.pack(f">{len(values)}H", *(_as_pillow(value, bits) for value in values))))
    kept += [chunk for chunk in chunks if _may_turn(chunk)]
    pixels = takewhile(lambda chunk: chunk.name == b"IDAT", chunks[start:])
    # In one piece: between two Pillow misses the sum at the end.
    kept += [_Chunk(b"IDAT", b"".join(chunk.body for chunk in pixels)), _Chunk(b"IEND", b"")]
    return Png(_SIGNATURE + b"".join(map(_written, kept)), values if values and is_deep else None)


def is_transparent(png: bytes, value: tuple[int, ...], max_pixels: int) -> npt.NDArray[np.bool_]:
    """Where a picture of 16-bit colours has the transparent one, which 8 bits of each don't tell.

    Args:
        png: the file.
        value: its red, green and blue.
        max_pixels: largest picture to decode.

    Returns:
        [height, width].

    Raises:
        ValueError: if it can't be decoded.
    """
    import av  # only when needed: 80 ms

    with av.open(io.BytesIO(png), "r", format="png_pipe", options={"max_pixels": str(max_pixels)}) as container:
        frame = next(container.decode(video=0))
    found: npt.NDArray[np.bool_] = (frame.to_ndarray(format="rgb48be") == value).all(axis=2)
    return found


def check_pixels(png: bytes) -> None:
    """Check the sum over a picture's pixels.

    It stands behind them: a decoder that has its last row hasn't read it, and may have gone astray long before.

    Args:
        png: the file as ``read_png`` leaves it. Its size must have been found acceptable.

    Raises:
        ValueError: if they aren't what their sum says, or don't end.
    """
    chunks = {chunk.name: chunk.body for chunk in _chunks(memoryview(png))}
    left: bytes | memoryview = chunks[b"IDAT"]
    unpacker = zlib.decompressobj()
    num_bytes, most = 0, _num_bytes(bytes(chunks[b"IHDR"])) + _MAX_SURPLUS
    while not unpacker.eof:
        part = unpacker.decompress(left, _STEP)
        left = unpacker.unconsumed_tail
        num_bytes += len(part)
        if not (part or left or unpacker.eof) or num_bytes > most:
            raise ValueError("no end of the pixels")


def _num_bytes(header: bytes) -> int:
    """Bytes of all rows, decompressed."""
    width, height, bits, colour, _, _, is_interlaced = struct.unpack(">IIBBBBB", header)
    passes = _PASSES if is_interlaced else ((0, 0, 1, 1),)
    sizes = [(-((x - width) // right), -((y - height) // down)) for x, y, right, down in passes]
    return sum(rows * (1 + -(-columns * bits * _CHANNELS[colour] // 8)) for columns, rows in sizes if columns)


def _chunks(data: memoryview) -> Iterator[_Chunk]:
    """All chunks up to the end; one that is cut short is left out, for nothing may depend on it."""
    position = len(_SIGNATURE)
    while position + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, position)
        end = position + 12 + length
        if end > len(data):
            return
        name = bytes(data[position + 4 : position + 8])
        if name == b"IEND":
            return
        if zlib.crc32(data[position + 4 : end - 4]) != struct.unpack_from(">I", data, end - 4)[0]:
            raise ValueError("a chunk isn't what its sum says")
        if name[:1].isupper() and name not in _KNOWN:
            raise ValueError("an unknown chunk that has to be understood")
        yield _Chunk(name, data[position + 8 : end - 4])
        position = end


def _written(chunk: _Chunk) -> bytes:
    named = chunk.name + chunk.body
    return struct.pack(">I", len(chunk.body)) + named + struct.pack(">I", zlib.crc32(named))


def _transparent_values(chunk: _Chunk | None, bits: int, colour: int) -> tuple[int, ...]:
    """The transparent grey, or red, green and blue; none of a palette, which tells of each of its colours."""
    if chunk is None or colour not in (_GREY, _COLOUR):
        return ()
    count = 1 if colour == _GREY else 3
    return tuple(value & ((1 << bits) - 1) for value in struct.unpack(f">{count}H", chunk.body[: 2 * count]))


def _as_pillow(value: int, bits: int) -> int:
    """A transparent value as Pillow compares it: with pixels of 8 bits, where they have 2 or 4."""
    return value * 255 // ((1 << bits) - 1) if bits in (2, 4) else value


def _may_turn(chunk: _Chunk) -> bool:
    """Whether a chunk may say how the picture is turned; texts of more than ``_MAX_TEXT`` bytes don't."""
    if chunk.name not in (b"tEXt", b"zTXt", b"iTXt"):
        return chunk.name == b"eXIf"
    if len(chunk.body) > _MAX_TEXT:
        return False
    keyword, _, rest = bytes(chunk.body).partition(b"\0")
    if keyword not in _TURNING:
        return False
    is_packed = chunk.name == b"zTXt" or (chunk.name == b"iTXt" and rest[:1] == b"\1")
    packed = rest[1:] if chunk.name == b"zTXt" else rest[2:].split(b"\0", 2)[-1]
    return not is_packed or _is_short(packed)


def _is_short(packed: bytes) -> bool:
    unpacker = zlib.decompressobj()
    try:
        unpacker.decompress(packed, _MAX_TEXT)
    except zlib.error:
        return False
    return not unpacker.unconsumed_tail
