"""Reading safetensors files, a slice at a time. Pickled weights are refused: loading them would run code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from chiasm.config.checkpoint import read_json
from chiasm.errors import UserError, list_names
from chiasm.layers.weight import CheckpointTensor

_INDEX = "model.safetensors.index.json"


class FileTensor(CheckpointTensor):
    """A tensor in a safetensors file."""

    def __init__(self, stored: Any) -> None:
        self._stored = stored

    @property
    def shape(self) -> tuple[int, ...]:
        """See ``CheckpointTensor``."""
        return tuple(self._stored.get_shape())

    @property
    def dtype(self) -> str:
        """Of the file, in the words of safetensors."""
        return str(self._stored.get_dtype())

    def read(self, dim: int, start: int, length: int) -> Tensor:
        """See ``CheckpointTensor``."""
        piece: Tensor = self._stored[(*[slice(None)] * dim, slice(start, start + length))]
        return piece


def read_tensor_names(folder: Path) -> frozenset[str]:
    """Names of all tensors of a checkpoint.

    Raises:
        UserError: if its files can't be read.
    """
    return frozenset(name for name, _ in iterate_tensors(folder))


def iterate_tensors(folder: Path) -> Iterator[tuple[str, FileTensor]]:
    """Each tensor of a checkpoint with its name; one is to be read before the next is asked for.

    Raises:
        UserError: if a file is missing or can't be read.
    """
    from safetensors import SafetensorError, safe_open  # an engine with random weights needs no such package

    for file in _list_files(folder):
        try:
            with safe_open(file, framework="pt", device="cpu") as opened:
                for name in opened.keys():  # noqa: SIM118  # not a mapping
                    yield name, FileTensor(opened.get_slice(name))
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
        raise UserError(f"{_INDEX} names files that are not there: {list_names(missing)}.", param="model")
    return [folder / name for name in names]
