"""Drawn charts as HuggingFaceM4/ChartQA has its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from chiasm.datasets.rows import Row
from chiasm.evals.charts.examples import held_out_seed, make_example


def chartqa_rows() -> Iterator[Row]:
    """Held-out charts of one picture, without end: ``image``, ``query`` and ``label``."""
    for index in count():
        example = make_example(held_out_seed(index))
        if len(example.images) == 1:
            yield {"image": example.images[0], "query": example.question, "label": [example.answer]}
