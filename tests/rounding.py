"""Results that are equal but for rounding, because a sum was added up in another order."""

from __future__ import annotations

import torch
from torch import Tensor

MOST_EPSILONS = 512
"""How far a value may be from what is expected, in epsilons of its type times the root mean square of its row.

The order of a sum is a kernel's own affair: it follows the CPU, the number of rows, and how many ranks share the sum.
Each addition rounds by half an epsilon of what it has so far, most errors cancel, layers pass the rest on: Higham,
"Accuracy and Stability of Numerical Algorithms", chapters 3 and 4. The small models of the tests come to at most 220
so, in float32 and float64 alike, with kernels for AVX-512, for AVX2 and for no vectors. A term that is missing from a
sum of n is 1 / sqrt(n) of the root mean square: thousands of epsilons of float32, however long the sum.
"""

_SMALLEST_ERROR = 0.05  # of the root mean square; what allows more hides a missing term


def assert_equal_but_for_rounding(computed: Tensor, expected: Tensor, most_epsilons: float = MOST_EPSILONS) -> None:
    """Fail where a value is further from what is expected than another order of additions explains.

    A row is measured by its own size, so neither large rows beside it nor small values hide an error. A row of zeros
    has to be just that.

    Args:
        computed: [..., d], of the type whose epsilon counts.
        expected: [..., d], of the same type or float64; it must be finite.
        most_epsilons: how far a value may be off, in the units of ``MOST_EPSILONS``; fewer for bfloat16.
    """
    __tracebackhide__ = True
    assert computed.shape == expected.shape, f"the shape is {list(computed.shape)}, not {list(expected.shape)}"
    assert expected.dtype in (computed.dtype, torch.float64), f"the type is {computed.dtype}, not {expected.dtype}"
    exact, own = expected.double(), computed.double()
    most = most_rounding(exact, computed.dtype, most_epsilons)
    is_wrong = ~((own - exact).abs() <= most)  # NaN is within no bounds
    if is_wrong.any():
        raise AssertionError(_describe(own, exact, most / most_epsilons, is_wrong, most_epsilons))


def most_rounding(
    expected: Tensor, dtype: torch.dtype = torch.float32, most_epsilons: float = MOST_EPSILONS
) -> Tensor:
    """How far values may be from what is expected [..., d], row by row: float64 [..., 1].

    Args:
        expected: it must be finite.
        dtype: in which the others were computed.
        most_epsilons: in the units of ``MOST_EPSILONS``.
    """
    epsilon = torch.finfo(dtype).eps
    assert most_epsilons * epsilon <= _SMALLEST_ERROR, f"{most_epsilons} epsilons of {dtype} hide errors"
    assert expected.isfinite().all(), "what is expected is not finite"
    return most_epsilons * epsilon * expected.double().square().mean(-1, keepdim=True).sqrt()


def _describe(own: Tensor, exact: Tensor, units: Tensor, is_wrong: Tensor, most_epsilons: float) -> str:
    distances = ((own - exact).abs() / units).nan_to_num(torch.inf).where(is_wrong, -1.0)
    place = torch.unravel_index(distances.argmax(), distances.shape)
    return (
        f"{int(is_wrong.sum())} of {is_wrong.numel()} values are off by more than rounding, most of all "
        f"{[int(index) for index in place]}: {own[place].item()} instead of {exact[place].item()}, "
        f"{distances.max().item():.4g} epsilons of its row's root mean square (at most {most_epsilons:g})"
    )
