"""Bodies that hosts encode though they are asked not to, as stores of objects do that keep a file with its coding.

RFC 9110, 8.4. Standard codings that can't be decoded here are refused by name; other words in ``Content-Encoding``
(``utf-8``, ``aws-chunked``) are mistakes of whoever stored the file, which browsers pass over as well.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

_GZIP = ("gzip", "x-gzip")
_DEFLATE = "deflate"
_UNREAD = ("br", "zstd", "compress", "x-compress", "dcb", "dcz", "aes128gcm", "exi", "pack200-gzip")
_STEP = 1 << 20  # bytes that are decompressed at a time
_WITH_GZIP_HEADER, _WITHOUT_HEADER = 16 + zlib.MAX_WBITS, -zlib.MAX_WBITS


class CodingError(Exception):
    """A body can't be decoded; the message says why, as it follows "its host sends"."""


class BodyDecoder:
    """Decodes a body as it arrives.

    Args:
        content_encoding: the header's value; empty without one.

    Raises:
        CodingError: for a coding, or several, that can't be decoded here.
    """

    def __init__(self, content_encoding: str) -> None:
        codings = [coding.strip().lower() for coding in content_encoding.split(",")]
        for coding in codings:
            if coding in _UNREAD:
                raise CodingError(f"it encoded with {coding}; only gzip and deflate are decoded")
        read = [coding for coding in codings if coding in (*_GZIP, _DEFLATE)]
        if len(read) > 1:
            raise CodingError("it encoded several times over")
        self._coding = read[0] if read else None
        self._unpacker = zlib.decompressobj(_WITH_GZIP_HEADER) if self._coding in _GZIP else None
        self._head = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """What a further piece becomes, in parts of at most ``_STEP`` bytes where it grows.

        Raises:
            CodingError: if it isn't what the header says.
        """
        if self._coding is None:
            yield piece
            return
        try:
            yield from self._unpack(piece)
        except zlib.error as error:
            raise CodingError(
                f"what isn't encoded with {self._coding}, though its Content-Encoding says so"
            ) from error

    @property
    def is_complete(self) -> bool:
        """Whether a body may end here."""
        return self._coding is None or (self._unpacker is not None and self._unpacker.eof)

    def _unpack(self, piece: bytes) -> Iterator[bytes]:
        if self._unpacker is None:
            piece = self._head = self._head + piece
            if len(piece) < 2:
                return
            self._unpacker = zlib.decompressobj(zlib.MAX_WBITS if _has_zlib_header(piece) else _WITHOUT_HEADER)
        left = piece
        while True:
            if self._unpacker.eof:
                if self._coding == _DEFLATE or not left.strip(b"\0"):
                    return
                self._unpacker = zlib.decompressobj(_WITH_GZIP_HEADER)  # gzip's files may follow one another
            part = self._unpacker.decompress(left, _STEP)
            yield part
            left = self._unpacker.unused_data or self._unpacker.unconsumed_tail
            if not left and len(part) < _STEP:
                return


def _has_zlib_header(data: bytes) -> bool:
    """Whether a deflated text begins as the standard has it (RFC 1950, 2.2); some hosts leave that out."""
    return data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
