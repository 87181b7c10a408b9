"""How long steps have taken lately, and what the next one will take by that."""

from __future__ import annotations

from collections import deque
from itertools import combinations
from statistics import median

FEWEST_TOKENS = 16
"""Of prompts: a step reads as many whatever they take, and they are enough to measure by."""

_NUM_MEASURED = 31  # steps that count
_FEWEST_MEASURED = 5


class StepTimes:
    """Medians of recent steps.

    Reading a prompt takes a fixed time in any step that does it, beyond what decoding takes, and a time for each
    token: the line through recent steps of different sizes whose slope is the median of the slopes between any two
    (Theil and Sen's), so that a step that was disturbed doesn't matter.
    """

    def __init__(self) -> None:
        self._decode: deque[float] = deque(maxlen=_NUM_MEASURED)
        self._beside: deque[float] = deque(maxlen=_NUM_MEASURED)  # of decoding steps that read as well
        self._reads: deque[tuple[int, float]] = deque(maxlen=_NUM_MEASURED)
        self._slowness: deque[float] = deque(maxlen=_NUM_MEASURED)
        self._is_fitted = False
        self.fixed_seconds = 0.0
        self.token_seconds = 0.0

    @property
    def slowness(self) -> float:
        """How many times as long as predicted the encoder takes."""
        return median(self._slowness) if self._slowness else 1.0

    @property
    def decode_seconds(self) -> float | None:
        """Of a step that does nothing but decode; at most that, while too few have been; None before any step."""
        if len(self._decode) >= _FEWEST_MEASURED:
            return median(self._decode)
        return min((*self._decode, *self._beside), default=None)

    @property
    def is_decode_known(self) -> bool:
        """Whether ``decode_seconds`` is more than a bound."""
        return len(self._decode) >= _FEWEST_MEASURED

    def num_readable(self, seconds: float) -> int:
        """Tokens of prompts that can be read in so much time beside decoding.

        Not so few that most of the time is the fixed one, whatever they take. While all steps have read alike, so
        that the fixed time is not known, half as many are read: the next step tells.
        """
        room = max(seconds - self.fixed_seconds, self.fixed_seconds)
        fewest = FEWEST_TOKENS if self._is_fitted else max(FEWEST_TOKENS, max(n for n, _ in self._reads) // 2)
        return max(fewest, int(room / self.token_seconds))

    def add_encoder(self, predicted: float, measured: float) -> None:
        """Take in what the encoder took in a step."""
        self._slowness.append(measured / predicted)

    def add_compute(self, seconds: float, *, num_prompt_tokens: int, is_decoding: bool, is_encoding: bool) -> None:
        """Take in what the language model took in a step that read so many tokens of prompts."""
        if num_prompt_tokens >= FEWEST_TOKENS:
            decoding = self.decode_seconds if is_decoding else None
            self._reads.append((num_prompt_tokens, max(0.0, seconds - (decoding or 0.0))))
            self._fit_reading()
        if is_decoding and not is_encoding:
            (self._beside if num_prompt_tokens else self._decode).append(seconds)

    def _fit_reading(self) -> None:
        apart = [(b - a) / (m - n) for (n, a), (m, b) in combinations(self._reads, 2) if abs(m - n) >= FEWEST_TOKENS]
        slope = median(apart) if apart else 0.0
        self._is_fitted = slope > 0
        if slope <= 0:
            slope = median(seconds / number for number, seconds in self._reads)
        self.token_seconds = slope
        self.fixed_seconds = max(0.0, median(seconds - slope * number for number, seconds in self._reads))
