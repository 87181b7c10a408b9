"""The forms in which a script gives prompts and conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from chiasm.engine.frontend.messages import parse_messages, unread_keys
from chiasm.errors import UserError, refuse, require_known_keys, shorten
from chiasm.logs import get_logger
from chiasm.schema.chat import ChatMessage, ImagePart, MediaPart, VideoPart

_logger = get_logger(__name__)

_MEDIA_KEYS = ("multi_modal_data", "mm_processor_kwargs", "media_io_kwargs")
_PROMPT_KEYS = ("prompt", "prompt_token_ids", *_MEDIA_KEYS, "cache_salt")


class CompletionInput(NamedTuple):
    """A plain prompt; the arguments of ``AsyncLLM.prepare_completion``."""

    prompt: str | Sequence[int]
    media: tuple[MediaPart, ...] = ()
    mm_processor_kwargs: Mapping[str, int] = {}
    media_io_kwargs: Mapping[str, Any] = {}
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
    """One conversation (a list of messages) or a list of them. What nobody reads of them is warned of in the log.

    Raises:
        UserError: naming the message or part at fault.
    """
    is_one = bool(messages) and isinstance(messages[0], Mapping)
    listed = [messages] if is_one else list(messages)
    conversations = [parse_messages(conversation) for conversation in listed]
    unread = {key for conversation in listed for key in unread_keys(conversation)}
    if unread:
        names = ", ".join(shorten(name) for name in sorted(unread)[:10])
        _logger.warning("Ignored unknown keys of messages: %s.", names)
    return conversations


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
        _media(prompt.get("multi_modal_data") or {}, param),
        prompt.get("mm_processor_kwargs") or {},
        prompt.get("media_io_kwargs") or {},
        prompt.get("cache_salt") or "",
    )


def _media(data: Mapping[str, Any], param: str) -> tuple[MediaPart, ...]:
    param = f"{param}.multi_modal_data"
    require_known_keys(param, data, ("image", "video"))
    images, videos = data.get("image", ()), data.get("video", ())
    images = images if isinstance(images, list | tuple) else [images]
    # A pair of frames and a dict about them is one video.
    is_one = not isinstance(videos, list | tuple) or (len(videos) == 2 and isinstance(videos[1], Mapping))
    videos = [videos] if is_one else videos
    return (
        *(ImagePart(image, f"{param}.image[{index}]") for index, image in enumerate(images)),
        *(VideoPart(video, f"{param}.video[{index}]") for index, video in enumerate(videos)),
    )


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, Sequence) and bool(value) and all(isinstance(entry, int) for entry in value)
