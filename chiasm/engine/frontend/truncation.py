"""Cutting prompts that are too long."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from chiasm.engine.frontend.prompts import ExpandedPrompt
from chiasm.errors import UserError, refuse
from chiasm.schema.chat import FITTING, Truncation
from chiasm.vision.frames import with_readers


def truncated(
    prompt: ExpandedPrompt,
    truncation: Truncation,
    max_model_len: int,
    media_token_ids: Collection[int],
    param: str,
) -> ExpandedPrompt:
    """The last tokens of a prompt, or all if they are few enough.

    Args:
        prompt: with its media in their places.
        truncation: how many are kept.
        max_model_len: longest sequence, prompt and answer, in tokens.
        media_token_ids: tokens that only the engine may place.
        param: the request's field that holds the prompt.

    Raises:
        UserError: if a token of an image or a video would be cut off, or there is no room for anything.
    """
    most = truncation.most
    if most == FITTING:
        most = max_model_len - max(1, truncation.num_answer)
    if most < 1:
        refuse("truncate_prompt_tokens", truncation.most, f"at least 1, or {FITTING} for as many as leave room")
    num_cut = len(prompt.token_ids) - most
    if num_cut <= 0:
        return prompt
    if prompt.items and (
        prompt.items[0].offset < num_cut or any(token in media_token_ids for token in prompt.token_ids[:num_cut])
    ):
        raise UserError(
            f"truncate_prompt_tokens={truncation.most} would cut {num_cut} of {len(prompt.token_ids)} tokens from "
            f"{param}, and with them an image's or a video's; only text before them can be cut off.",
            param="truncate_prompt_tokens",
        )
    items = tuple(msgspec.structs.replace(item, offset=item.offset - num_cut) for item in prompt.items)
    is_attended = bool(items) and items[0].seen_until is not None
    return ExpandedPrompt(prompt.token_ids[num_cut:], with_readers(items) if is_attended else items)
