"""Reading the body of a request: bounded while it arrives, strict JSON, short errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any, TypeVar

import msgspec
from pydantic import ValidationError
from starlette.requests import Request

from chiasm.errors import UserError, shorten
from chiasm.server.admission import count_values
from chiasm.server.requests import GenerationRequest, ModelRequest
from chiasm.server.state import ServerState
from chiasm.server.unserved import refuse_unserved_fields

_MAX_ERRORS = 10  # entries of a validation error that are shown

# A decoded value takes up to 50 times the memory of its JSON, and the event loop waits while it is decoded, so values
# are bounded as bytes are: enough for the token ids of the longest contexts.
_MAX_VALUES = 400_000
# A body that trickles in holds memory all the while; slow lines are faster than this.
_GRACE_SECONDS = 30.0
_MIN_BYTES_PER_SECOND = 16 * 1024
_MAX_EXPLAINED = 1 << 20  # bytes of a broken body that is looked at again to say what is wrong

R = TypeVar("R", bound=ModelRequest)


async def read_request(http: Request, model: type[R], state: ServerState) -> R:
    """The validated body of a request.

    Raises:
        UserError: whatever is wrong with it.
        ClientDisconnect: if the client leaves before it has sent everything.
    """
    request = validate(model, await read_fields(http, state), state)
    if isinstance(request, GenerationRequest) and request.request_id and "x-request-id" not in http.headers:
        http.state.request_id = request.request_id
    return request


async def read_fields(http: Request, state: ServerState) -> dict[str, Any]:
    """The fields of a request's body, whatever they are.

    Raises:
        UserError: if it is no JSON object, or too large.
        ClientDisconnect: if the client leaves before it has sent everything.
    """
    _check_content_type(http.headers.get("content-type", ""))
    return _decode(await _read(http, state.config.max_body_bytes))


def validate(model: type[R], fields: dict[str, Any], state: ServerState) -> R:
    """A body of which the fields have been read.

    Raises:
        UserError: whatever is wrong with it.
    """
    request = _validate(model, fields)
    refuse_unserved_fields(request.model_extra or {})
    state.unknown_fields.warn(request.unknown)
    request.check()
    if request.model_extra:
        request.model_extra.clear()  # nobody reads on, and the request may live for hours
    return request


def _check_content_type(content_type: str) -> None:
    # Strict on purpose: a form that any web page can post across sites must not reach the engine.
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise UserError("Unsupported Media Type: Only 'application/json' is allowed.")


async def _read(http: Request, max_bytes: int) -> bytes:
    declared = http.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(_GRACE_SECONDS) as deadline:
            return await _collect(http, max_bytes, deadline)
    except TimeoutError as error:
        message = f"The body must arrive with at least {_MIN_BYTES_PER_SECOND} bytes per second."
        raise UserError(message, status=408) from error


async def _collect(http: Request, max_bytes: int, deadline: asyncio.Timeout) -> bytes:
    chunks = []
    num_bytes = num_values = 0
    latest = deadline.when()
    assert latest is not None
    async for chunk in http.stream():
        num_bytes += len(chunk)
        num_values += count_values(chunk)
        if num_bytes > max_bytes:
            raise _too_large(max_bytes)
        if num_values > _MAX_VALUES:
            raise UserError(f"The body must hold at most {_MAX_VALUES} JSON values.", status=413)
        chunks.append(chunk)
        deadline.reschedule(latest + num_bytes / _MIN_BYTES_PER_SECOND)
    return b"".join(chunks)


def _too_large(max_bytes: int) -> UserError:
    return UserError(f"The body must be at most {max_bytes} bytes.", status=413)


def _decode(body: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        # msgspec is strict: NaN, Infinity, numbers beyond a double and lone surrogates end here.
        _refuse_non_finite(body)
        raise UserError(f"The body is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise UserError("The body must be a JSON object.")
    return value


def _refuse_non_finite(body: bytes) -> None:
    """Name the field that is NaN or Infinity, which some clients write though JSON has neither."""
    if len(body) > _MAX_EXPLAINED:
        return
    try:
        fields = json.loads(body, parse_constant=_NonFinite)
    except (ValueError, RecursionError):
        return
    for name, value in fields.items() if isinstance(fields, dict) else ():
        if isinstance(value, _NonFinite):
            raise UserError(f"{name[:80]} must be a finite number, got {value}.", param=name[:80])


class _NonFinite(str):
    """What JSON has no word for, as it was written."""

    __slots__ = ()


def _validate(model: type[R], fields: dict[str, Any]) -> R:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _as_user_error(error) from error


def _as_user_error(error: ValidationError) -> UserError:
    entries = error.errors(include_url=False, include_context=False)
    lines = [f"{_path(e['loc'])}: {e['msg']}, got {shorten(e['input'])}." for e in entries[:_MAX_ERRORS]]
    if len(entries) > 1:
        lines.insert(0, f"{len(entries)} validation errors:")
    return UserError("\n".join(lines), param=str(entries[0]["loc"][0]) if entries[0]["loc"] else None)


def _path(location: tuple[int | str, ...]) -> str:
    """``("stop", 2)`` as ``stop[2]``."""
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return path.removeprefix(".")[:200]
