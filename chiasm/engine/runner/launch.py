"""How a rank launches work on its device, chosen once, with a line for each choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from chiasm.config.engine import EngineConfig
from chiasm.engine.runner.encoder_graphs import pass_sizes
from chiasm.engine.runner.encoder_stream import EncoderStream, SameStream, SideStream
from chiasm.engine.runner.steps import KernelInputs, PlainInputs, StepInputs
from chiasm.layers.moe import Experts
from chiasm.models.entry import VisionLanguageModel
from chiasm.ops.paged_kernels import AttentionShape, PagedBackend, choose_backends
from chiasm.ops.varlen import ChosenKernel, SegmentKernel, VarlenKernel, choose_segment_kernel
from chiasm.schema.facts import EncoderShape
from chiasm.vision.tables import TableTower


class Launch(NamedTuple):
    """What a rank works with.

    Attributes:
        shape: of the language model's attention.
        inputs: brings steps to the device.
        decoding: the kernel of recorded decode steps; None records none.
        encoder_stream: where the encoder's work goes.
        lines: what was chosen and why; none on a CPU.
    """

    shape: AttentionShape
    inputs: StepInputs
    decoding: PagedBackend | None
    encoder_stream: EncoderStream
    lines: tuple[str, ...]


def tower_kernel(shape: EncoderShape, device: torch.device, dtype: torch.dtype) -> ChosenKernel:
    """What a tower attends with."""
    return choose_segment_kernel(device, dtype, shape.hidden_size // shape.num_heads)


def choose_launch(
    model: VisionLanguageModel,
    *,
    tower_reason: str,
    block_size: int,
    enforce_eager: bool,
    device: torch.device,
    dtype: torch.dtype,
) -> Launch:
    """Decide for a loaded model.

    Args:
        model: of this rank.
        tower_reason: what its tower attends with.
        block_size: tokens in a block of the KV cache.
        enforce_eager: whether CUDA graphs are switched off.
        device: of this rank.
        dtype: of activations.
    """
    shape = AttentionShape(model.num_heads, model.num_kv_heads, model.head_dim, block_size, model.chunk_sizes, dtype)
    if device.type != "cuda":
        return Launch(shape, PlainInputs(block_size, device), None, SameStream(), ())
    backends = choose_backends(shape, device)
    missing = _missing_for_graphs(model, backends.decoding, enforce_eager=enforce_eager)
    inputs = (
        PlainInputs(block_size, device) if backends.steps is None else KernelInputs(backends.steps, shape, device)
    )
    lines = (
        f"encoder attention: {tower_reason}",
        f"attention: {backends.reason}",
        f"decode steps: {'CUDA graphs' if missing is None else f'launched anew ({missing})'}",
        "encoder: beside the language model on a stream of its own, where a step does not read what it encodes",
    )
    return Launch(shape, inputs, backends.decoding if missing is None else None, SideStream(device), lines)


class EncoderLaunch(NamedTuple):
    """How passes of a tower are launched.

    Attributes:
        tower: what is recorded, and the kernel that it attends with; None where nothing is.
        sizes: numbers of rows for which passes are recorded.
        lines: what was chosen and why; none on a CPU.
    """

    tower: tuple[TableTower, VarlenKernel] | None
    sizes: tuple[int, ...]
    lines: tuple[str, ...]


def choose_encoder_launch(
    model: VisionLanguageModel,
    kernel: SegmentKernel,
    shape: EncoderShape,
    config: EngineConfig,
    device: torch.device,
) -> EncoderLaunch:
    """Decide for a loaded model.

    Args:
        model: of this rank.
        kernel: what its tower attends with.
        shape: of the tower.
        config: the engine's settings.
        device: of this rank.
    """
    if device.type != "cuda":
        return EncoderLaunch(None, (), ())
    sizes = pass_sizes(min(config.encoder_graph_max_patches, config.max_num_batched_patches), shape)
    tower, missing = model.table_tower(), _missing_for_encoder_graphs(config, sizes)
    if missing is None and tower is None:
        missing = "what this family's tower computes depends on the tiles of each picture"
    if tower is None or missing is not None or not isinstance(kernel, VarlenKernel):
        missing = missing or "without varlen_attn its attention goes from run to run of equal segments"
        return EncoderLaunch(None, (), (f"encoder passes: launched anew ({missing})",))
    line = (
        f"encoder passes: CUDA graphs of {sizes[0]} to {sizes[-1]} patches; launched anew where a pass has more, or "
        "very many small images, or shares images with other ranks"
    )
    return EncoderLaunch((tower, kernel), sizes, (line,))


def _missing_for_encoder_graphs(config: EngineConfig, sizes: Sequence[int]) -> str | None:
    """What settings are against it; None if none is."""
    if config.enforce_eager:
        return "enforce_eager"
    if not sizes:
        return (
            f"encoder_graph_max_patches={config.encoder_graph_max_patches} and max_num_batched_patches="
            f"{config.max_num_batched_patches} leave none"
        )
    if config.mm_encoder_tp_mode == "weights" and config.tensor_parallel_size > 1:
        return "its weights are spread over the ranks"
    return None


def _missing_for_graphs(
    model: VisionLanguageModel, decoding: PagedBackend | None, *, enforce_eager: bool
) -> str | None:
    """Why decode steps are not recorded; None if they are."""
    if enforce_eager:
        return "enforce_eager"
    if decoding is None:
        return "no kernel that a graph may hold"
    assert isinstance(model, nn.Module)
    for layer in model.modules():
        if isinstance(layer, Experts) and layer.missing_for_grouped is not None:
            return f"for the experts' numbers of rows the host waits in every layer: {layer.missing_for_grouped}"
    return None
