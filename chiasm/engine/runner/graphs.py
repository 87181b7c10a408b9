"""Recording what a call does on a GPU, as a CUDA graph that is played again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch

T = TypeVar("T")


class Recorded(NamedTuple, Generic[T]):
    """What was recorded.

    Attributes:
        replay: does it again.
        output: what the call gave; tensors in it are in the same places each time.
    """

    replay: Callable[[], object]
    output: T


class Recorder(Protocol):
    """Records what calls do on the device."""

    def warm_up(self, call: Callable[[], object]) -> None:
        """Do it a few times, so that libraries make what they must not make while recording."""

    def record(self, call: Callable[[], T]) -> Recorded[T]:
        """Record it; it was done before."""


class CudaRecorder:
    """Records CUDA graphs with one pool of memory: no two of them may be played at a time.

    What is recorded by different recorders may be. So each has a stream of its own too, because the workspaces that
    matrix products have by stream become part of what is recorded.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def warm_up(self, call: Callable[[], object]) -> None:
        """See ``Recorder``."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for _ in range(2):
                call()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def record(self, call: Callable[[], T]) -> Recorded[T]:
        """See ``Recorder``."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            output = call()
        return Recorded(graph.replay, output)
