"""How fast the tower of a model of 8 billion parameters is on the device, in CUDA graphs and launched anew."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import torch

from bench.device_check.encoder_passes import random_pixels, record_tower
from bench.device_check.machine import peaks_of
from bench.device_check.models import SMALL, tower_of_eight_billion, write_model
from bench.device_check.probe import Outcome, Probe, Skip
from bench.device_check.report import NUM_KERNELS
from bench.device_check.timing import longest_kernels, seconds_of
from chiasm.engine.runner.launch import tower_kernel
from chiasm.models.loader import LoadedModel, load_model
from chiasm.models.registry import open_checkpoint
from chiasm.vision.cost import full_attention_flops, linear_flops
from chiasm.vision.stages import Encoder, whole_pass
from chiasm.vision.units import Piece

_TERA = 1e12
_GRAPH_PATCHES = 4096


class Images(NamedTuple):
    """What a pass encodes: so many images of a grid of patches."""

    grid: tuple[int, int]
    count: int = 1

    @property
    def pieces(self) -> list[Piece]:
        """Of the pass."""
        return [Piece.whole(self.grid)] * self.count

    @property
    def num_patches(self) -> int:
        """Of all images."""
        return self.count * self.grid[0] * self.grid[1]

    @property
    def words(self) -> str:
        """For the report."""
        return f"{self.num_patches} patches, {'one image' if self.count == 1 else f'{self.count} images'}"


_GPU_IMAGES = (Images((32, 32)), Images((64, 64)), Images((32, 32), 4), Images((128, 128)), Images((32, 32), 16))
_CPU_IMAGES = (Images((8, 8)), Images((16, 16)), Images((8, 8), 4))


def measure_tower(probe: Probe) -> None:
    """Passes of one image and of several."""
    config = tower_of_eight_billion() if probe.is_gpu else SMALL["qwen3_vl"]()
    folder = write_model(config, probe.scratch / "tower", max_patches=65536 if probe.is_gpu else 2048)
    checkpoint = open_checkpoint(folder)
    dtype = torch.bfloat16 if probe.is_gpu else torch.float32
    kernel = tower_kernel(checkpoint.facts.encoder, probe.device, dtype)
    probe.fact("tower", f"attention: {kernel.reason}")
    loaded = load_model(
        checkpoint, dtype=dtype, device=probe.device, segment_kernel=kernel.kernel, load_format="dummy"
    )
    images = _GPU_IMAGES if probe.is_gpu else _CPU_IMAGES
    for each in images:
        measure = partial(_measure, probe, loaded, loaded.model.encode_vision, each, "launched anew")
        probe.check(f"{each.words}, launched anew", measure)
    probe.check("kernels", partial(_kernels, probe, loaded, images[1]))
    try:
        recorded = record_tower(folder, probe.device, _GRAPH_PATCHES)
    except Skip as reason:
        probe.fact("tower", f"no passes in CUDA graphs: {reason}")
        return
    for each in images:
        if each.num_patches <= _GRAPH_PATCHES:
            measure = partial(_measure, probe, recorded.loaded, recorded.graphs.encode, each, "in CUDA graphs")
            probe.check(f"{each.words}, in CUDA graphs", measure)
    probe.check("passes were played from graphs", lambda: _played(recorded.graphs.num_passes))


def _measure(probe: Probe, loaded: LoadedModel, encode: Encoder, images: Images, how: str) -> Outcome:
    shape, pixels = loaded.facts.encoder, random_pixels(loaded, images.pieces, probe.device, 0)
    with torch.inference_mode():
        features = whole_pass(encode(pixels, images.pieces, None))
        is_good = bool(features.isfinite().all()) and features.shape[1] == shape.feature_size
    seconds = seconds_of(lambda: whole_pass(encode(pixels, images.pieces, None)), probe.device)
    flops = sum(of(shape, piece.num_rows) for piece in images.pieces for of in (linear_flops, full_attention_flops))
    words = f"tower, {images.words}, {how}"
    probe.speed(words, 1e3 * seconds, "ms")
    probe.speed(words, flops / seconds / _TERA, "TFLOP/s", peaks_of(probe.device).tflops)
    return Outcome(
        is_good, f"features [{features.shape[0]}, {features.shape[1]}]{'' if is_good else ' are no numbers'}"
    )


def _played(num_passes: Mapping[str, int]) -> Outcome:
    others = {reason: count for reason, count in num_passes.items() if reason != "in graphs"}
    return Outcome(not others and num_passes["in graphs"] > 0, f"{dict(num_passes)}")


def _kernels(probe: Probe, loaded: LoadedModel, images: Images) -> Outcome:
    pixels = random_pixels(loaded, images.pieces, probe.device, 0)

    @torch.inference_mode()
    def encode() -> None:
        whole_pass(loaded.model.encode_vision(pixels, images.pieces))

    encode()
    kernels = longest_kernels(encode, probe.device, NUM_KERNELS)
    for kernel in kernels:
        probe.kernel(f"tower, {images.words}", kernel.name, kernel.calls, kernel.seconds, kernel.share)
    return Outcome(bool(kernels), f"{len(kernels)} listed")
