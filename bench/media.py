"""Pictures and videos that the benchmarks send, as data: URLs; another seed gives other pixels."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Iterator
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]

_NOISE_SIDE = 20
_BLOCK_SIDE = 8
_SHIFT = 4


def picture_url(width: int, height: int, seed: int) -> str:
    """A JPEG of soft noise."""
    shape = (-(-height // _NOISE_SIDE), -(-width // _NOISE_SIDE), 3)
    noise = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((width, height)).save(file, "JPEG", quality=90)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def moving_frames(num_frames: int, side: int, seed: int) -> Iterator[Pixels]:
    """Blocks of noise that move to the right, uint8 [side, side, 3] each; ``side`` is a multiple of 8."""
    small = np.random.default_rng(seed).integers(
        0, 256, (side // _BLOCK_SIDE, side // _BLOCK_SIDE, 3), dtype=np.uint8
    )
    picture = small.repeat(_BLOCK_SIDE, 0).repeat(_BLOCK_SIDE, 1)
    for index in range(num_frames):
        yield np.roll(picture, _SHIFT * index, axis=1)


def encode_clip(frames: Iterable[Pixels], fps: int, keyframe_every: int = 12) -> bytes:
    """An MP4 file in MPEG-4 part 2, each frame made of itself or of earlier ones.

    Args:
        frames: uint8 [height, width, 3], all of one size.
        fps: frames in a second.
        keyframe_every: frames from one that is made of itself to the next.
    """
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream: Any = container.add_stream("mpeg4", rate=fps)
        stream.pix_fmt = "yuv420p"
        stream.gop_size = keyframe_every
        for index, pixels in enumerate(frames):
            if index == 0:
                stream.height, stream.width = pixels.shape[:2]
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = index
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


def cut_windows(clip: bytes, num_frames: int, step: int) -> list[bytes]:
    """Files of ``num_frames`` frames each, one beginning ``step`` frames after another.

    Frames are copied as they are encoded, as ``ffmpeg -c copy`` does, so that they decode to the same pixels in every
    file. That needs a keyframe at the beginning of each: ``encode_clip(..., keyframe_every=step)``.
    """
    with av.open(io.BytesIO(clip)) as container:
        source = container.streams.video[0]
        num_packets = sum(packet.size > 0 for packet in container.demux(source))
        starts = range(0, num_packets - num_frames + 1, step)
        return [_copied(clip, start, start + num_frames) for start in starts]


def _copied(clip: bytes, start: int, stop: int) -> bytes:
    file = io.BytesIO()
    with av.open(io.BytesIO(clip)) as source, av.open(file, "w", format="mp4") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        packets = [packet for packet in source.demux(source.streams.video[0]) if packet.size][start:stop]
        assert packets[0].is_keyframe, start
        first = packets[0].pts
        for packet in packets:
            assert packet.pts is not None
            assert packet.dts is not None
            assert first is not None
            packet.stream, packet.pts, packet.dts = stream, packet.pts - first, packet.dts - first
            target.mux(packet)
    return file.getvalue()


def video_url(file: bytes) -> str:
    """An MP4 file as a client sends it."""
    return "data:video/mp4;base64," + base64.b64encode(file).decode()
