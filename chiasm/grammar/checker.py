"""Whether a form can be followed, found out beside the engine and in bounded time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from chiasm.dist.channel import join_channel
from chiasm.dist.children import Child, start_child
from chiasm.errors import UserError
from chiasm.grammar.messages import CHANNEL, Verdict
from chiasm.logs import get_logger
from chiasm.schema.structured import StructuredOutputs

COMPILE_SECONDS = 5.0
_START_SECONDS = 120.0
_MAX_KEPT = 256  # verdicts
_POLL_MS = 50

_log = get_logger(__name__)


class GrammarWorkerError(RuntimeError):
    """The process that tries forms out can't be started; its log says why."""


class _BrokenError(Exception):
    """A form has broken the process: what is wrong with it, for the user."""


class GrammarChecker:
    """Tries forms out one after the other, in a process that starts with the first and is replaced if one breaks it.

    Args:
        folder: of the checkpoint.
        vocab_size: rows of the output projection.
        eos_token_ids: tokens that end an answer.
        runtime_dir: the engine's private folder.
    """

    def __init__(self, folder: Path, vocab_size: int, eos_token_ids: Sequence[int], runtime_dir: Path) -> None:
        self._args = [str(runtime_dir), str(folder), str(vocab_size), *map(str, eos_token_ids)]
        self._runtime_dir = runtime_dir
        self._turn = asyncio.Lock()
        self._trying: dict[StructuredOutputs, asyncio.Task[str | None]] = {}
        self._verdicts: OrderedDict[StructuredOutputs, str | None] = OrderedDict()
        self._child: Child | None = None
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket | None = None

    async def check(self, form: StructuredOutputs) -> None:
        """Refuse a form that no answer can have, or that takes too much to compile.

        Raises:
            UserError: naming the request's field, and what is wrong.
            GrammarWorkerError: if there is no way to tell.
        """
        key = form.key
        if key in self._verdicts:
            refusal = self._verdicts[key]
        else:
            if key not in self._trying:
                self._trying[key] = asyncio.create_task(self._decide(key))
            # One who asks and goes must not take the verdict, or the process, from others.
            refusal = await asyncio.shield(self._trying[key])
        if refusal is not None:
            raise UserError(form.param + refusal, param=form.param)

    async def close(self) -> None:
        """End the process. A second call does nothing."""
        trying = list(self._trying.values())
        for task in trying:
            task.cancel()
        await asyncio.gather(*trying, return_exceptions=True)
        self._stop()
        self._context.term()

    async def _decide(self, form: StructuredOutputs) -> str | None:
        """What is wrong with a form; None if nothing is."""
        try:
            async with self._turn:
                refusal = await self._try(form)
        except _BrokenError as error:
            return str(error)  # not kept: the machine may have been at fault
        finally:
            del self._trying[form]
        self._verdicts[form] = refusal
        if len(self._verdicts) > _MAX_KEPT:
            self._verdicts.popitem(last=False)
        return refusal

    async def _try(self, form: StructuredOutputs) -> str | None:
        try:
            if self._socket is None:
                await self._begin()
            assert self._socket is not None
            await self._socket.send(msgspec.msgpack.encode(form))
            return (await self._verdict(COMPILE_SECONDS)).refusal
        except TimeoutError as error:
            self._stop()
            raise _BrokenError(f" takes longer than {COMPILE_SECONDS:g} s to compile.") from error
        except ChildProcessError as error:
            _log.warning("the process that tries grammars out %s", error)
            self._stop()
            raise _BrokenError(" can't be compiled: its compiler crashed.") from error
        except BaseException:
            self._stop()  # a verdict still to come would be taken for the next form's
            raise

    async def _begin(self) -> None:
        """Start the process and wait until it is ready."""
        self._start()
        try:
            await self._verdict(_START_SECONDS)
        except (TimeoutError, ChildProcessError) as error:
            raise GrammarWorkerError("the process that tries grammars out can't be started.") from error

    def _start(self) -> None:
        self._socket = self._context.socket(zmq.PAIR)
        join_channel(self._socket, self._runtime_dir, CHANNEL, is_binding=True)
        self._child = start_child(
            "chiasm.grammar.worker", self._args, runtime_dir=self._runtime_dir, name="grammar compiler"
        )

    async def _verdict(self, seconds: float) -> Verdict:
        assert self._socket is not None
        assert self._child is not None
        async with asyncio.timeout(seconds):
            while not await self._socket.poll(_POLL_MS):
                status = self._child.poll()
                if status is not None:
                    raise ChildProcessError(f"has ended with status {status}")
            return msgspec.msgpack.decode(await self._socket.recv(), type=Verdict)

    def _stop(self) -> None:
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None
