"""Encoded pictures for tests: what Pillow writes, and PNG by hand for what it won't write."""

from __future__ import annotations

import io
import struct
import zlib

from PIL import Image

from tests.multimodal.pictures import make_picture


def encode(picture, image_format="PNG", **options):
    """The bytes of a Pillow image or an array."""
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def noise(height=56, width=84, image_format="PNG", **options):
    """The bytes of a noisy picture."""
    return encode(make_picture("noise", height, width), image_format, **options)


def png_chunk(name, body):
    """A chunk of a PNG with its sum."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(width, height, bits, colour, rows, transparency=None, *, chunks=(), packed=None, is_interlaced=False):
    """A PNG from its raw rows, or from these as they are packed; colour 0 is grey, 2 RGB, 4 grey with alpha, 6 RGBA.

    ``chunks`` stand before its pixels.
    """
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, is_interlaced))
    if transparency is not None:
        chunks = (*chunks, png_chunk(b"tRNS", transparency))
    pixels = png_chunk(b"IDAT", zlib.compress(rows) if packed is None else packed)
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks) + pixels + png_chunk(b"IEND", b"")


def bmp(width, height, rows, *, has_alpha):
    """A BMP of 32 bits a pixel, blue first, from its rows from below; with a header that says what is transparent."""
    masks = struct.pack("<4I", 0xFF0000, 0xFF00, 0xFF, 0xFF000000 if has_alpha else 0)
    form = struct.pack("<IiiHHIIiiII", 108, width, height, 1, 32, 3, len(rows), 0, 0, 0, 0) + masks + bytes(52)
    return b"BM" + struct.pack("<IHHI", 14 + len(form) + len(rows), 0, 0, 14 + len(form)) + form + rows


def png_bomb(width, height):
    """A PNG of under 70 bytes whose header claims a huge picture."""
    return png(width, height, 8, 2, b"")
