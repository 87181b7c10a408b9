"""Where the encoder's work is queued: with the language model's, or on a stream of its own beside it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor


class EncoderStream(Protocol):
    """A queue for the encoder.

    Attributes:
        is_beside: whether the language model's step goes on meanwhile.
    """

    is_beside: bool

    def running(self) -> AbstractContextManager[object]:
        """What is called within goes into this queue."""

    def hand_over(self, features: Iterable[Tensor]) -> None:
        """Let the language model's queue wait for what was called so far, and read these from now on."""


class SameStream:
    """The encoder and the language model take turns, as on a CPU."""

    is_beside = False

    def running(self) -> AbstractContextManager[object]:
        """See ``EncoderStream``."""
        return nullcontext()

    def hand_over(self, features: Iterable[Tensor]) -> None:
        """See ``EncoderStream``."""


class SideStream:
    """A CUDA stream of its own, in which all that the encoder allocates lives.

    Args:
        device: the GPU.
    """

    is_beside = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def running(self) -> AbstractContextManager[object]:
        """See ``EncoderStream``."""
        return torch.cuda.stream(self._stream)

    def hand_over(self, features: Iterable[Tensor]) -> None:
        """See ``EncoderStream``."""
        reader = torch.cuda.current_stream(self._device)
        reader.wait_event(self._stream.record_event())
        for tensor in features:
            # Their memory is the side stream's: it may be used anew there only when the reader is done.
            tensor.record_stream(reader)
