"""Media as the engine sees it: items made of units, units that point at rows of pixels.

A unit is the smallest piece of an item that the encoder can compute apart with exactly the same result: a
temporal slice (one step of the patch grid), or a tile where pictures are cut into tiles that do not see each other.
Elsewhere an image is an item of one unit.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

MAX_ASPECT_RATIO = 200
"""Pictures thinner than this are refused, as Hugging Face's processor does."""

UNKNOWN_FPS = 24.0
"""Frames in a second of a video that doesn't tell, as Hugging Face's processors assume."""

Modality = Literal["image", "video"]


class PixelRef(msgspec.Struct, frozen=True):
    """Rows of uint8 patches in a file of the runtime folder.

    Attributes:
        path: the file; memory-backed where the system allows it.
        first_row: the first patch row of interest.
        num_rows: how many rows.
        row_bytes: bytes of one row, that is of one flattened patch.
    """

    path: str
    first_row: int
    num_rows: int
    row_bytes: int


class Unit(msgspec.Struct, frozen=True):
    """One piece of vision work.

    Attributes:
        key: digest of everything that its features depend on: pixels, grid, processor.
        grid: (rows, columns) of its patch grid.
        num_tokens: rows of its features: the placeholders that they fill, or what text attends to.
        pixels: where its patches are, in merge-block order.
        num_extra: rows of the encoder behind those of the patches, which have no pixels (class tokens, padding).
        num_padding: the last of these: all other rows attend to them, they attend to all others, but not to one
            another.
    """

    key: str
    grid: tuple[int, int]
    num_tokens: int
    pixels: PixelRef
    num_extra: int = 0
    num_padding: int = 0

    @property
    def num_patches(self) -> int:
        """Patches, that is rows of pixels, in this unit."""
        return self.grid[0] * self.grid[1]

    @property
    def num_rows(self) -> int:
        """Rows that the encoder computes of it."""
        return self.num_patches + self.num_extra


class CanvasShape(msgspec.Struct, frozen=True):
    """Units of square tiles, each with a class token, of which every unit has as many rows.

    Unused tiles, and rows that fill up a tile to a multiple of 8, are padding: the models were trained with them in
    the softmax of every row, so they can't be left out.

    Attributes:
        side: of a tile in patches.
        num_tiles: tiles of a unit, padding among them.
    """

    side: int
    num_tiles: int

    @property
    def seen_rows(self) -> int:
        """Rows of a tile that text may attend to: its patches and its class token."""
        return self.side**2 + 1

    @property
    def tile_rows(self) -> int:
        """Rows of a tile, padding included."""
        return -(-self.seen_rows // 8) * 8

    @property
    def unit_rows(self) -> int:
        """Rows of every unit."""
        return self.num_tiles * self.tile_rows

    def has_grid(self, grid: tuple[int, int]) -> bool:
        """Whether a grid of so many patches is made of tiles, and of no more than there may be."""
        rows, columns = grid[0] // self.side, grid[1] // self.side
        is_whole = grid == (rows * self.side, columns * self.side)
        return is_whole and 0 < rows * columns <= self.num_tiles

    def num_used(self, grid: tuple[int, int]) -> int:
        """Tiles with a picture in them."""
        return grid[0] * grid[1] // self.side**2

    def unit(self, key: str, grid: tuple[int, int], pixels: PixelRef) -> Unit:
        """The unit of a picture whose tiles make up ``grid``."""
        assert self.has_grid(grid), grid
        num_padding = self.unit_rows - self.num_used(grid) * self.seen_rows
        num_extra = self.unit_rows - grid[0] * grid[1]
        return Unit(key, grid, self.unit_rows, pixels, num_extra, num_padding)


class MediaItem(msgspec.Struct, frozen=True):
    """One run of placeholder tokens in a prompt: an item, or one tile or slice of it where they stand apart.

    Attributes:
        modality: what it is.
        offset: position of its first placeholder token in the prompt.
        num_tokens: placeholder tokens, those of all its units.
        units: its units in order of time.
        seconds_per_slice: of a video, the time from one unit to the next.
        seen_until: where features do not take the place of placeholders, but text attends to them in layers of their
            own: one past the last position that does. None for features that stand in the sequence.
    """

    modality: Modality
    offset: int
    num_tokens: int
    units: tuple[Unit, ...]
    seconds_per_slice: float = 0.0
    seen_until: int | None = None

    @property
    def end(self) -> int:
        """One past the position of its last placeholder token."""
        return self.offset + self.num_tokens

    @property
    def thw(self) -> tuple[int, int, int]:
        """Its patch grid as (time, rows, columns)."""
        return (len(self.units), *self.units[0].grid)


class PatchLayout(msgspec.Struct, frozen=True):
    """What a row of pixels is.

    Attributes:
        patch_size: side of a patch in pixels.
        merge_size: side of a merge block in patches; a block becomes one token.
        temporal_patch_size: frames that share one patch; a lone image is repeated.
    """

    patch_size: int
    merge_size: int
    temporal_patch_size: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one flattened uint8 patch: channels x frames x side x side."""
        return 3 * self.temporal_patch_size * self.patch_size**2


class PatchProcessorSpec(PatchLayout, frozen=True, tag=True):
    """How images become patches, for families with a dynamic resolution (Qwen, GLM).

    Attributes:
        min_pixels: smallest area after the resize.
        max_pixels: largest area after the resize.
        enlarges_thin: whether a picture with a side below a merge block's is first enlarged until it has one.
    """

    min_pixels: int
    max_pixels: int
    enlarges_thin: bool = False

    @property
    def max_tokens(self) -> int:
        """A bound on the tokens of one image.

        It is above ``max_pixels`` for two kinds of pictures: thin ones, since no side is less than one block, and
        those enlarged to ``min_pixels``, whose sides are rounded up. No side is more than ``MAX_ASPECT_RATIO`` times
        the other.
        """
        block = self.patch_size * self.merge_size
        longest = math.isqrt(MAX_ASPECT_RATIO * self.max_pixels) // block + 1
        enlarged = self.min_pixels // block**2 + 2 * (math.isqrt(MAX_ASPECT_RATIO * self.min_pixels) // block + 2)
        return max(self.max_pixels // block**2, longest, enlarged)

    @property
    def max_unit_tokens(self) -> int:
        """A bound on the tokens of one unit, which is an image."""
        return self.max_tokens

    @property
    def max_bytes(self) -> int:
        """Most bytes of pixels that one image can take."""
        return self.max_tokens * self.merge_size**2 * self.row_bytes


class TileProcessorSpec(PatchLayout, frozen=True, tag=True):
    """How images become tiles: fitted onto a canvas of whole tiles, and once more into a single one for all of it.

    Attributes:
        tile_size: side of a tile in pixels.
        max_tiles: most tiles of a canvas; a picture of more than one has the overview besides.
        fills_canvas: whether a picture is enlarged as far as a canvas allows, and not only to a tile's side.
    """

    tile_size: int
    max_tiles: int
    fills_canvas: bool = False

    @property
    def max_unit_tokens(self) -> int:
        """Tokens of one tile."""
        return (self.tile_size // (self.patch_size * self.merge_size)) ** 2

    @property
    def max_bytes(self) -> int:
        """Most bytes of pixels that one image can take."""
        num_patches = (self.tile_size // self.patch_size) ** 2
        return (self.max_tiles + (self.max_tiles > 1)) * num_patches * self.row_bytes


class CanvasProcessorSpec(PatchLayout, frozen=True, tag=True):
    """How images become tiles of a canvas that is one unit.

    Attributes:
        canvas: of which a picture takes as many tiles as it needs.
    """

    canvas: CanvasShape

    @property
    def tile_size(self) -> int:
        """Side of a tile in pixels."""
        return self.canvas.side * self.patch_size

    @property
    def max_unit_tokens(self) -> int:
        """Rows of features of one image."""
        return self.canvas.unit_rows

    @property
    def max_bytes(self) -> int:
        """Most bytes of pixels that one image can take."""
        return self.canvas.num_tiles * self.canvas.side**2 * self.row_bytes


ImageProcessorSpec = PatchProcessorSpec | TileProcessorSpec | CanvasProcessorSpec
"""How an image becomes patches."""


class VideoProcessorSpec(msgspec.Struct, frozen=True, tag=True):
    """Which frames of a video are taken and how they become patches, as Hugging Face's processors have it.

    Attributes:
        patches: sizes of patches and blocks, and the limits on the area.
        area: whether those limits are on a "frame", or on the frames of a "clip" together.
        max_clip_pixels: for "frame": most pixels of all slices together, a slice counted as one frame, as far as the
            least area of a frame allows; 0 for no such limit.
        sampling: how frames are spread: "steps" takes the first of each of equal steps, "ends" takes both the first
            and the last frame, "seconds" takes those on a clock of ``fps``, "duration" those on a clock that
            is slower in longer videos.
        fps: frames taken for each second, if ``num_frames`` is None.
        rates: for "duration": (seconds, frames taken for each), in order of the seconds that a video may have for
            that; without them it is ``fps`` for all.
        num_frames: frames taken of a video, or all of them if it has fewer; -1 takes all.
        min_frames: fewest frames taken by ``fps``, as far as the video has them.
        max_frames_by_fps: most frames taken by ``fps``, where frames are not on a clock.
        max_frames: most frames taken in any way; more are refused.
        max_seconds: for "seconds" and "duration": of longer videos no more frames are taken than of one as long as
            this.
    """

    patches: PatchProcessorSpec
    area: Literal["frame", "clip"] = "frame"
    max_clip_pixels: int = 0
    sampling: Literal["steps", "ends", "seconds", "duration"] = "steps"
    fps: float = 2.0
    rates: tuple[tuple[float, float], ...] = ()
    num_frames: int | None = None
    min_frames: int = 4
    max_frames_by_fps: int = 768
    max_frames: int = 768
    max_seconds: float = 300.0

    @property
    def max_bytes(self) -> int:
        """Most bytes of pixels that one video can take."""
        num_slices = -(-self.max_frames // self.patches.temporal_patch_size)
        if self.area == "frame":
            return num_slices * self.patches.max_bytes
        # No frame is less than a block, however many there are.
        return self.patches.max_bytes + num_slices * self.patches.merge_size**2 * self.patches.row_bytes

    @property
    def max_slice_tokens(self) -> int:
        """A bound on the tokens of one slice."""
        if self.area == "frame":
            return self.patches.max_tokens
        num_frames = self.patches.temporal_patch_size
        least, most = -(-self.patches.min_pixels // num_frames), self.patches.max_pixels // num_frames
        return msgspec.structs.replace(self.patches, min_pixels=least, max_pixels=most).max_tokens


MediaSpec = ImageProcessorSpec | VideoProcessorSpec
"""How an item becomes patches: of an image, or of a video."""


class FrameTimes(msgspec.Struct, frozen=True):
    """Which frames of a video were taken.

    Attributes:
        indices: in order of time, counted from 0; a frame may come twice.
        num_frames: that the video has.
        fps: of the video, on average.
        shown: when each of those that were taken is shown, in seconds; None where they follow each other evenly.
    """

    indices: tuple[int, ...]
    num_frames: int
    fps: float
    shown: tuple[float, ...] | None = None

    @classmethod
    def of_all(cls, num_frames: int, fps: float | None) -> FrameTimes:
        """Every frame of a video, or frames that were taken already; without ``fps`` it is guessed."""
        return cls(tuple(range(num_frames)), num_frames, fps or UNKNOWN_FPS)

    @property
    def sampled_fps(self) -> float:
        """Frames taken for each second of the video."""
        return len(self.indices) / self.num_frames * self.fps

    def seconds(self, multiple: int) -> tuple[float, ...]:
        """When each frame is shown; the last one again until there is a multiple of so many."""
        shown = self.shown or tuple(index / self.fps for index in self.indices)
        return shown + shown[-1:] * (-len(shown) % multiple)


class ProcessedItem(msgspec.Struct, frozen=True):
    """An item as the preprocessing pool returns it, before its place in the prompt is known.

    Attributes:
        modality: what it is.
        num_tokens: placeholder tokens, those of all its units.
        units: its units in order of time.
        seconds_per_slice: of a video, the time from one unit to the next.
        frame_seconds: of a video, when each frame of each unit is shown.
        canvas: of an image that is cut into tiles, their (rows, columns); its last unit is the overview where there
            are several.
        num_pixels: of an image, as it came: what its decoder worked on.
    """

    modality: Modality
    num_tokens: int
    units: tuple[Unit, ...]
    seconds_per_slice: float = 0.0
    frame_seconds: tuple[float, ...] = ()
    canvas: tuple[int, int] = (1, 1)
    num_pixels: int = 0

    def placed_at(self, offset: int) -> MediaItem:
        """The same item with its first placeholder at ``offset``."""
        return MediaItem(self.modality, offset, self.num_tokens, self.units, self.seconds_per_slice)
