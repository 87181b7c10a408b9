"""Small videos, made when a test needs them. ``make_video_goldens`` imports them too: nothing of chiasm here."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import av
import numpy as np


class Encoding(NamedTuple):
    """How a video is written; with keyframes so close together that seeking and reordering both show."""

    codec: str
    format: str
    pixel_format: str = "yuv420p"
    options: tuple[tuple[str, str], ...] = ()


ENCODINGS = {
    "mpeg4 with B frames": Encoding("mpeg4", "mp4", options=(("bf", "2"), ("g", "12"))),
    "h264 with B frames": Encoding("libx264", "mp4", options=(("bf", "3"), ("g", "12"))),
    "h264 with open groups": Encoding("libx264", "mp4", options=(("bf", "3"), ("g", "12"), ("flags", "-cgop"))),
    "vp8 with hidden frames": Encoding(
        "libvpx", "webm", options=(("g", "12"), ("auto-alt-ref", "1"), ("lag-in-frames", "10"))
    ),
    "vp9": Encoding("libvpx-vp9", "webm", options=(("g", "12"), ("deadline", "realtime"))),
    "gif": Encoding("gif", "gif", "rgb8"),
}


def make_frames(count: int, height: int = 48, width: int = 64, seed: int = 0) -> np.ndarray:
    """Frames that differ everywhere: uint8 [count, height, width, 3]."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (-(-height // 8), -(-width // 8), 3), dtype=np.uint8)
    picture = np.kron(coarse, np.ones((8, 8, 1), np.uint8))[:height, :width]
    return np.stack([np.roll(picture, 3 * index, axis=1) for index in range(count)])


def encode_video(
    frames: np.ndarray,
    encoding: Encoding = ENCODINGS["mpeg4 with B frames"],
    fps: int = 10,
    times: Sequence[int] = (),
) -> bytes:
    """A video of these frames; ``times`` in units of a frame make its rate vary."""
    file = io.BytesIO()
    _encode(file, frames, encoding, fps, times, {})
    return file.getvalue()


def encode_to_file(path: str, frames: np.ndarray, encoding: Encoding, **options: str) -> None:
    """The same into a file, with options of its format, of which some read back what they have written."""
    _encode(path, frames, encoding, 10, (), options)


def _encode(
    file: io.BytesIO | str,
    frames: np.ndarray,
    encoding: Encoding,
    fps: int,
    times: Sequence[int],
    options: Mapping[str, str],
) -> None:
    with av.open(file, "w", format=encoding.format, options=dict(options)) as container:
        stream = container.add_stream(encoding.codec, rate=fps, options=dict(encoding.options))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = encoding.pixel_format
        for index, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = times[index] if times else index
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def mp4_bomb(num_samples: int) -> bytes:
    """An MP4 of two kilobytes whose tables claim so many samples of a byte each (ISO 14496-12, 8.6.1 and 8.7)."""
    video = bytearray(encode_video(make_frames(2)))
    for box, fields, value in (
        (b"stsz", 4, struct.pack(">II", 1, num_samples)),
        (b"stts", 8, None),
        (b"stsc", 12, None),
    ):
        start = video.index(box) + 4 + fields
        video[start : start + len(value or b"1234")] = value or struct.pack(">I", num_samples)
    return bytes(video)


def decode_all(video: bytes) -> list[np.ndarray]:
    """Every frame, in the plainest way that there is."""
    with av.open(io.BytesIO(video)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


class SizeCase(NamedTuple):
    """Frames to process, and limits on their area."""

    name: str
    count: int
    height: int
    width: int
    min_pixels: int = 128 * 28 * 28
    max_pixels: int = 28 * 28 * 768
    max_video_tokens: int = 128_000


SIZE_CASES = (
    SizeCase("enlarged", 4, 48, 64),
    SizeCase("shrunk", 3, 900, 1200),
    SizeCase("one frame", 1, 100, 250),
    SizeCase("small limits", 5, 111, 87, 3136, 12544),
    SizeCase("pressed by the clip's limit", 6, 300, 400, 3136, 10**6, 400),
)


def _durations() -> list[tuple[int, float]]:
    """Frames and frames a second of videos of all lengths, on both sides of where rates change."""
    draw = random.Random(0)
    cases = [(300, 30.0), (900, 30.0), (901, 30.0), (9000, 30.0), (9001, 30.0), (72_000, 30.0), (90_000, 25.0)]
    cases += [(100, 1.0), (40, 0.5), (10, 2.0), (1, 30.0), (3, 30.0), (29, 30.0), (31, 30.0), (1_000_000, 120.0)]
    for seconds in (1, 3, 30, 40, 300, 400, 2400, 4000):
        for fps in (0.2, 1.0, 10.0, 12.5, 23.976, 24.0, 25.0, 29.97, 50.0, 59.94, draw.uniform(1, 120)):
            cases.append((max(1, int(fps * draw.uniform(0, seconds))), fps))
    return cases


DURATIONS = _durations()

SAMPLINGS = (
    # frames, frames a second, and what is asked for
    (300, 30.0, {"fps": 2}),
    (300, 29.97, {"fps": 2}),
    (37, 10.0, {"fps": 2}),
    (100, 24.0, {"fps": 1.5}),
    (9, 30.0, {"fps": 2}),
    (3, 30.0, {"fps": 2}),
    (90_000, 25.0, {"fps": 2}),
    (101, 7.5, {"fps": 60}),
    (100, 30.0, {"num_frames": 8}),
    (100, 30.0, {"num_frames": 7}),
    (61, 30.0, {"num_frames": 32}),
    (1499, 30.0, {"num_frames": 100}),
)
