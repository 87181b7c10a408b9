"""Whose settings of media hold: the model's, then the server's, then a request's within those."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from chiasm.config.engine import PROCESSOR_KEYS, MediaConfig, check_media_io_kwargs, check_processor_kwargs
from chiasm.errors import UserError, refuse
from chiasm.schema.facts import ModelFacts
from chiasm.schema.media import ImageProcessorSpec, PatchProcessorSpec, VideoProcessorSpec


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
    spec: ImageProcessorSpec, server_kwargs: Mapping[str, Any], request_kwargs: Mapping[str, Any]
) -> ImageProcessorSpec:
    """The processor of one request: the model's, changed by the server, narrowed by the request.

    Where pictures are cut into tiles there is nothing to change.

    Args:
        spec: the model's default.
        server_kwargs: the operator's ``mm_processor_kwargs``; replace the model's values.
        request_kwargs: the request's; each value must lie in the range that the server allows.

    Raises:
        UserError: for an unknown key, a value that is not a positive whole number, one outside the server's range,
            a minimum above the maximum, or any value where pictures are cut into tiles.
    """
    if not isinstance(spec, PatchProcessorSpec):
        _refuse_limits({**server_kwargs, **request_kwargs})
        return spec
    server_spec = _replaced(spec, server_kwargs)
    check_processor_kwargs(dict(request_kwargs))
    for key in PROCESSOR_KEYS:
        value = request_kwargs.get(key)
        if value is not None and not server_spec.min_pixels <= value <= server_spec.max_pixels:
            limit = f"in [{server_spec.min_pixels}, {server_spec.max_pixels}], the range this server allows"
            refuse(f"mm_processor_kwargs.{key}", value, limit)
    return _replaced(server_spec, request_kwargs)


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
    spec: VideoProcessorSpec, processor_kwargs: Mapping[str, Any], io_kwargs: Mapping[str, Any]
) -> VideoProcessorSpec:
    """The video processor of one request: the server's, narrowed by the request.

    Args:
        spec: the server's.
        processor_kwargs: ``mm_processor_kwargs``, valid for images; brought into the range of a frame.
        io_kwargs: ``media_io_kwargs``.

    Raises:
        UserError: for an unknown key or a value out of range.
    """
    check_media_io_kwargs(io_kwargs, spec.max_frames)
    if spec.area == "frame":
        least, most = spec.patches.min_pixels, spec.patches.max_pixels
        narrowed = {key: min(max(least, value), most) for key, value in processor_kwargs.items()}
        spec = msgspec.structs.replace(spec, patches=msgspec.structs.replace(spec.patches, **narrowed))
    return _sampled(spec, io_kwargs)


def _sampled(spec: VideoProcessorSpec, io_kwargs: Mapping[str, Any]) -> VideoProcessorSpec:
    video = io_kwargs.get("video", {})
    if "num_frames" in video:
        return msgspec.structs.replace(spec, num_frames=int(video["num_frames"]))
    if "fps" in video:
        return msgspec.structs.replace(spec, fps=float(video["fps"]), rates=(), num_frames=None)
    return spec


def _refuse_limits(kwargs: Mapping[str, Any]) -> None:
    """Refuse limits on the area of pictures.

    Raises:
        UserError: naming the first of them.
    """
    for key, value in kwargs.items():
        limit = "left out: this model cuts pictures into tiles, of which its checkpoint says how many"
        refuse(f"mm_processor_kwargs.{key}", value, limit)


def _replaced(spec: PatchProcessorSpec, kwargs: Mapping[str, Any]) -> PatchProcessorSpec:
    check_processor_kwargs(dict(kwargs))
    changed = msgspec.structs.replace(spec, **kwargs)
    if changed.min_pixels > changed.max_pixels:
        raise UserError(
            f"mm_processor_kwargs would make min_pixels={changed.min_pixels} larger than "
            f"max_pixels={changed.max_pixels}; give both.",
            param="mm_processor_kwargs",
        )
    return changed
