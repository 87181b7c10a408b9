"""From the core's token ids to a request's answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chiasm.engine.frontend.detokenizer import Detokenizer, NoText
from chiasm.engine.frontend.logprobs import PromptLogprobs, named_logprobs
from chiasm.engine.frontend.tokenizer import Tokenizer
from chiasm.errors import EngineDeadError, UserError
from chiasm.schema.chat import PreparedPrompt
from chiasm.schema.output import CompletionOutput, Logprob, RequestOutput, SequenceDelta
from chiasm.schema.plan import TokenLogprob
from chiasm.schema.sampling import SamplingParams


class Answer:
    """One of a request's answers while it grows.

    Args:
        index: which of the ``n``.
        tokenizer: of the model.
        prompt: what it answers.
        params: how it is decoded.
    """

    def __init__(self, index: int, tokenizer: Tokenizer, prompt: PreparedPrompt, params: SamplingParams) -> None:
        self.index = index
        self.is_finished = False
        self._tokenizer = tokenizer
        self._params = params
        # The token that ends an answer (end of sequence or one of stop_token_ids) is treated as a stop string is.
        self._shows_stop_token = params.include_stop_str_in_output
        self._detokenizer = Detokenizer(tokenizer, prompt.token_ids, params) if params.detokenize else NoText()
        self._cumulative_logprob = 0.0

    def take(self, delta: SequenceDelta) -> CompletionOutput:
        """What a delta adds: new text, tokens, logprobs, and the reason if it ends."""
        pieces = []
        stop: str | None = None
        token_ids = delta.token_ids
        for position, token_id in enumerate(token_ids):
            if delta.finish_reason == "stop" and position == len(token_ids) - 1 and not self._shows_stop_token:
                break
            text, stop = self._detokenizer.add(token_id)
            pieces.append(text)
            if stop is not None:
                token_ids = token_ids[: position + 1]
                break
        if delta.finish_reason is not None and stop is None:
            text, stop = self._detokenizer.finish()
            pieces.append(text)
        return self._output(delta, "".join(pieces), token_ids, stop)

    def _output(
        self, delta: SequenceDelta, text: str, token_ids: Sequence[int], stop: str | None
    ) -> CompletionOutput:
        finish_reason = delta.finish_reason if stop is None else "stop"
        self.is_finished = finish_reason is not None
        logprobs = delta.logprobs[: len(token_ids)]
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=list(token_ids),
            cumulative_logprob=self._add_logprobs(logprobs),
            logprobs=[named_logprobs(self._tokenizer, *pair) for pair in zip(token_ids, logprobs, strict=True)]
            if logprobs
            else None,
            finish_reason=finish_reason,
            stop_reason=delta.stop_token_id if stop is None else stop,
        )

    def _add_logprobs(self, logprobs: Sequence[TokenLogprob]) -> float | None:
        if self._params.logprobs is None:
            return None
        self._cumulative_logprob += sum(entry.logprob for entry in logprobs)
        return self._cumulative_logprob


class Answers:
    """A request's answers.

    Args:
        request_id: the user's name for the request.
        prompt: what it answers.
        params: how it is decoded.
        tokenizer: of the model.
    """

    def __init__(self, request_id: str, prompt: PreparedPrompt, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self.request_id = request_id
        self._prompt = prompt
        self._prompt_token_ids = list(prompt.token_ids)
        self._num_image_tokens, self._num_video_tokens = (
            sum(item.num_tokens for item in prompt.items if item.modality == modality)
            for modality in ("image", "video")
        )
        self._answers = [Answer(index, tokenizer, prompt, params) for index in range(params.n)]
        self._prompt_logprobs = (
            None if params.prompt_logprobs is None else PromptLogprobs(tokenizer, prompt.token_ids)
        )

    def unfinished(self) -> Iterator[int]:
        """Indices of answers that still grow."""
        return (answer.index for answer in self._answers if not answer.is_finished)

    def take(self, index: int, delta: SequenceDelta) -> RequestOutput | None:
        """What a delta adds to answer ``index``; None if that had ended already, or the prompt alone has news.

        Raises:
            UserError: if the core could not go on with it: an image can't be encoded, or no token is left to sample.
            EngineDeadError: if the core has given it up.
        """
        answer = self._answers[index]
        if answer.is_finished:
            return None
        if delta.finish_reason == "error":
            raise UserError(delta.error or "the request failed.", param=delta.error_param or "messages")
        if delta.finish_reason == "abort":
            raise EngineDeadError("the request was aborted by the engine.")
        if delta.prompt_logprobs:
            assert self._prompt_logprobs is not None
            self._prompt_logprobs.add(delta.prompt_logprobs)
            if not delta.token_ids:
                return None
        output = answer.take(delta)
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._prompt.text,
            prompt_token_ids=self._prompt_token_ids,
            outputs=[output],
            finished=all(answer.is_finished for answer in self._answers),
            num_cached_tokens=delta.num_cached_tokens,
            num_image_tokens=self._num_image_tokens,
            num_video_tokens=self._num_video_tokens,
            times=delta.times,
            prompt_logprobs=self._take_prompt_logprobs() if index == 0 else None,
        )

    def _take_prompt_logprobs(self) -> list[dict[int, Logprob] | None] | None:
        """All of them, once: with the first token of the first answer, whose sequence computes them."""
        taken, self._prompt_logprobs = self._prompt_logprobs, None
        return None if taken is None else taken.named


def merge_output(total: RequestOutput | None, news: RequestOutput, num_answers: int) -> RequestOutput:
    """Add a stream's news to what is known of a request, so that the last result holds the whole answers."""
    if total is None:
        answers = [CompletionOutput(index, "", []) for index in range(num_answers)]
        total = RequestOutput(news.request_id, news.prompt, news.prompt_token_ids, answers, finished=False)
    for new in news.outputs:
        append_answer(total.outputs[new.index], new)
    total.finished = news.finished
    total.num_cached_tokens = news.num_cached_tokens
    total.num_image_tokens = news.num_image_tokens
    total.num_video_tokens = news.num_video_tokens
    total.prompt_logprobs = total.prompt_logprobs or news.prompt_logprobs
    return total


def append_answer(answer: CompletionOutput, news: CompletionOutput) -> None:
    """Add what is new to one answer."""
    answer.text += news.text
    answer.token_ids += news.token_ids
    answer.cumulative_logprob = news.cumulative_logprob
    if news.logprobs is not None:
        answer.logprobs = (answer.logprobs or []) + news.logprobs
    answer.finish_reason, answer.stop_reason = news.finish_reason, news.stop_reason
