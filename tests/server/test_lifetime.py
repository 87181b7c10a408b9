"""How a server process begins and ends: the port, signals, the death of its engine."""

from __future__ import annotations

import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from chiasm.errors import UserError
from chiasm.server.run import bind
from tests.clocks import PATIENCE, wait_until
from tests.server.test_chat import events_of
from tests.skipped import needs

ROOT = Path(__file__).parents[2]  # where ``tests`` can be imported from
BODY = {"messages": [{"role": "user", "content": "Hi"}]}


class Process:
    """A server process."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.child = child

    def line(self, start: str) -> str:
        """The next line of its output that starts like this."""
        assert self.child.stdout is not None
        return next(line.strip() for line in self.child.stdout if line.startswith(start))

    def tell(self, command: str) -> None:
        """Have it do something."""
        assert self.child.stdin is not None
        self.child.stdin.write(f"{command}\n")
        self.child.stdin.flush()
        self.line("did")

    def wait(self) -> int:
        """Its status."""
        return self.child.wait(PATIENCE)


@contextmanager
def running(*, load_seconds: float = 0, shutdown_timeout: float = 600) -> Iterator[Process]:
    """A server process that is killed at the end if it still runs."""
    command = [sys.executable, "-m", "tests.server.serve_fake", str(load_seconds), str(shutdown_timeout)]
    with subprocess.Popen(command, text=True, stdin=-1, stdout=-1, cwd=ROOT) as child:
        try:
            yield Process(child)
        finally:
            child.kill()


def ask(url: str, *, stream: bool = False) -> httpx2.Response:
    """Post a conversation."""
    body = {**BODY, "stream": stream}
    return httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE, trust_env=False)


def wait_until_closing(url: str) -> None:
    """Until the server has heard a signal, and takes nothing new."""
    wait_until(lambda: httpx2.get(f"{url}/health", timeout=PATIENCE, trust_env=False).status_code == 503)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_requests_finish(number: signal.Signals) -> None:
    with running() as process, ThreadPoolExecutor() as threads:
        url = process.line("Serving on").split()[-1]
        process.tell("hold 2")
        answers = [threads.submit(ask, url, stream=stream) for stream in (False, True)]
        process.tell("wait 2")
        process.child.send_signal(number)
        wait_until_closing(url)
        refused = ask(url)  # nothing new is taken
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        process.tell("hold 99")
        whole, streamed = (answer.result() for answer in answers)
        assert whole.json()["choices"][0]["message"]["content"] == "Hello big world!"
        assert events_of(streamed.text)[-1]["choices"][0]["finish_reason"] == "stop"
        assert process.line("engine stopped") == "engine stopped 1 times"
        assert process.wait() == 0
        with pytest.raises(httpx2.ConnectError):
            ask(url)


def test_what_does_not_finish_in_time_gets_an_error() -> None:
    """Threat: shutdown."""
    with running(shutdown_timeout=0.3) as process, ThreadPoolExecutor() as threads:
        url = process.line("Serving on").split()[-1]
        process.tell("hold 2")
        answers = [threads.submit(ask, url, stream=stream) for stream in (False, True)]
        process.tell("wait 2")
        process.child.terminate()
        whole, streamed = (answer.result() for answer in answers)
        assert whole.status_code == 503
        assert whole.json()["error"]["message"] == "The server is shutting down."
        assert events_of(streamed.text)[-1]["error"]["code"] == 503
        assert process.wait() == 0


def test_a_second_signal_forces() -> None:
    """Threat: shutdown."""
    with running() as process, ThreadPoolExecutor() as threads:
        url = process.line("Serving on").split()[-1]
        process.tell("hold 2")
        answer = threads.submit(ask, url)
        process.tell("wait 1")
        process.child.terminate()
        wait_until_closing(url)
        process.child.terminate()
        assert answer.result().status_code == 503
        assert process.wait() == 0


def test_a_signal_while_loading() -> None:
    with running(load_seconds=600) as process:
        process.line("loading")
        process.child.terminate()
        assert process.wait() == 0


def test_the_death_of_the_engine_ends_the_process() -> None:
    with running() as process, ThreadPoolExecutor() as threads:
        url = process.line("Serving on").split()[-1]
        process.tell("hold 2")
        answers = [threads.submit(ask, url, stream=stream) for stream in (False, True)]
        process.tell("wait 2")
        process.tell("die")
        whole, streamed = (answer.result() for answer in answers)
        assert whole.status_code == 500
        assert whole.json()["error"]["message"] == "The engine has stopped; this server is going down."
        assert events_of(streamed.text)[-1]["error"]["code"] == 500
        assert process.wait() == 1


@pytest.mark.skipif(shutil.which("curl") is None, reason=needs("curl", "install curl"))
def test_the_printed_command_works() -> None:
    with running() as process:
        assert process.line("device") == "device: none"
        command = shlex.split(process.line("Try:").removeprefix("Try: "))
        answer = subprocess.run([*command, "-sS", "--noproxy", "*"], capture_output=True, text=True, check=True)
        assert '"content":"Hello big world!"' in answer.stdout
        process.child.terminate()


def test_a_port_in_use_is_known_before_loading() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"can't listen on 127.0.0.1:{port}: Address already in use"):
            bind("127.0.0.1", port)


def test_an_address_that_is_not_ours() -> None:
    with pytest.raises(UserError, match=r"can't listen on 192\.0\.2\.1:0"):
        bind("192.0.2.1", 0)
    with pytest.raises(UserError, match=r"can't listen on no\.such\.host\.invalid:0"):
        bind("no.such.host.invalid", 0)


def test_nobody_is_accepted_while_the_model_loads() -> None:
    sock = bind("127.0.0.1", 0)
    with sock, pytest.raises(ConnectionRefusedError):
        socket.create_connection(sock.getsockname(), timeout=1)


def test_answers_on_a_kept_connection_are_not_held_back() -> None:
    """By Nagle's algorithm, which waits 40 ms for the client's word before it sends the rest of an answer."""
    with bind("127.0.0.1", 0) as sock:
        assert sock.proto == socket.IPPROTO_TCP


def test_a_server_takes_as_many_connections_as_the_system_allows() -> None:
    """1,024 open files are the usual limit, which a process may raise for itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        with running() as process:
            url = process.line("Serving on").split()[-1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            sockets = [socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) for _ in range(300)]
            assert ask(url).status_code == 200
            for sock in sockets:
                sock.close()
            process.child.terminate()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
