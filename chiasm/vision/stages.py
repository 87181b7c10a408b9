"""A pass through a tower that can be left off after any layer and taken up again."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias

from torch import Tensor

from chiasm.ops.segments import SharedRows
from chiasm.vision.units import Piece

Stages: TypeAlias = Generator[None, None, Tensor]
"""A pass, computed as it is asked to go on: it stops behind each layer, and returns the features.

Every pass of a tower has ``EncoderShape.num_stages`` stages. Between them it holds the activations that it needs, and
no exchange is under way.
"""

Encoder: TypeAlias = Callable[[Tensor, Sequence[Piece], SharedRows | None], Stages]
"""A tower; see ``VisionLanguageModel.encode_vision``."""


class StagedPass:
    """A pass and how far it has come.

    Attributes:
        num_done: stages.
        features: what it gave; None until the last stage is done.
    """

    def __init__(self, stages: Stages) -> None:
        self.num_done = 0
        self.features: Tensor | None = None
        self._stages = stages

    def advance(self, num_stages: int) -> None:
        """Compute until so many stages are done."""
        while self.num_done < num_stages:
            try:
                next(self._stages)
            except StopIteration as end:
                self.features = end.value
            self.num_done += 1


def whole_pass(stages: Stages) -> Tensor:
    """All of a pass at once; its features."""
    while True:
        try:
            next(stages)
        except StopIteration as end:
            features: Tensor = end.value
            return features
