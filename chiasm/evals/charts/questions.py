"""Questions about a chart, with their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from chiasm.evals.charts.figure import Mark
from chiasm.evals.charts.words import LABELS, NOUNS


class Question(NamedTuple):
    """A question, its answer and what kind of question it is."""

    kind: str
    text: str
    answer: str


class Subject(NamedTuple):
    """What is asked about.

    Attributes:
        kind: of the chart.
        title: or "".
        marks: its elements; in a clip as they are in the last frame.
        before: in a clip, its elements in the first frame.
        num_frames: of a clip.
    """

    kind: str
    title: str
    marks: Sequence[Mark]
    before: Sequence[Mark] = ()
    num_frames: int = 1

    @property
    def noun(self) -> str:
        """What one element is called."""
        return NOUNS[self.kind]


def _name(mark: Mark) -> str:
    return f"{mark.series} in {mark.label}" if mark.series else mark.label


def _value_by_label(subject: Subject, rng: Random) -> Question:
    mark = rng.choice(subject.marks)
    texts = ("What is the value of {}?", "What value does {} have?", "How much is {}?")
    return Question("value by label", rng.choice(texts).format(_name(mark)), str(mark.value))


def _value_by_colour(subject: Subject, rng: Random) -> Question:
    mark = rng.choice(subject.marks)
    text = f"What is the value of the {mark.colour} {subject.noun}?"
    return Question("value by color", text, str(mark.value))


def _label_by_colour(subject: Subject, rng: Random) -> Question:
    mark = rng.choice(subject.marks)
    return Question("label by color", f"What is the label of the {mark.colour} {subject.noun}?", mark.label)


def _colour_by_label(subject: Subject, rng: Random) -> Question:
    mark = rng.choice(subject.marks)
    return Question("color by label", f"What is the color of {_name(mark)}?", mark.colour)


def _label_by_value(subject: Subject, rng: Random) -> Question:
    mark = rng.choice(subject.marks)
    return Question("label by value", f"Which {subject.noun} has the value {mark.value}?", _name(mark))


def _largest(subject: Subject, rng: Random) -> Question:
    mark = max(subject.marks, key=lambda m: m.value)
    word = rng.choice(("largest", "highest"))
    return Question("largest", f"Which {subject.noun} is the {word}?", _name(mark))


def _smallest(subject: Subject, rng: Random) -> Question:
    mark = min(subject.marks, key=lambda m: m.value)
    word = rng.choice(("smallest", "lowest"))
    return Question("smallest", f"Which {subject.noun} is the {word}?", _name(mark))


def _max_value(subject: Subject, rng: Random) -> Question:
    word = rng.choice(("largest", "highest"))
    return Question("largest value", f"What is the {word} value?", str(max(m.value for m in subject.marks)))


def _min_value(subject: Subject, rng: Random) -> Question:
    word = rng.choice(("smallest", "lowest"))
    return Question("smallest value", f"What is the {word} value?", str(min(m.value for m in subject.marks)))


def _count(subject: Subject, rng: Random) -> Question:
    text = rng.choice(("How many {}s are there?", "What is the number of {}s?")).format(subject.noun)
    return Question("count", text, str(len(subject.marks)))


def _compare(subject: Subject, rng: Random) -> Question:
    one, other = rng.sample(list(subject.marks), 2)
    larger = rng.random() < 0.5
    text = f"Is {_name(one)} {'larger' if larger else 'smaller'} than {_name(other)}?"
    return Question("comparison", text, "Yes" if (one.value > other.value) == larger else "No")


def _difference(subject: Subject, rng: Random) -> Question:
    one, other = rng.sample(list(subject.marks), 2)
    text = f"What is the difference between {_name(one)} and {_name(other)}?"
    return Question("difference", text, str(abs(one.value - other.value)))


def _presence(subject: Subject, rng: Random) -> Question:
    if rng.random() < 0.5:
        label, answer = rng.choice(subject.marks).label, "Yes"
    else:
        label, answer = rng.choice([x for x in LABELS if all(x != m.label for m in subject.marks)]), "No"
    return Question("presence", f"Is there a {subject.noun} {label}?", answer)


def _title(subject: Subject, rng: Random) -> Question:
    return Question("title", rng.choice(("What is the title?", "What does the title say?")), subject.title)


def _grew(subject: Subject, rng: Random) -> Question:
    pairs = zip(subject.before, subject.marks, strict=True)
    grown = next(after for before, after in pairs if after.value > before.value)
    text, answer = rng.choice((("Which bar grew?", grown.label), (f"Did {grown.label} grow?", "Yes")))
    if answer == "Yes" and rng.random() < 0.5:
        other = rng.choice([mark for mark in subject.marks if mark is not grown])
        text, answer = f"Did {other.label} grow?", "No"
    return Question("which grew", text, answer)


def _value_in_frame(subject: Subject, rng: Random) -> Question:
    place, marks = rng.choice((("first", subject.before), ("last", subject.marks)))
    mark = rng.choice(marks)
    return Question("value in frame", f"What was the value of {mark.label} in the {place} frame?", str(mark.value))


def _num_frames(subject: Subject, rng: Random) -> Question:
    del rng
    return Question("count of frames", "How many frames are there?", str(subject.num_frames))


_Ask = Callable[[Subject, Random], Question]
_EXTREMES: tuple[_Ask, ...] = (_largest, _smallest, _max_value, _min_value)
_LOOK_UPS: tuple[_Ask, ...] = (_value_by_label, _value_by_colour, _label_by_colour, _colour_by_label)
_OTHERS: tuple[_Ask, ...] = (
    _largest, _smallest, _max_value, _min_value, _count, _compare, _difference, _label_by_value, _presence,
)  # fmt: skip


def askable(subject: Subject) -> dict[_Ask, float]:
    """The questions that make sense for a chart, each with its share; look-ups are about half."""
    if subject.before:
        return {_value_in_frame: 3.0, _grew: 2.0, _count: 1.0, _num_frames: 0.5}
    shares: dict[_Ask, float] = dict.fromkeys(_OTHERS, 1.0)
    shares[_value_by_label] = 5.0
    colours = [mark.colour for mark in subject.marks]
    if all(colours) and len(set(colours)) == len(colours):
        shares |= {_value_by_colour: 2.0, _label_by_colour: 1.5, _colour_by_label: 3.0}
    if subject.title:
        shares[_title] = 1.0
    if any(mark.series for mark in subject.marks):
        for ask in (_presence, _count):
            del shares[ask]
    return shares


def ask(
    subject: Subject,
    rng: Random,
    count: int = 1,
    look_ups: float = 1.0,
    yes_or_no: float = 1.0,
    extremes: float = 1.0,
) -> list[Question]:
    """Questions drawn by lot.

    Args:
        subject: what is asked about.
        rng: where the lots come from.
        count: how many.
        look_ups: factor of the share of questions that look something up by its label or colour.
        yes_or_no: factor of the share of comparisons and questions after presence.
        extremes: factor of the share of questions after the largest and the smallest.
    """
    factors = dict.fromkeys(_LOOK_UPS, look_ups) | dict.fromkeys((_compare, _presence), yes_or_no)
    factors |= dict.fromkeys(_EXTREMES, extremes)
    shares = {kind: share * factors.get(kind, 1) for kind, share in askable(subject).items()}
    kinds = rng.choices(list(shares), weights=list(shares.values()), k=count)
    return [kind(subject, rng) for kind in kinds]
