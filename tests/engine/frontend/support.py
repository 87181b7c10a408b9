"""Small values that the tests of the frontend share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from chiasm.engine.frontend.chat_template import ChatTemplate
from chiasm.engine.frontend.messages import parse_messages
from chiasm.engine.frontend.prompts import PromptBuilder
from chiasm.engine.frontend.tokenizer import Tokenizer
from chiasm.errors import UserError
from chiasm.schema.facts import EncoderShape, ModelFacts
from chiasm.schema.media import PatchProcessorSpec, PixelRef, ProcessedItem, Unit
from tests.checkpoints.common import CHAT_TEMPLATE

IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
SHOWN_CALLS = "{% for m in messages %}{{ m.tool_calls | default([]) | tojson }}{% endfor %}"
"""What makes of a template that drops the calls of earlier answers one that shows them."""
TAGS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
SPECIAL_TOKENS = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}  # as the test checkpoint names them
SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {
    "id": "call-1",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Zürich <&'\">", "days": [1, 2.5, None, True]}},
}
# In the manner of Qwen's and of Llama's templates, which set the name of what they were given.
TOOL_TEMPLATES = {
    "qwen": "{%- if tools %}<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools>{% endif %}"
    "{% for m in messages %}{{ m.content }};{% endfor %}",
    "llama": "{%- if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}"
    "{%- if not tools is defined %}{% set tools = none %}{% endif %}"
    "{%- if tools is not none %}{% for t in tools %}{{ t | tojson(indent=4) }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}{{ m.content }};{% endfor %}",
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Says <b>what</b> it's like in „Zürich“.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def text(value: str) -> dict[str, str]:
    """A text part."""
    return {"type": "text", "text": value}


def user(content: Any) -> dict[str, Any]:
    """A user's message."""
    return {"role": "user", "content": content}


def assistant(content: Any, **extra: Any) -> dict[str, Any]:
    """A model's message."""
    return {"role": "assistant", "content": content, **extra}


def token_id(tokenizer: Tokenizer, special: str) -> int:
    """The id of a special token."""
    (found,) = tokenizer.encode(special)
    return found


def make_facts(tokenizer: Tokenizer) -> ModelFacts:
    """Facts of a model that goes with a tokenizer of ``tests.checkpoints``."""
    media = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    return ModelFacts(
        model_type="qwen2_5_vl",
        vocab_size=tokenizer.vocab_size + 3,
        max_position_embeddings=4096,
        eos_token_ids=(token_id(tokenizer, "<|im_end|>"),),
        image_token_id=token_id(tokenizer, "<|image_pad|>"),
        media_token_ids=tuple(token_id(tokenizer, special) for special in media),
        processor=PatchProcessorSpec(14, 2, 2, 3136, 301056),
        encoder=EncoderShape(64, 90, 3, 4, (1, 3), 16, 8),
    )


def make_builder(tokenizer: Tokenizer, source: str | None = CHAT_TEMPLATE) -> PromptBuilder:
    """A prompt builder with a template of one's own."""
    template = None if source is None else ChatTemplate(source, SPECIAL_TOKENS)
    return PromptBuilder(tokenizer, template, make_facts(tokenizer))


def render(builder: PromptBuilder, messages: Sequence[object], **options: Any) -> str:
    """The rendered prompt of a conversation, with what only ``tokenize`` is to see."""
    defaults = {"add_generation_prompt": True, "continue_final_message": False, "kwargs": {}}
    return builder.render(builder.seal(parse_messages(messages), **{**defaults, **options}))


def ours(tokenizer: Tokenizer, source: str, messages: list[dict[str, Any]], **options: Any) -> str:
    builder = make_builder(tokenizer, source)
    kwargs = {k: options.pop(k) for k in [*options] if k not in ("add_generation_prompt", "continue_final_message")}
    return builder.plain_text(render(builder, messages, **{"add_generation_prompt": False, **options}, kwargs=kwargs))


def make_item(num_tokens: int, key: str = "unit") -> ProcessedItem:
    """A processed image of some length."""
    unit = Unit(key, (2, 2 * num_tokens), num_tokens, PixelRef("", 0, 4 * num_tokens, 10))
    return ProcessedItem("image", num_tokens, (unit,))


@contextmanager
def refused(param: str | None, *words: str) -> Iterator[None]:
    """Expect a ``UserError`` for a field, whose message is short and has each of the words."""
    with pytest.raises(UserError) as caught:
        yield
    assert caught.value.param == param
    assert len(caught.value.message) < 500
    for word in words:
        assert word in caught.value.message
