"""ChartQA's scores against those of lm-eval's own scorer, and against cases worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chiasm.evals.chartqa import chartqa_scores, final_answer

GOLDENS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("chartqa_goldens.json").read_text("utf-8"))


def test_lm_evals_scorer_agrees() -> None:
    assert len(GOLDENS) >= 200
    for name in ("exact_match", "relaxed_accuracy", "anywhere_accuracy"):
        assert {row["scores"][name] for row in GOLDENS} == {0.0, 1.0}
    for row in GOLDENS:
        found = chartqa_scores(row["answer"], row["targets"])
        assert {name: found[name] for name in row["scores"]} == row["scores"], row


@pytest.mark.parametrize(
    ("answer", "target", "is_right"),
    [
        ("Final Answer: 95", "100", True),  # just within 5 %
        ("Final Answer: 94.9", "100", False),
        ("Final Answer: 1,050", "1000", True),
        ("Final Answer: $12.00", "12", True),
        ("Final Answer: 0.23", "23%", True),
        ("Final Answer: 23", "23%", True),
        ("Final Answer: 2300%", "23", True),
        ("Final Answer: 2019", "2018", True),  # years are numbers
        ("Final Answer: 12 apples", "12", False),
        ("Final Answer: [1, 2]", "[1, 2]", False),  # marks go from the answer alone
        ("Final Answer: B) blue", "b", True),
        ("Final Answer: 5 kg", "5 kg\u00a0", True),  # blanks are all that Unicode has
        ("blue", "blue", False),  # no answer is named
    ],
)
def test_relaxed_accuracy(answer: str, target: str, is_right: bool) -> None:
    assert chartqa_scores(answer, [target])["relaxed_accuracy"] == is_right


def test_mistral_evals_keeps_the_punctuation_of_texts_and_looks_at_all_targets() -> None:
    dotted = chartqa_scores("Final Answer: blue.", ["blue"])
    assert (dotted["relaxed_accuracy"], dotted["explicit_prompt_relaxed_correctness"]) == (1.0, 0.0)
    second = chartqa_scores("Final Answer: azure", ["blue", "azure"])
    assert (second["relaxed_accuracy"], second["explicit_prompt_relaxed_correctness"]) == (0.0, 1.0)
    said = chartqa_scores("it is azure, I think", ["blue", "azure"])
    assert (said["anywhere_accuracy"], said["anywhere_in_answer_relaxed_correctness"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("generation", "answer"),
    [("nothing", ""), ("answer: a\nAnswer:\n\n **b** \nc", "b"), ("**Answer**: x", "x"), ("Answer:", "")],
)
def test_the_answer_is_the_first_line_after_the_last_mark(generation: str, answer: str) -> None:
    assert final_answer(generation) == answer
