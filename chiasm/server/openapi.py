"""What ``/openapi.json`` says of bodies that the handlers read by themselves."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The part of an operation that describes its JSON body."""
    schema = model.model_json_schema()
    assert "$defs" not in schema, "a nested model's references would not resolve inside an operation"
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
