"""Pictures and videos that a Python program hands over as objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from chiasm.errors import refuse, require_known_keys
from chiasm.multimodal.decode import array_to_rgb, image_to_rgb
from chiasm.multimodal.sources import MediaSource
from chiasm.schema.media import FrameTimes

# Beyond them positions in time lose their meaning.
_MIN_FPS, _MAX_FPS = 1e-3, 1e4
_METADATA = ("fps", "total_num_frames", "frames_indices")


def source_of_object(picture: object, *, max_pixels: int, param: str | None = None) -> MediaSource:
    """Decoded pixels for the preprocessing pool. Takes as long as decoding does: call it in a thread.

    Args:
        picture: a Pillow image, or a uint8 array of shape [height, width] or [height, width, 3 or 4].
        max_pixels: largest picture to accept.
        param: the field that holds it, for errors.

    Raises:
        UserError: for anything else, and for pictures that ``decode`` refuses.
    """
    if isinstance(picture, Image.Image):
        pixels = image_to_rgb(picture, max_pixels=max_pixels, param=param)
    elif isinstance(picture, np.ndarray):
        pixels = array_to_rgb(picture, max_pixels=max_pixels, param=param)
    else:
        refuse(param or "image", type(picture).__name__, "a URL, a PIL image or a numpy array")
    return MediaSource("rgb", pixels.tobytes(), pixels.shape)


def video_source_of_object(
    video: object, *, max_pixels: int, max_frames: int, max_bytes: int, param: str | None = None
) -> MediaSource:
    """A video for the preprocessing pool. Takes as long as a copy does: call it in a thread.

    Args:
        video: an encoded video as bytes; its frames as a uint8 array [frames, height, width, 3], every one of which
            is taken; or a pair of such an array and a dict with ``fps`` of the video, and, if they are some of its
            frames only, their ``frames_indices`` and ``total_num_frames``.
        max_pixels: largest frame to accept.
        max_frames: most frames to accept.
        max_bytes: largest encoded video.
        param: the field that holds it, for errors.

    Raises:
        UserError: for anything else.
    """
    where = param or "video"
    if isinstance(video, bytes):
        if len(video) > max_bytes:
            refuse(where, f"{len(video)} bytes", f"at most {max_bytes} bytes")
        return MediaSource("bytes", video)
    frames, metadata = video if isinstance(video, tuple) and len(video) == 2 else (video, {})
    if not isinstance(frames, np.ndarray) or not isinstance(metadata, Mapping):
        limit = "a URL, bytes, an array of frames, or such an array with a dict about it"
        refuse(where, type(video).__name__, limit)
    _check_frames(frames, max_pixels, max_frames, where)
    return MediaSource("rgb", frames.tobytes(), frames.shape, _times(len(frames), metadata, where))


def _check_frames(frames: npt.NDArray[Any], max_pixels: int, max_frames: int, where: str) -> None:
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3:
        limit = "a uint8 array of shape [frames, height, width, 3]"
        refuse(where, f"{frames.dtype} of shape {frames.shape}", limit)
    if not 0 < len(frames) <= max_frames:
        refuse(where, f"{len(frames)} frames", f"between 1 and {max_frames} frames long")
    height, width = frames.shape[1:3]
    if not 0 < height * width <= max_pixels:
        refuse(where, f"{width} x {height}", f"between 1 and {max_pixels} pixels in the size of a frame")


def _times(count: int, metadata: Mapping[str, Any], where: str) -> FrameTimes:
    require_known_keys(where, metadata, _METADATA)
    fps = metadata.get("fps")
    if fps is not None and not (isinstance(fps, int | float) and _MIN_FPS <= fps <= _MAX_FPS):
        refuse(f"{where}.fps", fps, f"in [{_MIN_FPS:g}, {_MAX_FPS:g}]")
    whole = FrameTimes.of_all(count, fps)
    indices = metadata.get("frames_indices")
    if indices is None:
        return whole
    indices, total = [int(index) for index in indices], metadata.get("total_num_frames")
    if len(indices) != count or indices != sorted(indices) or indices[0] < 0:
        refuse(f"{where}.frames_indices", indices, f"{count} indices of frames, in order")
    if type(total) is not int or total <= indices[-1]:
        refuse(f"{where}.total_num_frames", total, f"a whole number above {indices[-1]}, the last of frames_indices")
    return FrameTimes(tuple(indices), total, whole.fps)
