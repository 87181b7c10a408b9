"""The charts that the built-in model reads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from chiasm.bench.datasets.sample import Sample, media_part, text_part
from chiasm.datasets.pictures import image_url
from chiasm.evals.charts.examples import held_out_seed, make_example

_STRIDE = 1 << 20  # charts of a seed; a server's caches would know those that two seeds share


def chart_samples(seed: int, output_len: int) -> Iterator[Sample]:
    """Questions about drawn charts, without end; the same seed gives the same ones, another one others."""
    for index in count(seed * _STRIDE):
        example = make_example(held_out_seed(index))
        pictures = [media_part("image", image_url(image, "PNG")) for image in example.images]
        yield Sample([*pictures, text_part(example.question)], output_len)
