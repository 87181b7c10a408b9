r"""A model of lm-eval's: ``chiasm-vlm`` answers conversations with pictures through the offline engine.

Importing this module needs lm-eval (``chiasm[eval]``), and registers the model. lm-eval finds no models of other
packages by itself, so ``python -m chiasm.evals.harness`` is its command line with this one in it:

    python -m chiasm.evals.harness --model chiasm-vlm --tasks chartqa --apply_chat_template \
        --model_args pretrained=Qwen/Qwen2.5-VL-3B-Instruct,tensor_parallel_size=2,mm_encoder_tp_mode=data
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from chiasm.errors import UserError, refuse
from chiasm.evals.questions import Question, decoding_fields, pack_conversation, read_question
from chiasm.evals.served import ask_server
from chiasm.llm.offline import LLM
from chiasm.schema.output import RequestOutput
from chiasm.schema.sampling import SamplingParams

NAME = "chiasm-vlm"
_OF_LM_EVAL = ("batch_size", "max_batch_size", "device")
_USAGE_ERROR = 2
_OF_THE_HUB = "on the Hub"  # in what the package datasets says where it has no network

_Pair = tuple[Sequence[int], Sequence[int]]  # tokens in front, tokens that are scored
_Kind = Literal["text", "conversation", "open conversation"]


class ConversationLM(LM):  # type: ignore[misc]  # lm-eval has no types
    """Answers conversations with pictures, whoever thinks of the answers.

    Args:
        max_images: most in a prompt; further ones are left out, as lm-eval's own models do.
    """

    MULTIMODAL = True

    def __init__(self, max_images: int = 999) -> None:
        super().__init__()
        self._max_images = max_images

    @property
    def tokenizer_name(self) -> str:
        """Under which lm-eval keeps prompts."""
        return NAME

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation packed as a text: the engine applies the template, because it knows where pictures go."""
        return pack_conversation(chat_history, is_open=not add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The template's text, for lm-eval's notes: none, it is up to the engine.

        Raises:
            UserError: for a name, because there is no choice.
        """
        if isinstance(chat_template, str):
            refuse("apply_chat_template", chat_template, f"given without a name: {NAME} takes chat_template=FILE")
        return ""

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answers of all requests, asked at once."""
        questions = [self._question(*request.args[:1], *request.args[2:]) for request in requests]
        settings = [decoding_fields(normalize_gen_kwargs(request.args[1])) for request in requests]
        texts = self._answers(questions, settings, use_tqdm=not disable_tqdm)
        for request, text in zip(requests, texts, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts

    def _question(self, context: str, media: Mapping[str, Any] | None = None) -> Question:
        return read_question(context, (media or {}).get("visual", ()), self._max_images)

    def loglikelihood(self, requests: Sequence[Instance]) -> list[tuple[float, bool]]:  # noqa: ARG002
        """Refused where there are answers alone.

        Raises:
            UserError: always.
        """
        raise _only_answers()

    def loglikelihood_rolling(self, requests: Sequence[Instance]) -> list[float]:  # noqa: ARG002
        """Refused likewise.

        Raises:
            UserError: always.
        """
        raise _only_answers()

    @abstractmethod
    def _answers(
        self, questions: Sequence[Question], settings: Sequence[Mapping[str, Any]], *, use_tqdm: bool
    ) -> list[str]:
        """Answers, in order.

        Args:
            questions: to be answered.
            settings: fields of ``SamplingParams`` for each.
            use_tqdm: whether to show progress.
        """


@register_model(NAME)
class ChiasmVLM(ConversationLM):
    """The offline engine.

    A prompt with pictures is a conversation even without ``--apply_chat_template``: a user's one message.

    Args:
        pretrained: folder or hub name of a checkpoint; None takes the built-in one.
        max_images: most in a prompt; further ones are left out.
        settings: of ``LLM``. The engine makes batches as it likes, and takes a GPU where there is one, except for the
            device ``cpu``: lm-eval names ``cuda:0`` by itself.
    """

    def __init__(self, pretrained: str | None = None, max_images: int = 999, **settings: Any) -> None:
        super().__init__(max_images)
        own = {name: value for name, value in settings.items() if name not in _OF_LM_EVAL}
        if settings.get("device") == "cpu":
            own["device"] = "cpu"
        self._llm = LLM(pretrained, **own)

    def _answers(
        self, questions: Sequence[Question], settings: Sequence[Mapping[str, Any]], *, use_tqdm: bool
    ) -> list[str]:
        outputs = self._outputs(questions, [_sampling(own) for own in settings], use_tqdm=use_tqdm)
        return [output.outputs[0].text for output in outputs]

    def _outputs(
        self, questions: Sequence[Question], sampling: Sequence[SamplingParams], *, use_tqdm: bool
    ) -> list[RequestOutput]:
        """In order; those of one kind are asked at once."""
        found: dict[int, RequestOutput] = {}
        kinds = [_kind(question) for question in questions]
        for kind in dict.fromkeys(kinds):
            chosen = [index for index, own in enumerate(kinds) if own == kind]
            outputs = self._ask(kind)(
                [questions[index].text or questions[index].messages for index in chosen],
                [sampling[index] for index in chosen],
                use_tqdm=use_tqdm,
            )
            found.update(zip(chosen, outputs, strict=True))
        return [found[index] for index in range(len(questions))]

    def _ask(self, kind: _Kind) -> Any:
        if kind == "text":
            return self._llm.generate
        is_open = kind == "open conversation"
        return partial(self._llm.chat, add_generation_prompt=not is_open, continue_final_message=is_open)

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """For each request the continuation's log-probability in nats, and whether it is the greedy answer.

        Raises:
            UserError: for prompts with pictures, or longer than the context.
        """
        if any(len(request.args) > 2 for request in requests):
            raise UserError(f"{NAME} has no log-likelihoods of prompts with pictures.", param="tasks")
        heads = self._heads(dict.fromkeys(request.args[0] for request in requests))
        pairs = [self._pair(heads.get(request.args[0], ()), *request.args) for request in requests]
        found = self._scores(pairs, use_tqdm=not disable_tqdm)
        for request, score in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, score)
        return found

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each whole text, in nats, in windows as long as the context."""
        windows = [self._windows(request.args[0]) for request in requests]
        scores = iter(self._scores([pair for own in windows for pair in own], use_tqdm=not disable_tqdm))
        return [sum(next(scores)[0] for _ in own) for own in windows]

    def _windows(self, text: str) -> list[_Pair]:
        tokens, longest = self._llm.tokenize(text), self._llm.max_model_len - 1
        windows = get_rolling_token_windows(tokens, self._prefix_token_id, longest - 1, context_len=1)
        return [make_disjoint_window(window) for window in windows]

    @property
    def _prefix_token_id(self) -> int:
        """What stands in front of a text that has nothing in front."""
        begin = self._llm.tokenize("")
        return begin[0] if begin else self._llm.facts.eos_token_ids[0]

    def _heads(self, contexts: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """The tokens of each conversation; a plain text is tokenised with what follows."""
        read = {context: self._question(context) for context in contexts}
        asked = {context: question for context, question in read.items() if question.messages}
        sampling = [SamplingParams(max_tokens=1)] * len(asked)
        outputs = self._outputs(list(asked.values()), sampling, use_tqdm=False)
        return {context: tuple(output.prompt_token_ids) for context, output in zip(asked, outputs, strict=True)}

    def _pair(self, head: tuple[int, ...], context: str, continuation: str) -> _Pair:
        """Blanks at the context's end belong to the continuation's first token, as in lm-eval's own models."""
        if head:
            return head, self._llm.tokenize(continuation, add_special_tokens=False)
        front = context.rstrip()
        continuation = context[len(front) :] + continuation
        if not front:
            return [self._prefix_token_id], self._llm.tokenize(continuation, add_special_tokens=False)
        head = tuple(self._llm.tokenize(front))
        return head, self._llm.tokenize(front + continuation)[len(head) :]

    def _scores(self, pairs: Sequence[_Pair], *, use_tqdm: bool) -> list[tuple[float, bool]]:
        prompts = [{"prompt_token_ids": [*front, *scored]} for front, scored in pairs]
        sampling = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        outputs = self._llm.generate(prompts, sampling, use_tqdm=use_tqdm)
        found = []
        for output, (front, _) in zip(outputs, pairs, strict=True):
            places = (output.prompt_logprobs or [])[len(front) :]
            entries = [next(iter(place.values())) for place in places if place]
            found.append((sum(entry.logprob for entry in entries), all(entry.rank == 1 for entry in entries)))
        return found

    def close(self) -> None:
        """Stop the engine."""
        self._llm.close()


class ServedVLM(ConversationLM):
    """A server in place of the offline engine, asked the same conversations.

    Args:
        base_url: see ``ask_server``.
        model: likewise.
        max_images: most in a prompt.
    """

    def __init__(self, base_url: str, model: str, max_images: int) -> None:
        super().__init__(max_images)
        self._base_url, self._model = base_url, model

    def _answers(
        self, questions: Sequence[Question], settings: Sequence[Mapping[str, Any]], *, use_tqdm: bool
    ) -> list[str]:
        conversations = [question.messages for question in questions]
        return ask_server(self._base_url, self._model, conversations, settings, use_tqdm=use_tqdm)


def _only_answers() -> UserError:
    return UserError(
        "A server is asked for answers: for log-likelihoods use --model local-completions.", param="tasks"
    )


def _kind(question: Question) -> _Kind:
    if not question.messages:
        return "text"
    return "open conversation" if question.is_open else "conversation"


def _sampling(settings: Mapping[str, Any]) -> SamplingParams:
    unknown = [name for name in settings if name not in SamplingParams.__struct_fields__]
    if unknown:
        raise UserError(f"The task's generation_kwargs have {', '.join(unknown)}, unknown to {NAME}.", param="tasks")
    return SamplingParams(**settings)


def main() -> int:
    """lm-eval's command line; what the user did wrong is one line."""
    try:
        cli_evaluate()
    except UserError as error:
        return _refused(error.message)
    except ConnectionError as error:
        if _OF_THE_HUB not in str(error):
            raise
        return _refused(f"{error}. chiasm eval chartqa (or mmmu) --data PATH takes the data from files.")
    return 0


def _refused(message: str) -> int:
    sys.stderr.write(f"{NAME}: error: {message}\n")
    return _USAGE_ERROR


if __name__ == "__main__":
    sys.exit(main())
