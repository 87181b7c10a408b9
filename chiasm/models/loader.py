"""Fills a model from safetensors files. Pickled weights are refused: loading them would run code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from chiasm.config.checkpoint import read_json
from chiasm.dist.group import SOLO, Group
from chiasm.errors import UserError
from chiasm.layers.linear import PackedLayer
from chiasm.layers.weight import CheckpointTensor, Placement, Weight
from chiasm.logs import get_logger
from chiasm.models.entry import BuildContext, LoadableModel, VisionLanguageModel
from chiasm.models.registry import Checkpoint, open_checkpoint
from chiasm.ops.varlen import RUN_BY_RUN, SegmentKernel
from chiasm.schema.facts import ModelFacts

_DTYPES_ON_DISK = ("F32", "BF16", "F16")
_INDEX = "model.safetensors.index.json"
_MAX_NAMES = 8

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
) -> LoadedModel:
    """Build this rank's part of a model on its device and fill it, reading only what the rank holds.

    Args:
        checkpoint: its folder, or what ``open_checkpoint`` made of it.
        dtype: of the weights in memory, whatever it is on disk.
        device: where the weights live.
        text_group: ranks that the language model is sharded over.
        vision_group: ranks that the vision encoder is sharded over; a group of one replicates it.
        segment_kernel: what the segments of the tower attend with.

    Raises:
        UserError: if the checkpoint's tensors are not exactly those of the model, or heads do not divide by ranks.
    """
    if isinstance(checkpoint, Path):
        checkpoint = open_checkpoint(checkpoint)
    model = _build(
        checkpoint, Placement(text_group, dtype, device), Placement(vision_group, dtype, device, segment_kernel)
    )
    fill_model(model, checkpoint.folder, lambda name: checkpoint.entry.module_name(name, checkpoint.config))
    model.finish_loading()
    for module in model.modules():
        if isinstance(module, PackedLayer):
            module.pack()
    return LoadedModel(checkpoint.facts, model)


def weight_bytes(
    checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device, text_group: Group, vision_group: Group
) -> int:
    """What the weights of this rank will take, known before any is read; arguments are those of ``load_model``.

    Raises:
        UserError: if heads do not divide by ranks.
    """
    meta = torch.device("meta")
    model = _build(checkpoint, Placement(text_group, dtype, meta), Placement(vision_group, dtype, meta))
    copied = sum(layer.copied_bytes(device) for layer in model.modules() if isinstance(layer, PackedLayer))
    return copied + sum(weight.nbytes for _, weight in model.named_parameters())


def _build(checkpoint: Checkpoint, text: Placement, vision: Placement) -> LoadableModel:
    """This rank's part of a model, unfilled."""
    checkpoint.check_sharding(text.group.size, vision.group.size)
    context = BuildContext(
        text=text,
        vision=vision,
        normalisation=checkpoint.normalisation,
        tensor_names=read_tensor_names(checkpoint.folder),
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
    for name, tensor in _iterate_tensors(folder):
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
        _log.info("%d tensors of the checkpoint are not used: %s", len(left_out), _cap(left_out))


class _Slot(NamedTuple):
    """A part of a weight that one checkpoint tensor fills."""

    weight: Weight
    part: str

    def load(self, name: str, tensor: _FileTensor) -> None:
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


class _FileTensor(CheckpointTensor):
    """A tensor in a safetensors file."""

    def __init__(self, stored: Any) -> None:
        self._stored = stored

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._stored.get_shape())

    @property
    def dtype(self) -> str:
        return str(self._stored.get_dtype())

    def read(self, dim: int, start: int, length: int) -> Tensor:
        piece: Tensor = self._stored[(*[slice(None)] * dim, slice(start, start + length))]
        return piece


def read_tensor_names(folder: Path) -> frozenset[str]:
    """Names of all tensors of a checkpoint.

    Raises:
        UserError: if its files can't be read.
    """
    return frozenset(name for name, _ in _iterate_tensors(folder))


def _iterate_tensors(folder: Path) -> Iterator[tuple[str, _FileTensor]]:
    for file in _list_files(folder):
        try:
            with safe_open(file, framework="pt", device="cpu") as opened:
                for name in opened.keys():  # noqa: SIM118  # not a mapping
                    yield name, _FileTensor(opened.get_slice(name))
        except (OSError, SafetensorError) as error:
            reason = error.strerror if isinstance(error, OSError) else error  # an OSError's text has the whole path
            raise UserError(f"weights file {file.name} can't be read: {reason}", param="model") from error


def _list_files(folder: Path) -> list[Path]:
    index = read_json(folder, _INDEX)
    if index is not None:
        weight_map = index.get("weight_map")
        if not isinstance(weight_map, dict):
            raise UserError(f"{_INDEX} has no weight_map.", param="model")
        names = sorted(set(map(str, weight_map.values())))
    else:
        names = sorted(path.name for path in folder.glob("*.safetensors"))
    if not names:
        has_pickles = any(folder.glob("*.bin")) or any(folder.glob("*.pt"))
        hint = "; pickled weights (.bin, .pt) are refused, since loading them runs code" if has_pickles else ""
        raise UserError(f"the checkpoint has no .safetensors weights{hint}.", param="model")
    missing = [name for name in names if Path(name).name != name or not (folder / name).is_file()]
    if missing:
        raise UserError(f"{_INDEX} names files that are not there: {_cap(missing)}.", param="model")
    return [folder / name for name in names]


def _refuse_leftovers(unused: list[str], unfilled: list[str]) -> None:
    complaints = []
    if unused:
        complaints.append(f"has {len(unused)} tensors that the model doesn't have: {_cap(unused)}")
    if unfilled:
        complaints.append(f"lacks {len(unfilled)} tensors of the model: {_cap(unfilled)}")
    if complaints:
        raise UserError(f"the checkpoint {', and it '.join(complaints)}.", param="model")


def _cap(names: Iterable[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
