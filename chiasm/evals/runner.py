"""The accuracy of a model on charts, for every way of running its vision encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from chiasm.errors import UserError
from chiasm.evals.charts.examples import Example, held_out_seed, make_example
from chiasm.evals.relaxed import is_right
from chiasm.evals.scores import Score, agreement, by_kind, count_different, table
from chiasm.evals.served import ask_server
from chiasm.llm.offline import LLM
from chiasm.schema.sampling import SamplingParams

MODES = ("weights", "data", "auto")
NUM_RANKS = (1, 2)
LONGEST_ANSWER = 24


class Setup(NamedTuple):
    """One way of running."""

    mode: str
    num_ranks: int

    def __str__(self) -> str:
        return f"{self.mode} x{self.num_ranks}"


ALL_SETUPS = tuple(Setup(mode, num_ranks) for num_ranks in NUM_RANKS for mode in MODES)


class ChartsReport(msgspec.Struct, frozen=True):
    """What was measured.

    Attributes:
        model: what was asked for; None is the built-in model, or the server's own.
        seed: of the first example.
        limit: how many examples.
        scores: for each way of running the scores by kind of chart and by kind of question.
        num_different: how many answers are not the same in all ways of running.
    """

    model: str | None
    seed: int
    limit: int
    scores: dict[str, dict[str, Score]]
    num_different: int

    def as_text(self) -> str:
        """A table, and whether all ways of running agree."""
        return f"{table(self.scores)}\n{agreement(len(self.scores), self.limit, self.num_different)}".rstrip()


def run_charts_eval(
    model: str | None = None,
    *,
    limit: int = 1000,
    seed: int = 0,
    base_url: str | None = None,
    setups: Sequence[Setup] = ALL_SETUPS,
    settings: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> ChartsReport:
    """Ask a model about held-out charts.

    Args:
        model: folder or hub name of a checkpoint; None takes the built-in one. With ``base_url`` the server's name.
        limit: how many charts, one question each.
        seed: the first of the held-out seeds.
        base_url: of a server that answers, in place of the offline engine.
        setups: the ways of running.
        settings: further ones of ``LLM``.
        tell: is given a line when a way of running begins.

    Raises:
        UserError: if the model can't be loaded, the server doesn't answer, or ``limit`` is less than 1.
    """
    if limit < 1:
        raise UserError(f"--limit must be at least 1, not {limit}.", param="limit")
    examples = [make_example(held_out_seed(seed + index)) for index in range(limit)]
    answers: dict[str, list[str]] = {}
    if base_url is not None:
        tell(f"{limit} charts asked of {base_url}")
        conversations = [conversation(example) for example in examples]
        greedy = {"temperature": 0, "max_tokens": LONGEST_ANSWER}
        answers[base_url] = ask_server(base_url, model, conversations, [greedy] * limit)
    else:
        for setup in setups:
            tell(f"{limit} charts with --mm-encoder-tp-mode {setup.mode} on {setup.num_ranks} rank(s)")
            answers[str(setup)] = _ask_engine(model, setup, settings or {}, examples)
    scores = {name: score(examples, own) for name, own in answers.items()}
    return ChartsReport(model, seed, limit, scores, count_different(answers))


def _ask_engine(
    model: str | None, setup: Setup, settings: Mapping[str, Any], examples: Sequence[Example]
) -> list[str]:
    own = {**settings, "mm_encoder_tp_mode": setup.mode, "tensor_parallel_size": setup.num_ranks}
    with LLM(model, **own) as llm:
        return ask_all(llm, examples)


def ask_all(llm: LLM, examples: Sequence[Example]) -> list[str]:
    """The model's answers, decoded greedily."""
    sampling = SamplingParams(temperature=0, max_tokens=LONGEST_ANSWER)
    outputs = llm.chat([conversation(example) for example in examples], sampling, use_tqdm=False)
    return [output.outputs[0].text for output in outputs]


def conversation(example: Example) -> list[dict[str, Any]]:
    """The question in OpenAI's form, pictures first."""
    pictures = [{"type": "image", "image": image} for image in example.images]
    return [{"role": "user", "content": [*pictures, {"type": "text", "text": example.question}]}]


def score(examples: Sequence[Example], answers: Sequence[str]) -> dict[str, Score]:
    """Scores by kind of question, by kind of chart, and over all."""
    kinds = [(f"question: {example.question_kind}", f"chart: {example.kind}", "all") for example in examples]
    hits = [is_right(answer, example.answer) for example, answer in zip(examples, answers, strict=True)]
    return by_kind(kinds, hits)
