"""Prompts with random text and random pictures, before any tokenizer or image processor."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chiasm.schema.facts import ModelFacts
from chiasm.schema.media import MediaItem, PixelRef, Unit
from chiasm.vision.frames import with_readers

Grid = tuple[int, int, int]


class Clip(NamedTuple):
    """A video: its patch grid (time, rows, columns) and the seconds from one slice to the next."""

    thw: Grid
    seconds: float


@dataclass(frozen=True)
class Prompt:
    """Token ids with every placeholder in place, the media, and the pixels: uint8 [rows, row_bytes] for each item."""

    token_ids: tuple[int, ...]
    items: tuple[MediaItem, ...]
    pixels: tuple[npt.NDArray[np.uint8], ...]

    @property
    def grids(self) -> list[tuple[int, int]]:
        """Of every unit of every item."""
        return [unit.grid for unit in self.units]

    @property
    def units(self) -> list[Unit]:
        """Of all items."""
        return [unit for item in self.items for unit in item.units]


def make_prompt(facts: ModelFacts, pieces: Sequence[int | Grid | Clip], *, seed: int | None = None) -> Prompt:
    """A prompt from pieces: a number of text tokens, the patch grid (time, rows, columns) of an image, or a clip.

    The seed follows from the pieces unless it is given.
    """
    rng = np.random.default_rng(zlib.crc32(repr(pieces).encode()) if seed is None else seed)
    if facts.encoder.canvas:
        return _prompt_of_canvases(facts, pieces, rng)
    start_token, end_token = facts.media_token_ids[:2]
    token_ids: list[int] = []
    items = []
    pixels = []
    for piece in pieces:
        if isinstance(piece, int):
            token_ids += rng.integers(0, min(facts.media_token_ids), piece).tolist()
            continue
        item = _item(facts, piece, len(token_ids) + 1)
        placeholder = facts.image_token_id
        if item.modality == "video":
            assert facts.video
            placeholder = facts.video.token_id
        token_ids += [start_token, *[placeholder] * item.num_tokens, end_token]
        items.append(item)
        pixels.append(_picture(rng, item.thw, facts))
    return Prompt(tuple(token_ids), tuple(items), tuple(pixels))


def _prompt_of_canvases(facts: ModelFacts, pieces: Sequence[int | Grid | Clip], rng: np.random.Generator) -> Prompt:
    """Images of (1, rows, columns) tiles, a token each, that text attends to."""
    assert facts.encoder.canvas
    tiles = facts.encoder.canvas
    token_ids: list[int] = []
    items = []
    pixels = []
    for piece in pieces:
        if isinstance(piece, int):
            token_ids += rng.integers(0, min(facts.media_token_ids), piece).tolist()
            continue
        _, rows, columns = piece
        grid = (rows * tiles.side, columns * tiles.side)
        num_patches = grid[0] * grid[1]
        key = f"{piece}/{len(items)}/{rng.integers(2**32)}"
        unit = tiles.unit(key, grid, PixelRef("", 0, num_patches, facts.processor.row_bytes))
        items.append(MediaItem("image", len(token_ids), 1, (unit,)))
        token_ids.append(facts.image_token_id)
        pixels.append(_picture(rng, (1, *grid), facts))
    return Prompt(tuple(token_ids), with_readers(items), tuple(pixels))


def _item(facts: ModelFacts, piece: Grid | Clip, offset: int) -> MediaItem:
    grid = piece.thw if isinstance(piece, Clip) else piece
    time, rows, columns = grid
    num_tokens = rows * columns // facts.processor.merge_size**2
    pixels = [
        PixelRef("", index * rows * columns, rows * columns, facts.processor.row_bytes) for index in range(time)
    ]
    units = tuple(Unit(f"{grid}/{index}", (rows, columns), num_tokens, ref) for index, ref in enumerate(pixels))
    if isinstance(piece, Clip):
        return MediaItem("video", offset, time * num_tokens, units, piece.seconds)
    return MediaItem("image", offset, time * num_tokens, units)


def _picture(rng: np.random.Generator, grid: Grid, facts: ModelFacts) -> npt.NDArray[np.uint8]:
    return rng.integers(0, 256, (grid[0] * grid[1] * grid[2], facts.processor.row_bytes), dtype=np.uint8)
