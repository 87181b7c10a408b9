"""Encoder passes in CUDA graphs against the same passes launched anew: features, and time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from bench.device_check.checks import Outcome, Speed
from bench.device_check.timing import seconds_of
from chiasm.config.engine import EngineConfig
from chiasm.engine.runner import launch
from chiasm.engine.runner.encoder_graphs import EncoderGraphs, filling
from chiasm.engine.runner.graphs import CudaRecorder
from chiasm.models.loader import LoadedModel, load_model
from chiasm.models.registry import open_checkpoint
from chiasm.schema.facts import EncoderShape
from chiasm.vision.stages import Encoder, StagedPass, whole_pass
from chiasm.vision.units import Piece

_MAX_PATCHES = 1024  # of the checks
_SPEED_PATCHES = 4096
_LIMIT = 0.05  # of the features' spread: products with more rows may be added up in another order
_GRIDS = ([(16, 16)], [(10, 12), (8, 6), (2, 2)], [(26, 22)], [(2, 30)], [(4, 4)] * 9)
_TILES = (1, 4, 2, 3)


class _Recorded(NamedTuple):
    """A tower in bfloat16, and its graphs; None of them where there are none, for which ``reason`` tells why."""

    loaded: LoadedModel
    graphs: EncoderGraphs | None
    reason: str
    sizes: Sequence[int]


@torch.inference_mode()
def compare_passes(folder: Path, device: torch.device) -> Outcome:
    """Passes of a checkpoint's tower, one after another in the same graphs, each left off behind every layer."""
    recorded = _record(folder, device, _MAX_PATCHES)
    graphs, shape = recorded.graphs, recorded.loaded.facts.encoder
    if graphs is None:
        return Outcome(is_good=True, detail=recorded.reason, is_skipped=True)
    errors = []
    for seed, pieces in enumerate(_passes(shape)):
        pixels = _pixels(recorded.loaded, pieces, device, seed)
        expected = _whole(recorded.loaded.model.encode_vision, pixels, pieces).float()
        errors.append(float((_left_off(graphs, pixels, pieces, shape).float() - expected).std() / expected.std()))
    num_played = graphs.num_passes["in graphs"]
    is_good = max(errors) <= _LIMIT and num_played == len(errors)
    detail = f"{num_played} of {len(errors)} passes in graphs, largest difference {max(errors):.1e} of the spread"
    return Outcome(is_good, f"{detail}, at most {_LIMIT}")


def pass_speeds(folder: Path, device: torch.device) -> Iterator[Speed]:
    """Milliseconds of passes that fill graphs of some sizes; nothing where there are no graphs."""
    recorded = _record(folder, device, _SPEED_PATCHES)
    loaded, graphs = recorded.loaded, recorded.graphs
    if graphs is None:
        return
    for size in recorded.sizes:
        pieces = filling(size, loaded.facts.encoder)
        pixels = _pixels(loaded, pieces, device, 0)
        for name, encode in (("in graphs", graphs.encode), ("launched anew", loaded.model.encode_vision)):
            took = seconds_of(partial(_whole, encode, pixels, pieces), device)
            yield Speed(f"encoder pass, {size} patches, {name}", 1e3 * took, "ms")


def _whole(encode: Encoder, pixels: Tensor, pieces: Sequence[Piece]) -> Tensor:
    return whole_pass(encode(pixels, pieces, None))


@torch.inference_mode()
def _record(folder: Path, device: torch.device, max_patches: int) -> _Recorded:
    checkpoint = open_checkpoint(folder)
    kernel = launch.tower_kernel(checkpoint.facts.encoder, device, torch.bfloat16).kernel
    loaded = load_model(checkpoint, dtype=torch.bfloat16, device=device, segment_kernel=kernel)
    config = EngineConfig(model=str(folder), encoder_graph_max_patches=max_patches)
    chosen = launch.choose_encoder_launch(loaded.model, kernel, loaded.facts.encoder, config, device)
    if chosen.tower is None:
        return _Recorded(loaded, None, *chosen.lines or ("there are no CUDA graphs without a GPU",), ())
    graphs = EncoderGraphs(
        *chosen.tower,
        loaded.facts.encoder,
        row_bytes=loaded.facts.processor.row_bytes,
        sizes=chosen.sizes,
        device=device,
        dtype=torch.bfloat16,
    )
    graphs.record(CudaRecorder(device))
    return _Recorded(loaded, graphs, *chosen.lines, chosen.sizes)


def _passes(shape: EncoderShape) -> list[list[Piece]]:
    if shape.tile_side:
        return [[Piece.whole((shape.tile_side,) * 2)] * count for count in _TILES]
    return [[Piece.whole((rows, columns)) for rows, columns in grids] for grids in _GRIDS]


def _pixels(loaded: LoadedModel, pieces: Sequence[Piece], device: torch.device, seed: int) -> Tensor:
    size = (sum(piece.num_rows for piece in pieces), loaded.facts.processor.row_bytes)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, size, generator=generator, dtype=torch.uint8).to(device)


def _left_off(graphs: EncoderGraphs, pixels: Tensor, pieces: Sequence[Piece], shape: EncoderShape) -> Tensor:
    """Features of a pass, behind whose stages memory is taken and written as other work would."""
    under_way = StagedPass(graphs.encode(pixels, pieces))
    for stage in range(shape.num_stages):
        under_way.advance(stage + 1)
        torch.full((2**20,), torch.nan, device=pixels.device)
    assert under_way.features is not None
    return under_way.features
