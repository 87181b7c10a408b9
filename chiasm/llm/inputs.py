"""The forms in which a script gives prompts and conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from chiasm.engine.frontend.messages import parse_messages
from chiasm.errors import UserError, refuse, require_known_keys
from chiasm.schema.chat import ChatMessage, ImagePart

_PROMPT_KEYS = ("prompt", "prompt_token_ids", "multi_modal_data", "mm_processor_kwargs", "cache_salt")


class CompletionInput(NamedTuple):
    """A plain prompt; the arguments of ``AsyncLLM.prepare_completion``."""

    prompt: str | Sequence[int]
    images: tuple[ImagePart, ...] = ()
    mm_processor_kwargs: Mapping[str, int] = {}
    cache_salt: str = ""


def as_prompts(prompts: Any) -> list[CompletionInput]:
    """One prompt or many, each a text, token ids or a dict.

    Raises:
        UserError: for anything else, naming the prompt.
    """
    is_one = isinstance(prompts, str | Mapping) or _is_token_ids(prompts)
    listed = [prompts] if is_one else list(prompts)
    return [_as_prompt(prompt, f"prompts[{index}]") for index, prompt in enumerate(listed)]


def as_conversations(messages: Any) -> list[tuple[ChatMessage, ...]]:
    """One conversation (a list of messages) or a list of them.

    Raises:
        UserError: naming the message or part at fault.
    """
    is_one = bool(messages) and isinstance(messages[0], Mapping)
    listed = [messages] if is_one else list(messages)
    return [parse_messages(conversation) for conversation in listed]


def _as_prompt(prompt: Any, param: str) -> CompletionInput:
    if isinstance(prompt, str) or _is_token_ids(prompt):
        return CompletionInput(prompt)
    if not isinstance(prompt, Mapping):
        refuse(param, type(prompt).__name__, "a text, a list of token ids or a dict")
    require_known_keys(param, prompt, _PROMPT_KEYS)
    if ("prompt" in prompt) == ("prompt_token_ids" in prompt):
        raise UserError(f"{param} must have either prompt or prompt_token_ids.", param=param)
    return CompletionInput(
        prompt["prompt"] if "prompt" in prompt else prompt["prompt_token_ids"],
        _images(prompt.get("multi_modal_data") or {}, param),
        prompt.get("mm_processor_kwargs") or {},
        prompt.get("cache_salt") or "",
    )


def _images(data: Mapping[str, Any], param: str) -> tuple[ImagePart, ...]:
    param = f"{param}.multi_modal_data"
    require_known_keys(param, data, ("image",))
    images = data.get("image", ())
    listed = images if isinstance(images, list | tuple) else [images]
    return tuple(ImagePart(image, f"{param}.image[{index}]") for index, image in enumerate(listed))


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, Sequence) and bool(value) and all(isinstance(entry, int) for entry in value)
