"""What the frontend and the process that tries grammars out say to each other."""

from __future__ import annotations

import msgspec

from chiasm.schema.structured import StructuredOutputs

NAME = "grammar compiler"
ToWorker = StructuredOutputs


class Verdict(msgspec.Struct, frozen=True):
    """Of a form, or that the process is ready for the first.

    Attributes:
        refusal: what is wrong with it, for the user; None if nothing is.
    """

    refusal: str | None
