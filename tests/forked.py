"""The engine's processes, forked off one that has imported what they need: each saves the 1.5 s that torch takes.

Tests that say ``usefixtures("forked_children")`` start them so. What a process does is the same; how it is started,
how it looks to the system and what it inherits is not, so tests of these start real ones.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import torch

from chiasm.dist import children
from chiasm.vision.fit import Fit
from tests.clocks import PATIENCE

_MAX_REQUEST, _MAX_REPLY = 2**17, 16  # bytes
_MAX_DESCRIPTORS = 4096
_PRELOADED = (
    "chiasm.engine.core.core", "chiasm.engine.runner.spin_guard", "chiasm.engine.runner.start",
    "chiasm.grammar.compile", "chiasm.multimodal.decode_video", "chiasm.multimodal.processing",
)  # fmt: skip
SECONDS_TO_MEASURE = 0.1
"""How fast the encoder is, on which engines of tests don't depend."""
# Torch and numpy read these when they are imported. The ranks of a test share few cores.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class ForkedProcess:
    """What ``Popen`` is to a process that is another's child; see there."""

    def __init__(self, pid: int, status: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """See ``Popen``."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """See ``Popen``."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            told = self._status.recv(_MAX_REPLY)
            self._status.close()
            self.returncode = int(told) if told else -signal.SIGKILL  # the forking process is gone
        return self.returncode

    def terminate(self) -> None:
        """See ``Popen``."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """See ``Popen``."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def spawn(address: str, module: str, args: Sequence[str], pipe: int, variables: Mapping[str, str]) -> ForkedProcess:
    """In place of ``chiasm.dist.children.spawn``: have the server at an address fork."""
    request = json.dumps([module, list(args), dict(variables)]).encode()
    assert len(request) < _MAX_REQUEST
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(address)
        socket.send_fds(connection, [request], [pipe, theirs.fileno()])
        return ForkedProcess(int(connection.recv(_MAX_REPLY)), ours)


@contextmanager
def fork_server(folder: Path) -> Iterator[str]:
    """A process that forks while the context is open; its address, a socket in ``folder``."""
    address = str(folder / "fork-server")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(64)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked", address, str(listener.fileno())],
            stdin=subprocess.PIPE, pass_fds=[listener.fileno()], env={**os.environ, **_ONE_THREAD},
        )  # fmt: skip
    try:
        yield address
    finally:
        process.communicate(timeout=PATIENCE)


class _ForkServer:
    """Forks for whoever connects, until the tests' process is gone."""

    def __init__(self, address: str, listener: socket.socket) -> None:
        self._address = address
        self._listener = listener
        self._statuses: dict[int, int] = {}  # descriptor to tell of a child's end, by its process id
        self._ended, wakeup = socket.socketpair()
        for each in (self._ended, wakeup):
            each.setblocking(False)
        signal.set_wakeup_fd(wakeup.detach())
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def serve(self) -> None:
        while True:
            ready, _, _ = select.select([sys.stdin, self._listener, self._ended], [], [])
            if sys.stdin in ready:  # it is closed: nothing is written to it
                return
            if self._ended in ready:
                self._ended.recv(4096)
                self._tell_ends()
            if self._listener in ready:
                connection, _ = self._listener.accept()
                with connection:
                    self._fork(connection)

    def _fork(self, connection: socket.socket) -> None:
        request, (pipe, status), _, _ = socket.recv_fds(connection, _MAX_REQUEST, 2)
        pid = os.fork()
        if not pid:
            _become(*json.loads(request), pipe, self._address)
        os.close(pipe)
        self._statuses[pid] = status
        connection.send(str(pid).encode())

    def _tell_ends(self) -> None:
        while self._statuses:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            told = self._statuses.pop(pid)
            with suppress(OSError):  # nobody asks any more
                os.write(told, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(told)


def _become(module: str, args: Sequence[str], variables: Mapping[str, str], pipe: int, address: str) -> NoReturn:
    """Be ``python -m module args`` in a fork, with a pipe where the variables say and no other descriptor."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = 1
    try:
        told = int(variables[children.PIPE_VARIABLE])
        os.dup2(pipe, told)
        os.closerange(3, told)
        os.closerange(told + 1, _MAX_DESCRIPTORS)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.clear()
        os.environ.update(variables)
        sys.argv = ["", *args]
        children.spawn = functools.partial(spawn, address)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    """Import what children need, and fork."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the tests decide
    for module in _PRELOADED:
        importlib.import_module(module)
    torch.set_num_threads(1)
    Fit.rates = functools.partialmethod(Fit.rates, seconds=SECONDS_TO_MEASURE)  # type: ignore[assignment,method-assign]
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork would lose the other threads"
    gc.freeze()
    _ForkServer(sys.argv[1], socket.socket(fileno=int(sys.argv[2]))).serve()


if __name__ == "__main__":
    main()
