"""Which frames of a video are taken: the same as Hugging Face's video processors take."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

import msgspec
import numpy as np
import torch

from chiasm.errors import refuse
from chiasm.schema.media import FrameTimes, VideoProcessorSpec

_ROUNDING = 1e-6  # seconds; a frame that is shown at a moment is the one of that moment


def sample_frames(num_frames: int, fps: float, spec: VideoProcessorSpec, param: str | None = None) -> FrameTimes:
    """The frames to take of a video.

    Args:
        num_frames: that it has, at least 1.
        fps: of the video, on average.
        spec: how many are wanted.
        param: the request's field that holds the video, for errors.

    Raises:
        UserError: if all frames are wanted and there are too many.
    """
    if spec.num_frames is None:
        indices = _BY_RATE[spec.sampling](num_frames, fps, spec)
    elif spec.num_frames < 0:
        indices = range(num_frames)
    elif spec.sampling == "steps":
        multiple = spec.patches.temporal_patch_size
        count = min(round(spec.num_frames / multiple) * multiple, spec.max_frames, num_frames)
        indices = _in_steps(num_frames, max(1, count))
    else:
        indices = _from_end_to_end(num_frames, min(spec.num_frames, num_frames))
    if len(indices) > spec.max_frames:
        limit = f"of at most {spec.max_frames} frames, or be sampled by media_io_kwargs.video.num_frames or fps"
        refuse(param or "video", f"{len(indices)} frames", limit)
    return FrameTimes(tuple(indices), num_frames, fps)


def at_true_times(times: FrameTimes, seconds: Sequence[float]) -> FrameTimes:
    """The same moments of a video whose frames don't follow each other evenly, which Hugging Face takes for granted.

    At each moment the frame is taken that is on the screen then; if all frames were taken, they still are.

    Args:
        times: as of a video with as many frames that follow each other evenly.
        seconds: when each frame is shown; the first is at 0.
    """
    if set(times.indices) == set(range(len(seconds))):
        return msgspec.structs.replace(times, shown=tuple(seconds[index] for index in times.indices))
    moments = tuple(index / times.fps for index in times.indices)
    indices = tuple(bisect_right(seconds, moment + _ROUNDING) - 1 for moment in moments)
    return msgspec.structs.replace(times, indices=indices, shown=moments)


def _steps_by_fps(num_frames: int, fps: float, spec: VideoProcessorSpec) -> Sequence[int]:
    multiple = spec.patches.temporal_patch_size
    most = min(_most_by_fps(spec), num_frames) // multiple * multiple
    count = math.floor(min(max(num_frames / fps * spec.fps, spec.min_frames), most, num_frames) / multiple) * multiple
    # Less than a slice: one frame, which stands for those that are missing.
    return _in_steps(num_frames, max(1, count))


def _most_by_fps(spec: VideoProcessorSpec) -> int:
    return min(spec.max_frames_by_fps, spec.max_frames)


def _in_steps(num_frames: int, count: int) -> Sequence[int]:
    # In torch's own single precision: at the end of a step that is no whole number, rounding decides on the frame.
    indices: list[int] = torch.arange(0, num_frames, num_frames / count).int().tolist()
    return indices[:count]


def _ends_by_fps(num_frames: int, fps: float, spec: VideoProcessorSpec) -> Sequence[int]:
    count = min(max(int(num_frames / fps * spec.fps), spec.min_frames), _most_by_fps(spec), num_frames)
    return _from_end_to_end(num_frames, count)


def _from_end_to_end(num_frames: int, count: int) -> Sequence[int]:
    indices: list[int] = np.linspace(0, num_frames - 1, count).round().astype(int).tolist()
    return indices


def _by_seconds(num_frames: int, fps: float, spec: VideoProcessorSpec) -> Sequence[int]:
    seconds, last = num_frames / fps, num_frames - 1
    most = int(spec.max_seconds * spec.fps)
    if seconds <= spec.max_seconds:
        count = max(1, math.floor(seconds * spec.fps))
        indices = [min(last, math.ceil(tick * fps / spec.fps)) for tick in range(count)]
    elif most >= num_frames:
        indices = list(range(num_frames))
    else:
        indices = [min(last, math.ceil(time * fps)) for time in np.linspace(0, seconds, most)]
    taken = list(dict.fromkeys(indices))
    return taken + taken[-1:] * (len(taken) % 2)


def _by_duration(num_frames: int, fps: float, spec: VideoProcessorSpec) -> Sequence[int]:
    """As GLM-4.6V's: where the clock doesn't give as many frames as a video of that length has, they are spread."""
    seconds = min(num_frames / fps, spec.max_seconds)
    rate = next((rate for limit, rate in spec.rates if seconds <= limit), spec.fps)
    multiple = spec.patches.temporal_patch_size
    most = _most_by_fps(spec) // multiple * multiple
    count = max(1, min(int(seconds * rate), most))
    first, last = 0, num_frames - 1
    if num_frames >= count:
        indices = _on_clock(num_frames, fps, rate, count + 1)
        if len(indices) < count:
            first, last = indices[0], indices[-1]
    else:
        indices = []
    if len(indices) != count:
        indices = np.linspace(first, last, count, dtype=int).tolist()
    taken = list(dict.fromkeys(indices))
    return taken + taken[-1:] * (len(taken) % multiple and len(taken) < spec.max_frames)


def _on_clock(num_frames: int, fps: float, rate: float, most: int) -> list[int]:
    """For each tick the next frame that is not before it, up to the last whole second.

    Times are rounded as Hugging Face rounds them: that decides on frames which are at a tick.
    """
    frame_seconds, whole_seconds = 1 / fps, int(num_frames / fps)
    indices: list[int] = []
    index, time = 0, 0.0
    while len(indices) < most:
        index = max(index, math.floor(time / frame_seconds) - 1)
        while index * frame_seconds < time:
            index += 1
        if index >= num_frames:
            break
        indices.append(index)
        index += 1
        time += 1 / rate
        if time >= whole_seconds:
            break
    return indices


_BY_RATE = {"steps": _steps_by_fps, "ends": _ends_by_fps, "seconds": _by_seconds, "duration": _by_duration}
