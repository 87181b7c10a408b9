"""Training targets follow from the drawing; the batched passes equal Hugging Face's; stages join without a gap."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from random import Random

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from chiasm.config.built_in import BUILT_IN_FOLDER
from chiasm.evals.charts.examples import make_chart
from chiasm.evals.charts.plan import Scope
from chiasm.evals.charts.questions import ask
from chiasm.evals.charts.words import COLOURS
from tests.rounding import assert_equal_but_for_rounding
from training.check import both_ways
from training.facts import ENTRY, NOT_ASKED, fact_targets, pair, pointers
from training.stages import STAGES, now
from training.stream import Batch, Recipe, dot_targets, train_batch
from training.tokens import Speech, make_tokenizer


@pytest.fixture(scope="module")
def speech() -> Speech:
    return Speech(make_tokenizer())


@pytest.mark.parametrize("kind", ["vertical bars", "grouped bars", "pie", "line", "scatter"])
def test_words_lead_to_elements(kind: str) -> None:
    for seed in range(20):
        chart = make_chart(Random(seed), Scope(kinds=(kind,)), (8, 8))
        facts = fact_targets(chart.figures[0], chart.subject, chart.subject.marks, "followed")
        for question in ask(chart.subject, Random(seed), 6):
            for pointer in pointers(question, chart.subject, finer=False):
                wanted = np.array(pointer.facts)
                found = ((facts == wanted) | (wanted == NOT_ASKED)).all(1).any()
                assert found or question.answer == "No", (question, pointer)


def test_elements_and_entries_of_a_legend_have_the_same_numbers() -> None:
    for kind in ("grouped bars", "scatter"):
        chart = make_chart(Random(1), Scope(kinds=(kind,)), (10, 10))
        entries = fact_targets(chart.figures[0], chart.subject, chart.subject.marks, "followed")[:, ENTRY]
        entries = entries[entries != NOT_ASKED]
        assert set(entries[entries > 0]) == set(-entries[entries < 0])


def test_scattered_points_are_where_their_patches_say() -> None:
    for seed in range(20):
        figure = make_chart(Random(seed), Scope(kinds=("scatter",)), (9, 7)).figures[0]
        targets = dot_targets(figure)
        assert targets.shape == (9 * 7 * 4, 2)
        counts = Counter(dot.colour for dot in figure.dots)
        shown = {colour: int((targets == index).sum()) for index, colour in enumerate(COLOURS, 1)}
        assert all(shown[colour] <= counts[colour] for colour in COLOURS)
        assert sum(shown.values()) >= 0.9 * len(figure.dots)


def test_pairs() -> None:
    chart = make_chart(Random(3), Scope(kinds=("table",)), (8, 8))
    for question in ask(chart.subject, Random(0), 60):
        both = pair(question, chart.subject)
        assert (both is not None) == (question.kind in ("comparison", "difference"))
        if both is not None and question.kind == "comparison":
            assert (both.targets[0] == ("larger" in question.text)) == (question.answer == "Yes")


def test_a_batch_is_a_function_of_its_number(speech: Speech) -> None:
    recipe = Recipe(num_patches=600, legends="followed", finer=True)
    one, other = (train_batch(7, recipe, speech) for _ in range(2))
    for name in (field.name for field in fields(Batch) if field.name not in ("rows", "columns", "kinds")):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


@pytest.mark.parametrize("kind", ["horizontal bars", "clip"])
def test_the_batched_passes_equal_hugging_face(kind: str) -> None:
    with torch.no_grad():
        for pair in both_ways(kind):
            assert_equal_but_for_rounding(pair.ours, pair.theirs)


def test_stages_follow_each_other() -> None:
    total = sum(stage.num_steps for stage in STAGES)
    last = now(total - 1)
    assert last is not None
    assert last.stage is STAGES[-1]
    assert last.rate < 0.002
    assert now(total) is None


def test_the_tokenizer_is_that_of_the_shipped_model(speech: Speech) -> None:
    shipped = Tokenizer.from_file(str(BUILT_IN_FOLDER / "tokenizer.json"))
    assert speech.tokenizer.to_str() == shipped.to_str()
