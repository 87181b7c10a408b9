"""What is known of each element of a chart, and which words of a question lead to which elements."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from chiasm.evals.charts.figure import Figure, Mark
from chiasm.evals.charts.plan import CELL, FIRST_SERIES, TITLE
from chiasm.evals.charts.questions import Question, Subject
from chiasm.evals.charts.words import COLOURS, LABELS, TOPICS

NOT_ASKED = -100
NAMES = (*LABELS, *TOPICS)
LABEL, COLOUR, SERIES, HUNDREDS, TENS, UNITS, COUNT, ENTRY = range(8)
NUM_FACTS = 8
NOWHERE = 1000
"""In place of an entry: what a word leads to is not in the picture."""
NO_DIGIT = 10
NUM_DIGITS = NO_DIGIT + 1
NUM_COUNTS = 10
_NAME_CLASS = {name: index for index, name in enumerate(NAMES)}
_COLOUR_CLASS = {colour: index for index, colour in enumerate(COLOURS)}
Array = npt.NDArray[np.int64]
Legends = Literal["ignored", "named", "followed"]
"""What is told of the entries of a legend: nothing, their names, or also their colours and whose entries they are."""

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


class Pair(NamedTuple):
    """The second of two elements in a question; whether the first is larger, and the digits of their difference."""

    last_char: int
    targets: list[int]


def facts_of(mark: Mark, num_marks: int) -> list[int]:
    """Label, colour, series, hundreds, tens and units of an element, how many elements there are; no entry."""
    colour, series = _COLOUR_CLASS.get(mark.colour, NOT_ASKED), _NAME_CLASS.get(mark.series, NOT_ASKED)
    return [_NAME_CLASS[mark.label], colour, series, *_digits(mark.value), num_marks, NOT_ASKED]


def title_facts(title: str) -> list[int]:
    """The title's topic as a label, the last digits of its year as a value."""
    topic, _, year = title.partition(" ")
    digits = _digits(int(year) % 100) if year else [NO_DIGIT] * 3
    return [_NAME_CLASS[topic], NOT_ASKED, NOT_ASKED, *digits, NOT_ASKED, NOT_ASKED]


def _digits(value: int) -> list[int]:
    return [
        value // 100 if value >= 100 else NO_DIGIT,
        value // 10 % 10 if value >= 10 else NO_DIGIT,
        value % 10,
    ]


def fact_targets(figure: Figure, subject: Subject, marks: Sequence[Mark], legends: Legends) -> Array:
    """[m, 8] what is known of the element at each token; ``NOT_ASKED`` where there is none.

    Args:
        figure: what was drawn.
        subject: the chart of which it is a frame.
        marks: its elements; none where they are not known.
        legends: what is told of the entries of a legend.
    """
    rows, columns = figure.height // CELL, figure.width // CELL
    facts = np.full((rows, columns, NUM_FACTS), NOT_ASKED, np.int64)
    best = np.zeros((rows, columns))
    own = {index: facts_of(mark, len(marks)) for index, mark in enumerate(marks)}
    if subject.title:
        own[TITLE] = title_facts(subject.title)
    if legends != "ignored":
        own |= _entries(marks, with_colour=legends == "followed")
    entry_of = _entry_of(subject.kind, marks) if legends == "followed" else {}
    for mark, box, is_text in figure.regions:
        if mark in own:
            share = np.outer(_overlaps(box.top, box.bottom, rows), _overlaps(box.left, box.right, columns))
            share *= 4 if is_text else 1
            wins = share > np.maximum(best, 20)
            facts[wins] = own[mark]
            if mark in entry_of:
                is_entry = mark < TITLE or (subject.kind == "scatter" and is_text)
                facts[wins, ENTRY] = -entry_of[mark] if is_entry else entry_of[mark]
            best = np.maximum(best, share)
    return facts.reshape(-1, NUM_FACTS)


def _entries(marks: Sequence[Mark], *, with_colour: bool) -> dict[int, list[int]]:
    """What is known of the entries of a legend of series."""
    entries = dict.fromkeys((mark.series, mark.colour) for mark in marks if mark.series)
    return {
        FIRST_SERIES - index: _pattern(
            {SERIES: _NAME_CLASS[series], COLOUR: _COLOUR_CLASS[colour] if with_colour else NOT_ASKED}
        )
        for index, (series, colour) in enumerate(entries)
    }


def _entry_of(kind: str, marks: Sequence[Mark]) -> dict[int, int]:
    """The number of the legend's entry that names each element, and of each area that is such an entry."""
    if kind == "scatter":
        return {index: index + 1 for index in range(len(marks))}
    numbers = {series: number for number, series in enumerate(dict.fromkeys(m.series for m in marks if m.series), 1)}
    elements = {index: numbers[mark.series] for index, mark in enumerate(marks) if mark.series}
    return elements | {FIRST_SERIES + 1 - number: number for number in numbers.values()}


def _overlaps(low: float, high: float, count: int) -> npt.NDArray[np.float64]:
    starts = np.arange(count) * CELL
    overlaps: npt.NDArray[np.float64] = np.clip(np.minimum(high, starts + CELL) - np.maximum(low, starts), 0, None)
    return overlaps


def pair(question: Question, subject: Subject) -> Pair | None:
    """What is to be known at the end of a comparison's or a difference's second name; None for other questions."""
    if question.kind not in ("comparison", "difference"):
        return None
    values = {(mark.label, mark.series): mark.value for mark in subject.marks}
    one, other = _NAMED.finditer(question.text)
    first, second = (values[(m[2], m[1]) if m[2] else (m[1], "")] for m in (one, other))
    return Pair(other.end() - 1, [int(first > second), *_digits(abs(first - second))])


def pointers(question: Question, subject: Subject, *, finer: bool) -> Iterator[Pointer]:
    """The words of a question that are taught to look into the picture; ``finer`` also those that find nothing."""
    for match in _NAMED.finditer(question.text):
        label, group, colour, number = match.groups()
        if number:
            yield Pointer(match.end() - 1, _pattern({HUNDREDS + i: d for i, d in enumerate(_digits(int(number)))}))
        elif colour:
            yield Pointer(match.end() - 1, _pattern({COLOUR: _COLOUR_CLASS[colour]}))
        else:
            first = {SERIES if group else LABEL: _NAME_CLASS[label]}
            if finer and question.kind == "presence" and question.answer == "No":
                first = {ENTRY: NOWHERE}
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
