"""What families share: patch grids, multimodal positions, and the settings of a patch processor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from chiasm.errors import UserError, shorten
from chiasm.layers.patch_embedding import PixelNormalisation
from chiasm.models.entry import RopePositions
from chiasm.ops.segments import Segments, SharedRows
from chiasm.schema.media import MediaItem, PatchLayout, PatchProcessorSpec, TileProcessorSpec, VideoProcessorSpec
from chiasm.vision.units import Piece, unit_layout

IntArray = npt.NDArray[np.int64]
StructT = TypeVar("StructT", bound=msgspec.Struct)

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_MAX_SIZE = 2**24
_BILINEAR, _BICUBIC = 2, 3


def read_config(raw: dict[str, Any], kind: type[StructT], where: str) -> StructT:
    """The part ``where`` of ``config.json`` as a struct; keys that it lacks, or has as null, take their defaults.

    Raises:
        UserError: if a value has the wrong type.
    """
    given = {key: value for key, value in raw.items() if value is not None}
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise UserError(f"{where} of the checkpoint's config: {error}", param="model") from error


def require_setting(where: str, key: str, value: object, supported: Iterable[object]) -> None:
    """Refuse a setting of the checkpoint that would change the result and is not implemented.

    Raises:
        UserError: naming the setting and what is supported.
    """
    supported = list(supported)
    if value not in supported:
        known = " or ".join(map(repr, supported))
        raise UserError(
            f"{key}={shorten(value)} in the checkpoint's {where} is not supported, only {known}.", param="model"
        )


def require_positive(where: str, config: msgspec.Struct, keys: Iterable[str]) -> None:
    """Refuse sizes that are no sizes, or that no model has.

    Raises:
        UserError: naming the setting.
    """
    for key in keys:
        value = getattr(config, key)
        if not 1 <= value <= _MAX_SIZE:
            limit = f"in [1, {_MAX_SIZE}]"
            raise UserError(
                f"{name_on_disk(config, key)}={value} in the checkpoint's {where} must be {limit}.", param="model"
            )


def require_multiple(where: str, config: msgspec.Struct, key: str, divisor: str) -> None:
    """Refuse a size that another doesn't divide.

    Raises:
        UserError: naming both.
    """
    if getattr(config, key) % getattr(config, divisor):
        raise UserError(
            f"{name_on_disk(config, key)}={getattr(config, key)} of the checkpoint's {where} does not divide by "
            f"{name_on_disk(config, divisor)}={getattr(config, divisor)}.",
            param="model",
        )


def require_sections(sections: Sequence[int], num_rotated: int) -> None:
    """Refuse sections of multimodal rotary positions that are not as many pairs as are rotated.

    Raises:
        UserError: with both.
    """
    if 2 * sum(sections) != num_rotated:
        raise UserError(
            f"mrope_section={list(sections)} of the checkpoint's config does not add up to half of what is rotated "
            f"of a head, {num_rotated // 2}.",
            param="model",
        )


def name_on_disk(config: msgspec.Struct, field: str) -> str:
    """What a field is called in ``config.json``; of what is derived, our own name."""
    names = dict(zip(config.__struct_fields__, config.__struct_encode_fields__, strict=True))
    return names.get(field, field)


def eos_token_ids(generation: Mapping[str, Any], default: int | Sequence[int]) -> int | Sequence[int]:
    """What ends an answer, as the generation config says, or else ``default``.

    Raises:
        UserError: if it says something else than one id or several.
    """
    given = generation.get("eos_token_id")
    if given is None:
        return default
    listed: list[Any] = given if isinstance(given, list) else [given]
    if not all(type(token_id) is int for token_id in listed):
        raise UserError(
            f"eos_token_id={shorten(given)} in the checkpoint's generation_config.json must be whole numbers.",
            param="model",
        )
    return listed


def known_token_ids(token_ids: int | Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """One token id or several of a checkpoint's config, without those that the model does not have.

    Those can neither be sampled nor stand in a prompt; families' defaults name some that a small vocabulary lacks.
    """
    listed = [token_ids] if isinstance(token_ids, int) else token_ids
    return tuple(token_id for token_id in listed if 0 <= token_id < vocab_size)


def block_positions(grid: tuple[int, int], merge_size: int) -> IntArray:
    """Row and column of every patch of a grid, in merge-block order: [patches, 2]."""
    blocks = (grid[0] // merge_size, grid[1] // merge_size)
    row, column, inner_row, inner_column = np.indices((*blocks, merge_size, merge_size)).reshape(4, -1)
    return np.stack([row * merge_size + inner_row, column * merge_size + inner_column], axis=1)


@lru_cache(maxsize=64)
def _unit_positions(grid: tuple[int, int], merge_size: int, window_blocks: int) -> IntArray:
    """[patches, 2], row and column of a unit's patches in cut order."""
    order = unit_layout(grid, merge_size, window_blocks).order
    return block_positions(grid, merge_size).reshape(-1, merge_size**2, 2)[order].reshape(-1, 2)


def piece_positions(pieces: Sequence[Piece], merge_size: int, window_blocks: int = 0) -> IntArray:
    """[n, 2], row and column of the patches of packed pieces, each in the cut order of its unit."""
    parts = [_unit_positions(grid, merge_size, window_blocks)[start:stop] for grid, start, stop in pieces]
    return np.concatenate([np.empty((0, 2), np.int64), *parts])


def unit_segments(pieces: Sequence[Piece], shared: SharedRows | None) -> Segments:
    """Segments for attention within whole units, where ``shared`` stands for the pieces of cut ones."""
    return Segments.from_lengths((piece.num_rows for piece in whole_pieces(pieces, shared)), shared)


def whole_pieces(pieces: Sequence[Piece], shared: SharedRows | None) -> Iterator[Piece]:
    """The pieces behind the shared rows, which are whole units."""
    num_shared = 0 if shared is None else shared.num_rows
    first = 0
    for piece in pieces:
        if first >= num_shared:
            yield piece
        first += piece.num_rows


def text_positions(num_tokens: int) -> RopePositions:
    """Positions of a prompt, [1, n], where media are at those of their tokens."""
    return RopePositions(np.arange(num_tokens, dtype=np.int64)[None], 0)


def grid_rope_positions(
    num_tokens: int, items: Sequence[MediaItem], merge_size: int, positions_per_second: float | None = None
) -> RopePositions:
    """Positions in time, height and width: text counts on in all three, media spans its token grid.

    Text after an item goes on behind its larger side, however many units the item has.

    Args:
        num_tokens: of the prompt.
        items: its media.
        merge_size: side of a merge block in patches.
        positions_per_second: by which units of a video count on in time; None counts them one by one.
    """
    positions = np.empty((3, num_tokens), dtype=np.int64)
    token = position = 0
    for item in items:
        time, rows, columns = item.thw
        grid = (time, rows // merge_size, columns // merge_size)
        assert item.num_tokens == grid[0] * grid[1] * grid[2]
        text_length = item.offset - token
        positions[:, token : item.offset] = position + np.arange(text_length)
        position += text_length
        own = np.indices(grid).reshape(3, -1)
        if item.modality == "video" and positions_per_second is not None:
            # In single precision and cut off, as Hugging Face has it: that decides on whole positions.
            step = np.float32(positions_per_second) * np.float32(item.seconds_per_slice)
            own[0] = own[0].astype(np.float32) * step
        positions[:, item.offset : item.end] = position + own
        position += max(grid[1:])
        token = item.end
    positions[:, token:] = position + np.arange(num_tokens - token)
    # The answer goes on behind the last token, even where a video's frames reach further, as generating does in
    # Hugging Face's classes.
    delta = int(positions[:, -1:].max(initial=-1)) + 1 - num_tokens
    return RopePositions(positions, delta)


def read_patch_processor(processor: dict[str, Any], defaults: PatchProcessorSpec) -> PatchProcessorSpec:
    """How images become patches, from the settings of the image processor.

    Args:
        processor: the settings; limits may be ``min_pixels`` and ``max_pixels`` or, newer, in ``size``.
        defaults: the family's, with the patch sizes of the encoder, which the processor's must equal.

    Raises:
        UserError: for a setting that can't be honoured.
    """
    where = "image processor settings"
    require_setting(where, "do_resize", processor.get("do_resize", True), [True])
    require_setting(where, "resample", processor.get("resample", _BICUBIC), [_BICUBIC])
    for key in ("patch_size", "merge_size", "temporal_patch_size"):
        require_setting(where, key, processor.get(key, getattr(defaults, key)), [getattr(defaults, key)])
    size = _read_size(processor, where)
    limits = {
        "min_pixels": processor.get("min_pixels") or size.get("shortest_edge") or defaults.min_pixels,
        "max_pixels": processor.get("max_pixels") or size.get("longest_edge") or defaults.max_pixels,
    }
    for key, value in limits.items():
        if type(value) is not int or value < 1:
            raise UserError(
                f"{key}={shorten(value)} in the checkpoint's {where} must be a whole number.", param="model"
            )
    return msgspec.structs.replace(defaults, **limits)


def _read_size(processor: dict[str, Any], where: str) -> dict[str, Any]:
    size = processor.get("size") or {}
    if not isinstance(size, dict):
        raise UserError(f"size in the checkpoint's {where} must be an object, got {shorten(size)}.", param="model")
    return size


def read_tile_processor(
    processor: dict[str, Any], layout: PatchLayout, *, tile_size: int, max_tiles: int
) -> TileProcessorSpec:
    """How images become tiles, from the settings of the image processor.

    Args:
        processor: the settings.
        layout: patches of the encoder.
        tile_size: side of the encoder's tiles in pixels, which the processor's must equal.
        max_tiles: most tiles of an image where the settings do not say.

    Raises:
        UserError: for a setting that can't be honoured.
    """
    where = "image processor settings"
    require_setting(where, "do_resize", processor.get("do_resize", True), [True])
    require_setting(where, "resample", processor.get("resample", _BILINEAR), [_BILINEAR])
    size = _read_size(processor, where)
    for key in ("height", "width"):
        require_setting(where, f"size.{key}", size.get(key, tile_size), [tile_size])
    given = processor.get("max_patches")
    most = max_tiles if given is None else given
    if type(most) is not int or most < 1:
        raise UserError(
            f"max_patches={shorten(most)} in the checkpoint's {where} must be a whole number.", param="model"
        )
    return TileProcessorSpec(
        layout.patch_size,
        layout.merge_size,
        layout.temporal_patch_size,
        tile_size,
        most,
        bool(processor.get("resize_to_max_canvas")),
    )


class _VideoSettings(msgspec.Struct, frozen=True):
    """What a video processor's settings say beside an image processor's."""

    fps: float | None = None
    num_frames: int | None = None
    min_frames: int | None = None
    max_frames: int | None = None
    max_duration: float | None = None
    cap_pixels_per_frame: bool | None = None
    max_video_tokens: int = 128_000


def read_video_processor(settings: dict[str, Any], defaults: VideoProcessorSpec) -> VideoProcessorSpec:
    """Which frames are taken and how they become patches, from the settings of the video processor.

    Where the limits on the area are a frame's, a clip has one of its own unless the settings switch it off: nine
    tenths of the tokens that they name. Hugging Face applies it where it is switched on.

    Args:
        settings: of the video processor, or the image processor's where a checkpoint has no others.
        defaults: the family's, with the patch sizes of the encoder.

    Raises:
        UserError: for a setting that can't be honoured.
    """
    where = "video processor settings"
    given = read_config(settings, _VideoSettings, where)
    patches = read_patch_processor(settings, defaults.patches)
    if defaults.area == "clip":
        require_setting(where, "cap_pixels_per_frame", given.cap_pixels_per_frame, [None, False])
    is_capped = defaults.area == "frame" and given.cap_pixels_per_frame is not False
    token_pixels = (patches.patch_size * patches.merge_size) ** 2
    changed = {} if defaults.sampling == "duration" else _read_sampling(given, defaults)
    return msgspec.structs.replace(
        defaults,
        patches=patches,
        max_clip_pixels=int(given.max_video_tokens * token_pixels * 0.9) if is_capped else 0,
        **{key: value for key, value in changed.items() if value},
    )


def _read_sampling(given: _VideoSettings, defaults: VideoProcessorSpec) -> dict[str, Any]:
    """Which frames are taken, where that is a checkpoint's to say; what it doesn't say is None."""
    return {
        "fps": given.fps,
        "num_frames": None if given.fps or defaults.sampling == "seconds" else given.num_frames,
        "min_frames": given.min_frames,
        "max_frames_by_fps": given.max_frames,
        "max_seconds": given.max_duration,
    }


def read_normalisation(processor: dict[str, Any]) -> PixelNormalisation:
    """What the image processor makes of a byte: (byte * rescale_factor - mean) / std, each step where it is on.

    Raises:
        UserError: if mean or std are not one number for each of three channels, or a number is none to divide by.
    """
    rescale = _read_rescale(processor) if processor.get("do_rescale", True) else 1.0
    if not processor.get("do_normalize", True):
        return PixelNormalisation((rescale,) * 3, (0.0,) * 3)
    mean = _read_channels(processor, "image_mean", CLIP_MEAN)
    std = _read_channels(processor, "image_std", CLIP_STD)
    if not all(std):
        raise UserError(f"image_std of the image processor must not be 0, got {shorten(std)}.", param="model")
    return PixelNormalisation(
        scale=tuple(rescale / channel for channel in std),
        shift=tuple(-channel_mean / channel_std for channel_mean, channel_std in zip(mean, std, strict=True)),
    )


def read_centred_normalisation(processor: dict[str, Any]) -> PixelNormalisation:
    """The same where bytes go to [-1, 1] if the image processor doesn't say otherwise."""
    given = {key: processor.get(key) or (0.5, 0.5, 0.5) for key in ("image_mean", "image_std")}
    return read_normalisation({**processor, **given})


def _read_channels(processor: dict[str, Any], key: str, default: Sequence[float]) -> Sequence[float]:
    values = processor.get(key) or default
    if not isinstance(values, Sequence) or len(values) != 3 or not all(map(_is_number, values)):
        raise UserError(f"{key} of the image processor must be three numbers, got {shorten(values)}.", param="model")
    return values


def _read_rescale(processor: dict[str, Any]) -> float:
    factor: Any = processor.get("rescale_factor") or 1 / 255
    if not _is_number(factor):
        raise UserError(
            f"rescale_factor of the image processor must be a number, got {shorten(factor)}.", param="model"
        )
    return float(factor)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
