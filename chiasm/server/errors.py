"""Errors as clients see them: OpenAI's nested shape, whatever went wrong."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match

from chiasm.errors import EngineDeadError, OverloadedError, UserError

_MAX_MESSAGE = 2000  # characters; an answer to a bad request stays small however big the request was
_TYPES = {400: "BadRequestError", 404: "NotFoundError", 422: "UnprocessableEntityError", 500: "InternalServerError"}


class ClientGoneError(Exception):
    """The client has closed its connection; nobody reads an answer."""


class StoppingError(Exception):
    """The server shuts down and has stopped waiting for this request."""


class EngineSilentError(Exception):
    """The engine has shown no sign of life for too long, but may come back."""


class RequestTimeoutError(Exception):
    """A request has taken longer than the server lets any take.

    Attributes:
        seconds: that it had.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


_EXPECTED = (UserError, OverloadedError, StoppingError, RequestTimeoutError, EngineDeadError, HTTPException)


class ErrorInfo(msgspec.Struct, frozen=True):
    """What went wrong.

    Attributes:
        message: for the user.
        type: kind of error.
        param: the field of the request at fault.
        code: the HTTP status.
    """

    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error."""

    error: ErrorInfo


def describe(error: BaseException) -> ErrorInfo:
    """What a client is told of an exception; of a bug it is told nothing but that there is one."""
    match error:
        case UserError():
            kind = _TYPES.get(error.status) or _phrase(error.status)
            return ErrorInfo(error.message[:_MAX_MESSAGE], kind, error.param, error.status)
        case OverloadedError():
            return ErrorInfo(error.message[:_MAX_MESSAGE], _phrase(503), None, 503)
        case StoppingError():
            return ErrorInfo("The server is shutting down.", _phrase(503), None, 503)
        case EngineSilentError():
            return ErrorInfo("The engine shows no sign of life; it may come back.", _phrase(503), None, 503)
        case RequestTimeoutError():
            message = f"The request took longer than {error.seconds:g} s, the limit of this server (request_timeout)."
            return ErrorInfo(message, _phrase(504), None, 504)
        case EngineDeadError():
            return ErrorInfo("The engine has stopped; this server is going down.", _TYPES[500], None, 500)
        case HTTPException():
            return ErrorInfo(str(error.detail)[:_MAX_MESSAGE], _phrase(error.status_code), None, error.status_code)
        case _:
            return ErrorInfo("Internal server error.", _TYPES[500], None, 500)


def is_bug(error: BaseException) -> bool:
    """Whether nobody thought of this error: it belongs in the log."""
    return not isinstance(error, _EXPECTED)


def error_response(info: ErrorInfo, headers: dict[str, str] | None = None) -> Response:
    """The response for an error."""
    content = msgspec.json.encode(ErrorBody(info))
    return Response(content, info.code, headers=headers, media_type="application/json")


def add_error_handlers(app: FastAPI) -> None:
    """Answer every exception of a handler in the one shape."""
    for kind in (*_EXPECTED, Exception):
        app.add_exception_handler(kind, _answer_error)
    for kind in (ClientGoneError, ClientDisconnect):
        app.add_exception_handler(kind, _answer_nobody)


def error_answer(error: Exception) -> Response:
    """The response for an exception."""
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    match error:
        case UserError(status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE | HTTPStatus.REQUEST_TIMEOUT):
            headers["connection"] = "close"  # the client is still sending what nobody will read
        case UserError(may_pass=True):
            headers["x-should-retry"] = "true"  # or OpenAI's client takes every 4xx for good
        case OverloadedError():
            headers["retry-after"] = str(error.retry_after)
        case StoppingError() | EngineSilentError():
            headers["retry-after"] = "1"
        case RequestTimeoutError():
            headers["x-should-retry"] = "false"  # or OpenAI's client asks the same twice more
            headers["connection"] = "close"  # its body may be coming still
    return error_response(describe(error), headers)


async def _answer_error(request: Request, error: Exception) -> Response:
    response = error_answer(error)
    if isinstance(error, HTTPException) and error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        response.headers["allow"] = ", ".join(_methods(request))
    return response


def _methods(request: Request) -> list[str]:
    """What may be done with a path; Starlette names the methods of the first route that has it, and no others."""
    asked = [(method, {**request.scope, "method": method}) for method in ("DELETE", "GET", "POST")]
    found = [method for method, scope in asked if any(r.matches(scope)[0] == Match.FULL for r in request.app.routes)]
    return sorted({*found, "HEAD"}) if "GET" in found else found


async def _answer_nobody(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # never sent: the connection is gone


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase
