"""chiasm serves vision-language models with an encoder that runs data-parallel, frame by frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chiasm.llm.offline import LLM
    from chiasm.schema.sampling import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]

_HOMES = {"LLM": "chiasm.llm.offline", "SamplingParams": "chiasm.schema.sampling"}


def __getattr__(name: str) -> Any:
    """Import the public names when they are asked for: a server's processes need neither."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
