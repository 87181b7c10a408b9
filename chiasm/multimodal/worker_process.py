"""The pool's side of one worker: a process that is replaced whenever it dies or hangs."""

from __future__ import annotations

import asyncio
import secrets
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from chiasm.dist.children import Child, harmless_variables, start_child
from chiasm.errors import UserError
from chiasm.logs import get_logger
from chiasm.multimodal.jobs import PREFIX, Job, Reply

_MODULE = "chiasm.multimodal.worker"
# A machine under load can take long to import torch.
_START_TIMEOUT = 120.0
_POLL_INTERVAL = 0.1
_KILL_GRACE = 5.0  # dying takes time too, at their priority on a busy machine
# One core each, and no GPU: a decoder has no business there.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

_logger = get_logger(__name__)


class WorkerStartError(RuntimeError):
    """A worker ended, or did not get ready, before its first job; its log says why."""


def crashed(job: Job) -> UserError:
    """The error of a job whose worker died of it, or was taken over by it."""
    return UserError(f"the {job.noun} can't be decoded: its decoder crashed.", param=job.param)


class WorkerProcess:
    """One worker at a time, doing one job at a time.

    Args:
        args: the worker's command line, but for its socket.
        runtime_dir: the engine's private folder.
    """

    def __init__(self, args: Sequence[str], runtime_dir: Path) -> None:
        self._args = args
        self._runtime_dir = runtime_dir
        self._child: Child | None = None
        self._listener: socket.socket | None = None
        self._connection: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the present worker."""
        return self._child.pid if self._child else None

    @property
    def is_ready(self) -> bool:
        """Whether the present worker has begun to take jobs."""
        return self._connection is not None

    def start(self) -> None:
        """Start a worker; returns at once, the first job waits until it is ready."""
        path = self._runtime_dir / f"preprocess-{secrets.token_hex(4)}.sock"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        self._listener.bind(str(path))
        self._listener.listen(1)
        self._child = start_child(
            _MODULE,
            ["--socket", str(path), *self._args],
            runtime_dir=self._runtime_dir,
            name="preprocessing worker",
            inherited=harmless_variables(),
            env=_ENVIRONMENT,
        )

    async def run(self, job: Job, payload: bytes, timeout: float) -> Reply:  # noqa: ASYNC109  # kills, not cancels
        """Have a job done, within ``timeout`` seconds or else the worker is killed.

        Raises:
            UserError: if the worker dies of it or takes too long; the next job finds a new worker.
            WorkerStartError: if no worker can be started.
        """
        if self._connection and self._child and self._child.poll() is not None:
            await self.replace()  # it ended between jobs: not this item's fault
        connection = self._connection or await self._connect()
        try:
            async with asyncio.timeout(timeout):
                return await _exchange(connection, job, payload)
        except TimeoutError as error:
            await self.replace()
            message = f"the {job.noun} took longer than {timeout:g} seconds to decode."
            raise UserError(message, param=job.param) from error
        except (ConnectionError, EOFError, msgspec.MsgspecError) as error:
            await self.replace()
            raise crashed(job) from error

    async def replace(self) -> None:
        """Kill the worker and start another, not only with the next job, so that it gets ready meanwhile."""
        _logger.warning("preprocessing worker %s is replaced", self.pid)
        await self.stop()
        try:
            self.start()
        except OSError:  # no processes or descriptors to be had now: the next job tries again
            _logger.exception("a preprocessing worker can't be started")
            await self.stop()

    async def stop(self) -> None:
        """Kill the worker, which holds nothing worth saving, and remove its socket. Stopping twice does no harm."""
        if self._connection:
            self._connection.close()
            self._connection = None
        self._stop_listening()
        child, self._child = self._child, None
        if child:
            child.kill()
            await asyncio.to_thread(_reap, child)  # dying takes time, and this is the server's event loop

    async def _connect(self) -> socket.socket:
        try:
            if not self._child:
                self.start()
            async with asyncio.timeout(_START_TIMEOUT):
                self._connection = await self._accept()
        except (TimeoutError, OSError) as error:
            await self.stop()
            raise WorkerStartError("a preprocessing worker can't be started; the log says why.") from error
        self._stop_listening()
        return self._connection

    async def _accept(self) -> socket.socket:
        assert self._listener
        assert self._child
        accepting = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(self._listener))
        try:
            while not accepting.done():
                await asyncio.wait({accepting}, timeout=_POLL_INTERVAL)
                if self._child.poll() is not None:
                    raise ChildProcessError(f"the worker ended with status {self._child.poll()}")
        finally:
            accepting.cancel()
        connection, _ = accepting.result()
        connection.setblocking(False)
        return connection

    def _stop_listening(self) -> None:
        if self._listener:
            Path(self._listener.getsockname()).unlink(missing_ok=True)
            self._listener.close()
            self._listener = None


def _reap(child: Child) -> None:
    try:
        child.wait(_KILL_GRACE)
    except subprocess.TimeoutExpired:  # stuck in the kernel, on a dead file server for example
        _logger.warning("preprocessing worker %d does not end", child.pid)


async def _exchange(connection: socket.socket, job: Job, payload: bytes) -> Reply:
    loop = asyncio.get_running_loop()
    header = msgspec.msgpack.encode(job)
    await loop.sock_sendall(connection, PREFIX.pack(len(header), len(payload)) + header)
    await loop.sock_sendall(connection, payload)
    length, _ = PREFIX.unpack(await _receive(connection, PREFIX.size))
    if length > job.max_reply_bytes:
        raise ConnectionError("the worker speaks nonsense")
    return msgspec.msgpack.decode(await _receive(connection, length), type=Reply)


async def _receive(connection: socket.socket, length: int) -> bytearray:
    loop = asyncio.get_running_loop()
    buffer = bytearray(length)
    view = memoryview(buffer)
    while view:
        received = await loop.sock_recv_into(connection, view)
        if not received:
            raise EOFError
        view = view[received:]
    return buffer
