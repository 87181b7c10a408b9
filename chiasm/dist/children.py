"""Child processes that never outlive their parent.

A child is started as ``python -m module``, not forked and not through multiprocessing: it imports only what it
needs, and a user's script needs no ``if __name__ == "__main__"``. It inherits the reading end of a pipe whose
writing end only the parent holds; when the parent ends, however it ends, the pipe closes and the child goes too.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

PIPE_VARIABLE = "CHIASM_PARENT_PIPE"
_FOLDER_VARIABLE = "CHIASM_RUNTIME_DIR"
_HARMLESS = re.compile(r"PATH|HOME|LANG|TMPDIR|TZ|(?:LC|LD|DYLD|PYTHON)_?[A-Z0-9_]*|(?:OMP|GOMP|MKL)_[A-Z0-9_]*")

# Sleeping at once made a step of a small model 1.4 times as long, and spinning as OpenMP does by itself three times as
# long on cores that others use too (docs/performance.md). GNU's OpenMP spins as often as this says, 0.3 to 1 ms, unless
# it has more threads than there are cores: then it sleeps at once, as the policy says.
SPINNING = {"GOMP_SPINCOUNT": "20000", "OMP_WAIT_POLICY": "PASSIVE"}
"""What threads of OpenMP that wait for each other do in our processes, unless the user has set one of these."""


class Process(Protocol):
    """What ``subprocess.Popen`` has and we need."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Child:
    """A running child process.

    Attributes:
        name: for messages (``rank 1``).
        pid: its process id.
    """

    def __init__(self, name: str, process: Process, pipe: int) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._pipe: int | None = pipe

    def poll(self) -> int | None:
        """Its exit status (negative: the signal that killed it), or None while it runs."""
        return self._process.poll()

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        self._process.terminate()

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended.

        Raises:
            subprocess.TimeoutExpired: if it still runs after ``timeout`` seconds.
        """
        status = self._process.wait(timeout)
        self._close_pipe()
        return status

    def stop(self, grace: float = 2.0) -> None:
        """End it: SIGTERM, and SIGKILL if it is still there after ``grace`` seconds."""
        if self.poll() is None:
            self.terminate()
        try:
            self.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()
            self.wait()

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


def harmless_variables() -> dict[str, str]:
    """Of this process's environment what programs need to start. Others may be keys and passwords."""
    return {name: value for name, value in os.environ.items() if _HARMLESS.fullmatch(name)}


def spawn(module: str, args: Sequence[str], pipe: int, variables: Mapping[str, str]) -> Process:
    """Start ``python -m module args`` with one descriptor and these variables."""
    command = [sys.executable, "-m", module, *args]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(pipe,), env=dict(variables))


def start_child(
    module: str,
    args: Sequence[str],
    *,
    runtime_dir: Path,
    name: str,
    inherited: Mapping[str, str] = os.environ,
    env: Mapping[str, str] | None = None,
) -> Child:
    """Start ``python -m module args``; the module must call ``die_with_parent`` first of all.

    Args:
        module: dotted name of a module with a ``main``.
        args: its command line.
        runtime_dir: the engine's private folder, removed by the child if the parent dies.
        name: for messages.
        inherited: the variables that it gets of this process's own.
        env: variables on top of these.
    """
    read_end, write_end = os.pipe()
    ours = {PIPE_VARIABLE: str(read_end), _FOLDER_VARIABLE: str(runtime_dir)}
    spinning = {} if inherited.keys() & SPINNING.keys() else SPINNING
    variables = {**spinning, **inherited, **(env or {}), **ours}
    try:
        process = spawn(module, args, read_end, variables)
    except BaseException:
        os.close(write_end)
        raise
    finally:
        os.close(read_end)
    return Child(name, process, write_end)


def die_with_parent() -> None:
    """Called first in a child: from now on this process ends when its parent does.

    It also ignores Ctrl-C, which the terminal sends to every process at once: the parent decides.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe = int(os.environ.pop(PIPE_VARIABLE))
    os.set_inheritable(pipe, False)
    folder = os.environ[_FOLDER_VARIABLE]
    threading.Thread(target=_await_parent_end, args=(pipe, folder), name="parent-watch", daemon=True).start()


def _await_parent_end(pipe: int, folder: str) -> None:
    while os.read(pipe, 1):  # nobody writes: it returns b"" when the parent's end closes
        continue
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def stop_children(children: Sequence[Child], grace: float = 2.0) -> None:
    """End several children together, killing those that are left after ``grace`` seconds in all."""
    for child in children:
        if child.poll() is None:
            child.terminate()
    deadline = time.monotonic() + grace
    for child in children:
        child.stop(grace=max(0.0, deadline - time.monotonic()))
