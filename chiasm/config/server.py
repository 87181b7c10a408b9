"""The HTTP server's settings, under the names of its flags."""

from __future__ import annotations

from typing import Literal

import msgspec

from chiasm.errors import refuse

ToolCallParser = Literal["glm45", "hermes", "llama3_json", "llama4_json", "llama4_pythonic"]
ReasoningParser = Literal["glm45", "qwen3"]


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server listens, under which names, and how much it takes on.

    Attributes:
        model: the checkpoint as the user named it; clients see it as ``root`` in ``/v1/models``.
        served_model_names: names that requests may use, the first of which answers carry; empty means ``model``.
        host: address to listen on.
        port: port to listen on; 0 takes any free one.
        api_keys: a request must bring one of these; empty lets everybody in.
        shutdown_timeout: seconds that running requests get to finish after SIGTERM.
        max_queue: most answers being made or waited for at a time; each prompt of a list counts, and each of ``n``.
        max_body_bytes: largest body of a request.
        max_body_bytes_in_flight: most bytes of bodies of all requests that are not answered yet.
        request_timeout: seconds for a whole request, its body, media, waiting and answer; None sets no limit.
        access_log: log a line per request.
        enable_auto_tool_choice: let the model decide whether it calls tools.
        tool_call_parser: how it writes calls; needed for that.
        reasoning_parser: how it marks its reasoning, which is then parted from its answers.
        trust_request_chat_template: let requests bring chat templates of their own, which are programs.
        max_stored_responses: most answers of ``/v1/responses`` that are kept for when clients come back to them; 0
            keeps none.
        max_stored_response_bytes: of these, with the conversations that led to them.
        stored_response_seconds: that each is kept.
        ui: serve a page at ``/`` on which a person can ask and see the ranks work.
        otlp_traces_endpoint: URL of an OpenTelemetry receiver for traces; None makes none.
    """

    model: str
    served_model_names: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    shutdown_timeout: float = 5.0
    max_queue: int = 4096
    max_body_bytes: int = 64 * 2**20
    max_body_bytes_in_flight: int = 2 * 2**30
    request_timeout: float | None = None
    access_log: bool = False
    enable_auto_tool_choice: bool = False
    tool_call_parser: ToolCallParser | None = None
    reasoning_parser: ReasoningParser | None = None
    trust_request_chat_template: bool = False
    max_stored_responses: int = 1000
    max_stored_response_bytes: int = 256 * 2**20
    stored_response_seconds: float = 3600.0
    ui: bool = True
    otlp_traces_endpoint: str | None = None

    def __post_init__(self) -> None:
        """Check every range."""
        if not 0 <= self.port <= 65535:
            refuse("port", self.port, "in [0, 65535]")
        if not 0 <= self.shutdown_timeout < float("inf"):
            refuse("shutdown_timeout", self.shutdown_timeout, "a finite number of seconds, at least 0")
        for name in ("max_queue", "max_body_bytes", "max_stored_response_bytes"):
            if getattr(self, name) < 1:
                refuse(name, getattr(self, name), "at least 1")
        if self.max_body_bytes_in_flight < self.max_body_bytes:
            limit = f"at least max_body_bytes ({self.max_body_bytes})"
            refuse("max_body_bytes_in_flight", self.max_body_bytes_in_flight, limit)
        if self.request_timeout is not None and not 0 < self.request_timeout < float("inf"):
            refuse("request_timeout", self.request_timeout, "a finite number of seconds above 0")
        if self.max_stored_responses < 0:
            refuse("max_stored_responses", self.max_stored_responses, "at least 0")
        if not 0 < self.stored_response_seconds < float("inf"):
            refuse("stored_response_seconds", self.stored_response_seconds, "a finite number of seconds above 0")
        if self.enable_auto_tool_choice and self.tool_call_parser is None:
            refuse("enable_auto_tool_choice", True, "false without tool_call_parser")
        endpoint = self.otlp_traces_endpoint
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            refuse("otlp_traces_endpoint", endpoint, "an http:// or https:// URL")
        if not all(self.api_keys):
            refuse("api_key", "", "non-empty")
        if not all(self.names):
            refuse("served_model_name", "", "non-empty")

    @property
    def names(self) -> tuple[str, ...]:
        """The names that requests may give; the first is the one in answers."""
        return self.served_model_names or (self.model,)
