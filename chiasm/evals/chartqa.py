"""ChartQA's scores as lm-eval and mistral-evals have them.

Relaxed correctness is that of Masry et al. (2022), section 5.1: numbers may be off by 5 %.
Both tools share their definitions; they differ in whether a text loses its final punctuation before it is compared.

===========================================  =======================================================================
``exact_match``                              what follows "Final Answer: " on the last line is the target, case aside
``relaxed_accuracy``                         relaxed correctness of what follows the last "answer:"
``anywhere_accuracy``                        the same; without an "answer:" the target may be anywhere
``explicit_prompt_relaxed_correctness``      ``relaxed_accuracy`` of mistral-evals
``anywhere_in_answer_relaxed_correctness``   ``anywhere_accuracy`` of mistral-evals
===========================================  =======================================================================
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

_TOLERANCE = 0.05
_TINY = 1e-10  # stands for a target of zero
_FINAL = re.compile(r"final answer: (.+)$", re.IGNORECASE)
_EMPHASISED = re.compile(r"([aA]nswer)\**:\**")
_MARKS = str.maketrans("", "", "*_[]()")
_MARK = "answer:"
_ENDING = re.compile(rf"[\s{re.escape(string.punctuation.replace('%', ''))}]+\Z")
_AROUND = ("is {}", "was {}", " {}.", "are {}", "\n\n{}")


def chartqa_scores(generation: str, targets: Sequence[str]) -> dict[str, float]:
    """The five scores of an answer, each 0 or 1, by the names above.

    Args:
        generation: what the model said.
        targets: what is right; lm-eval's scores look at the first one alone.
    """
    first = targets[:1]
    return {
        "exact_match": float(_matches(generation, targets[0])),
        "relaxed_accuracy": float(_explicit(generation, first, trims=True)),
        "anywhere_accuracy": float(_anywhere(generation, first, trims=True)),
        "explicit_prompt_relaxed_correctness": float(_explicit(generation, targets, trims=False)),
        "anywhere_in_answer_relaxed_correctness": float(_anywhere(generation, targets, trims=False)),
    }


def _matches(generation: str, target: str) -> bool:
    found = _FINAL.search(generation)
    return found is not None and found[1].strip().lower().removesuffix(".") == target.strip().lower()


def final_answer(generation: str) -> str:
    """The first line with anything on it after the last "answer:", without marks of Markdown; "" if there is none."""
    text = _EMPHASISED.sub(r"\1:", generation)
    place = text.lower().rfind(_MARK)
    if place < 0:
        return ""
    lines = text[place + len(_MARK) :].split("\n")
    return next((line.strip() for line in lines if line.strip()), "").translate(_MARKS)


def _explicit(generation: str, targets: Sequence[str], *, trims: bool) -> bool:
    answer = final_answer(generation)
    return bool(answer) and any(_is_relaxed(answer, target, trims=trims) for target in targets)


def _anywhere(generation: str, targets: Sequence[str], *, trims: bool) -> bool:
    if final_answer(generation):
        return _explicit(generation, targets, trims=trims)
    return any(_is_said(generation, target, targets) for target in targets)


def _is_said(generation: str, target: str, targets: Sequence[str]) -> bool:
    try:
        value = float(target)
        number = int(value) if int(value) == value else value
    except (ValueError, OverflowError):
        # Patterns are lowered and the answer isn't: so are the definitions.
        return any(form.format(each).lower() in generation for each in targets for form in _AROUND)
    return format(number, ",") in generation or str(number) in generation


def _is_relaxed(answer: str, target: str, *, trims: bool) -> bool:
    answer, target = _plain(answer), _plain(target)
    given, expected = _number(answer), _number(target)
    if given is not None and expected is not None:
        return _is_near(*given, *expected)
    if len(target) == 1 and target.isalpha() and answer:
        return answer[0].lower() == target.lower()
    if trims:
        answer = answer.rstrip(string.punctuation)
    return answer.lower() == target.lower()


def _plain(text: str) -> str:
    if any(character.isdigit() for character in text):
        return _ENDING.sub("", text).replace(",", "").replace("$", "")
    is_quoted = text[:1] in ("'", '"') and text.endswith(text[:1])
    return text[1:-1] if is_quoted else text


def _number(text: str) -> tuple[float, bool] | None:
    """(value, whether it is a percentage), or None."""
    text = text.strip()
    try:
        return float(text.rstrip("%")), text.endswith("%")
    except ValueError:
        return None


def _is_near(given: float, given_percent: bool, expected: float, expected_percent: bool) -> bool:
    pairs = [(given, expected)]
    if given_percent or expected_percent:
        pairs += [(given / 100 if given_percent else given, expected)]
        pairs += [(given, expected / 100 if expected_percent else expected)]
    return any(abs(value - target) / max(abs(target), _TINY) <= _TOLERANCE for value, target in pairs)
