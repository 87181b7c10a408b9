"""Encoded videos to RGB frames, distrusting every byte.

Accepted are MP4, WebM (Matroska) and GIF, told apart by their content, with the codecs that are common in them. Meant
for a preprocessing process, which a hostile video may take down or keep busy until it is killed.
"""

from __future__ import annotations

import io
import math
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import av
import numpy as np
import numpy.typing as npt
from av.container import InputContainer
from av.packet import Packet as AnyPacket
from av.sidedata.sidedata import SideDataContainer
from av.sidedata.sidedata import Type as SideDataType
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from chiasm.errors import UserError, refuse
from chiasm.multimodal.cut_short import is_cut_short

if TYPE_CHECKING:
    Packet = AnyPacket[VideoStream]

ACCEPTED_FORMATS = ("MP4", "WebM", "GIF")
ACCEPTED_CODECS = ("h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "gif")

# Decoders that can leave out, packet by packet, the frames that no other is made from; dav1d can't.
_SKIPPING = ("h264", "hevc", "vp8", "vp9", "mpeg4")

# Where a format has its mark, the mark, and FFmpeg's name for the format.
_MARKS = (
    (0, b"GIF87a", "gif"),
    (0, b"GIF89a", "gif"),
    (0, b"\x1a\x45\xdf\xa3", "matroska"),
    (4, b"ftyp", "mov"),
)
# Bytes of a file that FFmpeg looks at to find out what is in it.
_PROBE = {"probesize": str(2**20)}
_MOST_FPS = 120  # of the longest video: more packets than that are not even counted
_VP8_SHOWN = 0x10  # in the first byte of a VP8 frame (RFC 6386, 9.1)
# A header's frame rate is taken if the frames' own times agree with it so far; some programs write any number.
_RATE_TOLERANCE = 0.1
_UNEVEN = 0.5  # frames by which one that is shown may be off


@dataclass(frozen=True)
class VideoLimits:
    """What is decoded at most.

    Attributes:
        max_pixels: of a frame.
        max_seconds: of the whole video, sampled or not.
    """

    max_pixels: int
    max_seconds: float


class Clip:
    """An opened video whose packets have been read, but not decoded. Made by ``open_clip``.

    Attributes:
        num_frames: that it shows.
        fps: on average; 0 where nothing tells.
        seconds: when each frame is shown, the first at 0; None where they follow each other evenly.
    """

    def __init__(self, stream: VideoStream, packets: Sequence[Packet]) -> None:
        self._codec = stream.codec_context
        self._packets = packets
        # When each frame is shown, and the packet from which decoding leads to it; in order of showing.
        shown = sorted(
            (packet.pts, start)
            for packet, start in zip(packets, _starts(packets), strict=True)
            if packet.pts is not None and _is_shown(packet, self._codec.name)
        )
        self._times = [time for time, _ in shown]
        self._starts = [start for _, start in shown]
        self.num_frames = len(shown)
        self.fps, self.seconds = _rate_and_times(stream, self._times)

    def frames(self, indices: Sequence[int], param: str | None = None) -> Iterator[npt.NDArray[np.uint8]]:
        """Decode these frames, and others only as far as these need them.

        Args:
            indices: ascending; a frame may come twice.
            param: the request's field that holds the video, for errors.

        Yields:
            [height, width, 3] uint8, RGB.

        Raises:
            UserError: if the video is broken, or its frames change their size.
        """
        decoder = _Decoder(self._codec, self._packets, {self._times[index] for index in indices})
        shape = None
        for index in indices:
            with _refusing(param):
                rgb = _upright(decoder.frame_at(self._times[index], self._starts[index]))
            if shape not in (None, rgb.shape):
                raise UserError("the video's frames change their size.", param=param)
            shape = rgb.shape
            yield rgb


@contextmanager
def open_clip(data: bytes | bytearray, limits: VideoLimits, param: str | None = None) -> Iterator[Clip]:
    """Read a video's header and packets; what is too large is refused as soon as either says so.

    Args:
        data: the file's content.
        limits: what is decoded at most.
        param: the request's field that holds it, for errors.

    Raises:
        UserError: if it is too large or too long, of a format or codec that is not accepted, broken or cut short.
    """
    name = next((name for start, mark, name in _MARKS if data[start : start + len(mark)] == mark), None)
    if name is None:
        raise _undecodable(param)
    if is_cut_short(data, name):
        raise _cut_short(param)
    options = {"max_pixels": str(limits.max_pixels)}
    with _refusing(param):
        container = av.open(io.BytesIO(data), "r", format=name, options={**_PROBE, **options})
    with container:
        with _refusing(param):
            stream = container.streams.video[0]
            _check_header(container, stream, limits, param)
            stream.codec_context.options = options
            stream.codec_context.thread_count = 1
            clip = Clip(stream, _read_packets(container, stream, limits, param))
        if clip.num_frames == 0:
            raise _undecodable(param)
        yield clip


class _Decoder:
    """Decodes forwards to the frames that are wanted, from the last keyframe before them where that is shorter."""

    def __init__(self, codec: VideoCodecContext, packets: Sequence[Packet], wanted: set[int]) -> None:
        self._codec = codec
        self._packets = packets
        self._wanted = wanted
        self._next = 0
        self._ready: deque[VideoFrame] = deque()

    def frame_at(self, time: int, start: int) -> VideoFrame:
        """The frame that is shown at a time no earlier than the last one, or the next one if that is lost.

        Args:
            time: in the stream's unit.
            start: the packet from which decoding leads to it.

        Raises:
            EOFError: if there is none.
        """
        while True:
            while self._ready:
                if (shown := self._ready[0].pts) is not None and shown >= time:
                    return self._ready[0]  # stays, for it may be wanted again
                self._ready.popleft()
            if start > self._next:
                self._codec.flush_buffers()
                self._next = start
            self._feed()

    def _feed(self) -> None:
        if self._next > len(self._packets):
            raise EOFError("the video ends before its last frame")
        packet = self._packets[self._next] if self._next < len(self._packets) else None
        self._next += 1
        if self._codec.name in _SKIPPING:
            is_wanted = packet is None or packet.pts in self._wanted
            self._codec.skip_frame = "DEFAULT" if is_wanted else "NONREF"
        self._ready.extend(self._codec.decode(packet))


def _read_packets(
    container: InputContainer, stream: VideoStream, limits: VideoLimits, param: str | None
) -> list[Packet]:
    """All packets in order of decoding; they are smaller than the file, which is in memory as well."""
    most = int(limits.max_seconds * _MOST_FPS)
    packets: list[Packet] = []
    first = None
    for packet in container.demux(stream):
        if packet.size == 0:
            continue
        if packet.is_corrupt:  # the file ends within it
            raise _cut_short(param)
        if len(packets) >= most:
            refuse(param or "video", f"more than {most} frames", f"of at most {most} frames")
        packets.append(packet)
        if packet.pts is not None and packet.time_base is not None:
            first = packet.pts if first is None else min(first, packet.pts)
            _check_seconds(float((packet.pts - first) * packet.time_base), limits, param)
    return packets


def _check_header(container: InputContainer, stream: VideoStream, limits: VideoLimits, param: str | None) -> None:
    codec = stream.codec_context
    if codec.codec.canonical_name not in ACCEPTED_CODECS:
        known = ", ".join(ACCEPTED_CODECS)
        raise UserError(f"the video's codec is not accepted; accepted codecs are {known}.", param=param)
    if not 0 < codec.width * codec.height <= limits.max_pixels:
        limit = f"between 1 and {limits.max_pixels} pixels in the size of a frame"
        # FFmpeg has none where a size can't be read, and mostly where it is above the limit.
        size = f"{codec.width} x {codec.height}" if codec.width else "more, or no size at all"
        refuse(param or "video", size, limit)
    if container.duration is not None:
        _check_seconds(container.duration / av.time_base, limits, param)


def _check_seconds(seconds: float, limits: VideoLimits, param: str | None) -> None:
    if seconds > limits.max_seconds:
        refuse(param or "video", f"{seconds:.1f} seconds", f"at most {limits.max_seconds:g} seconds long")


def _is_shown(packet: Packet, codec: str) -> bool:
    if packet.is_discard:  # cut off by the container's edits
        return False
    return codec != "vp8" or bool(memoryview(packet)[0] & _VP8_SHOWN)


def _starts(packets: Sequence[Packet]) -> list[int]:
    """For each packet, the keyframe's from which decoding leads to it."""
    starts = []
    keyframe = before = 0
    for index, packet in enumerate(packets):
        if packet.is_keyframe:
            keyframe, before = index, keyframe
        shown, key_shown = packet.pts, packets[keyframe].pts
        # Frames may follow a keyframe and be shown before it: they are made from earlier ones, too.
        leads = shown is not None and key_shown is not None and shown < key_shown
        starts.append(before if leads else keyframe)
    return starts


def _rate_and_times(stream: VideoStream, times: Sequence[int]) -> tuple[float, tuple[float, ...] | None]:
    """Frames in a second on average, 0 where nothing tells; and when they are shown, if not evenly."""
    stated = max(stream.average_rate or Fraction(0), Fraction(0))
    if len(times) < 2 or times[-1] == times[0] or stream.time_base is None:
        return float(stated), None
    seconds = tuple(float((time - times[0]) * stream.time_base) for time in times)
    measured = Fraction(len(times) - 1) / ((times[-1] - times[0]) * stream.time_base)
    for rate in (stated, measured):
        if abs(rate - measured) <= _RATE_TOLERANCE * measured and _follow_evenly(seconds, float(rate)):
            return float(rate), None
    return float(measured), seconds


def _follow_evenly(seconds: Sequence[float], rate: float) -> bool:
    """Whether frames are shown at a rate, but for what a container's clock rounds off."""
    return all(abs(time * rate - index) < _UNEVEN for index, time in enumerate(seconds))


def _upright(frame: VideoFrame) -> npt.NDArray[np.uint8]:
    """[height, width, 3] uint8, turned and mirrored as the file says: a camera may write its pictures as it is held.

    Whatever the file says exactly, it is the nearest of the eight ways in which a picture can lie.
    """
    rgb = np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
    x_right, x_down, y_right, y_down = _directions(frame)
    right, down = x_right, y_down
    if abs(x_down) + abs(y_right) > abs(x_right) + abs(y_down):
        rgb, right, down = rgb.transpose(1, 0, 2), y_right, x_down
    return np.ascontiguousarray(rgb[:: -1 if down < 0 else 1, :: -1 if right < 0 else 1])


def _directions(frame: VideoFrame) -> tuple[float, float, float, float]:
    """Where a frame's x, and where its y, runs on the screen: to the right and down (ISO 14496-12, 8.2.2.1)."""
    try:
        # Not frame.side_data, which makes a cycle: the frame, and the threads that convert it, would live on a while.
        for data in SideDataContainer(frame):  # type: ignore[call-arg]  # which its stub leaves out
            if data.type is SideDataType.DISPLAYMATRIX:
                x_right, x_down, _, y_right, y_down = struct.unpack("=5i", bytes(data)[:20])
                return x_right, x_down, y_right, y_down
    except ValueError:  # among other data of a kind that PyAV doesn't know; the angle alone it finds
        angle = math.radians(frame.rotation)
        return math.cos(angle), -math.sin(angle), math.sin(angle), math.cos(angle)
    return 1, 0, 0, 1


@contextmanager
def _refusing(param: str | None) -> Iterator[None]:
    # Whatever a decoder raises on hostile bytes is the video's fault, and its words stay inside.
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise _undecodable(param) from error


def _cut_short(param: str | None) -> UserError:
    return UserError("the video is cut short: its file ends before the video does.", param=param)


def _undecodable(param: str | None) -> UserError:
    formats = ", ".join(ACCEPTED_FORMATS)
    return UserError(f"the data can't be decoded as a video; accepted formats are {formats}.", param=param)
