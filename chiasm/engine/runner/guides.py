"""The answers of a rank that follow a form. Only the rank that samples has any, so that no two can disagree."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from chiasm.errors import UserError
from chiasm.grammar.guide import AnswerGuide, GuideError
from chiasm.grammar.reasons import one_line
from chiasm.grammar.stacks import FOLLOWING_BYTES
from chiasm.logs import get_logger
from chiasm.sampling.rows import SamplingRow
from chiasm.schema.plan import Failure
from chiasm.schema.sampling import SamplingParams

if TYPE_CHECKING:
    from chiasm.grammar.compile import GrammarCompiler

_log = get_logger(__name__)
_FAILED = "the answer's form takes too much work to follow; the server's log has the reason."


class Masks(NamedTuple):
    """What some rows of a batch may be.

    Attributes:
        allowed: by row, a bit for each token.
        failed: request id -> why, of rows for which that can't be told.
    """

    allowed: dict[int, bytes]
    failed: dict[str, Failure]


class Guides:
    """Compiles forms in a thread while prompts are computed, and follows the answers.

    Args:
        make_compiler: reads the tokenizer; called when the first form comes.
    """

    def __init__(self, make_compiler: Callable[[], GrammarCompiler]) -> None:
        self._make_compiler = make_compiler
        self._compiler: GrammarCompiler | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._guides: dict[str, Future[AnswerGuide]] = {}

    def start(self, request_id: str, params: SamplingParams) -> None:
        """Begin to follow an answer, if it must have a form."""
        if params.structured_outputs is None:
            return
        if self._thread is None:
            self._thread = _start_thread()
        self._guides[request_id] = self._thread.submit(self._compile, params)

    def forget(self, request_ids: Iterable[str]) -> None:
        """End it, for those that were followed."""
        for request_id in request_ids if self._guides else ():
            self._guides.pop(request_id, None)

    def masks(self, rows: Sequence[SamplingRow]) -> Masks:
        """What the rows of a batch may be next; rows that are free are left out."""
        masks = Masks({}, {})
        for index, row in enumerate(rows if self._guides else ()):
            guide = self._guides.get(row.request_id)
            if guide is None:
                continue
            try:
                following = guide.result()
                following.take(row.token_ids[row.num_prompt_tokens :])
                masks.allowed[index] = following.allowed()
            except (UserError, GuideError) as error:
                _log.warning("the form of %s can't be followed: %s", row.request_id, one_line(str(error)))
                masks.failed[row.request_id] = _failure(row)
            except Exception:  # a bug of the library that follows it: one answer's, and not the batch's
                _log.exception("following the form of %s fails", row.request_id)
                masks.failed[row.request_id] = _failure(row)
        return masks

    def _compile(self, params: SamplingParams) -> AnswerGuide:
        form = params.structured_outputs
        assert form is not None
        if self._compiler is None:
            self._compiler = self._make_compiler()
        compiler = self._compiler
        ends = (*compiler.eos_token_ids, *params.stop_token_ids)
        return AnswerGuide(compiler.compile(form), form.thinking, compiler.vocab_size, ends)


def _start_thread() -> ThreadPoolExecutor:
    thread = ThreadPoolExecutor(1, "grammars")
    usual = threading.stack_size(FOLLOWING_BYTES)
    try:
        thread.submit(int)  # the stack is made with the thread, and that with the first call
    finally:
        threading.stack_size(usual)
    return thread


def _failure(row: SamplingRow) -> Failure:
    form = row.params.structured_outputs
    return Failure(_FAILED, None if form is None else form.param)
