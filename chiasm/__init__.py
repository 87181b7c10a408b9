"""chiasm serves vision-language models with an encoder that runs data-parallel, frame by frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chiasm.llm.offline import LLM
    from chiasm.schema.sampling import SamplingParams
    from chiasm.schema.structured import StructuredOutputs

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "StructuredOutputs", "__version__"]

_HOMES = {
    "LLM": "chiasm.llm.offline",
    "SamplingParams": "chiasm.schema.sampling",
    "StructuredOutputs": "chiasm.schema.structured",
}


def __getattr__(name: str) -> Any:
    """Import the public names when they are asked for: a server's processes need none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
