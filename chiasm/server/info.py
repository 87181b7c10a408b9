"""What a server says of itself: ``/v1/models``, ``/health``, ``/metrics``, ``/version``."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import PlainTextResponse, Response

from chiasm.errors import UserError, shorten
from chiasm.server.bodies import ModelCard, ModelList, ModelPermission, Version, json_response
from chiasm.server.openapi import NOT_FOUND, answered_with
from chiasm.server.state import ServerState


def info_router(state: ServerState) -> APIRouter:
    """The endpoints that ask nothing of the engine."""
    router = APIRouter()

    @router.get("/v1/models", responses=answered_with(ModelList))
    async def list_models() -> Response:
        """The names under which the model is served."""
        return json_response(ModelList([_card(state, name) for name in state.config.names]))

    @router.get("/v1/models/{name:path}", responses=answered_with(ModelCard) | NOT_FOUND)
    async def retrieve_model(name: str) -> Response:
        """One of the names."""
        if name not in state.config.names:
            raise UserError(f"The model {shorten(name)} does not exist.", param="model", status=404)
        return json_response(_card(state, name))

    @router.get("/health", response_class=Response, responses={503: {"description": "No request is taken."}})
    async def health() -> Response:
        """200 with an empty body, on which some clients insist; 503 when the engine is dead or stuck, or when the
        server is shutting down.
        """
        is_well = state.engine.is_alive and not state.draining.is_set()
        return Response(status_code=200 if is_well else 503)

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus' text format."""
        return Response(generate_latest(state.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @router.get("/version", responses=answered_with(Version))
    async def show_version() -> Response:
        """The version of this package."""
        return json_response(Version(version("chiasm")))

    return router


def _card(state: ServerState, name: str) -> ModelCard:
    permission = ModelPermission(id=f"modelperm-{name}", created=state.created)
    return ModelCard(name, state.created, state.config.model, state.engine.max_model_len, [permission])
