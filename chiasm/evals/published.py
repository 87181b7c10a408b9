"""ChartQA and MMMU through lm-eval, for every way of running the vision encoder or for a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from chiasm.errors import UserError
from chiasm.evals.chartqa import chartqa_scores
from chiasm.evals.runner import Setup
from chiasm.evals.scores import Score, agreement, count_different, table
from chiasm.evals.served import first_model

if TYPE_CHECKING:
    from lm_eval.api.model import LM
    from lm_eval.api.task import Task

_MAX_IMAGES = {"chartqa": 1, "mmmu": 7}
_MISTRAL = ("explicit_prompt_relaxed_correctness", "anywhere_in_answer_relaxed_correctness")
_METRICS = {"chartqa": ("exact_match", "relaxed_accuracy", "anywhere_accuracy"), "mmmu": ("acc",)}


class TaskReport(msgspec.Struct, frozen=True):
    """What was measured.

    Attributes:
        task: ``chartqa`` or ``mmmu``.
        model: what was asked.
        scores: for each way of running the scores by metric.
        num_different: answers that are not the same in all ways of running.
    """

    task: str
    model: str | None
    scores: dict[str, dict[str, Score]]
    num_different: int

    def as_text(self) -> str:
        """A table, and whether all ways of running agree."""
        asked = next(iter(next(iter(self.scores.values())).values())).asked
        return f"{table(self.scores)}\n{agreement(len(self.scores), asked, self.num_different)}".rstrip()


def run_task(
    task: str,
    model: str | None,
    *,
    data: str | None = None,
    limit: int | None = None,
    base_url: str | None = None,
    setups: Sequence[Setup],
    settings: Mapping[str, Any],
    tell: Callable[[str], None] = lambda _: None,
) -> TaskReport:
    """Have a task of lm-eval answered.

    Args:
        task: ``chartqa`` or ``mmmu``.
        model: checkpoint, or with ``base_url`` the server's name for it.
        data: files with the data; None takes the hub's.
        limit: questions, of each subject; None takes all.
        base_url: of a server that answers, in place of the offline engine.
        setups: ways of running the offline engine.
        settings: further ones of ``LLM``.
        tell: is given a line when a way of running begins.

    Raises:
        UserError: if lm-eval is not installed, or the data or the model can't be had.
    """
    _require_lm_eval()
    from chiasm.evals.tasks import loaded_tasks

    scores, answers = {}, {}
    with loaded_tasks(task, data, limit) as tasks:
        for name, start in _models(task, model, base_url, setups, settings):
            tell(f"{task} with {name}")
            with start() as lm:
                samples = _samples(lm, tasks, limit)
            scores[name] = _scores(task, samples)
            answers[name] = [sample["resps"][0][0] for sample in samples]
    return TaskReport(task, base_url or model, scores, count_different(answers))


def _require_lm_eval() -> None:
    try:
        import lm_eval  # noqa: F401
    except ImportError as error:
        raise UserError("This needs lm-eval: pip install 'chiasm[eval]'.", param="task") from error


_Start = Callable[[], Any]


def _models(
    task: str, model: str | None, base_url: str | None, setups: Sequence[Setup], settings: Mapping[str, Any]
) -> Iterator[tuple[str, _Start]]:
    """(name, how to start it) of everything that is to answer."""
    if base_url is not None:
        yield base_url, lambda: _server(base_url, model, _MAX_IMAGES[task])
        return
    for setup in setups:
        own = {**settings, "mm_encoder_tp_mode": setup.mode, "tensor_parallel_size": setup.num_ranks}
        yield str(setup), lambda own=own: _engine(model, own)  # type: ignore[misc]


@contextmanager
def _engine(model: str | None, settings: dict[str, Any]) -> Iterator[LM]:
    from chiasm.evals.harness import ChiasmVLM

    lm = ChiasmVLM(model, **settings)
    try:
        yield lm
    finally:
        lm.close()


@contextmanager
def _server(base_url: str, model: str | None, max_images: int) -> Iterator[LM]:
    from chiasm.evals.harness import ServedVLM

    yield ServedVLM(base_url, model or first_model(base_url), max_images)


def _samples(lm: LM, tasks: Sequence[Task], limit: int | None) -> list[dict[str, Any]]:
    """What lm-eval notes of each question."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    found = simple_evaluate(
        lm,
        tasks=list(tasks),
        limit=limit,
        apply_chat_template=True,
        bootstrap_iters=0,
        task_manager=TaskManager(include_defaults=False),  # all others would be read for seconds, and aren't needed
    )
    return [sample for samples in found["samples"].values() for sample in samples]


def _scores(task: str, samples: Sequence[Mapping[str, Any]]) -> dict[str, Score]:
    hits = {metric: [float(sample.get(metric) or 0) for sample in samples] for metric in _METRICS[task]}
    if task == "chartqa":
        own = [chartqa_scores(sample["resps"][0][0], sample["doc"]["label"]) for sample in samples]
        hits |= {metric: [scores[metric] for scores in own] for metric in _MISTRAL}
    return {metric: Score(int(sum(values)), len(values)) for metric, values in hits.items()}
