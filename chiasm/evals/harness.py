r"""A model of lm-eval's: ``chiasm-vlm`` answers conversations with pictures through the offline engine.

Importing this module needs lm-eval (``chiasm[eval]``), and registers the model. lm-eval finds no models of other
packages by itself, so ``python -m chiasm.evals.harness`` is its command line with this one in it:

    python -m chiasm.evals.harness --model chiasm-vlm --tasks chartqa --apply_chat_template \
        --model_args pretrained=Qwen/Qwen2.5-VL-3B-Instruct,tensor_parallel_size=2,mm_encoder_tp_mode=data
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from chiasm.errors import UserError
from chiasm.llm.offline import LLM
from chiasm.schema.sampling import SamplingParams

NAME = "chiasm-vlm"
_PLACEHOLDER = "<image>"
_DEFAULT_TOKENS = 256  # lm-eval's own
_OF_LM_EVAL = ("batch_size", "max_batch_size", "device")

Message = dict[str, Any]


@register_model(NAME)
class ChiasmVLM(LM):  # type: ignore[misc]  # lm-eval has no types
    """The offline engine.

    Prompts are always conversations: without ``--apply_chat_template`` a prompt is a user's one message. Pictures
    stand where the task has ``<image>``; those without a place of their own come first.

    Args:
        pretrained: folder or hub name of a checkpoint; None takes the built-in one.
        max_images: most in a prompt; further ones are left out, as lm-eval's own models do.
        settings: of ``LLM``; what lm-eval adds of its own is not used.
    """

    MULTIMODAL = True

    def __init__(self, pretrained: str | None = None, max_images: int = 999, **settings: Any) -> None:
        super().__init__()
        own = {name: value for name, value in settings.items() if name not in _OF_LM_EVAL}
        self._max_images = max_images
        self._llm = LLM(pretrained, **own)

    @property
    def tokenizer_name(self) -> str:
        """Under which lm-eval keeps prompts."""
        return NAME

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation as JSON: the engine applies the template, because it knows where pictures go."""
        return json.dumps({"messages": chat_history, "add_generation_prompt": add_generation_prompt})

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answers of all requests, asked at once."""
        texts = []
        for is_open, group in _by_ending(requests):
            conversations = [_with_pictures(messages, pictures, self._max_images) for messages, pictures, _ in group]
            outputs = self._llm.chat(
                conversations,
                [_sampling(settings) for _, _, settings in group],
                use_tqdm=not disable_tqdm,
                add_generation_prompt=not is_open,
                continue_final_message=is_open,
            )
            texts += [output.outputs[0].text for output in outputs]
        for request, text in zip(requests, texts, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts

    def loglikelihood(self, requests: Sequence[Instance]) -> list[tuple[float, bool]]:  # noqa: ARG002
        """Refused: see ``loglikelihood_rolling``.

        Raises:
            UserError: always.
        """
        raise _only_answers()

    def loglikelihood_rolling(self, requests: Sequence[Instance]) -> list[float]:  # noqa: ARG002
        """Refused: tasks with pictures ask for answers; for texts there is ``local-completions`` and a server.

        Raises:
            UserError: always.
        """
        raise _only_answers()

    def close(self) -> None:
        """Stop the engine."""
        self._llm.close()


def _only_answers() -> UserError:
    message = f"{NAME} gives answers, not log-likelihoods: use --model local-completions with a server of chiasm."
    return UserError(message, param="tasks")


Parsed = tuple[list[Message], list[Any], Mapping[str, Any]]


def _by_ending(requests: Sequence[Instance]) -> list[tuple[bool, list[Parsed]]]:
    """Runs of requests that go on with their last message, or don't; all are alike as a rule."""
    groups: list[tuple[bool, list[Parsed]]] = []
    for request in requests:
        context, settings, *rest = request.args
        messages, is_open = _messages(context)
        if not groups or groups[-1][0] != is_open:
            groups.append((is_open, []))
        groups[-1][1].append((messages, list(rest[0]["visual"]) if rest else [], settings))
    return groups


def _messages(context: str) -> tuple[list[Message], bool]:
    """A conversation, and whether its last message goes on."""
    try:
        value = json.loads(context)
        return value["messages"], not value["add_generation_prompt"]
    except (ValueError, TypeError, KeyError):
        return [{"role": "user", "content": context}], False


def _with_pictures(messages: Sequence[Message], pictures: Sequence[Any], most: int) -> list[Message]:
    left = list(pictures[:most])
    spare = len(left) - sum(message["content"].count(_PLACEHOLDER) for message in messages)
    first = [_picture(left.pop(0)) for _ in range(max(0, spare))]
    made = []
    for message in messages:
        parts = first if message["role"] == "user" else []
        first = [] if parts else first
        for index, text in enumerate(message["content"].split(_PLACEHOLDER)):
            if index and left:
                parts = [*parts, _picture(left.pop(0))]
            if text.strip():
                parts = [*parts, {"type": "text", "text": text}]
        made.append({**message, "content": parts})
    return made


def _picture(picture: Any) -> dict[str, Any]:
    return {"type": "image", "image": picture}


def _sampling(settings: Mapping[str, Any]) -> SamplingParams:
    until = settings.get("until") or ()
    is_greedy = not settings.get("do_sample", False)
    return SamplingParams(
        temperature=0.0 if is_greedy else settings.get("temperature", 1.0),
        top_p=1.0 if is_greedy else settings.get("top_p", 1.0),
        max_tokens=settings.get("max_gen_toks", _DEFAULT_TOKENS),
        stop=(until,) if isinstance(until, str) else tuple(text for text in until if text),
    )


if __name__ == "__main__":
    cli_evaluate()
