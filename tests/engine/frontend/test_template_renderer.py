"""A request's own template: the same text as the model's would give, and nothing that it can break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from chiasm.engine.frontend import template_renderer as renderers
from chiasm.engine.frontend.messages import parse_messages
from chiasm.engine.frontend.rendering import SealedConversation
from chiasm.engine.frontend.template_renderer import TemplateRenderer
from chiasm.engine.frontend.tokenizer import Tokenizer
from chiasm.errors import UserError
from tests.checkpoints.common import CHAT_TEMPLATE
from tests.engine.frontend.support import IMAGE, SHOWN_CALLS, SPECIAL_TOKENS, assistant, make_builder, user

LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
TEXT_ONLY = "{% for m in messages %}{{ m.content + '' }}{% endfor %}"


@asynccontextmanager
async def running(folder: Path) -> AsyncGenerator[TemplateRenderer, None]:
    renderer = TemplateRenderer(SPECIAL_TOKENS, 10_000, folder)
    try:
        yield renderer
    finally:
        await renderer.close()
        assert not workers()


def workers() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if "chiasm.engine.frontend.template_worker" in p.cmdline()]


def status_of(worker: psutil.Process) -> str:
    return Path(f"/proc/{worker.pid}/status").read_text(encoding="ascii")


def sealed(tokenizer: Tokenizer, messages: list[Any], **options: Any) -> SealedConversation:
    defaults: dict[str, Any] = {"add_generation_prompt": True, "continue_final_message": False, "kwargs": {}}
    return make_builder(tokenizer).seal(parse_messages(messages), **{**defaults, **options})


def run(folder: Path, scenario: Callable[[TemplateRenderer], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        async with running(folder) as renderer:
            await scenario(renderer)

    asyncio.run(whole())


async def refusal(
    renderer: TemplateRenderer, source: str, conversation: SealedConversation
) -> tuple[str, str | None]:
    with pytest.raises(UserError) as caught:
        await renderer.render(source, conversation)
    assert len(caught.value.message) < 500
    return caught.value.message, caught.value.param


def test_the_text_is_that_of_a_template_of_the_model(tmp_path: Path, tokenizer: Tokenizer) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": [1, null]}'}}
    conversations = [
        sealed(tokenizer, [user([IMAGE, "see <|im_end|>"]), assistant("b", tool_calls=[call])]),
        sealed(tokenizer, [user("a"), assistant("b ")], continue_final_message=True),
        sealed(tokenizer, [user("a")], tools=[{"type": "function", "function": {"name": "f"}}], kwargs={"x": 1.5}),
    ]
    source = CHAT_TEMPLATE + SHOWN_CALLS + "{{ tools | tojson }}{{ x }}"

    async def scenario(renderer: TemplateRenderer) -> None:
        assert not workers(), "a server that is given no template has no such process"
        for conversation in conversations:
            builder = make_builder(tokenizer, source)
            assert await renderer.render(source, conversation) == builder.render(conversation)
        [worker] = workers()
        assert "Seccomp:\t2\n" in status_of(worker), "it has given up the network"

    run(tmp_path, scenario)


def test_what_a_template_does_wrong_is_told(tmp_path: Path, tokenizer: Tokenizer) -> None:
    plain, picture = sealed(tokenizer, [user("a")]), sealed(tokenizer, [user([IMAGE])])
    tools = sealed(tokenizer, [user("a")], tools=[{"type": "function", "function": {"name": "f"}}])
    huge = sealed(tokenizer, [user("a")], kwargs={"x": 10**30})

    async def scenario(renderer: TemplateRenderer) -> None:
        assert "does not compile" in (await refusal(renderer, "{% if %}", plain))[0]
        assert await refusal(renderer, "{{ raise_exception('no') }}", plain) == (
            "the chat template refuses these messages: no",
            "messages",
        )
        assert (await refusal(renderer, TEXT_ONLY, picture))[1] == "messages[0].content"
        assert (await refusal(renderer, TEXT_ONLY, tools))[1] == "tools"
        assert (await refusal(renderer, "{{ 'a' * 10001 }}", plain))[1] == "chat_template"
        assert (await refusal(renderer, "a" * 2**18, plain))[1] == "chat_template"
        assert (await refusal(renderer, "{{ x }}", huge))[1] == "messages"
        assert (await refusal(renderer, "{{ ''.__class__.__mro__ }}", plain))[1] == "messages"
        assert (await refusal(renderer, "{{ ('a' * 10**9) * 9 }}", plain))[0].endswith("(MemoryError).")

    run(tmp_path, scenario)


def test_a_template_without_end_costs_its_own_request_only(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threat: chat template (CVE-2025-61620)."""
    plain = sealed(tokenizer, [user("a")])

    async def scenario(renderer: TemplateRenderer) -> None:
        assert await renderer.render("x", plain) == "x"
        monkeypatch.setattr(renderers, "RENDER_SECONDS", 0.3)
        (worker,) = workers()
        assert await refusal(renderer, LOOP, plain) == (
            "chat_template takes longer than 0.3 s to render.",
            "chat_template",
        )
        assert not worker.is_running()
        monkeypatch.undo()
        assert await renderer.render("y", plain) == "y"

    run(tmp_path, scenario)
