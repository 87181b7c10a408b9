"""Putting one server's application together."""

from __future__ import annotations

from starlette.types import ASGIApp

from chiasm.server.chat import chat_router
from chiasm.server.completions import completion_router
from chiasm.server.errors import add_error_handlers
from chiasm.server.gate import Gate
from chiasm.server.info import info_router
from chiasm.server.middleware import OPEN_PATHS, ApiKeys, HeadRequests, RequestIds
from chiasm.server.openapi import DescribedApi
from chiasm.server.page import PAGE_PATHS, page_router
from chiasm.server.ranks import ranks_router
from chiasm.server.response_api import responses_router
from chiasm.server.state import ServerState
from chiasm.server.tokens import token_router
from chiasm.server.tracing import TracedRequests


def create_app(state: ServerState) -> ASGIApp:
    """The application of one server, with no state outside ``state``."""
    open_paths = OPEN_PATHS | PAGE_PATHS if state.config.ui else OPEN_PATHS
    api = DescribedApi(open_paths=open_paths if state.config.api_keys else None)
    for router in (
        chat_router(state),
        completion_router(state),
        responses_router(state),
        token_router(state),
        info_router(state),
    ):
        api.include_router(router)
    if state.config.ui:
        api.include_router(page_router())
        api.include_router(ranks_router(state))
    add_error_handlers(api)
    app: ASGIApp = HeadRequests(Gate(api, state))
    if state.config.api_keys:
        app = ApiKeys(app, state.config.api_keys, open_paths)
    if state.tracing is not None:
        app = TracedRequests(app, state.tracing.tracer)
    return RequestIds(app, logs=state.config.access_log)
