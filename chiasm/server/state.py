"""What the handlers of one server share."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, field
from typing import NamedTuple

from starlette.requests import Request

from chiasm.config.server import ServerConfig
from chiasm.errors import UserError, shorten
from chiasm.server.admission import Admission
from chiasm.server.engine import Engine
from chiasm.server.metrics import RequestWatch, ServerMetrics
from chiasm.server.response_store import ResponseStore
from chiasm.server.tracing import Tracing
from chiasm.server.unserved import UnknownFields


@dataclass
class ServerState:
    """One server.

    Attributes:
        engine: the loaded model.
        config: the settings.
        metrics: what is measured.
        admission: how much is taken on.
        tracing: where traces go; None where nobody wants any.
        unknown_fields: which ones were warned of.
        draining: set when the server waits for running requests to end, and takes no others.
        stopping: set when the server no longer waits for running requests.
        responses: those that clients may come back to.
        created: when it started, in seconds since the epoch.
    """

    engine: Engine
    config: ServerConfig
    metrics: ServerMetrics
    admission: Admission
    tracing: Tracing | None = None
    unknown_fields: UnknownFields = field(default_factory=UnknownFields)
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    created: int = field(default_factory=lambda: int(time.time()))
    responses: ResponseStore = field(init=False)

    def __post_init__(self) -> None:
        """Make what follows from the settings."""
        config = self.config
        self.responses = ResponseStore(
            config.max_stored_responses, config.max_stored_response_bytes, config.stored_response_seconds
        )

    def watch(self, http: Request, arrival: float) -> RequestWatch:
        """Measure a prompt of a request that arrived then, by ``time.perf_counter``."""
        return RequestWatch(self.metrics, arrival, http.scope["state"].get("trace"))


class AnswerHead(NamedTuple):
    """What every event of one answer repeats."""

    id: str
    created: int
    model: str


def answer_head(state: ServerState, http: Request, prefix: str, model: str | None) -> AnswerHead:
    """Name an answer after its request.

    A client's own request id is only a part of the name: two live requests may bring the same one.

    Raises:
        UserError: 404 if no such model is served.
    """
    name = f"{prefix}-{http.state.request_id}-{uuid.uuid4().hex[:8]}"
    return AnswerHead(name, int(time.time()), served_name(state, model))


def served_name(state: ServerState, model: str | None) -> str:
    """The name of the model that a request asks for.

    Raises:
        UserError: 404 if no such model is served.
    """
    names = state.config.names
    if model is not None and model not in names:
        known = ", ".join(names)
        message = f"The model {shorten(model)} does not exist. Valid names: {known}."
        raise UserError(message, param="model", status=404)
    return model or names[0]
