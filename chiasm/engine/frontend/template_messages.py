"""What the frontend and the process that renders requests' own templates say to each other."""

from __future__ import annotations

import msgspec

from chiasm.engine.frontend.rendering import SealedConversation

NAME = "template renderer"


class RenderTemplate(msgspec.Struct, frozen=True):
    """Render a conversation.

    Attributes:
        source: the template.
        special_tokens: names that it may print.
        conversation: what it gets.
        max_chars: longest text that it may make.
    """

    source: str
    special_tokens: dict[str, str]
    conversation: SealedConversation
    max_chars: int


class Rendered(msgspec.Struct, frozen=True):
    """The text, or what is wrong with the request; neither when the process is ready for the first.

    Attributes:
        text: of the prompt.
        refusal: for the user.
        param: the field at fault.
    """

    text: str | None = None
    refusal: str | None = None
    param: str | None = None
