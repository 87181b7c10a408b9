"""Running a server: bind, load, serve, stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import resource
import shlex
import socket
from collections.abc import Callable, Coroutine, Iterator
from ipaddress import ip_address
from typing import Any, NamedTuple

import uvicorn

from chiasm.config.built_in import Example
from chiasm.config.server import ServerConfig
from chiasm.dist.inspection import forbid_inspection
from chiasm.errors import UserError
from chiasm.logs import Seldom, get_logger
from chiasm.server.admission import Admission
from chiasm.server.app import create_app
from chiasm.server.engine import Engine
from chiasm.server.errors import StoppingError
from chiasm.server.interrupts import run_unless, stop_asked
from chiasm.server.lifetime import Lifetime, Signals
from chiasm.server.metrics import ServerMetrics
from chiasm.server.read_limit import ReadHttpProtocol
from chiasm.server.state import ServerState
from chiasm.server.tracing import Tracing

_MOST_FILES = 65_536
_ENGINE_SHUTDOWN_TIMEOUT = 10.0  # more than the engine gives its own processes

StartEngine = Callable[[], Coroutine[Any, Any, Engine]]
Announce = Callable[[str], None]

_HELLO = '{"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 32}'
_logger = get_logger(__name__)


class _Surroundings(NamedTuple):
    """What a server has to do with beside its clients.

    Attributes:
        announce: shows a line to the person who started it.
        example: a question for that person to try.
        tracing: where its traces go.
    """

    announce: Announce
    example: Example | None
    tracing: Tracing | None


def serve(config: ServerConfig, start_engine: StartEngine, announce: Announce, example: Example | None = None) -> int:
    """Serve until a signal or the death of the engine.

    The port is taken before the model is loaded: a port in use should be known at once, not after a minute.

    Args:
        config: the server's settings.
        start_engine: loads the model.
        announce: shows a line to the person who started the server.
        example: a question for the command that is shown; None shows one without a picture.

    Returns:
        the status for the process to exit with.

    Raises:
        UserError: if the address can't be listened on, traces can't be made, or from ``start_engine``.
    """
    forbid_inspection()  # the keys of the API are in its memory
    _allow_connections(config.max_queue)
    endpoint = config.otlp_traces_endpoint
    tracing = None if endpoint is None else Tracing.to_endpoint(endpoint)
    loop_factory = uvicorn.Config("", log_config=None).get_loop_factory()  # uvloop where it is installed
    with (
        contextlib.closing(bind(config.host, config.port)) as sock,
        asyncio.Runner(loop_factory=loop_factory) as runner,
    ):
        return runner.run(_serve(config, sock, start_engine, _Surroundings(announce, example, tracing)))


def _allow_connections(max_queue: int) -> None:
    """Let this process have as many connections as the system allows: 1,024, the usual limit, are soon taken."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    if files < max_queue:
        _logger.warning("The system allows %d open files, fewer than the %d answers of max_queue.", files, max_queue)


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to an address, not listening yet: until the model is there, clients are refused.

    Raises:
        UserError: if the address can't be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With its protocol: of a socket without, asyncio doesn't know that it may switch Nagle's algorithm off, and
        # each answer on a kept connection would come 40 ms late.
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cant_listen(host, port, error) from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _cant_listen(host, port, error) from error
    return sock


def make_server(state: ServerState, on_started: Callable[[], None]) -> uvicorn.Server:
    """The HTTP server of an application; ``on_started`` is called when it accepts connections."""
    _share_log()
    config = uvicorn.Config(
        create_app(state),
        http=ReadHttpProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,  # ours has the requests' ids
        proxy_headers=False,
        server_header=False,
    )
    return _Server(config, on_started)


async def _serve(config: ServerConfig, sock: socket.socket, start_engine: StartEngine, around: _Surroundings) -> int:
    with Signals() as signals:
        try:
            engine = await run_unless(start_engine(), stop_asked(signals.first))
        except StoppingError:
            return 0
        try:
            return await _serve_engine(config, sock, engine, signals, around)
        finally:
            await _shut_down(engine, signals)
            if around.tracing is not None:
                await asyncio.to_thread(around.tracing.close)


async def _serve_engine(
    config: ServerConfig, sock: socket.socket, engine: Engine, signals: Signals, around: _Surroundings
) -> int:
    def announce_all() -> None:
        for line in (*engine.summary, *_address_and_command(sock, around.example, has_keys=bool(config.api_keys))):
            around.announce(line)

    admission = Admission(config.max_queue, config.max_body_bytes_in_flight)
    state = ServerState(engine, config, ServerMetrics(engine, admission), admission, around.tracing)
    server = make_server(state, announce_all)
    lifetime = Lifetime(server, state, signals)
    try:
        await run_unless(server.serve([sock]), lifetime.end())
    except StoppingError:
        _logger.warning("Stopped with requests still open.")
    except OSError as error:  # another process began to listen while the model was loaded
        raise _cant_listen(config.host, config.port, error) from error
    return lifetime.exit_status


async def _shut_down(engine: Engine, signals: Signals) -> None:
    """Stop the engine; its processes go by themselves when this one does, so somebody who insists need not wait."""
    try:
        async with asyncio.timeout(_ENGINE_SHUTDOWN_TIMEOUT):
            await run_unless(engine.shutdown(), stop_asked(signals.second))
    except StoppingError:
        _logger.warning("Stopped without waiting for the engine.")
    except TimeoutError:
        _logger.warning("The engine did not stop within %g s.", _ENGINE_SHUTDOWN_TIMEOUT)


class _Server(uvicorn.Server):
    """uvicorn without its signal handling, by which a stopped process would die of the signal, not exit with 0."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets)
        self._on_started()


def _share_log() -> None:
    """Let warnings of the libraries that talk to others go where ours go."""
    for name in ("uvicorn", "opentelemetry"):
        logger = logging.getLogger(name)
        logger.handlers[:] = logging.getLogger("chiasm").handlers
        logger.propagate = False
        logger.setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").filters[:] = [Seldom()]  # a line for every client that speaks no HTTP


def _address_and_command(sock: socket.socket, example: Example | None, *, has_keys: bool) -> tuple[str, str]:
    """The address, and a command that works."""
    host, port = sock.getsockname()[:2]
    address = ip_address(host)
    if address.is_unspecified:  # listening everywhere is no address to connect to
        host = "::1" if address.version == 6 else "127.0.0.1"
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    key = ' -H "Authorization: Bearer YOUR_KEY"' if has_keys else ""
    body = _HELLO if example is None else _body(example)
    curl = f"curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'"
    return f"Serving on {url}", f"Try: {curl}"


def _body(example: Example) -> str:
    """For within single quotes of a shell, which puts the picture in."""
    picture = f"data:image/png;base64,'\"$(base64 < {shlex.quote(str(example.picture))} | tr -d '\\n')\"'"
    content = [{"type": "image_url", "image_url": {"url": "PICTURE"}}, {"type": "text", "text": example.question}]
    return json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 32}).replace(
        "PICTURE", picture
    )


def _cant_listen(host: str, port: int, error: OSError) -> UserError:
    return UserError(f"can't listen on {host}:{port}: {error.strerror or error}.", param="port")
