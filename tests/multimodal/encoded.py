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


def png(width, height, bits, colour, rows, transparency=None):
    """A PNG from its raw rows; colour 0 is grey, 2 RGB, 4 grey with alpha, 6 RGBA."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))]
    if transparency is not None:
        chunks.append((b"tRNS", transparency))
    chunks += [(b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def png_bomb(width, height):
    """A PNG of under 70 bytes whose header claims a huge picture."""
    return png(width, height, 8, 2, b"")
