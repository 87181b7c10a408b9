"""Log-probabilities of an answer in the two forms that clients read."""

from __future__ import annotations

from chiasm.schema.output import CompletionOutput, Logprob
from chiasm.server.bodies import ChatLogprobs, CompletionLogprobs, TokenLogprobs, TopLogprob

_LOWEST = -9999.0  # stands for minus infinity, which JSON can't write


def chat_logprobs(answer: CompletionOutput, num_top: int) -> ChatLogprobs | None:
    """Chat's form, or None where the engine was not asked for any."""
    if answer.logprobs is None:
        return None
    return ChatLogprobs(
        [
            TokenLogprobs(
                *_fields(likely[token_id]), [TopLogprob(*_fields(entry)) for entry in _top(likely, num_top)]
            )
            for token_id, likely in zip(answer.token_ids, answer.logprobs, strict=True)
        ]
    )


def completion_logprobs(answer: CompletionOutput, offset: int) -> CompletionLogprobs | None:
    """Completions' form, or None where the engine was not asked for any.

    Args:
        answer: what is new of an answer, or all of it.
        offset: characters of the text before it.
    """
    if answer.logprobs is None:
        return None
    chosen = [likely[token_id] for token_id, likely in zip(answer.token_ids, answer.logprobs, strict=True)]
    offsets = []
    for entry in chosen:
        offsets.append(offset)
        offset += 0 if entry.is_special else len(entry.decoded_token)
    return CompletionLogprobs(
        text_offset=offsets,
        token_logprobs=[_finite(entry.logprob) for entry in chosen],
        tokens=[_name(entry) for entry in chosen],
        top_logprobs=[{_name(e): _finite(e.logprob) for e in likely.values()} for likely in answer.logprobs],
    )


def _fields(entry: Logprob) -> tuple[str, float, list[int]]:
    return entry.decoded_token, _finite(entry.logprob), list(entry.token_bytes)


def _name(entry: Logprob) -> str:
    r"""A token in the completions' form: its text, or, as OpenAI writes it, ``bytes:\xe2\x98`` where it has none.

    Tokens are keys there, and many have the text U+FFFD.
    """
    if "\ufffd" not in entry.decoded_token:
        return entry.decoded_token
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry.token_bytes)


def _top(likely: dict[int, Logprob], num_top: int) -> list[Logprob]:
    """The likeliest entries; the sampled token is in ``likely`` even when it is not one of them."""
    return sorted(likely.values(), key=lambda entry: -entry.logprob)[:num_top]


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST)
