"""What the preprocessing pool and its workers say to each other over a Unix socket.

A message is two lengths, a msgpack struct and raw bytes. The bytes are the media as they came: they are neither
decoded nor copied into the struct on their way, so that the server's event loop only ever moves them.
"""

from __future__ import annotations

import struct

import msgspec

from chiasm.multimodal.sources import SourceKind
from chiasm.schema.media import FrameTimes, MediaSpec, ProcessedItem, VideoProcessorSpec

PREFIX = struct.Struct("<IQ")
"""Lengths of the msgpack struct and of the raw bytes, in front of every message."""

_MAX_WORDS = 2**16
_MAX_TILES = 2**10
_MAX_UNIT_BYTES = 512  # names of fields, a digest and a path, whose folder also holds sockets and is short therefore


class Job(msgspec.Struct, frozen=True):
    """One picture or video to process; the payload of its ``MediaSource`` follows.

    Attributes:
        kind: of its source.
        shape: of its source.
        times: of its source.
        spec: how it becomes patches; of the kind that says which of the two it is.
        file_name: of the file of pixels to write; the pool chooses it to be able to delete it after a crash.
        param: the request's field that holds it.
    """

    kind: SourceKind
    shape: tuple[int, ...] | None
    times: FrameTimes | None
    spec: MediaSpec
    file_name: str
    param: str | None

    @property
    def max_reply_bytes(self) -> int:
        """Longest reply of a worker that is sound: some words, or a few hundred bytes for each unit."""
        num_units = self.spec.max_frames if isinstance(self.spec, VideoProcessorSpec) else _MAX_TILES
        return _MAX_WORDS + num_units * _MAX_UNIT_BYTES

    @property
    def noun(self) -> str:
        """What is processed, for errors."""
        return "video" if isinstance(self.spec, VideoProcessorSpec) else "image"


class Done(msgspec.Struct, frozen=True, tag=True):
    """The pixels are on disk."""

    item: ProcessedItem


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The request is at fault: the fields of a ``UserError``."""

    message: str
    param: str | None
    status: int


class Full(msgspec.Struct, frozen=True, tag=True):
    """No space is left for pixels."""

    message: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """We are at fault; the worker's log says more."""

    error: str


Reply = Done | Refused | Full | Failed
