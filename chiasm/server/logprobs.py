"""Log-probabilities in the forms that clients read.

With ``as_ids``, tokens are written as their ids (``token_id:5``), which tells apart those with the same text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chiasm.schema.output import CompletionOutput, Logprob
from chiasm.server.bodies import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprobs,
    TopLogprob,
)

_LOWEST = -9999.0  # stands for minus infinity, which JSON can't write

_Likely = Mapping[int, Logprob]


def chat_logprobs(answer: CompletionOutput, num_top: int, *, as_ids: bool = False) -> ChatLogprobs | None:
    """Chat's form, or None where the engine was not asked for any; of each token with the ``num_top`` likeliest."""
    if answer.logprobs is None:
        return None
    return ChatLogprobs(
        [
            TokenLogprobs(
                *_fields(token_id, likely[token_id], as_ids=as_ids),
                [TopLogprob(*_fields(*entry, as_ids=as_ids)) for entry in _top(likely, num_top)],
            )
            for token_id, likely in zip(answer.token_ids, answer.logprobs, strict=True)
        ]
    )


def completion_logprobs(
    answer: CompletionOutput, offset: int, *, as_ids: bool = False
) -> tuple[CompletionLogprobs | None, int]:
    """Completions' form, or None where the engine was not asked for any, and the offset of what comes next.

    Offsets count the text of tokens, not what was given out so far: that may wait for a stop string or the rest of a
    character, and an answer must have the same offsets however it is cut into pieces.

    Args:
        answer: what is new of an answer, or all of it.
        offset: characters of the tokens before it.
        as_ids: see above.
    """
    if answer.logprobs is None:
        return None, offset
    chosen = [likely[token_id] for token_id, likely in zip(answer.token_ids, answer.logprobs, strict=True)]
    offsets = []
    for entry in chosen:
        offsets.append(offset)
        offset += 0 if entry.is_special else len(entry.decoded_token)
    told = CompletionLogprobs(
        text_offset=offsets,
        token_logprobs=[_finite(entry.logprob) for entry in chosen],
        tokens=[_name(i, entry, as_ids=as_ids) for i, entry in zip(answer.token_ids, chosen, strict=True)],
        top_logprobs=[_named(likely, as_ids=as_ids) for likely in answer.logprobs],
    )
    return told, offset


def echoed_logprobs(
    token_ids: Sequence[int],
    logprobs: Sequence[_Likely | None],
    first: str,
    text: str,
    *,
    as_ids: bool = False,
) -> CompletionLogprobs:
    """Completions' form of a prompt whose text stands before that of its answer.

    Special tokens have a length where they are in that text; those that the tokenizer has put around it have none.

    Args:
        token_ids: the prompt.
        logprobs: of each token; None for the first.
        first: the first token's text.
        text: of the prompt, as it is echoed.
        as_ids: see above.
    """
    told = CompletionLogprobs([0], [None], [f"token_id:{token_ids[0]}" if as_ids else first], [None])
    # Its text is found there, but for a piece of a character: what is put around a text is no such piece.
    offset = len(first) if text.startswith(first) or "\ufffd" in first else 0
    for token_id, likely in zip(token_ids[1:], logprobs[1:], strict=True):
        assert likely is not None
        entry = likely[token_id]
        told.text_offset.append(offset)
        told.token_logprobs.append(_finite(entry.logprob))
        told.tokens.append(_name(token_id, entry, as_ids=as_ids))
        told.top_logprobs.append(_named(likely, as_ids=as_ids))
        is_around = entry.is_special and not text.startswith(entry.decoded_token, offset)
        offset += 0 if is_around else len(entry.decoded_token)
    return told


def joined_logprobs(echo: CompletionLogprobs, answer: CompletionLogprobs | None) -> CompletionLogprobs:
    """Those of a prompt and of what follows it."""
    if answer is None:
        return echo
    return CompletionLogprobs(
        echo.text_offset + answer.text_offset,
        echo.token_logprobs + answer.token_logprobs,
        echo.tokens + answer.tokens,
        echo.top_logprobs + answer.top_logprobs,
    )


def prompt_logprobs(logprobs: Sequence[_Likely | None]) -> PromptLogprobs:
    """A prompt's log-probabilities in vLLM's form."""
    return [
        None
        if likely is None
        else {str(i): PromptLogprob(_finite(e.logprob), e.rank, e.decoded_token) for i, e in likely.items()}
        for likely in logprobs
    ]


def _fields(token_id: int, entry: Logprob, *, as_ids: bool) -> tuple[str, float, list[int]]:
    text = f"token_id:{token_id}" if as_ids else entry.decoded_token
    return text, _finite(entry.logprob), list(entry.token_bytes)


def _named(likely: _Likely, *, as_ids: bool) -> dict[str, float]:
    return {_name(token_id, entry, as_ids=as_ids): _finite(entry.logprob) for token_id, entry in likely.items()}


def _name(token_id: int, entry: Logprob, *, as_ids: bool) -> str:
    r"""A token in the completions' form: its text, or, as OpenAI writes it, ``bytes:\xe2\x98`` where it has none.

    Tokens are keys there, and many have the text U+FFFD.
    """
    if as_ids:
        return f"token_id:{token_id}"
    if "\ufffd" not in entry.decoded_token:
        return entry.decoded_token
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry.token_bytes)


def _top(likely: _Likely, num_top: int) -> list[tuple[int, Logprob]]:
    """The likeliest entries; the sampled token is in ``likely`` even when it is not one of them."""
    return sorted(likely.items(), key=lambda entry: -entry[1].logprob)[:num_top]


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST)
