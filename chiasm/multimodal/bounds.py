"""Whose ``min_pixels`` and ``max_pixels`` hold: the model's, then the server's, then a request's within those."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from chiasm.config.engine import PROCESSOR_KEYS, check_processor_kwargs
from chiasm.errors import UserError, refuse
from chiasm.schema.media import PatchProcessorSpec


def bounded_spec(
    spec: PatchProcessorSpec, server_kwargs: Mapping[str, Any], request_kwargs: Mapping[str, Any]
) -> PatchProcessorSpec:
    """The processor of one request: the model's, changed by the server, narrowed by the request.

    Args:
        spec: the model's default.
        server_kwargs: the operator's ``mm_processor_kwargs``; replace the model's values.
        request_kwargs: the request's; each value must lie in the range that the server allows.

    Raises:
        UserError: for an unknown key, a value that is not a positive whole number, one outside the server's range,
            or a minimum above the maximum.
    """
    server_spec = _replaced(spec, server_kwargs)
    check_processor_kwargs(dict(request_kwargs))
    for key in PROCESSOR_KEYS:
        value = request_kwargs.get(key)
        if value is not None and not server_spec.min_pixels <= value <= server_spec.max_pixels:
            limit = f"in [{server_spec.min_pixels}, {server_spec.max_pixels}], the range this server allows"
            refuse(f"mm_processor_kwargs.{key}", value, limit)
    return _replaced(server_spec, request_kwargs)


def _replaced(spec: PatchProcessorSpec, kwargs: Mapping[str, Any]) -> PatchProcessorSpec:
    check_processor_kwargs(dict(kwargs))
    changed = msgspec.structs.replace(spec, **kwargs)
    if changed.min_pixels > changed.max_pixels:
        raise UserError(
            f"mm_processor_kwargs would make min_pixels={changed.min_pixels} larger than "
            f"max_pixels={changed.max_pixels}; give both.",
            param="mm_processor_kwargs",
        )
    return changed
