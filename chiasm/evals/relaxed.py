"""ChartQA's relaxed accuracy: numbers within 5 %, everything else word for word."""

from __future__ import annotations

import math

_TOLERANCE = 0.05


def is_right(answer: str, expected: str) -> bool:
    """Whether an answer counts.

    A number, with or without a percent sign or thousands separators, may be off by 5 % of what is expected; zero must
    be zero. Other answers are compared without regard to case, outer blanks and a final full stop.
    """
    target, given = _number(expected), _number(answer)
    if target is not None and given is not None:
        return abs(given - target) <= _TOLERANCE * abs(target)
    return _plain(answer) == _plain(expected)


def _plain(text: str) -> str:
    return " ".join(text.strip().rstrip(".").casefold().split())


def _number(text: str) -> float | None:
    text = text.strip().rstrip(".").replace(",", "")
    scale = 0.01 if text.endswith("%") else 1.0
    try:
        value = float(text.removesuffix("%")) * scale
    except ValueError:
        return None
    return value if math.isfinite(value) else None
