"""Whether a form can be followed, found out beside the engine and in bounded time."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from chiasm.dist.bounded_worker import BoundedWorker
from chiasm.errors import UserError
from chiasm.grammar.messages import NAME, Verdict
from chiasm.logs import get_logger
from chiasm.schema.structured import StructuredOutputs

COMPILE_SECONDS = 5.0
_MAX_KEPT = 256  # verdicts
_BROKEN_SECONDS = 60.0  # for which a form that broke the process is not tried again

_log = get_logger(__name__)


class _BrokenError(Exception):
    """A form has broken the process: what is wrong with it, for the user."""


class _Kept(NamedTuple):
    """A verdict.

    Attributes:
        refusal: what is wrong with the form; None if nothing is.
        end: when it is forgotten, in seconds of ``time.monotonic``.
    """

    refusal: str | None
    end: float


class GrammarChecker:
    """Tries forms out one after the other, in a process that starts with the first and is replaced if one breaks it.

    Args:
        folder: of the checkpoint.
        vocab_size: rows of the output projection.
        eos_token_ids: tokens that end an answer.
        runtime_dir: the engine's private folder.
    """

    def __init__(self, folder: Path, vocab_size: int, eos_token_ids: Sequence[int], runtime_dir: Path) -> None:
        args = [str(folder), str(vocab_size), *map(str, eos_token_ids)]
        self._worker = BoundedWorker("chiasm.grammar.worker", NAME, args, runtime_dir, Verdict)
        self._turn = asyncio.Lock()
        self._trying: dict[StructuredOutputs, asyncio.Task[str | None]] = {}
        self._num_waiting: Counter[StructuredOutputs] = Counter()
        self._verdicts: OrderedDict[StructuredOutputs, _Kept] = OrderedDict()

    async def check(self, form: StructuredOutputs) -> None:
        """Refuse a form that no answer can have, or that takes too much to compile.

        Raises:
            UserError: naming the request's field, and what is wrong.
            WorkerStartError: if there is no way to tell.
        """
        key = form.key
        kept = self._verdicts.get(key)
        if kept is not None and time.monotonic() < kept.end:
            refusal = kept.refusal
        else:
            if key not in self._trying:
                self._trying[key] = asyncio.create_task(self._decide(key))
            refusal = await self._wait(key)
        if refusal is not None:
            raise UserError(form.param + refusal, param=form.param)

    async def close(self) -> None:
        """End the process. A second call does nothing."""
        trying = list(self._trying.values())
        for task in trying:
            task.cancel()
        await asyncio.gather(*trying, return_exceptions=True)
        await self._worker.close()

    async def _wait(self, key: StructuredOutputs) -> str | None:
        """One who asks and goes must not take the verdict, or the process, from others."""
        self._num_waiting[key] += 1
        try:
            return await asyncio.shield(self._trying[key])
        finally:
            self._num_waiting[key] -= 1
            if not self._num_waiting[key]:
                del self._num_waiting[key]

    async def _decide(self, form: StructuredOutputs) -> str | None:
        """What is wrong with a form; None if nothing is."""
        end = math.inf
        try:
            async with self._turn:
                if form not in self._num_waiting:  # all who asked have gone while others had their turn
                    return None
                refusal = await self._try(form)
        except _BrokenError as error:
            refusal = str(error)
            end = time.monotonic() + _BROKEN_SECONDS  # and not for good: the machine may have been at fault
        finally:
            del self._trying[form]
        self._verdicts[form] = _Kept(refusal, end)
        if len(self._verdicts) > _MAX_KEPT:
            self._verdicts.popitem(last=False)
        return refusal

    async def _try(self, form: StructuredOutputs) -> str | None:
        try:
            return (await self._worker.ask(form, COMPILE_SECONDS)).refusal
        except TimeoutError as error:
            raise _BrokenError(f" takes longer than {COMPILE_SECONDS:g} s to compile.") from error
        except ChildProcessError as error:
            _log.warning("%s", error)
            message = " can't be compiled: its compiler crashed. Its rules or references may be nested too deeply."
            raise _BrokenError(message) from error
