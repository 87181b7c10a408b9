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
        self._verdicts: OrderedDict[StructuredOutputs, str | None] = OrderedDict()
        self._child: Child | None = None
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket | None = None

    async def check(self, form: StructuredOutputs) -> None:
        """Refuse a form that no answer can have, or that takes too much to compile.

        Raises:
            UserError: naming the request's field, and what is wrong.
        """
        key = form.key
        async with self._turn:
            if key not in self._verdicts:
                self._verdicts[key] = await self._try(key)
                if len(self._verdicts) > _MAX_KEPT:
                    self._verdicts.popitem(last=False)
            refusal = self._verdicts[key]
        if refusal is not None:
            raise UserError(form.param + refusal, param=form.param)

    def close(self) -> None:
        """End the process. A second call does nothing."""
        self._stop()
        self._context.term()

    async def _try(self, form: StructuredOutputs) -> str | None:
        """What is wrong with a form; None if nothing is."""
        try:
            if self._socket is None:
                self._start()
                await self._verdict(_START_SECONDS)
            await self._send(form)
            return (await self._verdict(COMPILE_SECONDS)).refusal
        except TimeoutError:
            self._stop()
            return f" takes longer than {COMPILE_SECONDS:g} s to compile."
        except ChildProcessError as error:
            _log.warning("the process that tries grammars out %s", error)
            self._stop()
            return " can't be compiled: its compiler crashed."
        except BaseException:
            self._stop()  # a verdict still to come would be taken for the next form's
            raise

    def _start(self) -> None:
        self._socket = self._context.socket(zmq.PAIR)
        join_channel(self._socket, self._runtime_dir, CHANNEL, is_binding=True)
        self._child = start_child(
            "chiasm.grammar.worker", self._args, runtime_dir=self._runtime_dir, name="grammar compiler"
        )

    async def _send(self, form: StructuredOutputs) -> None:
        assert self._socket is not None
        await self._socket.send(msgspec.msgpack.encode(form))

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
