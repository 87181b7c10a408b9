"""What a tower is told of a pass beside its pixels: made on the host, apart from what is computed of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chiasm.ops.segments import Segments, SharedRows
from chiasm.vision.stages import Stages
from chiasm.vision.units import Piece

Array = npt.NDArray[Any]


class PassTables(NamedTuple):
    """What the host knows of the rows of a pass.

    Attributes:
        rows: arrays with an entry for each row, in an order that is the tower's own.
        segments: within what rows attend: first whole units, then the others that a tower has layers for.
    """

    rows: tuple[npt.NDArray[np.int64] | npt.NDArray[np.float64], ...]
    segments: tuple[Segments, ...]


class TableTower(Protocol):
    """A tower whose passes depend on nothing but pixels and tables, the sizes of which decide what is launched."""

    def tables(self, pieces: Sequence[Piece], shared: SharedRows | None) -> PassTables:
        """Those of packed pieces; see ``VisionLanguageModel.encode_vision``."""

    def stages(self, pixels: Tensor, rows: Sequence[Tensor], segments: Sequence[Segments]) -> Stages:
        """A pass.

        Args:
            pixels: uint8 [rows of all pieces, bytes of a patch].
            rows: as in the tables, on the device.
            segments: as in the tables, or ones that a kernel finds in fixed places.
        """


def encode(tower: TableTower, pixels: Tensor, pieces: Sequence[Piece], shared: SharedRows | None) -> Stages:
    """A pass over packed pieces; see ``VisionLanguageModel.encode_vision``."""
    tables = tower.tables(pieces, shared)
    rows = [torch.from_numpy(array).to(pixels.device) for array in tables.rows]
    return (yield from tower.stages(pixels, rows, tables.segments))
