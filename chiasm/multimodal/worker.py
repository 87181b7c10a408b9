"""A preprocessing process: takes one picture or video at a time from its pool, decodes it and writes its pixels.

Started as ``python -m chiasm.multimodal.worker`` by ``pool``. Hostile files meet their decoder here, so it holds
nothing of value: no weights, no sockets but the one to its pool.
"""

from __future__ import annotations

import argparse
import binascii
import contextlib
import os
import signal
import socket
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import torch
from PIL import Image

from chiasm.dist.children import die_with_parent
from chiasm.errors import OverloadedError, UserError
from chiasm.logs import configure_logging, get_logger
from chiasm.multimodal.decode import decode_image
from chiasm.multimodal.decode_video import VideoLimits, open_clip
from chiasm.multimodal.jobs import PREFIX, Done, Failed, Full, Job, Refused, Reply
from chiasm.multimodal.local_files import read_local_file
from chiasm.multimodal.processing import Frame, process_image, process_video
from chiasm.multimodal.sampling import sample_frames
from chiasm.schema.media import UNKNOWN_FPS, FrameTimes, ImageProcessorSpec, ProcessedItem, VideoProcessorSpec

_NICENESS = 10
_OOM_SCORE = "500"

_logger = get_logger(__name__)


class Worker:
    """Processes pictures and videos within fixed limits.

    Args:
        pixel_folder: where files of pixels go.
        max_bytes: largest local file.
        max_pixels: largest picture that is decoded.
        video_limits: of videos that are decoded.
        allowed_folder: folder below which local files are read; None refuses them.
    """

    def __init__(
        self,
        pixel_folder: Path,
        max_bytes: int,
        max_pixels: int,
        video_limits: VideoLimits,
        allowed_folder: str | None,
    ) -> None:
        self._pixel_folder = pixel_folder
        self._max_bytes = max_bytes
        self._max_pixels = max_pixels
        self._video_limits = video_limits
        self._allowed_folder = allowed_folder

    def run(self, job: Job, payload: bytearray) -> Reply:
        """Do one job; every error becomes a reply."""
        try:
            if isinstance(job.spec, VideoProcessorSpec):
                return Done(self._video(job, job.spec, payload))
            return Done(self._image(job, job.spec, payload))
        except UserError as error:
            return Refused(error.message, error.param, error.status)
        except OverloadedError as error:
            return Full(error.message)
        except Exception as error:
            _logger.exception("an item could not be processed")
            return Failed(repr(error))

    def _image(self, job: Job, spec: ImageProcessorSpec, payload: bytearray) -> ProcessedItem:
        if job.kind == "rgb":
            assert job.shape
            image = np.frombuffer(payload, dtype=np.uint8).reshape(job.shape)
        else:
            image = decode_image(self._encoded(job, payload), max_pixels=self._max_pixels, param=job.param)
        return process_image(image, spec, self._pixel_folder, file_name=job.file_name, param=job.param)

    def _video(self, job: Job, spec: VideoProcessorSpec, payload: bytearray) -> ProcessedItem:
        if job.kind == "rgb":
            assert job.shape
            assert job.times
            frames = np.frombuffer(payload, dtype=np.uint8).reshape(job.shape)
            return self._process_video(frames, job.times, spec, job)
        with open_clip(self._encoded(job, payload), self._video_limits, job.param) as clip:
            times = sample_frames(clip.num_frames, clip.fps or UNKNOWN_FPS, spec, job.param)
            return self._process_video(clip.frames(times.indices, job.param), times, spec, job)

    def _process_video(
        self, frames: Iterable[Frame], times: FrameTimes, spec: VideoProcessorSpec, job: Job
    ) -> ProcessedItem:
        return process_video(frames, times, spec, self._pixel_folder, file_name=job.file_name, param=job.param)

    def _encoded(self, job: Job, payload: bytearray) -> bytes | bytearray:
        if job.kind == "file":
            return read_local_file(bytes(payload), self._allowed_folder, max_bytes=self._max_bytes, param=job.param)
        if job.kind == "base64":
            try:
                return binascii.a2b_base64(payload, strict_mode=True)
            except binascii.Error as error:
                raise UserError("the data: URL is not valid base64.", param=job.param) from error
        return payload


def main() -> None:
    """Serve the pool whose socket the command line names, until it closes."""
    die_with_parent()
    configure_logging("preprocess")
    args = _parse_args()
    _be_modest()
    # Our own limit is checked against the header before any pixel is decoded, and may be higher than Pillow's.
    Image.MAX_IMAGE_PIXELS = None
    video_limits = VideoLimits(args.max_video_pixels, args.max_video_seconds)
    worker = Worker(args.pixel_folder, args.max_bytes, args.max_pixels, video_limits, args.allowed_folder)
    with contextlib.suppress(OSError, EOFError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(args.socket))  # only now, with torch loaded: connecting says "ready"
        while True:
            _serve_one(connection, worker)
    # The pool is gone: either it is about to kill us, or its process has died, and then the watch of
    # die_with_parent cleans up and ends us. Returning here would cut that short.
    signal.pause()


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--pixel-folder", type=Path, required=True)
    parser.add_argument("--max-bytes", type=int, required=True)
    parser.add_argument("--max-pixels", type=int, required=True)
    parser.add_argument("--max-video-pixels", type=int, required=True)
    parser.add_argument("--max-video-seconds", type=float, required=True)
    parser.add_argument("--allowed-folder")
    return parser.parse_args()


def _be_modest() -> None:
    """Yield to the server's event loop and the ranks: for the cores, and when memory runs out."""
    os.nice(_NICENESS)
    torch.set_num_threads(1)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, encoding="ascii")


def _serve_one(connection: socket.socket, worker: Worker) -> None:
    header_length, payload_length = PREFIX.unpack(_receive(connection, PREFIX.size))
    job = msgspec.msgpack.decode(_receive(connection, header_length), type=Job)
    reply = msgspec.msgpack.encode(worker.run(job, _receive(connection, payload_length)))
    connection.sendall(PREFIX.pack(len(reply), 0) + reply)


def _receive(connection: socket.socket, length: int) -> bytearray:
    buffer = bytearray(length)
    view = memoryview(buffer)
    while view:
        received = connection.recv_into(view)
        if not received:
            raise EOFError
        view = view[received:]
    return buffer


if __name__ == "__main__":
    main()
