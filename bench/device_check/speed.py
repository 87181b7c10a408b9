"""How fast the device is: the tower in TFLOP/s, decoding and prefill in tokens a second."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from bench.device_check.checks import Speed
from bench.device_check.timing import seconds_of
from chiasm.config.engine import DTypeName, EngineConfig
from chiasm.engine.core.core import EngineCore
from chiasm.engine.runner.launch import tower_kernel
from chiasm.models.loader import load_model
from chiasm.models.registry import open_checkpoint
from chiasm.ops.staging import Staging
from chiasm.vision.cost import full_attention_flops, linear_flops
from chiasm.vision.stages import whole_pass
from chiasm.vision.units import Piece
from tests.engine.driven import finish, request, running
from tests.prompts import make_prompt

_FLOPS = (linear_flops, full_attention_flops)


class Sizes(NamedTuple):
    """What is measured.

    Attributes:
        grids: patch grids of the images of a pass, by the name of the pass.
        num_sequences: that decode side by side.
        num_output_tokens: of each.
        num_prompt_tokens: of each, in all that are prefilled.
    """

    grids: dict[str, list[tuple[int, int]]]
    num_sequences: tuple[int, ...]
    num_output_tokens: int
    num_prompt_tokens: int


GPU_SIZES = Sizes(
    {
        "448x448": [(32, 32)],
        "896x896": [(64, 64)],
        "16 of 448x448": [(32, 32)] * 16,
        "mix of 8": [(32, 32), (24, 40), (64, 64), (16, 16), (48, 32), (20, 28), (32, 64), (8, 8)],
    },
    (1, 8, 64),
    128,
    1024,
)
CPU_SIZES = Sizes({"56x56": [(4, 4)], "mix of 2": [(4, 4), (8, 4)]}, (2,), 8, 24)


def tower_speeds(folder: Path, sizes: Sizes, device: torch.device, dtype: torch.dtype) -> Iterator[Speed]:
    """TFLOP/s of a checkpoint's tower, pixels in pinned memory to features on the device."""
    checkpoint = open_checkpoint(folder)
    kernel = tower_kernel(checkpoint.facts.encoder, device, dtype).kernel
    facts, model = load_model(checkpoint, dtype=dtype, device=device, segment_kernel=kernel)
    staging = Staging(device)
    for name, grids in sizes.grids.items():
        pieces = [Piece(grid, 0, grid[0] * grid[1]) for grid in grids]
        num_rows = sum(piece.num_rows for piece in pieces)
        pixels = torch.randint(0, 256, (num_rows, facts.processor.row_bytes), dtype=torch.uint8)

        def encode(pixels: torch.Tensor = pixels, pieces: Sequence[Piece] = pieces) -> None:
            whole_pass(model.encode_vision(staging.move_rows([pixels], pixels.shape[1]), pieces))

        flops = sum(of(facts.encoder, piece.num_rows) for piece in pieces for of in _FLOPS)
        yield Speed(f"tower, {name}", flops / seconds_of(encode, device) / 1e12, "TFLOP/s")


def text_speeds(folder: Path, scratch: Path, sizes: Sizes, device: torch.device, dtype: DTypeName) -> Iterator[Speed]:
    """Tokens a second of an engine, with and without recorded decode steps."""
    for enforce_eager in (False, True) if device.type == "cuda" else (True,):
        config = EngineConfig(
            model=str(folder), device=device.type, dtype=dtype, enforce_eager=enforce_eager,
            max_num_seqs=max(sizes.num_sequences), enable_prefix_caching=False,
            max_num_batched_tokens=max(2048, *sizes.num_sequences),
        )  # fmt: skip
        with running(config) as core:
            _prefill(core, scratch, sizes)  # warms up
            words = "launched anew" if enforce_eager else "in graphs"
            for count in sizes.num_sequences:
                yield Speed(f"decoding, {count} at a time, {words}", _decode(core, scratch, sizes, count), "tokens/s")
            if enforce_eager:
                yield Speed("prefill", _prefill(core, scratch, sizes), "tokens/s")


def _decode(core: EngineCore, scratch: Path, sizes: Sizes, count: int) -> float:
    facts = core.ready.facts
    for index in range(count):
        prompt = make_prompt(facts, [16], seed=index)
        core.add(request(f"decode-{index}", prompt, scratch, max_tokens=sizes.num_output_tokens))
    core.step()  # all prompts
    start = time.perf_counter()
    num_tokens = sum(map(len, finish(core).values())) - count
    return num_tokens / (time.perf_counter() - start)


def _prefill(core: EngineCore, scratch: Path, sizes: Sizes) -> float:
    prompts = [make_prompt(core.ready.facts, [sizes.num_prompt_tokens], seed=seed) for seed in range(4)]
    for index, prompt in enumerate(prompts):
        core.add(request(f"prefill-{index}", prompt, scratch, max_tokens=1))
    start = time.perf_counter()
    finish(core)
    return len(prompts) * sizes.num_prompt_tokens / (time.perf_counter() - start)
