"""Putting one server's application together."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

from chiasm.server.chat import chat_router
from chiasm.server.completions import completion_router
from chiasm.server.errors import add_error_handlers
from chiasm.server.info import info_router
from chiasm.server.middleware import ApiKeys, RequestIds
from chiasm.server.state import ServerState


def create_app(state: ServerState) -> ASGIApp:
    """The application of one server, with no state outside ``state``."""
    # No redirects: they would be built from the Host header. No docs pages: they load scripts from elsewhere.
    api = FastAPI(title="chiasm", docs_url=None, redoc_url=None, redirect_slashes=False)
    for router in (chat_router(state), completion_router(state), info_router(state)):
        api.include_router(router)
    add_error_handlers(api)
    guarded: ASGIApp = ApiKeys(api, state.config.api_keys) if state.config.api_keys else api
    return RequestIds(guarded)
