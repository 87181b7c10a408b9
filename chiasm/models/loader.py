"""Builds a model and fills it: from the files of a checkpoint, or with random numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from chiasm.config.engine import LoadFormat
from chiasm.dist.group import SOLO, Group
from chiasm.errors import UserError, list_names
from chiasm.layers.linear import PackedLayer
from chiasm.layers.weight import Placement, Weight
from chiasm.logs import get_logger
from chiasm.models.dummy_weights import DummyTensor
from chiasm.models.entry import BuildContext, LoadableModel, VisionLanguageModel
from chiasm.models.registry import Checkpoint, open_checkpoint
from chiasm.models.safetensors_files import FileTensor, iterate_tensors, read_tensor_names
from chiasm.ops.varlen import RUN_BY_RUN, SegmentKernel
from chiasm.schema.facts import ModelFacts

_DTYPES_ON_DISK = ("F32", "BF16", "F16")

_log = get_logger(__name__)


class LoadedModel(NamedTuple):
    """A rank's part of a model, and the facts of its checkpoint."""

    facts: ModelFacts
    model: VisionLanguageModel


def load_model(
    checkpoint: Path | Checkpoint,
    *,
    dtype: torch.dtype,
    device: torch.device,
    text_group: Group = SOLO,
    vision_group: Group = SOLO,
    segment_kernel: SegmentKernel = RUN_BY_RUN,
    load_format: LoadFormat = "auto",
) -> LoadedModel:
    """Build this rank's part of a model on its device and fill it, reading only what the rank holds.

    Args:
        checkpoint: its folder, or what ``open_checkpoint`` made of it.
        dtype: of the weights in memory, whatever it is on disk.
        device: where the weights live.
        text_group: ranks that the language model is sharded over.
        vision_group: ranks that the vision encoder is sharded over; a group of one replicates it.
        segment_kernel: what the segments of the tower attend with.
        load_format: "dummy" reads no weights and makes random ones on the device; see ``DummyTensor``.

    Raises:
        UserError: if the checkpoint's tensors are not exactly those of the model, or heads do not divide by ranks.
    """
    if isinstance(checkpoint, Path):
        checkpoint = open_checkpoint(checkpoint)
    text, vision = Placement(text_group, dtype, device), Placement(vision_group, dtype, device, segment_kernel)
    model = build_model(checkpoint, text, vision, load_format)
    if load_format == "dummy":
        _fill_randomly(model)
    else:
        fill_model(model, checkpoint.folder, lambda name: checkpoint.entry.module_name(name, checkpoint.config))
    model.finish_loading()
    for module in model.modules():
        if isinstance(module, PackedLayer):
            module.pack()
    return LoadedModel(checkpoint.facts, model)


def weight_bytes(
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype,
    device: torch.device,
    text_group: Group,
    vision_group: Group,
    load_format: LoadFormat = "auto",
) -> int:
    """What the weights of this rank will take, known before any is read; arguments are those of ``load_model``.

    Raises:
        UserError: if heads do not divide by ranks.
    """
    meta = torch.device("meta")
    text, vision = Placement(text_group, dtype, meta), Placement(vision_group, dtype, meta)
    model = build_model(checkpoint, text, vision, load_format)
    copied = sum(layer.copied_bytes(device) for layer in model.modules() if isinstance(layer, PackedLayer))
    return copied + sum(weight.nbytes for _, weight in model.named_parameters())


def build_model(checkpoint: Checkpoint, text: Placement, vision: Placement, load_format: LoadFormat) -> LoadableModel:
    """This rank's part of a model, allocated and not filled; arguments are those of ``load_model``.

    Raises:
        UserError: if heads do not divide by ranks, or the names of the tensors can't be read.
    """
    checkpoint.check_sharding(text.group.size, vision.group.size)
    names = frozenset[str]() if load_format == "dummy" else read_tensor_names(checkpoint.folder)
    context = BuildContext(
        text=text,
        vision=vision,
        normalisation=checkpoint.normalisation,
        tensor_names=names,
    )
    return checkpoint.entry.build(checkpoint.config, context)


def fill_model(model: LoadableModel, folder: Path, module_name: Callable[[str], str | None]) -> None:
    """Load every checkpoint tensor into the part of a weight that is called ``module_name(its name)``.

    Raises:
        UserError: if a tensor is left over on either side, comes twice or has another shape.
    """
    slots = _find_slots(model)
    filled: dict[str, str] = {}
    unused, left_out = [], []
    for name, tensor in iterate_tensors(folder):
        target = module_name(name)
        if target is None:
            left_out.append(name)
            continue
        if target not in slots:
            unused.append(name)
            continue
        if target in filled:
            raise UserError(f"the checkpoint has the same tensor twice: {filled[target]} and {name}.", param="model")
        filled[target] = name
        slots[target].load(name, tensor)
    _refuse_leftovers(unused, [slot for slot in slots if slot not in filled])
    if left_out:
        _log.info("%d tensors of the checkpoint are not used: %s", len(left_out), list_names(left_out))


def _fill_randomly(model: LoadableModel) -> None:
    for name, (weight, part) in _find_slots(model).items():
        weight.load(part, DummyTensor(name, weight.parts[part], weight.dtype, weight.device))


class _Slot(NamedTuple):
    """A part of a weight that one checkpoint tensor fills."""

    weight: Weight
    part: str

    def load(self, name: str, tensor: FileTensor) -> None:
        """Fill the slot from the tensor called ``name``."""
        wanted = self.weight.parts[self.part].source_shape
        if tensor.shape != wanted:
            raise UserError(
                f"checkpoint tensor {name} has the shape {list(tensor.shape)}; the config makes it {list(wanted)}.",
                param="model",
            )
        if tensor.dtype not in _DTYPES_ON_DISK:
            known = ", ".join(_DTYPES_ON_DISK)
            raise UserError(f"checkpoint tensor {name} is of type {tensor.dtype}; supported: {known}.", param="model")
        self.weight.load(self.part, tensor)


def _find_slots(model: LoadableModel) -> dict[str, _Slot]:
    """Every part of every weight, under the name that a checkpoint with the model's own layout would give it."""
    slots = {}
    for path, weight in model.named_parameters():
        assert isinstance(weight, Weight), path
        for part in weight.parts:
            slots[_slot_name(path, part)] = _Slot(weight, part)
    return slots


def _slot_name(path: str, part: str) -> str:
    """("self_attn.qkv_proj.weight", "k_proj") -> "self_attn.k_proj.weight"."""
    if not part:
        return path
    layer, _, leaf = path.rpartition(".")
    return f"{layer.rpartition('.')[0]}.{part}.{leaf}"


def _refuse_leftovers(unused: list[str], unfilled: list[str]) -> None:
    complaints = []
    if unused:
        complaints.append(f"has {len(unused)} tensors that the model doesn't have: {list_names(unused)}")
    if unfilled:
        complaints.append(f"lacks {len(unfilled)} tensors of the model: {list_names(unfilled)}")
    if complaints:
        raise UserError(f"the checkpoint {', and it '.join(complaints)}.", param="model")
