"""The generator: the same in every run, and its answers follow from what it drew."""

import hashlib
import subprocess
import sys
from random import Random

import pytest

from chiasm.evals.charts.examples import Chart, held_out_seed, make_chart, make_example, train_seed
from chiasm.evals.charts.fonts import FACES
from chiasm.evals.charts.plan import ALL_KINDS, CELL, FULL, Scope, draw_sketch
from chiasm.evals.charts.questions import ask
from chiasm.evals.charts.words import COLOURS, LABEL_FAMILIES, LABELS, TOPICS

_SEEDS = range(150)


def _digest(num_examples: int) -> str:
    digest = hashlib.sha256()
    for index in range(num_examples):
        example = make_example(held_out_seed(index))
        for image in example.images:
            digest.update(repr(image.size).encode() + image.tobytes())
        digest.update(repr((example.kind, example.question, example.answer, example.question_kind)).encode())
    return digest.hexdigest()


def _charts(scope: Scope = FULL) -> list[Chart]:
    return [make_chart(Random(train_seed(seed)), scope) for seed in _SEEDS]


def test_a_seed_gives_the_same_example_in_another_process() -> None:
    code = "from tests.evals.test_charts import _digest; print(_digest(12))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == _digest(12)


def test_train_and_held_out_seeds_are_disjoint() -> None:
    last_train_seed = held_out_seed(0) - 1
    assert train_seed(last_train_seed) == last_train_seed
    with pytest.raises(ValueError, match="training example"):
        train_seed(held_out_seed(0))
    with pytest.raises(ValueError, match="held-out example"):
        held_out_seed(-1)


def test_all_kinds_and_many_sizes_are_drawn() -> None:
    examples = [make_example(held_out_seed(seed)) for seed in _SEEDS]
    assert {example.kind for example in examples} == set(ALL_KINDS)
    sizes = {image.size for example in examples for image in example.images}
    assert len(sizes) > 40
    assert all(side % CELL == 0 for size in sizes for side in size)


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("cells", [4, 6, 12])
def test_each_kind_fits_its_picture(kind: str, cells: int) -> None:
    for seed in range(20):
        chart = make_chart(Random(seed), Scope(kinds=(kind,)), (cells, cells))
        assert chart.figures[-1].image.size == (cells * CELL, cells * CELL)
        for glyph in chart.figures[-1].glyphs:
            assert 0 <= glyph.x < chart.figures[-1].width, (seed, glyph)
            assert 0 <= glyph.y < chart.figures[-1].height, (seed, glyph)


def test_each_typeface_looks_different_and_changes_nothing_else() -> None:
    drawn = {}
    for face in FACES:
        scope = Scope(kinds=("table",), families=("letter",), faces=(face,))
        chart = make_chart(Random(2), scope, (12, 12))
        drawn[chart.figures[0].image.tobytes()] = chart.subject
    assert len(drawn) == len(FACES)
    assert len({str(subject) for subject in drawn.values()}) == 1


def test_the_full_range_has_all_typefaces() -> None:
    faces = {draw_sketch(Random(seed), FULL, None).font.getname() for seed in range(60)}
    assert len(faces) == len(FACES)


def test_each_printed_number_is_a_value_of_its_mark() -> None:
    for chart in _charts():
        if chart.subject.kind == "scatter":
            continue
        printed = "".join(glyph.char for glyph in chart.figures[-1].glyphs if glyph.char.isdigit())
        for mark in chart.subject.marks:
            assert str(mark.value) in printed


def test_points_of_a_scatter_are_as_many_as_the_answer_says() -> None:
    for chart in _charts(Scope(kinds=("scatter",))):
        for index, mark in enumerate(chart.subject.marks):
            assert sum(r.mark == index and not r.is_text for r in chart.figures[-1].regions) == mark.value


def test_answers_follow_from_the_marks() -> None:
    for chart in _charts():
        values = {mark.label if not mark.series else f"{mark.series} in {mark.label}": mark.value
                  for mark in chart.subject.marks}  # fmt: skip
        for question in ask(chart.subject, Random(1), 12):
            _check(question.kind, question.text, question.answer, values, chart)


def _check(kind: str, text: str, answer: str, values: dict[str, int], chart: Chart) -> None:
    named = {name for name in values if f" {name} " in text.replace("?", " ")}
    match kind:
        case "largest" | "smallest":
            assert values[answer] == (max if kind == "largest" else min)(values.values())
        case "largest value" | "smallest value":
            assert int(answer) == (max if kind == "largest value" else min)(values.values())
        case "count":
            assert int(answer) == len(values)
        case "value by label":
            assert int(answer) in {values[name] for name in named}
        case "label by value":
            assert str(values[answer]) in text
        case "difference":
            assert int(answer) in {abs(values[a] - values[b]) for a in named for b in named}
        case "value in frame":
            assert int(answer) in {m.value for m in (*chart.subject.before, *chart.subject.marks) if m.label in named}
        case "which grew":
            then = {mark.label: mark.value for mark in chart.subject.before}
            grown = [name for name in values if values[name] > then[name]]
            assert answer in ("Yes", "No", *grown)
            assert len(grown) == 1
            assert (answer == "Yes") == (named == set(grown))
        case "count of frames":
            assert int(answer) == len(chart.figures)
        case "title":
            assert answer == chart.subject.title
        case "value by color":
            assert int(answer) in {m.value for m in chart.subject.marks if m.colour in text}
        case "label by color":
            assert any(m.label == answer and m.colour in text for m in chart.subject.marks)
        case "color by label":
            assert answer in COLOURS
        case _:
            assert answer in ("Yes", "No")


def test_colours_are_asked_for_only_where_they_tell_elements_apart() -> None:
    for chart in _charts():
        colours = [mark.colour for mark in chart.subject.marks]
        if len(set(colours)) < len(colours):
            assert not any("color" in question.kind for question in ask(chart.subject, Random(2), 20))


def test_no_word_has_two_meanings() -> None:
    words = [*LABELS, *TOPICS]
    assert len(set(words)) == len(words)
    assert all(len(set(family)) == len(family) for family in LABEL_FAMILIES.values())
