"""Pictures and videos of noise, of sizes and in numbers drawn by lot: ``random-mm`` of vLLM's benchmark."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import av
import numpy as np
import numpy.typing as npt
from PIL import Image

from chiasm.bench.datasets.sample import Sample, media_part, text_part
from chiasm.datasets.pictures import data_url, image_url
from chiasm.errors import refuse

_WORDS = ("a", "of", "to", "in", "is", "on", "by", "it", "or", "be", "at", "as", "an", "we", "us", "if")
_FPS = 2
_MAX_SIDE = 8192
_MAX_FRAMES = 4096
_MAX_PIXELS = 2**29  # of all frames of a video; three bytes each are in memory
_SHARE = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_ENTRY = re.compile(rf"\s*\(\s*(\d{{1,9}})\s*,\s*(\d{{1,9}})\s*,\s*(\d{{1,9}})\s*\)\s*:\s*({_SHARE})\s*")
_TABLE = re.compile(rf"\s*\{{{_ENTRY.pattern}(?:,{_ENTRY.pattern})*,?\s*\}}\s*")


class Bucket(NamedTuple):
    """A size that is drawn with some probability; more than one frame is a video.

    Attributes:
        height: in pixels.
        width: in pixels.
        num_frames: 1 for an image.
    """

    height: int
    width: int
    num_frames: int

    @property
    def kind(self) -> str:
        """``image`` or ``video``."""
        return "image" if self.num_frames == 1 else "video"


DEFAULT_BUCKETS: Mapping[Bucket, float] = {Bucket(256, 256, 1): 0.5, Bucket(720, 1280, 1): 0.5}
DEFAULT_LIMITS: Mapping[str, int] = {"image": 255, "video": 1}


@dataclass(frozen=True)
class RandomMedia:
    """What is drawn.

    Attributes:
        input_len: words of text in a prompt, each a token with most tokenizers.
        output_len: most tokens of an answer.
        range_ratio: lengths are drawn evenly from ``[(1 - r) * length, (1 + r) * length]``.
        items: pictures and videos in a prompt.
        items_range_ratio: likewise of ``items``.
        limits: most items of a kind in a prompt.
        buckets: sizes and their probabilities, which needn't sum to 1.

    Raises:
        UserError: for a value out of range, naming the flag.
    """

    input_len: int = 1024
    output_len: int = 128
    range_ratio: float = 0.0
    items: int = 1
    items_range_ratio: float = 0.0
    limits: Mapping[str, int] = field(default_factory=lambda: DEFAULT_LIMITS)
    buckets: Mapping[Bucket, float] = field(default_factory=lambda: DEFAULT_BUCKETS)

    def __post_init__(self) -> None:
        """Check."""
        for name in ("range_ratio", "items_range_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                refuse(f"random_{name}", getattr(self, name), "in [0, 1]")
        for bucket, share in self.buckets.items():
            if share > 0 and bucket.kind not in self.limits:
                refuse("random_mm_limit_mm_per_prompt", dict(self.limits), f"a number for {bucket.kind}, too")
        if not any(share > 0 for share in self.buckets.values()):
            refuse("random_mm_bucket_config", list(self.buckets.values()), "probabilities of which one is above 0")

    def samples(self, seed: int) -> Iterator[Sample]:
        """Requests without end; the same seed gives the same ones."""
        rng = np.random.default_rng(seed)
        while True:
            words = rng.choice(_WORDS, self._length(rng, self.input_len, self.range_ratio))
            media = [self._item(bucket, rng) for bucket in self._draw(rng)]
            length = max(1, self._length(rng, self.output_len, self.range_ratio))
            yield Sample([text_part(" ".join(words)), *media], length)

    @staticmethod
    def _length(rng: np.random.Generator, length: int, ratio: float) -> int:
        return int(rng.integers(int(length * (1 - ratio)), int(length * (1 + ratio)) + 1))

    def _draw(self, rng: np.random.Generator) -> list[Bucket]:
        left = dict(self.limits)
        drawn = []
        for _ in range(self._length(rng, self.items, self.items_range_ratio)):
            open_to = {bucket: share for bucket, share in self.buckets.items() if share > 0 and left.get(bucket.kind)}
            if not open_to:
                break
            shares = np.array(list(open_to.values()))
            bucket = list(open_to)[int(rng.choice(len(shares), p=shares / shares.sum()))]
            left[bucket.kind] -= 1
            drawn.append(bucket)
        return drawn

    @staticmethod
    def _item(bucket: Bucket, rng: np.random.Generator) -> dict[str, Any]:
        frames = rng.integers(0, 256, (bucket.num_frames, bucket.height, bucket.width, 3), dtype=np.uint8)
        if bucket.kind == "image":
            return media_part("image", image_url(Image.fromarray(frames[0])))
        return media_part("video", data_url("video/mp4", _encoded(frames)))


def _encoded(frames: npt.NDArray[np.uint8]) -> bytes:
    """An MP4 file; sides are cut to even numbers, which the pixel format needs."""
    frames = frames[:, : frames.shape[1] // 2 * 2, : frames.shape[2] // 2 * 2]
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream: Any = container.add_stream("mpeg4", rate=_FPS)
        stream.pix_fmt = "yuv420p"
        stream.height, stream.width = frames.shape[1:3]
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def parse_buckets(text: str) -> dict[Bucket, float]:
    """A bucket table as users of vLLM write it: ``{(256, 256, 1): 0.5, (720, 1280, 16): 0.5}``.

    Raises:
        UserError: if it is none.
    """
    if not _TABLE.fullmatch(text):
        refuse("random_mm_bucket_config", text, "a table such as {(256, 256, 1): 0.5, (720, 1280, 16): 0.5}")
    return {_bucket(*map(int, sizes)): _share(float(share)) for *sizes, share in _ENTRY.findall(text)}


def _bucket(height: int, width: int, num_frames: int) -> Bucket:
    if not (1 <= min(height, width) <= max(height, width) <= _MAX_SIDE and 1 <= num_frames <= _MAX_FRAMES):
        limit = f"keys (height, width, frames), sides up to {_MAX_SIDE}, frames up to {_MAX_FRAMES}"
        refuse("random_mm_bucket_config", (height, width, num_frames), limit)
    bucket = Bucket(height, width, num_frames)
    if bucket.kind == "video" and (min(height, width) < 2 or height * width * num_frames > _MAX_PIXELS):
        refuse("random_mm_bucket_config", bucket[:], f"videos of 2 x 2 to {_MAX_PIXELS} pixels in all frames")
    return bucket


def _share(share: float) -> float:
    if not 0 <= share <= 1:
        refuse("random_mm_bucket_config", share, "probabilities in [0, 1]")
    return share
