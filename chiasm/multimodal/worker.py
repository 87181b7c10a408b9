"""A preprocessing process: takes one picture or video at a time from its pool, decodes it and writes its pixels.

Started as ``python -m chiasm.multimodal.worker`` by ``pool``. Hostile files meet their decoder here, so it holds
nothing of value: no weights, no keys, no socket but the one to its pool, and no way to open another.
"""

from __future__ import annotations

import argparse
import binascii
import contextlib
import os
import re
import resource
import signal
import socket
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
from PIL import Image

from chiasm.dist.children import die_with_parent
from chiasm.dist.sandbox import confine_files, enter_sandbox
from chiasm.errors import OverloadedError, UserError
from chiasm.logs import configure_logging, get_logger
from chiasm.multimodal.decode import decode_image
from chiasm.multimodal.decode_video import VideoLimits, open_clip
from chiasm.multimodal.jobs import PREFIX, Done, Failed, Full, Job, Refused, Reply
from chiasm.multimodal.local_files import read_local_file
from chiasm.multimodal.processing import Frame, process_image, process_video
from chiasm.multimodal.sampling import at_true_times, sample_frames
from chiasm.schema.media import UNKNOWN_FPS, FrameTimes, ImageProcessorSpec, ProcessedItem, VideoProcessorSpec

_NICENESS = 10
_OOM_SCORE = "500"
_STATUS_BYTES = 2**14

# What decoding and processing may take beside the item's own bytes, of which there are a few copies.
_SPARE_BYTES = 2**28
_COPIES = 4
_BYTES_PER_PIXEL = 32  # of a picture: with transparency, upright, and resized, each a copy
_BYTES_PER_FRAME_PIXEL = 128  # of a video: decoders keep up to 16 frames, of up to 6 bytes a pixel

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
        self._status = _open_status()

    def run(self, job: Job, payload: bytearray) -> Reply:
        """Do one job within limits of memory; every error becomes a reply."""
        try:
            _limit_memory(self._most_bytes(job), self._status)
            if isinstance(job.spec, VideoProcessorSpec):
                return Done(self._video(job, job.spec, payload))
            return Done(self._image(job, job.spec, payload))
        except UserError as error:
            return Refused(error.message, error.param, error.status)
        except OverloadedError as error:
            return Full(error.message)
        except MemoryError:
            return Refused(f"the {job.noun} needs more memory to decode than it may have.", job.param, 400)
        except Exception as error:
            _logger.exception("an item could not be processed")
            return Failed(repr(error))
        finally:
            _limit_memory(None, self._status)

    def _most_bytes(self, job: Job) -> int:
        """What a job may take beyond what is in use."""
        fixed = _SPARE_BYTES + _COPIES * self._max_bytes
        if isinstance(job.spec, VideoProcessorSpec):
            return fixed + _BYTES_PER_FRAME_PIXEL * self._video_limits.max_pixels
        return fixed + _BYTES_PER_PIXEL * self._max_pixels

    def _image(self, job: Job, spec: ImageProcessorSpec, payload: bytearray) -> ProcessedItem:
        if job.kind == "rgb":
            assert job.shape
            image = np.frombuffer(payload, dtype=np.uint8).reshape(job.shape)
        else:
            image = decode_image(self._encoded(job, payload), max_pixels=self._max_pixels, param=job.param)
        item = process_image(image, spec, self._pixel_folder, file_name=job.file_name, param=job.param)
        return msgspec.structs.replace(item, num_pixels=image.shape[0] * image.shape[1])

    def _video(self, job: Job, spec: VideoProcessorSpec, payload: bytearray) -> ProcessedItem:
        if job.kind == "rgb":
            assert job.shape
            assert job.times
            frames = np.frombuffer(payload, dtype=np.uint8).reshape(job.shape)
            return self._process_video(frames, job.times, spec, job)
        if job.kind == "frames":
            texts = bytes(payload).split(b",")
            # Whoever takes frames out of a video takes them as we would.
            times = FrameTimes.of_all(len(texts), spec.fps)
            if spec.num_frames is not None:
                times = sample_frames(len(texts), spec.fps, spec, job.param)
            return self._process_video(self._frames(texts, times, job.param), times, spec, job)
        with open_clip(self._encoded(job, payload), self._video_limits, job.param) as clip:
            times = sample_frames(clip.num_frames, clip.fps or UNKNOWN_FPS, spec, job.param)
            if clip.seconds is not None:
                times = at_true_times(times, clip.seconds)
            return self._process_video(clip.frames(times.indices, job.param), times, spec, job)

    def _frames(self, texts: Sequence[bytes], times: FrameTimes, param: str | None) -> Iterator[Frame]:
        """Pictures that are the frames of a video, decoded one by one."""
        shape = None
        for index in times.indices:
            frame = decode_image(
                _from_base64(texts[index], param), max_pixels=self._video_limits.max_pixels, param=param
            )
            if shape not in (None, frame.shape):
                raise UserError("the video's frames change their size.", param=param)
            shape = frame.shape
            yield frame

    def _process_video(
        self, frames: Iterable[Frame], times: FrameTimes, spec: VideoProcessorSpec, job: Job
    ) -> ProcessedItem:
        return process_video(frames, times, spec, self._pixel_folder, file_name=job.file_name, param=job.param)

    def _encoded(self, job: Job, payload: bytearray) -> bytes | bytearray:
        if job.kind == "file":
            return read_local_file(bytes(payload), self._allowed_folder, max_bytes=self._max_bytes, param=job.param)
        if job.kind == "base64":
            return _from_base64(payload, job.param)
        return payload


def _from_base64(text: bytes | bytearray, param: str | None) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error as error:
        raise UserError("the data: URL is not valid base64.", param=param) from error


def main() -> None:
    """Serve the pool whose socket the command line names, until it closes."""
    args = _parse_args()
    _be_modest()
    video_limits = VideoLimits(args.max_video_pixels, args.max_video_seconds)
    worker = Worker(args.pixel_folder, args.max_bytes, args.max_pixels, video_limits, args.allowed_folder)
    media = [Path(args.allowed_folder)] if args.allowed_folder else []
    is_confined = confine_files(args.pixel_folder, media)  # before there is a second thread
    die_with_parent()
    configure_logging("preprocess")
    # Our own limit is checked against the header before any pixel is decoded, and may be higher than Pillow's.
    Image.MAX_IMAGE_PIXELS = None
    with contextlib.suppress(OSError, EOFError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(args.socket))  # only now, with torch loaded: connecting says "ready"
        if not (enter_sandbox() and is_confined):
            _logger.warning("this system can't keep decoders from the network, or from files")
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
    torch.backends.cpu.get_cpu_capability()  # it reads /proc/cpuinfo once, which it can't later
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, encoding="ascii")


def _open_status() -> int | None:
    """Where the system says how much memory is in use; opened before it can't be any more."""
    with contextlib.suppress(OSError):
        return os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
    return None


def _limit_memory(num_bytes: int | None, status: int | None) -> None:
    """Let this process take so much more memory than it has; None lifts the limit.

    A few bytes of a file can ask for gigabytes: FFmpeg reserves 24 bytes for each sample that an MP4's header claims.
    Where the system doesn't say what is in use there is no limit.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = resource.RLIM_INFINITY
    if num_bytes is not None and status is not None:
        text = os.pread(status, _STATUS_BYTES, 0)
        if used := re.search(rb"^VmData:\s*(\d+) kB$", text, re.MULTILINE):
            soft = int(used[1]) * 1024 + num_bytes
    if hard != resource.RLIM_INFINITY and (soft == resource.RLIM_INFINITY or soft > hard):
        soft = hard
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


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
