"""Media as the engine sees it: items made of units, units that point at rows of pixels.

A unit is the smallest piece of an item that the encoder can compute apart with exactly the same result: a
temporal slice (one step of the patch grid) for the Qwen and GLM families. An image is an item of one unit.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

MAX_ASPECT_RATIO = 200
"""Pictures thinner than this are refused, as Hugging Face's processor does."""

Modality = Literal["image"]


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
        num_tokens: placeholders that its features fill.
        pixels: where its patches are, in merge-block order.
    """

    key: str
    grid: tuple[int, int]
    num_tokens: int
    pixels: PixelRef

    @property
    def num_patches(self) -> int:
        """Patches, that is rows of pixels, in this unit."""
        return self.grid[0] * self.grid[1]


class MediaItem(msgspec.Struct, frozen=True):
    """One image in a prompt.

    Attributes:
        modality: what it is.
        offset: position of its first placeholder token in the prompt.
        num_tokens: placeholder tokens, those of all its units.
        units: its units in order of time.
    """

    modality: Modality
    offset: int
    num_tokens: int
    units: tuple[Unit, ...]

    @property
    def end(self) -> int:
        """One past the position of its last placeholder token."""
        return self.offset + self.num_tokens

    @property
    def thw(self) -> tuple[int, int, int]:
        """Its patch grid as (time, rows, columns)."""
        return (len(self.units), *self.units[0].grid)


class PatchProcessorSpec(msgspec.Struct, frozen=True):
    """How images become patches, for families with a dynamic resolution (Qwen, GLM).

    Attributes:
        patch_size: side of a patch in pixels.
        merge_size: side of a merge block in patches; a block becomes one token.
        temporal_patch_size: frames that share one patch; a lone image is repeated.
        min_pixels: smallest area after the resize.
        max_pixels: largest area after the resize.
    """

    patch_size: int
    merge_size: int
    temporal_patch_size: int
    min_pixels: int
    max_pixels: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one flattened uint8 patch: channels x frames x side x side."""
        return 3 * self.temporal_patch_size * self.patch_size**2

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
    def max_bytes(self) -> int:
        """Most bytes of pixels that one image can take."""
        return self.max_tokens * self.merge_size**2 * self.row_bytes


class ProcessedItem(msgspec.Struct, frozen=True):
    """An item as the preprocessing pool returns it, before its place in the prompt is known."""

    modality: Modality
    num_tokens: int
    units: tuple[Unit, ...]

    def placed_at(self, offset: int) -> MediaItem:
        """The same item with its first placeholder at ``offset``."""
        return MediaItem(self.modality, offset, self.num_tokens, self.units)
