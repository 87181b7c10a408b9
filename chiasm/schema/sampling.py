"""How one request is to be decoded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import SupportsIndex

import msgspec

from chiasm.errors import refuse
from chiasm.schema.structured import StructuredOutputs

MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1000
MAX_LOGPROBS = 20
MAX_BIASED_TOKENS = 1024
MAX_ALLOWED_TOKENS = 65_536
MAX_BAD_WORDS = 128
MAX_BAD_WORD_LENGTH = 200
MAX_N = 16
MAX_SEED = 2**63 - 1
_MIN_TEMPERATURE = 0.01
_MAX_BIAS = 100
_WHOLE = ("n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs")
_OPTIONAL = ("seed", "max_tokens", "logprobs", "prompt_logprobs")
_REAL = ("presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "min_p")
_FLAGS = ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output")


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Decoding parameters, under the names that vLLM and OpenAI use.

    Attributes:
        n: answers to generate for the prompt; with temperature 0 they are alike.
        presence_penalty: added once to tokens already generated, in [-2, 2].
        frequency_penalty: added per occurrence among generated tokens, in [-2, 2].
        repetition_penalty: divides positive and multiplies negative logits of tokens seen in prompt or output; > 0.
        temperature: 0 decodes greedily; otherwise in (0, 2]; values below 0.01 act as 0.01.
        top_p: keep the smallest set of tokens whose probability reaches this, in [0, 1]; 0 keeps the likeliest one.
        top_k: keep the k likeliest tokens; 0 or -1 keeps all.
        min_p: drop tokens less likely than this share of the likeliest one, in [0, 1].
        seed: makes sampling repeatable, whatever else is in the batch.
        stop: strings that end the answer.
        stop_token_ids: tokens that end the answer.
        ignore_eos: go on after the model's end-of-sequence tokens.
        max_tokens: longest answer in tokens; None means up to the model's context.
        min_tokens: no stop token is sampled before this many tokens.
        logprobs: how many of the likeliest tokens to report at each step; None reports none.
        prompt_logprobs: how many of the likeliest tokens to report in the place of each token of the prompt, beside
            that token itself; None reports none. Such a prompt is computed from its first token on, and not taken
            from the prefix cache.
        detokenize: make text of the answer's tokens; without, there is none, and ``stop`` can't be given.
        skip_special_tokens: leave special tokens out of the text.
        shown_special_tokens: but for these, as they are written.
        include_stop_str_in_output: keep the stop string at the end of the text.
        structured_outputs: a form that the answer must have; the answer ends where it is complete.
        logit_bias: token id -> what is added to its logit, in [-100, 100]; ids may be written as strings, as JSON
            has them.
        allowed_token_ids: no other token is sampled; None allows all.
        bad_words: strings whose tokens must not come in this order in the answer, neither as they are written at the
            beginning of a text nor as after a space: the last token of each is not sampled behind the others.

    Where these, ``min_tokens`` and the form leave no token to sample, the request fails and says so.

    Raises:
        UserError: for a value out of range, naming the field.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    shown_special_tokens: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    structured_outputs: StructuredOutputs | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Normalise the forms that users write (``stop="x"``, ``stop=None``, numpy's numbers), and check all."""
        _normalise(self)
        _check(self)

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0


def _normalise(p: SamplingParams) -> None:
    """Give every field its own type: what is sent to the core is decoded strictly there."""
    force = msgspec.structs.force_setattr
    for name in _WHOLE:
        value = getattr(p, name)
        if not (value is None and name in _OPTIONAL):
            force(p, name, _as_int(name, value))
    for name in _REAL:
        force(p, name, _as_float(name, getattr(p, name)))
    for name in _FLAGS:
        if not isinstance(getattr(p, name), bool):
            refuse(name, getattr(p, name), "true or false")
    force(p, "stop", _as_strings("stop", p.stop, MAX_STOP_LENGTH))
    force(p, "bad_words", _as_strings("bad_words", p.bad_words, MAX_BAD_WORD_LENGTH))
    force(p, "stop_token_ids", _as_ints("stop_token_ids", p.stop_token_ids or ()))
    if p.allowed_token_ids is not None:
        force(p, "allowed_token_ids", _as_ints("allowed_token_ids", p.allowed_token_ids))
    force(p, "logit_bias", _as_biases(p.logit_bias) if p.logit_bias else None)
    if 0 < p.temperature < _MIN_TEMPERATURE:
        force(p, "temperature", _MIN_TEMPERATURE)


def _as_int(name: str, value: object) -> int:
    is_whole = isinstance(value, SupportsIndex) and not isinstance(value, bool)
    number = value.__index__() if is_whole else None  # type: ignore[attr-defined]  # as checked
    if number is None or abs(number) > MAX_SEED:
        refuse(name, value, "a whole number of at most 63 bits")
    return int(number)


def _as_ints(name: str, values: Sequence[object]) -> tuple[int, ...]:
    return tuple(_as_int(name, value) for value in values)


def _as_strings(name: str, value: object, longest: int) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else tuple(value or ())  # type: ignore[arg-type]  # what users write
    for text in texts:
        if not isinstance(text, str) or not 0 < len(text) <= longest:
            refuse(name, text, f"strings of 1 to {longest} characters")
    return texts


def _as_biases(biases: object) -> dict[int, float]:
    if not isinstance(biases, Mapping):
        refuse("logit_bias", biases, "token ids with a number for each")
    return {_as_token_id(key): _as_float("logit_bias", value) for key, value in biases.items()}


def _as_token_id(key: object) -> int:
    if not isinstance(key, str):
        return _as_int("logit_bias", key)
    if not (key.isascii() and key.isdigit() and len(key) < 20):
        refuse("logit_bias", key, "token ids with a number for each")
    return int(key)


def _as_float(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        return refuse(name, value, "a number")
    try:
        return float(value)
    except OverflowError:
        return refuse(name, value, "a number that a double can hold")


def _check_float(name: str, value: float, low: float, high: float, limit: str) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        refuse(name, value, limit)


def _check(p: SamplingParams) -> None:
    _check_float("presence_penalty", p.presence_penalty, -2, 2, "in [-2, 2]")
    _check_float("frequency_penalty", p.frequency_penalty, -2, 2, "in [-2, 2]")
    _check_float("temperature", p.temperature, 0, 2, "in [0, 2]")
    _check_float("top_p", p.top_p, 0, 1, "in [0, 1]")
    _check_float("min_p", p.min_p, 0, 1, "in [0, 1]")
    if not (math.isfinite(p.repetition_penalty) and p.repetition_penalty > 0):
        refuse("repetition_penalty", p.repetition_penalty, "finite and above 0")
    if p.top_k < -1:
        refuse("top_k", p.top_k, "-1, 0 (both: off) or positive")
    if not 1 <= p.n <= MAX_N:
        refuse("n", p.n, f"in [1, {MAX_N}]")
    _check_lengths(p)
    _check_tokens(p)
    _check_structured(p)


def _check_lengths(p: SamplingParams) -> None:
    if p.max_tokens is not None and p.max_tokens < 1:
        refuse("max_tokens", p.max_tokens, "at least 1")
    if p.min_tokens < 0 or (p.max_tokens is not None and p.min_tokens > p.max_tokens):
        refuse("min_tokens", p.min_tokens, f"in [0, max_tokens={p.max_tokens}]")
    for name, count in (("logprobs", p.logprobs), ("prompt_logprobs", p.prompt_logprobs)):
        if count is not None and not 0 <= count <= MAX_LOGPROBS:
            refuse(name, count, f"in [0, {MAX_LOGPROBS}]")
    if len(p.stop) > MAX_STOP_STRINGS:
        refuse("stop", f"{len(p.stop)} strings", f"at most {MAX_STOP_STRINGS} strings")
    if p.stop and not p.detokenize:
        refuse("stop", p.stop, "empty without detokenize")


def _check_tokens(p: SamplingParams) -> None:
    if len(p.bad_words) > MAX_BAD_WORDS:
        refuse("bad_words", f"{len(p.bad_words)} strings", f"at most {MAX_BAD_WORDS} strings")
    if p.allowed_token_ids is not None and not 1 <= len(p.allowed_token_ids) <= MAX_ALLOWED_TOKENS:
        refuse("allowed_token_ids", f"{len(p.allowed_token_ids)} tokens", f"1 to {MAX_ALLOWED_TOKENS} tokens")
    if len(p.logit_bias or ()) > MAX_BIASED_TOKENS:
        refuse("logit_bias", f"{len(p.logit_bias or ())} tokens", f"at most {MAX_BIASED_TOKENS} tokens")
    for bias in (p.logit_bias or {}).values():
        _check_float("logit_bias", bias, -_MAX_BIAS, _MAX_BIAS, f"in [-{_MAX_BIAS}, {_MAX_BIAS}]")


def _check_structured(p: SamplingParams) -> None:
    if p.structured_outputs is None:
        return
    if not isinstance(p.structured_outputs, StructuredOutputs):
        refuse("structured_outputs", p.structured_outputs, "StructuredOutputs")
    # The form alone says where such an answer ends.
    if p.ignore_eos:
        refuse("ignore_eos", True, f"false with {p.structured_outputs.param}")
    if p.min_tokens:
        refuse("min_tokens", p.min_tokens, f"0 with {p.structured_outputs.param}")
    thinking = p.structured_outputs.thinking
    if thinking is not None and thinking.end in p.stop_token_ids:
        limit = f"without the token that ends the reasoning, with {p.structured_outputs.param}"
        refuse("stop_token_ids", thinking.end, limit)


def check_token_ids(param: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """Refuse token ids that the model does not have.

    Raises:
        UserError: naming ``param``, the first bad id and the size of the vocabulary.
    """
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            refuse(param, token_id, f"token ids in [0, {vocab_size})")
