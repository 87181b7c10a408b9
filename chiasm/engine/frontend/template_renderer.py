"""Chat templates that come with a request are foreign programs: they are rendered beside the engine, in bounded time.

Jinja's sandbox keeps them from what they must not touch, and knows no limit of time or memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from chiasm.dist.bounded_worker import BoundedWorker
from chiasm.engine.frontend.rendering import SealedConversation
from chiasm.engine.frontend.template_messages import NAME, Rendered, RenderTemplate
from chiasm.errors import UserError, refuse
from chiasm.logs import get_logger

RENDER_SECONDS = 2.0
MAX_TEMPLATE_CHARS = 2**17

_log = get_logger(__name__)


class TemplateRenderer:
    """Renders conversations one after the other, in a process that starts with the first.

    Args:
        special_tokens: names that a template may print.
        max_chars: longest text that it may make.
        runtime_dir: the engine's private folder.
    """

    def __init__(self, special_tokens: Mapping[str, str], max_chars: int, runtime_dir: Path) -> None:
        self._special_tokens = dict(special_tokens)
        self._max_chars = max_chars
        self._worker = BoundedWorker("chiasm.engine.frontend.template_worker", NAME, (), runtime_dir, Rendered)

    async def render(self, source: str, conversation: SealedConversation) -> str:
        """The text of a conversation's prompt by a request's template.

        Raises:
            UserError: if it is too long, does not compile, refuses, or takes too much.
            WorkerStartError: if there is no process to render it.
        """
        if len(source) > MAX_TEMPLATE_CHARS:
            refuse("chat_template", f"{len(source)} characters", f"at most {MAX_TEMPLATE_CHARS} characters long")
        asked = RenderTemplate(source, self._special_tokens, conversation, self._max_chars)
        try:
            rendered = await self._worker.ask(asked, RENDER_SECONDS)
        except OverflowError as error:
            raise UserError("messages hold a number that is too large for a template.", param="messages") from error
        except TimeoutError as error:
            message = f"chat_template takes longer than {RENDER_SECONDS:g} s to render."
            raise UserError(message, param="chat_template") from error
        except ChildProcessError as error:
            _log.warning("%s", error)
            raise UserError("chat_template can't be rendered: its process crashed.", param="chat_template") from error
        if rendered.text is None:
            raise UserError(rendered.refusal or "", param=rendered.param)
        return rendered.text

    async def close(self) -> None:
        """End the process. A second call does nothing."""
        await self._worker.close()
