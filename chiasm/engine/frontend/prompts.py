"""Prompts: from text and media to token ids with every placeholder in place.

Media tokens enter a prompt only through the template, once per item, and are then expanded to what the item becomes.
What a user writes never becomes a special token (see ``literal_text``), but for a switch such as ``/nothink``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from chiasm.engine.frontend.chat_template import ChatTemplate
from chiasm.engine.frontend.literal_text import SEAM, LiteralText
from chiasm.engine.frontend.rendering import END, SealedConversation, SealedMessage, render_conversation
from chiasm.engine.frontend.tokenizer import Tokenizer
from chiasm.errors import UserError, refuse, shorten
from chiasm.schema.chat import ChatMessage, TextPart, VideoPart
from chiasm.schema.facts import ModelFacts, SliceForm, TileForm
from chiasm.schema.media import MediaItem, ProcessedItem
from chiasm.vision.frames import with_readers

# A special token that is there for users to write, as templates expect them to: GLM-4.5's /nothink.
_SWITCH = re.compile(r"/\w+")
_MAX_DEPTH = 64  # of lists and dicts in each other, in what a template gets from a user


class ExpandedPrompt(NamedTuple):
    """Token ids with placeholders repeated, and the items at their offsets."""

    token_ids: tuple[int, ...]
    items: tuple[MediaItem, ...]


class _Run(NamedTuple):
    """An item, or a slice or tile of it, whose placeholders stand together, and the tokens around them."""

    item: ProcessedItem
    token_id: int
    before: Sequence[int] = ()
    after: Sequence[int] = ()


class PromptBuilder:
    """Renders, tokenises and expands prompts for one model.

    Args:
        tokenizer: of the model.
        template: its chat template, if it has one.
        facts: of the model.

    Raises:
        UserError: if the tokenizer is not that of the model.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None, facts: ModelFacts) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._facts = facts
        media_texts = [tokenizer.token_text(token_id) for token_id in facts.media_token_ids]
        _check_media_tokens(tokenizer, facts.media_token_ids)
        specials = [*tokenizer.special_texts, *media_texts]
        self._literal = LiteralText(specials)
        self._users_literal = LiteralText([text for text in specials if not _SWITCH.fullmatch(text)])

    def seal(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> SealedConversation:
        """A conversation as a template may have it.

        Raises:
            UserError: for what no template may have: types that JSON doesn't have, or too deep a nesting.
        """
        return SealedConversation(
            messages=[self._seal_message(message) for message in messages],
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            kwargs=self._seal(dict(kwargs), "chat_template_kwargs"),
            tools=self._seal(list(tools), "tools"),
        )

    def render(self, conversation: SealedConversation) -> str:
        """The text of a conversation's prompt, for ``tokenize``, by the model's own template.

        Raises:
            UserError: if it has none, or as ``render_conversation``.
        """
        if self._template is None:
            raise UserError("this model has no chat template; give one with --chat-template.", param="messages")
        return render_conversation(self._template, conversation)

    def tokenize(self, rendered: str) -> list[int]:
        """Token ids of a rendered conversation.

        Raises:
            UserError: if a user's text holds a media token that the tokenizer can't write as text.
        """
        token_ids: list[int] = []
        for piece in self._literal.pieces(rendered):
            if piece.is_literal:
                written = self._tokenizer.encode_literal(piece.text)
                self.refuse_media_tokens(written, "messages")
                token_ids += written
            else:
                token_ids += self._tokenizer.encode(piece.text)
        return token_ids

    def plain_text(self, rendered: str) -> str:
        """A rendered conversation as the model reads it."""
        return rendered.replace(SEAM, "")

    def expand(self, token_ids: Sequence[int], items: Sequence[ProcessedItem], param: str) -> ExpandedPrompt:
        """Put what each item becomes in the place of its placeholder.

        Raises:
            UserError: if there are not as many placeholders as items, for images and for videos.
        """
        waiting = {token: iter(own) for token, own in self._by_placeholder(token_ids, items, param).items()}
        expanded: list[int] = []
        placed: list[MediaItem] = []
        for token_id in token_ids:
            if token_id in waiting:
                for run in self._runs(next(waiting[token_id])):
                    expanded += run.before
                    placed.append(run.item.placed_at(len(expanded)))
                    expanded += [run.token_id] * run.item.num_tokens
                    expanded += run.after
            else:
                expanded.append(token_id)
        is_attended = self._facts.num_cross_layers > 0
        return ExpandedPrompt(tuple(expanded), with_readers(placed) if is_attended else tuple(placed))

    def _by_placeholder(
        self, token_ids: Sequence[int], items: Sequence[ProcessedItem], param: str
    ) -> dict[int, list[ProcessedItem]]:
        """The items that each kind of placeholder stands for, in order."""
        tiles = self._facts.tiles
        kinds = {tiles.token_id if tiles else self._facts.image_token_id: "image"}
        if self._facts.video:
            kinds[self._facts.video.token_id] = "video"
        found = {token: [item for item in items if item.modality == kind] for token, kind in kinds.items()}
        for token, own in found.items():
            count = sum(token_id == token for token_id in token_ids)
            if count != len(own):
                raise UserError(
                    f"{param} has {count} {kinds[token]} placeholders for {len(own)} {kinds[token]}s; "
                    "there must be one each.",
                    param=param,
                )
        return found

    def _runs(self, item: ProcessedItem) -> Iterator[_Run]:
        """What stands for an item in the prompt: one run of placeholders, or one for each tile or slice of it."""
        video = self._facts.video
        if item.modality == "image" and self._facts.tiles is not None:
            yield from self._tile_runs(item, self._facts.tiles)
        elif item.modality == "image" or video is None:
            yield _Run(item, self._facts.image_token_id)
        elif video.slices is None:
            yield _Run(item, video.token_id)
        else:
            yield from self._slice_runs(item, video.slices, video.processor.patches.temporal_patch_size)

    def _tile_runs(self, item: ProcessedItem, form: TileForm) -> Iterator[_Run]:
        """The tiles row by row, and the overview last."""
        rows, columns = item.canvas
        last = len(item.units) - 1
        assert last == (rows * columns if rows * columns > 1 else 0)
        for index, unit in enumerate(item.units):
            before = [form.before] if index == 0 else []
            if index == last:
                before, after = [*before, form.overview], form.after
            else:
                after = form.between if (index + 1) % columns else form.row_end
            alone = ProcessedItem("image", unit.num_tokens, (unit,))
            yield _Run(alone, self._facts.image_token_id, before, [after])

    def _slice_runs(self, item: ProcessedItem, form: SliceForm, num_frames: int) -> Iterator[_Run]:
        for index, unit in enumerate(item.units):
            alone = ProcessedItem("video", unit.num_tokens, (unit,), item.seconds_per_slice)
            frame_seconds = item.frame_seconds[index * num_frames : (index + 1) * num_frames]
            seconds = _slice_time(frame_seconds, form)
            before, after = (self._slice_tokens(parts, seconds) for parts in (form.before, form.after))
            yield _Run(alone, form.token_id, before, after)

    def _slice_tokens(self, parts: Sequence[int | str], seconds: float) -> list[int]:
        tokens: list[int] = []
        for part in parts:
            if isinstance(part, str):
                tokens += self._tokenizer.encode_literal(part.format(seconds=seconds, whole_seconds=int(seconds)))
            else:
                tokens.append(part)
        return tokens

    def refuse_media_tokens(self, token_ids: Iterable[int], param: str) -> None:
        """Refuse a prompt without media that holds a token which only the engine may place.

        Raises:
            UserError: naming the token.
        """
        reserved = set(self._facts.media_token_ids)
        for token_id in token_ids:
            if token_id in reserved:
                text = self._tokenizer.token_text(token_id)
                message = f"{param} contains the media token {text!r}, which stands for nothing without media."
                raise UserError(message, param=param)

    def _seal_message(self, message: ChatMessage) -> SealedMessage:
        extra = {key: self._seal(value, f"{message.param}.{key}") for key, value in message.extra.items()}
        if "reasoning" in extra:  # templates know it by either of these names
            extra |= dict.fromkeys(("reasoning_content", "thinking"), extra["reasoning"])
        literal = self._users_literal if message.role == "user" else self._literal
        parts: list[dict[str, str]] = []
        for part in message.content:
            if isinstance(part, TextPart):
                parts.append({"type": "text", "text": _seal_text(part.text, literal)})
            else:
                parts.append({"type": "video" if isinstance(part, VideoPart) else "image"})
        return SealedMessage(message.role, parts, message.param, message.content_param, extra)

    def _seal(self, value: Any, param: str, depth: int = 0) -> Any:
        """What a user gives to the template, with seams in its strings; JSON's types only, so that it is inert."""
        if isinstance(value, str):
            return _seal_text(value, self._literal)
        if value is None or isinstance(value, bool | int | float):
            return value
        if depth == _MAX_DEPTH:
            refuse(param, "more", f"nested at most {_MAX_DEPTH} deep")
        if isinstance(value, dict):
            return {
                self._seal(key, param, _MAX_DEPTH): self._seal(entry, f"{param}.{_field(key)}", depth + 1)
                for key, entry in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._seal(entry, f"{param}[{index}]", depth + 1) for index, entry in enumerate(value)]
        return refuse(param, type(value).__name__, "made of the types that JSON has")


def _seal_text(text: str, literal: LiteralText) -> str:
    return literal.seal(text.replace(END, "").replace(SEAM, ""))


def _slice_time(frame_seconds: Sequence[float], form: SliceForm) -> float:
    """When a slice is, of whose frames the times are given."""
    return frame_seconds[0] if form.time == "first" else (frame_seconds[0] + frame_seconds[-1]) / 2


def _check_media_tokens(tokenizer: Tokenizer, token_ids: Iterable[int]) -> None:
    """Refuse a tokenizer that is not this model's: no image could find its place.

    Raises:
        UserError: naming the token.
    """
    for token_id in token_ids:
        if token_id not in tokenizer.added_ids or tokenizer.encode(tokenizer.token_text(token_id)) != [token_id]:
            raise UserError(
                f"the checkpoint's tokenizer does not have the model's media token {token_id}: "
                "is its tokenizer.json missing or another model's?",
                param="model",
            )


def _field(key: object) -> str:
    return key if isinstance(key, str) and key.isidentifier() and len(key) < 64 else shorten(key)
