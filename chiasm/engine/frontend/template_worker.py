"""The process that renders requests' own chat templates: ``python -m chiasm.engine.frontend.template_worker FOLDER``.

It holds nothing of value: a template that takes too long or too much memory costs this process and its own request.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from chiasm.dist.bounded_worker import channel_name
from chiasm.dist.channel import Channel
from chiasm.dist.children import die_with_parent
from chiasm.dist.sandbox import confine_files, enter_sandbox
from chiasm.engine.frontend.chat_template import ChatTemplate
from chiasm.engine.frontend.rendering import render_conversation
from chiasm.engine.frontend.template_messages import NAME, Rendered, RenderTemplate
from chiasm.errors import UserError, refuse
from chiasm.logs import configure_logging, get_logger

_MAX_BYTES = 2**29
_NICENESS = 5

_log = get_logger(__name__)


def main(runtime_dir: Path) -> None:
    """Render whatever comes."""
    is_confined = confine_files(runtime_dir)
    channel: Channel[RenderTemplate] = Channel(runtime_dir, channel_name(NAME), RenderTemplate, is_binding=False)
    channel.send(Rendered())  # ready
    is_sandboxed = False
    while (asked := channel.receive()) is not None:
        if not is_sandboxed:  # only now: the channel has been joined
            is_sandboxed = True
            channel.await_threads()
            if not (enter_sandbox() and is_confined):
                _log.warning("this system can't keep a template that breaks out from files or the network")
        channel.send(_render(asked))


def _render(asked: RenderTemplate) -> Rendered:
    try:
        text = render_conversation(ChatTemplate(asked.source, asked.special_tokens), asked.conversation)
        if len(text) > asked.max_chars:
            refuse("chat_template", f"{len(text)} characters", f"one whose text has at most {asked.max_chars}")
    except UserError as error:
        return Rendered(refusal=error.message, param=error.param)
    return Rendered(text)


if __name__ == "__main__":
    die_with_parent()
    configure_logging(NAME)
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_DATA, (_MAX_BYTES, _MAX_BYTES))
    main(Path(sys.argv[1]))
