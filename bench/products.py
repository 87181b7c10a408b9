"""Products of rows with a weight matrix: torch's plain ones beside those with a packed matrix.

python -m bench.products [--threads 1] [--inputs 1024] [--outputs 2816] [--repeats 15]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from chiasm.ops.matmul import linear, pack

_ROWS = (1, 4, 8, 16, 64, 256, 1024)


def seconds(product: Callable[[], object]) -> float:
    """How long one call takes."""
    begin = time.perf_counter()
    product()
    return time.perf_counter() - begin


def main() -> None:
    """Print medians in 10^9 operations in a second; the sides take turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("threads", 1), ("inputs", 1024), ("outputs", 2816), ("repeats", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    weight = torch.randn(args.outputs, args.inputs)
    packed = pack(weight)
    print(f"[n, {args.inputs}] x [{args.inputs}, {args.outputs}], float32, {args.threads} threads: GFLOP/s")
    for num_rows in _ROWS:
        x = torch.randn(num_rows, args.inputs)
        sides = (lambda x=x: F.linear(x, weight), lambda x=x: linear(x, packed))
        times = [[seconds(side) for side in sides] for _ in range(args.repeats + 2)][2:]
        plain, own = (statistics.median(column) for column in zip(*times, strict=True))
        work = 2 * num_rows * weight.numel() / 1e9
        print(f"{num_rows:5} rows: plain {work / plain:6.1f}   packed {work / own:6.1f}   ratio {plain / own:.2f}")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
