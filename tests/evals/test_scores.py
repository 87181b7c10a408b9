"""Scores by kind, and the text that shows them."""

from chiasm.evals.charts.examples import held_out_seed, make_example
from chiasm.evals.runner import conversation, score
from chiasm.evals.scores import Score, agreement, by_kind, count_different, table


def test_an_answer_counts_for_each_of_its_kinds() -> None:
    assert by_kind([("a", "all"), ("b", "all"), ("a", "all")], [True, False, False]) == {
        "a": Score(1, 2), "all": Score(1, 3), "b": Score(0, 1),
    }  # fmt: skip


def test_few_answers_are_never_certain() -> None:
    assert Score(5, 5).accuracy == 1
    assert 0.05 < Score(5, 5).standard_error < 0.2
    assert Score(900, 1000).standard_error < 0.01


def test_table_has_a_line_for_each_kind() -> None:
    scores = {"all": Score(3, 4), "count": Score(1, 2)}
    lines = table({"data x1": scores, "auto x2": scores}).splitlines()
    assert len(lines) == 3
    assert "75.0" in lines[1]
    assert lines[0].split() == ["n", "data", "x1", "auto", "x2"]


def test_answers_that_differ_between_ways_of_running_are_counted() -> None:
    answers = {"weights": ["a", "b", "c"], "data": ["a", "B", "c"], "auto": ["a", "b", "C"]}
    assert count_different(answers) == 2
    assert agreement(3, 3, 2) == "2 of 3 answers differ between the ways of running."
    assert agreement(3, 3, 0) == "All 3 ways of running gave the same 3 answers."
    assert agreement(1, 3, 0) == ""


def test_right_answers_score_full() -> None:
    examples = [make_example(held_out_seed(index)) for index in range(20)]
    scores = score(examples, [example.answer for example in examples])
    assert scores["all"] == Score(20, 20)
    assert any(kind.startswith("chart: ") for kind in scores)
    assert conversation(examples[0])[0]["content"][-1] == {"type": "text", "text": examples[0].question}
