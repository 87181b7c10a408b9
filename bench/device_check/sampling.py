"""Choosing tokens on the device against the definitions, in NumPy and float64; and forms and seeds in an engine."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch

from bench.device_check.families import Family, Setup
from bench.device_check.models import NUM_TEXT_TOKENS
from bench.device_check.probe import Outcome, Probe
from chiasm.sampling.masks import mask_of
from chiasm.sampling.rows import SamplingRow
from chiasm.sampling.sampler import sample
from chiasm.schema.plan import SampledToken
from chiasm.schema.sampling import SamplingParams
from chiasm.schema.structured import StructuredOutputs
from tests.engine.driven import ask, request

Logits = npt.NDArray[np.float32]

_VOCABULARY = 151936  # Qwen's
_ROWS = 4  # of each way
_HISTORY = (11, 12, 13, 13, 14, 15, 15, 15)
_NUM_PROMPT_TOKENS = 3
_ALLOWED = tuple(range(5, _VOCABULARY, 7))
_NATS = 1e-4
_NUM_TOKENS = 10


class Way(NamedTuple):
    """A way to choose tokens.

    Attributes:
        params: of the request.
        allowed: tokens that it may have, by a form; None for all.
        banned: sequences that it may not have.
    """

    params: SamplingParams
    allowed: tuple[int, ...] | None = None
    banned: tuple[tuple[int, ...], ...] = ()


_WAYS = {
    "greedy": Way(SamplingParams(temperature=0)),
    "temperature": Way(SamplingParams(temperature=1.3)),
    "top_k": Way(SamplingParams(top_k=50, temperature=0.7)),
    "top_k of one": Way(SamplingParams(top_k=1)),
    "top_p": Way(SamplingParams(top_p=0.9)),
    "top_p of nearly all": Way(SamplingParams(top_p=0.999, temperature=2)),
    "top_k and top_p": Way(SamplingParams(top_k=1000, top_p=0.5)),
    "min_p": Way(SamplingParams(min_p=0.05)),
    "penalties": Way(SamplingParams(repetition_penalty=1.2, frequency_penalty=0.5, presence_penalty=0.3)),
    "bias": Way(SamplingParams(temperature=0, logit_bias={77: 100.0})),
    "a form, greedily": Way(SamplingParams(temperature=0), _ALLOWED),
    "a form, drawn": Way(SamplingParams(top_p=0.8), _ALLOWED),
    "bad words": Way(SamplingParams(temperature=0, logit_bias={15: 100.0, 16: 90.0}), None, ((15, 15), (1, 2))),
}


def check_sampling(probe: Probe) -> None:
    """All ways in one batch, then log-probabilities, then an engine with a form and with seeds."""
    batch = _Batch(probe.device)
    for index, name in enumerate(_WAYS):
        probe.check(name, partial(batch.check_tokens, name, index * _ROWS))
    probe.check("log-probabilities and ranks", batch.check_logprobs)
    family = Family("qwen3_vl", probe.scratch, probe.device)
    probe.check("an engine follows a form", partial(check_form, family))
    probe.check("an engine repeats what seeds give", partial(check_seeds, family))


class _Batch:
    """Rows of every way, sampled together on the device when first asked for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        generator = np.random.default_rng(0)
        self._logits: Logits = generator.normal(size=(_ROWS * len(_WAYS), _VOCABULARY)).astype(np.float32) * 3
        self._sampled: list[SampledToken] = []

    def check_tokens(self, name: str, first: int) -> Outcome:
        """Tokens of the rows from ``first`` on are those that the definition gives."""
        sampled, way = self._sample()[first : first + _ROWS], _WAYS[name]
        expected = [_expected(self._logits[first + i], way, seed=first + i) for i in range(_ROWS)]
        found = [token.token_id for token in sampled]
        return Outcome(found == expected, f"{found}, {'as' if found == expected else f'not {expected} as'} defined")

    def check_logprobs(self) -> Outcome:
        """Of the model itself, before anything is applied."""
        errors, wrong = [0.0], []
        for token, row in zip(self._sample(), self._logits, strict=True):
            told, wide = token.logprob, row.astype(np.float64)
            assert told is not None
            logprobs = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
            ids, values = zip(*told.top, strict=True)
            errors += [abs(told.logprob - logprobs[token.token_id]), *np.abs(np.array(values) - logprobs[list(ids)])]
            rank = 1 + int((row > row[token.token_id]).sum())
            if told.rank != rank or list(ids) != np.argsort(-row, kind="stable")[: len(ids)].tolist():
                wrong.append(token.request_id)
        largest = float(max(errors))
        words = f"largest difference {largest:.1e} nats, at most {_NATS:.0e}; ranks of {len(wrong)} rows differ"
        return Outcome(largest <= _NATS and not wrong, words)

    def _sample(self) -> list[SampledToken]:
        if not self._sampled:
            ways = [way for way in _WAYS.values() for _ in range(_ROWS)]
            rows = [
                SamplingRow(
                    str(index), _with(way.params, seed=index, logprobs=5), _HISTORY, _NUM_PROMPT_TOKENS, way.banned
                )
                for index, way in enumerate(ways)
            ]
            allowed = {index: mask_of(way.allowed) for index, way in enumerate(ways) if way.allowed is not None}
            logits = torch.from_numpy(self._logits.copy()).to(self._device)
            self._sampled = sample(logits, rows, (0,), allowed)
        return self._sampled


def _with(params: SamplingParams, **changes: Any) -> SamplingParams:
    return SamplingParams(**{name: getattr(params, name) for name in params.__struct_fields__} | changes)


def _expected(logits: Logits, way: Way, seed: int) -> int:
    """The token that the definitions give."""
    params, logits = way.params, logits.copy()
    for token, bias in (params.logit_bias or {}).items():
        logits[token] += np.float32(bias)
    _penalise(logits, params)
    if way.allowed is not None:
        logits[np.setdiff1d(np.arange(len(logits)), way.allowed)] = -np.inf
    for *before, last in way.banned:
        if list(_HISTORY[len(_HISTORY) - len(before) :]) == before:
            logits[last] = -np.inf
    if params.temperature == 0:
        return int(logits.argmax())
    weights = _kept(logits / np.float32(params.temperature), params)
    cumulative = weights.cumsum()
    target = _uniform(seed, len(_HISTORY) - _NUM_PROMPT_TOKENS) * cumulative[-1]
    return int(np.searchsorted(cumulative, target, side="right"))


def _uniform(seed: int, index: int) -> float:
    """The first 53 bits of a hash of the seed and the token's index, as a part of one."""
    word = hashlib.blake2b(struct.pack("<qq", seed, index), digest_size=8).digest()
    return (int.from_bytes(word, "little") >> 11) / 2**53


def _penalise(logits: Logits, params: SamplingParams) -> None:
    for token in set(_HISTORY):
        factor = np.float32(params.repetition_penalty)
        logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    answer = _HISTORY[_NUM_PROMPT_TOKENS:]
    for token in set(answer):
        penalty = params.frequency_penalty * answer.count(token) + params.presence_penalty
        logits[token] -= np.float32(penalty)


def _kept(scaled: Logits, params: SamplingParams) -> npt.NDArray[np.float64]:
    """Weights of all tokens in the order of the vocabulary; those that are cut have none."""
    weights = np.exp(scaled.astype(np.float64) - scaled.max())
    order = np.argsort(-scaled, kind="stable")
    if params.top_k > 0:
        weights[order[params.top_k :]] = 0
    if params.top_p < 1:
        before = np.concatenate([[0.0], weights[order].cumsum()[:-1]])
        weights[order[before >= params.top_p * weights.sum()]] = 0
    weights[weights < params.min_p * weights.max()] = 0
    return weights


class _EvenThenOdd:
    """A form of alternately even and odd tokens, none of which ends an answer, like a matcher of llguidance."""

    def __init__(self) -> None:
        self._masks = [mask_of(range(parity, NUM_TEXT_TOKENS, 2)) for parity in (0, 1)]
        self._num_tokens = 0

    def consume_token(self, token_id: int) -> None:
        """Take in a token."""
        assert token_id % 2 == self._num_tokens % 2
        self._num_tokens += 1

    def compute_bitmask(self) -> bytes:
        """A bit for each token that may be next."""
        return self._masks[self._num_tokens % 2]

    def is_error(self) -> bool:
        """It knows none."""
        return False


class _Compiler:
    """Makes that form of every one that is asked for: the library that compiles real ones may not be there."""

    eos_token_ids = ()

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def compile(self, _: StructuredOutputs) -> _EvenThenOdd:
        """A fresh one."""
        return _EvenThenOdd()


def check_form(family: Family) -> Outcome:
    """Answers with a form have it, and those beside them are free."""
    form = {"structured_outputs": {"regex": "any"}, "ignore_eos": False}
    compiler: Callable[[object], _Compiler] = lambda _: _Compiler(family.facts.vocab_size)  # noqa: E731
    with patch("chiasm.engine.runner.runner.Runner._make_grammar_compiler", compiler):
        found = _ask(family, {"formed": form, "drawn": {**form, "temperature": 1.0, "seed": 3}, "free": {}})
    parities = {name: [token % 2 for token in tokens] for name, tokens in found.items()}
    wanted = [index % 2 for index in range(len(parities["formed"]))]
    is_good = parities["formed"] == parities["drawn"] == wanted and parities["free"] != wanted
    return Outcome(is_good, f"even then odd {'held' if is_good else 'not held'} in {parities}")


def check_seeds(family: Family) -> Outcome:
    """The same requests twice give the same tokens, and another seed gives others."""
    asked = {name: {"temperature": 1.0, "seed": seed} for name, seed in (("first", 1), ("same", 1), ("other", 2))}
    once, again = _ask(family, asked), _ask(family, asked)
    is_good = once == again and once["first"] == once["same"] != once["other"]
    return Outcome(is_good, f"{once}, then {'the same' if once == again else again}")


def _ask(family: Family, sampling: Mapping[str, Mapping[str, Any]]) -> dict[str, Sequence[int]]:
    prompt = family.prompts["mostly image"]
    with family.engine(Setup("float32")) as core:
        asked = [
            request(name, prompt, family.folder, max_tokens=_NUM_TOKENS, **own) for name, own in sampling.items()
        ]
        return {name: answer.token_ids for name, answer in ask(core, asked).items()}
