"""What the machine can do with as many threads as OMP_NUM_THREADS says: python -m bench.peers.rates_worker"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from bench.peers.answering import answer_calls, claim_output

_SHAPE = (4096, 512, 1536)  # rows, columns in, columns out: a layer of the benchmarks' tower
_MATRIX = (16384, 8192)  # 512 MiB: far more than caches hold
_MINIMUM = 5


def matmul(seconds: float) -> float:
    """Best FLOP/s of a float32 matrix product within so many seconds."""
    rows, inner, columns = _SHAPE
    x, weight = torch.randn(rows, inner), torch.randn(columns, inner)
    return 2 * rows * inner * columns / _best(lambda: torch.nn.functional.linear(x, weight), seconds)


def matvec(seconds: float) -> float:
    """Best bytes/s at which a float32 matrix goes through a product with one vector, within so many seconds."""
    matrix, vector = torch.randn(_MATRIX), torch.randn(_MATRIX[1])
    return matrix.nbytes / _best(lambda: torch.mv(matrix, vector), seconds)


def _best(work: Callable[[], object], seconds: float) -> float:
    work()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < _MINIMUM:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Answer."""
    answer_calls(claim_output(), {"matmul": matmul, "matvec": matvec})


if __name__ == "__main__":
    main()
