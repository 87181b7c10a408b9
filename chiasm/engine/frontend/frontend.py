"""What the offline and the serving API share: from a user's input to a prompt that the core can take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chiasm.config.checkpoint import read_generation_config, read_json
from chiasm.config.engine import EngineConfig, check_media_io_kwargs, without_nulls
from chiasm.engine.frontend.admission import check_prompt_length, check_seen_media
from chiasm.engine.frontend.bad_words import banned_sequences
from chiasm.engine.frontend.chat_template import ChatTemplate, load_chat_template, special_tokens
from chiasm.engine.frontend.prompts import ExpandedPrompt, PromptBuilder
from chiasm.engine.frontend.rendering import SealedConversation
from chiasm.engine.frontend.template_renderer import TemplateRenderer
from chiasm.engine.frontend.tokenizer import Tokenizer, load_tokenizer
from chiasm.engine.frontend.truncation import truncated
from chiasm.errors import UserError, refuse
from chiasm.multimodal.bounds import bounded_spec, request_image_spec, request_video_spec
from chiasm.schema.chat import ChatMessage, ImagePart, MediaPart, PreparedPrompt, TextPart, Truncation, VideoPart
from chiasm.schema.media import MediaSpec, ProcessedItem
from chiasm.schema.sampling import SamplingParams, check_token_ids
from chiasm.schema.wire import Ready

# Texts average 2 to 5 characters a token; only long runs of spaces and the like come near this.
_MAX_CHARS_PER_TOKEN = 32
_DEFAULT_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class TextFiles:
    """What of a checkpoint concerns text and its decoding; read while the ranks load the weights.

    Args:
        config: the engine's settings.
        chat_template: a file or the text itself, in place of the checkpoint's.

    Raises:
        UserError: if a file can't be read or the template does not compile.
    """

    def __init__(self, config: EngineConfig, chat_template: str | None) -> None:
        folder = Path(config.model)
        self.tokenizer: Tokenizer = load_tokenizer(folder)
        self.template: ChatTemplate | None = load_chat_template(folder, chat_template)
        self.default_sampling = _default_sampling(folder)
        kind = (read_json(folder, "tokenizer_config.json") or {}).get("tokenizer_class")
        self.tokenizer_class = kind if isinstance(kind, str) else "PreTrainedTokenizerFast"
        self.special_tokens = special_tokens(folder)


class Frontend:
    """Prepares prompts for one loaded model.

    Args:
        config: the engine's settings.
        text: its tokenizer and chat template.
        ready: the core's greeting.

    Attributes:
        facts: of the model.
        max_model_len: longest sequence, prompt and answer, in tokens.
        tokenizer: of the model.
        default_sampling: parameters that the checkpoint's ``generation_config.json`` recommends.
        tokenizer_info: of the tokenizer: its class, its special tokens by their names, and the chat template.
    """

    def __init__(self, config: EngineConfig, text: TextFiles, ready: Ready) -> None:
        self.facts = ready.facts
        self.max_model_len = ready.max_model_len
        self._max_seen_rows = ready.max_seen_rows
        self.tokenizer = text.tokenizer
        self.default_sampling = text.default_sampling
        self._limits = config.media.limit_mm_per_prompt
        self._prompts = PromptBuilder(text.tokenizer, text.template, ready.facts)
        self._special_tokens = text.special_tokens
        self.tokenizer_info: dict[str, Any] = {
            "tokenizer_class": text.tokenizer_class,
            "model_max_length": ready.max_model_len,
            **text.special_tokens,
            "chat_template": text.template.source if text.template else None,
        }

    def media_parts(self, messages: Sequence[ChatMessage]) -> list[MediaPart]:
        """The images and videos of a conversation, in order.

        Raises:
            UserError: as ``check_media``; none has been fetched then.
        """
        parts = [part for message in messages for part in message.content if not isinstance(part, TextPart)]
        self.check_media(parts, "messages")
        return parts

    def check_media(self, parts: Sequence[MediaPart], param: str) -> None:
        """Refuse more images or videos than one prompt may have, and videos that the model can't take.

        Raises:
            UserError: with both numbers, or naming the first video.
        """
        for modality, kind in (("image", ImagePart), ("video", VideoPart)):
            own = [part for part in parts if isinstance(part, kind)]
            limit = self._limits[modality]
            if len(own) > limit:
                message = f"the prompt has {len(own)} {modality}s; at most {limit} are allowed (limit_mm_per_prompt)."
                raise UserError(message, param=param)
            if modality == "video" and own and self.facts.video is None:
                raise UserError(f"{self.facts.model_type} models take no videos.", param=own[0].param)

    def media_specs(
        self,
        parts: Sequence[MediaPart],
        mm_processor_kwargs: Mapping[str, Any],
        media_io_kwargs: Mapping[str, Any],
    ) -> list[MediaSpec]:
        """How each image and video of a request becomes patches.

        Raises:
            UserError: for an unknown key or a value outside what the server allows.
        """
        kwargs, io_kwargs = without_nulls(mm_processor_kwargs), without_nulls(media_io_kwargs)
        processor, video = self.facts.processor, self.facts.video
        bounded_spec(processor, {}, kwargs)  # also where there are no media
        if video is None:
            check_media_io_kwargs(io_kwargs, 1)
            return [request_image_spec(processor, kwargs, part.own) for part in parts]
        request_video_spec(video.processor, kwargs, io_kwargs)
        return [
            request_video_spec(video.processor, kwargs, io_kwargs, part.own)
            if isinstance(part, VideoPart)
            else request_image_spec(processor, kwargs, part.own)
            for part in parts
        ]

    def seal_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        chat_template_kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> SealedConversation:
        """A conversation as a template may have it; see ``PromptBuilder.seal``.

        Raises:
            UserError: also if it has so much text that it can't fit.
        """
        texts = [[message.extra, *message.content] for message in messages]
        self._check_num_chars(num_chars([texts, chat_template_kwargs, tools]), "messages")
        return self._prompts.seal(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            kwargs=chat_template_kwargs,
            tools=tools,
        )

    def render_chat(self, conversation: SealedConversation) -> str:
        """The text of its prompt, by the model's own template; see ``PromptBuilder.render``."""
        return self._prompts.render(conversation)

    def template_renderer(self, runtime_dir: Path) -> TemplateRenderer:
        """For templates that come with a request; their texts may be as long as those of any other."""
        return TemplateRenderer(self._special_tokens, _MAX_CHARS_PER_TOKEN * self.max_model_len, runtime_dir)

    def prepare_chat(
        self, rendered: str, items: Sequence[ProcessedItem], cache_salt: str, truncation: Truncation | None = None
    ) -> PreparedPrompt:
        """Tokenise a rendered conversation and put its media in their places.

        Raises:
            UserError: if the template dropped or doubled an item, or the prompt is too long.
        """
        token_ids = self._prompts.tokenize(rendered)
        check_token_ids("messages", token_ids, self.facts.input_size)
        expanded = self._fitting(self._prompts.expand(token_ids, items, "messages"), truncation, "messages")
        return PreparedPrompt(
            self._prompts.plain_text(rendered), expanded.token_ids, expanded.items, cache_salt, tuple(items)
        )

    def prepare_completion(
        self,
        prompt: str | Sequence[int],
        items: Sequence[ProcessedItem] = (),
        cache_salt: str = "",
        truncation: Truncation | None = None,
        *,
        add_special_tokens: bool = True,
    ) -> PreparedPrompt:
        """Take a prompt as it is; with media it holds one placeholder for each.

        Raises:
            UserError: if placeholders and media do not match, a token id is unknown, or the prompt is too long.
        """
        text = prompt if isinstance(prompt, str) else None
        self._check_num_chars(len(text or ""), "prompt")
        if isinstance(prompt, str):
            token_ids = self.tokenizer.encode(prompt, adds_special=add_special_tokens)
        else:
            token_ids = list(prompt)
        check_token_ids("prompt", token_ids, self.facts.input_size)
        if not items:
            self._prompts.refuse_media_tokens(token_ids, "prompt")
        expanded = self._prompts.expand(token_ids, items, "prompt")
        fitting = self._fitting(expanded, truncation, "prompt")
        if fitting is not expanded:
            text = None
        return PreparedPrompt(text, fitting.token_ids, fitting.items, cache_salt, tuple(items))

    def banned_sequences(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """The tokens of ``bad_words``."""
        return banned_sequences(params.bad_words, self.tokenizer, self.facts.vocab_size)

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a plain prompt, as ``prepare_completion`` takes it; it may be longer than the context.

        Raises:
            UserError: if it is far longer, or holds a media token.
        """
        self._check_num_chars(len(text), "prompt")
        token_ids = self.tokenizer.encode(text, adds_special=add_special_tokens)
        self._prompts.refuse_media_tokens(token_ids, "prompt")
        return token_ids

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special ones included.

        Raises:
            UserError: for an unknown id, or more than the context holds.
        """
        if len(token_ids) > self.max_model_len:
            limit = f"at most {self.max_model_len} token ids (max_model_len)"
            refuse("tokens", f"{len(token_ids)} token ids", limit)
        check_token_ids("tokens", token_ids, self.facts.input_size)
        return self.tokenizer.decode(token_ids, skip_special_tokens=False)

    def _fitting(self, expanded: ExpandedPrompt, truncation: Truncation | None, param: str) -> ExpandedPrompt:
        """A prompt that has its place, cut if that is asked for.

        Raises:
            UserError: if it has none, or can't be cut.
        """
        if truncation is not None:
            expanded = truncated(expanded, truncation, self.max_model_len, self.facts.media_token_ids, param)
        check_prompt_length(len(expanded.token_ids), self.max_model_len, param=param)
        check_seen_media(expanded.items, self._max_seen_rows, param=param)
        return expanded

    def _check_num_chars(self, count: int, param: str) -> None:
        """Refuse a text that is far too long before time and memory are spent on its tokens."""
        limit = _MAX_CHARS_PER_TOKEN * self.max_model_len
        if count > limit:
            raise UserError(
                f"{param} has {count} characters of text; max_model_len={self.max_model_len} allows at most {limit} "
                f"({_MAX_CHARS_PER_TOKEN} per token).",
                param=param,
            )


def num_chars(value: object) -> int:
    """Characters of all strings in lists, dicts and text parts within each other; keys count too."""
    total = 0
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if isinstance(current, str):
            total += len(current)
        elif isinstance(current, TextPart):
            total += len(current.text)
        elif isinstance(current, Mapping):
            waiting += [*current.keys(), *current.values()]
        elif isinstance(current, list | tuple):
            waiting += current
    return total


def _default_sampling(folder: Path) -> dict[str, Any]:
    """What ``generation_config.json`` recommends; greedy decoding where it says not to sample.

    Raises:
        UserError: if it recommends what can't be.
    """
    generation = read_generation_config(folder)
    defaults = {key: generation[key] for key in _DEFAULT_KEYS if generation.get(key) is not None}
    if generation.get("do_sample") is False:
        defaults["temperature"] = 0.0
    if generation.get("max_new_tokens") is not None:
        defaults["max_tokens"] = generation["max_new_tokens"]
    try:
        SamplingParams(**defaults)
    except (UserError, TypeError) as error:
        raise UserError(
            f"generation_config.json of the checkpoint can't be followed: {error}", param="model"
        ) from error
    return defaults
