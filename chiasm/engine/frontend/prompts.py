"""Prompts: from text and media to token ids with every placeholder in place.

Media tokens enter a prompt only through the template, once per item, and are then repeated to the item's length. What
a user writes never becomes a special token: it is marked before the template runs and tokenised literally after.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from chiasm.engine.frontend.chat_template import ChatTemplate
from chiasm.engine.frontend.tokenizer import Tokenizer
from chiasm.errors import UserError
from chiasm.schema.chat import ChatMessage, TextPart
from chiasm.schema.facts import ModelFacts
from chiasm.schema.media import MediaItem, ProcessedItem

# A character that no tokenizer and no template gives a meaning (a noncharacter of Unicode's private use).
_MARK = "\ufdd0"


class ExpandedPrompt(NamedTuple):
    """Token ids with placeholders repeated, and the items at their offsets."""

    token_ids: tuple[int, ...]
    items: tuple[MediaItem, ...]


class PromptBuilder:
    """Renders, tokenises and expands prompts for one model.

    Args:
        tokenizer: of the model.
        template: its chat template, if it has one.
        facts: of the model.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None, facts: ModelFacts) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._facts = facts
        specials = sorted(tokenizer.special_texts, key=len, reverse=True)
        self._special_pattern = re.compile("|".join(map(re.escape, specials))) if specials else None
        self._media_texts = [tokenizer.token_text(token_id) for token_id in facts.media_token_ids]

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        kwargs: Mapping[str, Any],
    ) -> str:
        """The prompt of a conversation, with special tokens inside users' text marked as literal.

        Raises:
            UserError: if the model has no template, the template refuses, or a text holds a media token.
        """
        if self._template is None:
            raise UserError("this model has no chat template; give one with --chat-template.", param="messages")
        plain = [self._template_message(message) for message in messages]
        text = self._template.render(
            plain,
            add_generation_prompt=add_generation_prompt and not continue_final_message,
            kwargs=self._literal(dict(kwargs), "chat_template_kwargs"),
        )
        return _cut_after_last(text, plain) if continue_final_message else text

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a rendered prompt."""
        if _MARK not in text:
            return self._tokenizer.encode(text)
        token_ids: list[int] = []
        # Marks come in pairs, so that every second piece is a literal one.
        for index, piece in enumerate(text.split(_MARK)):
            if piece:
                encode = self._tokenizer.encode_literal if index % 2 else self._tokenizer.encode
                token_ids += encode(piece)
        return token_ids

    def plain_text(self, text: str) -> str:
        """A rendered prompt without the marks."""
        return text.replace(_MARK, "")

    def expand(self, token_ids: Sequence[int], items: Sequence[ProcessedItem], param: str) -> ExpandedPrompt:
        """Repeat each placeholder to the length of its item.

        Raises:
            UserError: if there are not as many placeholders as items.
        """
        placeholder = self._facts.image_token_id
        num_placeholders = sum(token_id == placeholder for token_id in token_ids)
        if num_placeholders != len(items):
            raise UserError(
                f"{param} has {num_placeholders} image placeholders for {len(items)} images; there must be one each.",
                param=param,
            )
        expanded: list[int] = []
        placed: list[MediaItem] = []
        waiting = iter(items)
        for token_id in token_ids:
            if token_id == placeholder:
                item = next(waiting)
                placed.append(item.placed_at(len(expanded)))
                expanded += [placeholder] * item.num_tokens
            else:
                expanded.append(token_id)
        return ExpandedPrompt(tuple(expanded), tuple(placed))

    def refuse_media_tokens(self, token_ids: Iterable[int], param: str) -> None:
        """Refuse a prompt without media that holds a token which only the engine may place.

        Raises:
            UserError: naming the token.
        """
        reserved = set(self._facts.media_token_ids)
        for token_id in token_ids:
            if token_id in reserved:
                self._refuse_media_text(self._tokenizer.token_text(token_id), param)

    def _template_message(self, message: ChatMessage) -> dict[str, Any]:
        """A message as templates read it: one text alone is a string, anything else a list of parts."""
        parts: list[dict[str, str]] = []
        for index, part in enumerate(message.content):
            if isinstance(part, TextPart):
                parts.append({"type": "text", "text": self._literal(part.text, f"{message.param}.content[{index}]")})
            else:
                parts.append({"type": "image"})
        is_plain = len(parts) <= 1 and all(part["type"] == "text" for part in parts)
        content = "".join(part["text"] for part in parts) if is_plain else parts
        return {**self._literal(message.extra, message.param), "role": message.role, "content": content}

    def _literal(self, value: Any, param: str) -> Any:
        """What a user wrote, with every special token in its strings between two marks."""
        if isinstance(value, str):
            return self._literal_text(value, param)
        if isinstance(value, dict):
            return {self._literal(key, param): self._literal(entry, param) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return [self._literal(entry, param) for entry in value]
        return value

    def _literal_text(self, text: str, param: str) -> str:
        text = text.replace(_MARK, "")
        for media_text in self._media_texts:
            if media_text in text:
                self._refuse_media_text(media_text, param)
        if self._special_pattern is None:
            return text
        return self._special_pattern.sub(lambda match: f"{_MARK}{match.group()}{_MARK}", text)

    def _refuse_media_text(self, text: str, param: str) -> None:
        raise UserError(
            f"{param} contains the media token {text!r}, which only the server may place; "
            "send images as image_url parts.",
            param=param,
        )


def _cut_after_last(text: str, messages: Sequence[Mapping[str, Any]]) -> str:
    """End the prompt where the last message's own text ends, so that the model goes on with it."""
    content = messages[-1]["content"] if messages else ""
    last = (content if isinstance(content, str) else content[-1].get("text", "")).strip()
    position = text.rfind(last)
    if not last or position < 0:
        raise UserError(
            "continue_final_message needs a last message that ends with text which the template keeps as it is.",
            param="continue_final_message",
        )
    return text[: position + len(last)]
