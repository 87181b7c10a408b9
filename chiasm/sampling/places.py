"""Single logits of a batch, changed all at once."""

from __future__ import annotations

import torch
from torch import Tensor


class Places:
    """Some logits of a batch, none of them twice, and a number for each."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._tokens: list[int] = []
        self._numbers: list[float] = []

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._rows)

    def add(self, row: int, token: int, number: float) -> None:
        """Take one in."""
        self._rows.append(row)
        self._tokens.append(token)
        self._numbers.append(number)

    def index(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Where they are in ``logits``."""
        return torch.tensor(self._rows, device=logits.device), torch.tensor(self._tokens, device=logits.device)

    def numbers(self, logits: Tensor) -> Tensor:
        """In the type of ``logits``."""
        return torch.tensor(self._numbers, dtype=logits.dtype, device=logits.device)
