"""Whose settings of media hold: the model's, then the server's, then a request's within those."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from chiasm.config.engine import (
    PROCESSOR_KEYS,
    MediaConfig,
    check_media_io_kwargs,
    check_processor_kwargs,
    check_video_sampling,
)
from chiasm.errors import UserError, refuse
from chiasm.schema.chat import OwnSettings
from chiasm.schema.facts import ModelFacts
from chiasm.schema.media import ImageProcessorSpec, PatchProcessorSpec, VideoProcessorSpec

_KWARGS = "mm_processor_kwargs"


def served_facts(facts: ModelFacts, media: MediaConfig) -> ModelFacts:
    """A model's facts with the operator's settings of media in place of its own.

    Raises:
        UserError: for settings that it can't honour.
    """
    processor = bounded_spec(facts.processor, media.mm_processor_kwargs, {})
    video = facts.video
    if video is not None:
        video = msgspec.structs.replace(video, processor=server_video_spec(video.processor, media))
    return msgspec.structs.replace(facts, processor=processor, video=video)


def bounded_spec(
    spec: ImageProcessorSpec,
    server_kwargs: Mapping[str, Any],
    request_kwargs: Mapping[str, Any],
    param: str = _KWARGS,
) -> ImageProcessorSpec:
    """The processor of one request: the model's, changed by the server, narrowed by the request.

    Where pictures are cut into tiles there is nothing to change.

    Args:
        spec: the model's default.
        server_kwargs: the operator's ``mm_processor_kwargs``; replace the model's values.
        request_kwargs: the request's; each value must lie in the range that the server allows.
        param: the field that holds them, for errors.

    Raises:
        UserError: for an unknown key, a value that is not a positive whole number, one outside the server's range,
            a minimum above the maximum, or any value where pictures are cut into tiles.
    """
    if not isinstance(spec, PatchProcessorSpec):
        _refuse_limits({**server_kwargs, **request_kwargs}, param)
        return spec
    return _narrowed(_replaced(spec, server_kwargs), request_kwargs, param)


def request_image_spec(
    spec: ImageProcessorSpec, processor_kwargs: Mapping[str, Any], own: OwnSettings | None
) -> ImageProcessorSpec:
    """The processor of one picture: the server's, narrowed by the request or by what the picture asks for itself.

    Raises:
        UserError: as ``bounded_spec``.
    """
    asked = bounded_spec(spec, {}, processor_kwargs)
    return asked if own is None else bounded_spec(spec, {}, {**processor_kwargs, **own.values}, own.param)


def _narrowed(spec: PatchProcessorSpec, kwargs: Mapping[str, Any], param: str) -> PatchProcessorSpec:
    check_processor_kwargs(kwargs, param)
    for key in PROCESSOR_KEYS:
        value = kwargs.get(key)
        if value is not None and not spec.min_pixels <= value <= spec.max_pixels:
            limit = f"in [{spec.min_pixels}, {spec.max_pixels}], the range this server allows"
            refuse(f"{param}.{key}", value, limit)
    return _replaced(spec, kwargs, param)


def server_video_spec(spec: VideoProcessorSpec, media: MediaConfig) -> VideoProcessorSpec:
    """The video processor of one server: the model's, changed by the operator.

    ``mm_processor_kwargs`` are about single pictures: they hold for frames too, but not for limits of whole clips.

    Raises:
        UserError: as ``bounded_spec``.
    """
    patches = _replaced(spec.patches, media.mm_processor_kwargs) if spec.area == "frame" else spec.patches
    most = media.max_video_frames
    changed = msgspec.structs.replace(spec, patches=patches, max_frames=most, min_frames=min(spec.min_frames, most))
    return _sampled(changed, media.media_io_kwargs)


def request_video_spec(
    spec: VideoProcessorSpec,
    processor_kwargs: Mapping[str, Any],
    io_kwargs: Mapping[str, Any],
    own: OwnSettings | None = None,
) -> VideoProcessorSpec:
    """The video processor of one request: the server's, narrowed by the request or by what a video asks for itself.

    Args:
        spec: the server's.
        processor_kwargs: ``mm_processor_kwargs``, valid for images; brought into the range of a frame.
        io_kwargs: ``media_io_kwargs``, in whose place the video's own go as a whole.
        own: what the video asks for.

    Raises:
        UserError: for an unknown key, a value out of range, or limits of a frame where the model has none.
    """
    check_media_io_kwargs(io_kwargs, spec.max_frames)
    asked = _sampled(spec, io_kwargs)
    if spec.area == "frame":
        narrowed = _in_range(spec.patches, processor_kwargs)
        asked = msgspec.structs.replace(asked, patches=msgspec.structs.replace(spec.patches, **narrowed))
    return asked if own is None else _own_video_spec(spec, asked, processor_kwargs, own)


def _own_video_spec(
    spec: VideoProcessorSpec, asked: VideoProcessorSpec, processor_kwargs: Mapping[str, Any], own: OwnSettings
) -> VideoProcessorSpec:
    """What a video asks for in place of what its request has ``asked``."""
    pixels = {key: value for key, value in own.values.items() if key in PROCESSOR_KEYS}
    sampling = {key: value for key, value in own.values.items() if key not in pixels}
    check_video_sampling(sampling, spec.max_frames, own.param)
    if pixels and spec.area != "frame":
        limit = "left out: this model's limits are those of a whole clip, of which its checkpoint tells"
        refuse(f"{own.param}.{next(iter(pixels))}", next(iter(pixels.values())), limit)
    if pixels:
        wanted = {**_in_range(spec.patches, processor_kwargs), **pixels}
        asked = msgspec.structs.replace(asked, patches=_narrowed(spec.patches, wanted, own.param))
    return _sampled(asked, {"video": sampling})


def _in_range(patches: PatchProcessorSpec, kwargs: Mapping[str, int]) -> dict[str, int]:
    """Limits of pictures, brought into the range of a frame."""
    return {key: min(max(patches.min_pixels, value), patches.max_pixels) for key, value in kwargs.items()}


def _sampled(spec: VideoProcessorSpec, io_kwargs: Mapping[str, Any]) -> VideoProcessorSpec:
    video = io_kwargs.get("video", {})
    if "num_frames" in video:
        return msgspec.structs.replace(spec, num_frames=int(video["num_frames"]))
    if "fps" in video:
        return msgspec.structs.replace(spec, fps=float(video["fps"]), rates=(), num_frames=None)
    return spec


def _refuse_limits(kwargs: Mapping[str, Any], param: str) -> None:
    """Refuse limits on the area of pictures.

    Raises:
        UserError: naming the first of them.
    """
    for key, value in kwargs.items():
        limit = "left out: this model cuts pictures into tiles, of which its checkpoint says how many"
        refuse(f"{param}.{key}", value, limit)


def _replaced(spec: PatchProcessorSpec, kwargs: Mapping[str, Any], param: str = _KWARGS) -> PatchProcessorSpec:
    check_processor_kwargs(kwargs, param)
    changed = msgspec.structs.replace(spec, **kwargs)
    if changed.min_pixels > changed.max_pixels:
        raise UserError(
            f"{param} would make min_pixels={changed.min_pixels} larger than "
            f"max_pixels={changed.max_pixels}; give both.",
            param=param,
        )
    return changed
