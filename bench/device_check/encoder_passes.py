"""Encoder passes in CUDA graphs against the same passes launched anew."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from bench.device_check.probe import Outcome, Skip
from chiasm.config.engine import EngineConfig
from chiasm.engine.runner import launch
from chiasm.engine.runner.encoder_graphs import EncoderGraphs
from chiasm.engine.runner.graphs import CudaRecorder
from chiasm.models.loader import LoadedModel, load_model
from chiasm.models.registry import open_checkpoint
from chiasm.schema.facts import EncoderShape
from chiasm.vision.stages import StagedPass, whole_pass
from chiasm.vision.units import Piece

_MAX_PATCHES = 1024  # of the checks
_LIMIT = 0.05  # of the features' spread: products with more rows may be added up in another order
_GRIDS = ([(16, 16)], [(10, 12), (8, 6), (2, 2)], [(26, 22)], [(2, 30)], [(4, 4)] * 9)
_TILES = (1, 4, 2, 3)


class RecordedTower(NamedTuple):
    """A tower in bfloat16, and its passes in graphs."""

    loaded: LoadedModel
    graphs: EncoderGraphs
    sizes: Sequence[int]


@torch.inference_mode()
def compare_passes(folder: Path, device: torch.device) -> Outcome:
    """Passes of a model's tower, one after another in the same graphs, each left off behind every layer."""
    tower = record_tower(folder, device, _MAX_PATCHES)
    graphs, shape = tower.graphs, tower.loaded.facts.encoder
    errors = []
    for seed, pieces in enumerate(_passes(shape)):
        pixels = random_pixels(tower.loaded, pieces, device, seed)
        expected = whole_pass(tower.loaded.model.encode_vision(pixels, pieces)).float()
        errors.append(float((_left_off(graphs, pixels, pieces, shape).float() - expected).std() / expected.std()))
    num_played = graphs.num_passes["in graphs"]
    is_good = max(errors) <= _LIMIT and num_played == len(errors)
    detail = f"{num_played} of {len(errors)} passes in graphs, largest difference {max(errors):.1e} of the spread"
    return Outcome(is_good, f"{detail}, at most {_LIMIT}")


@torch.inference_mode()
def record_tower(folder: Path, device: torch.device, max_patches: int) -> RecordedTower:
    """Load a model and record passes of its tower.

    Raises:
        Skip: where there are to be no graphs.
        RuntimeError: where there are none on a GPU, and should be.
    """
    if device.type == "cpu":
        raise Skip("there are no CUDA graphs on a CPU")
    checkpoint = open_checkpoint(folder)
    kernel = launch.tower_kernel(checkpoint.facts.encoder, device, torch.bfloat16).kernel
    loaded = load_model(checkpoint, dtype=torch.bfloat16, device=device, segment_kernel=kernel, load_format="dummy")
    config = EngineConfig(model=str(folder), encoder_graph_max_patches=max_patches)
    chosen = launch.choose_encoder_launch(loaded.model, kernel, loaded.facts.encoder, config, device)
    if chosen.tower is None:
        if loaded.model.table_tower() is None:
            raise Skip(chosen.lines[0])
        raise RuntimeError(chosen.lines[0])
    graphs = EncoderGraphs(
        *chosen.tower,
        loaded.facts.encoder,
        row_bytes=loaded.facts.processor.row_bytes,
        sizes=chosen.sizes,
        device=device,
        dtype=torch.bfloat16,
    )
    graphs.record(CudaRecorder(device))
    return RecordedTower(loaded, graphs, chosen.sizes)


def _passes(shape: EncoderShape) -> list[list[Piece]]:
    if shape.tile_side:
        return [[Piece.whole((shape.tile_side,) * 2)] * count for count in _TILES]
    return [[Piece.whole((rows, columns)) for rows, columns in grids] for grids in _GRIDS]


def random_pixels(loaded: LoadedModel, pieces: Sequence[Piece], device: torch.device, seed: int) -> Tensor:
    """Rows of patches of some pieces, on the device."""
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
