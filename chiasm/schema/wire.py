"""Messages between the frontend and the core when they are two processes (msgpack over a local socket)."""

from __future__ import annotations

import msgspec

from chiasm.schema.facts import ModelFacts
from chiasm.schema.output import EngineStats, SequenceDelta
from chiasm.schema.request import EngineRequest


class AddRequest(msgspec.Struct, frozen=True, tag=True):
    """Take up a sequence."""

    request: EngineRequest


class AbortRequests(msgspec.Struct, frozen=True, tag=True):
    """Forget sequences; each is answered by a delta with ``finish_reason == "abort"`` unless it ended before."""

    request_ids: tuple[str, ...]


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Stop the ranks and end."""


ToCore = AddRequest | AbortRequests | Shutdown


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded and the core serves.

    Attributes:
        facts: of the model.
        max_model_len: longest sequence, prompt and answer, in tokens.
        summary: what was chosen at start-up and why, a line each.
        rank_pids: process ids of the ranks.
    """

    facts: ModelFacts
    max_model_len: int
    summary: tuple[str, ...]
    rank_pids: tuple[int, ...]


class Outputs(msgspec.Struct, frozen=True, tag=True):
    """News after a step."""

    deltas: tuple[SequenceDelta, ...]
    stats: EngineStats


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The core ends: it could not start, or a rank died.

    Attributes:
        message: for the user.
        is_user_error: whether a setting is at fault (named in ``message``) rather than the engine.
    """

    message: str
    is_user_error: bool = False


FromCore = Ready | Outputs | Failed
