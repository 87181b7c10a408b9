"""Held-out accuracy while training: an answer counts if every token of it would be chosen."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import torch

from training.facts import NOT_ASKED
from training.losses import answers, encode
from training.state import Run
from training.stream import Recipe, held_out_batch


def accuracy(run: Run, recipe: Recipe, num_batches: int) -> dict[str, tuple[float, int]]:
    """Share of right answers and how many were asked, by kind of chart, by kind of question, and over all."""
    recipe = replace(recipe, num_questions=4, glyph_share=0.0)
    right: dict[str, list[bool]] = defaultdict(list)
    with torch.no_grad():
        for number in range(num_batches):
            batch = held_out_batch(number, recipe, run.speech)
            logits, targets, _ = answers(run.model, batch, encode(run.model, batch)[1], run.speech)
            hits = (logits.argmax(-1) == targets).tolist()
            asked = batch.targets != NOT_ASKED
            rows, columns = np.nonzero(asked)
            places = zip(rows.tolist(), batch.segments[rows, columns].tolist(), strict=True)
            whole: dict[tuple[int, int], bool] = {}
            for place, hit in zip(places, hits, strict=True):
                whole[place] = whole.get(place, True) and hit
            for (row, segment), hit in whole.items():
                for kind in (*batch.kinds[row][segment - 1], "all"):
                    right[kind].append(hit)
    return {kind: (round(sum(hits) / len(hits), 4), len(hits)) for kind, hits in sorted(right.items())}
