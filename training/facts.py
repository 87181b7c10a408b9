"""What is known of each element of a chart, and which words of a question lead to which elements."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chiasm.evals.charts.figure import Figure, Mark
from chiasm.evals.charts.plan import CELL, FIRST_SERIES, TITLE
from chiasm.evals.charts.questions import Question, Subject
from chiasm.evals.charts.words import COLOURS, LABELS, TOPICS

NOT_ASKED = -100
NAMES = (*LABELS, *TOPICS)
LABEL, COLOUR, SERIES, HUNDREDS, TENS, UNITS, COUNT = range(7)
NUM_FACTS = 7
NO_DIGIT = 10
NUM_DIGITS = NO_DIGIT + 1
NUM_COUNTS = 10
_NAME_CLASS = {name: index for index, name in enumerate(NAMES)}
_COLOUR_CLASS = {colour: index for index, colour in enumerate(COLOURS)}
Array = npt.NDArray[np.int64]

_LABEL = rf"\b({'|'.join(LABELS)})\b"
_NAMED = re.compile(rf"{_LABEL}(?: in {_LABEL})?|\b({'|'.join(COLOURS)})\b|\b(\d+)\b")
_LEADING = {
    "largest": re.compile("largest|highest"),
    "largest value": re.compile("largest|highest"),
    "smallest": re.compile("smallest|lowest"),
    "smallest value": re.compile("smallest|lowest"),
    "title": re.compile("title"),
    "count": re.compile("many|number"),
    "which grew": re.compile("grew|grow"),
    "value in frame": re.compile("first|last"),
}


class Pointer(NamedTuple):
    """A word of a question and the elements that it leads to: those that have all the facts that are asked."""

    last_char: int
    facts: list[int]


def facts_of(mark: Mark, num_marks: int) -> list[int]:
    """Label, colour, series, hundreds, tens and units of an element, and how many elements there are."""
    colour, series = _COLOUR_CLASS.get(mark.colour, NOT_ASKED), _NAME_CLASS.get(mark.series, NOT_ASKED)
    return [_NAME_CLASS[mark.label], colour, series, *_digits(mark.value), num_marks]


def title_facts(title: str) -> list[int]:
    """The title's topic as a label, the last digits of its year as a value."""
    topic, _, year = title.partition(" ")
    digits = _digits(int(year) % 100) if year else [NO_DIGIT] * 3
    return [_NAME_CLASS[topic], NOT_ASKED, NOT_ASKED, *digits, NOT_ASKED]


def _digits(value: int) -> list[int]:
    return [
        value // 100 if value >= 100 else NO_DIGIT,
        value // 10 % 10 if value >= 10 else NO_DIGIT,
        value % 10,
    ]


def fact_targets(figure: Figure, marks: Sequence[Mark], title: str, *, with_legend: bool) -> Array:
    """[m, 7] what is known of the element at each token; ``NOT_ASKED`` where there is none."""
    rows, columns = figure.height // CELL, figure.width // CELL
    facts = np.full((rows, columns, NUM_FACTS), NOT_ASKED, np.int64)
    best = np.zeros((rows, columns))
    own = {index: facts_of(mark, len(marks)) for index, mark in enumerate(marks)}
    if title:
        own[TITLE] = title_facts(title)
    if with_legend:
        series = dict.fromkeys(mark.series for mark in marks if mark.series)
        own |= {FIRST_SERIES - i: _pattern({SERIES: _NAME_CLASS[name]}) for i, name in enumerate(series)}
    for mark, box, is_text in figure.regions:
        if mark in own:
            share = np.outer(_overlaps(box.top, box.bottom, rows), _overlaps(box.left, box.right, columns))
            share *= 4 if is_text else 1
            wins = share > np.maximum(best, 20)
            facts[wins] = own[mark]
            best = np.maximum(best, share)
    return facts.reshape(-1, NUM_FACTS)


def _overlaps(low: float, high: float, count: int) -> npt.NDArray[np.float64]:
    starts = np.arange(count) * CELL
    overlaps: npt.NDArray[np.float64] = np.clip(np.minimum(high, starts + CELL) - np.maximum(low, starts), 0, None)
    return overlaps


def pointers(question: Question, subject: Subject) -> Iterator[Pointer]:
    """The words of a question that are taught to look into the picture."""
    for match in _NAMED.finditer(question.text):
        label, group, colour, number = match.groups()
        if number:
            yield Pointer(match.end() - 1, _pattern({HUNDREDS + i: d for i, d in enumerate(_digits(int(number)))}))
        elif colour:
            yield Pointer(match.end() - 1, _pattern({COLOUR: _COLOUR_CLASS[colour]}))
        else:
            first = {SERIES if group else LABEL: _NAME_CLASS[label]}
            yield Pointer(match.end(1) - 1, _pattern(first))
            if group:
                yield Pointer(match.end() - 1, _pattern({**first, LABEL: _NAME_CLASS[group]}))
    if question.kind in _LEADING:
        found = _LEADING[question.kind].search(question.text)
        assert found is not None, question
        yield Pointer(found.end() - 1, _led_to(question, subject))


def _led_to(question: Question, subject: Subject) -> list[int]:
    marks = subject.marks
    if question.kind == "title":
        return title_facts(subject.title)
    if question.kind == "count":
        return _pattern({COUNT: len(marks)})
    if question.kind == "which grew":
        pairs = zip(subject.before, marks, strict=True)
        return _pattern({LABEL: next(_NAME_CLASS[after.label] for before, after in pairs if after != before)})
    if question.kind == "value in frame":
        shown = subject.before if "first" in question.text else marks
        named = _NAMED.search(question.text)
        assert named is not None
        return facts_of(next(mark for mark in shown if mark.label == named[1]), len(marks))
    choose = max if question.kind.startswith("largest") else min
    return facts_of(choose(marks, key=lambda mark: mark.value), len(marks))


def _pattern(known: dict[int, int]) -> list[int]:
    return [known.get(fact, NOT_ASKED) for fact in range(NUM_FACTS)]
