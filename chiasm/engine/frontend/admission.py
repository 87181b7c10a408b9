"""The last checks before a prompt goes to the core: it must fit the model and the cache."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence

import msgspec

from chiasm.errors import UserError
from chiasm.schema.chat import PreparedPrompt
from chiasm.schema.facts import ModelFacts
from chiasm.schema.media import MediaItem
from chiasm.schema.request import EngineRequest
from chiasm.schema.sampling import MAX_SEED, SamplingParams, check_token_ids

MAX_PROMPT_LOGPROBS = 1 << 18
"""Log-probabilities of the tokens of prompts that one request may ask for, all the likeliest ones counted."""


def engine_requests(
    prompt: PreparedPrompt, params: SamplingParams, name: str, facts: ModelFacts, max_model_len: int, seed: int
) -> Iterator[EngineRequest]:
    """The ``n`` sequences of a request, each with its own seed.

    Args:
        prompt: with every placeholder in place; its length has been checked.
        params: the user's parameters.
        name: prefix of the sequences' ids, unique in the engine.
        facts: of the model.
        max_model_len: longest sequence in tokens.
        seed: for a request that brings none.

    Raises:
        UserError: if a token is not in the vocabulary, the shortest answer asked for does not fit, or there would be
            too many log-probabilities of the prompt.
    """
    check_token_ids("stop_token_ids", params.stop_token_ids, facts.vocab_size)
    check_token_ids("allowed_token_ids", params.allowed_token_ids or (), facts.vocab_size)
    check_token_ids("logit_bias", tuple(params.logit_bias or ()), facts.vocab_size)
    check_prompt_logprobs(len(prompt.token_ids), params.prompt_logprobs)
    room = max_model_len - len(prompt.token_ids)
    max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
    if params.min_tokens > max_tokens:
        raise UserError(
            f"min_tokens={params.min_tokens} does not fit: max_model_len={max_model_len} leaves {room} tokens "
            f"after a prompt of {len(prompt.token_ids)}.",
            param="min_tokens",
        )
    own_seed = seed if params.seed is None else params.seed
    for index in range(params.n):
        own = msgspec.structs.replace(
            params,
            n=1,
            max_tokens=max_tokens,
            seed=answer_seed(own_seed, index),
            prompt_logprobs=params.prompt_logprobs if index == 0 else None,  # of one prompt they are the same
        )
        yield EngineRequest(f"{name}-{index}", prompt.token_ids, prompt.items, own, prompt.cache_salt)


def answer_seed(seed: int, index: int) -> int:
    """The seed of one of a request's answers: its own for the first, for the others one that no other seed gives."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(struct.pack("<qq", seed, index), digest_size=8).digest()
    return int.from_bytes(digest, "little") % MAX_SEED


def check_prompt_logprobs(num_tokens: int, num_top: int | None) -> None:
    """Refuse to report so much of prompts that the answer would be larger than anybody reads.

    Args:
        num_tokens: of all prompts of a request.
        num_top: the likeliest tokens reported in the place of each; None for no report.

    Raises:
        UserError: with both numbers.
    """
    count = 0 if num_top is None else num_tokens * (num_top + 1)
    if count > MAX_PROMPT_LOGPROBS:
        raise UserError(
            f"prompt_logprobs={num_top} for {num_tokens} tokens of prompts are {count} log-probabilities; at most "
            f"{MAX_PROMPT_LOGPROBS} can be asked for at once.",
            param="prompt_logprobs",
        )


def check_prompt_length(num_tokens: int, max_model_len: int, param: str) -> None:
    """Refuse a prompt that is empty or leaves no room for an answer.

    Raises:
        UserError: with both numbers.
    """
    if num_tokens == 0:
        raise UserError("the prompt is empty; it needs at least one token.", param=param)
    if num_tokens >= max_model_len:
        raise UserError(
            f"the prompt has {num_tokens} tokens, media included; max_model_len={max_model_len} allows at most "
            f"{max_model_len - 1}, so that one can be answered.",
            param=param,
        )


def check_seen_media(items: Sequence[MediaItem], most_rows: int | None, param: str) -> None:
    """Refuse media that text attends to if the ranks can't keep them all as long as the answer takes.

    Args:
        items: of the prompt; the same picture twice is kept once.
        most_rows: of features; None where they are read once and need not be kept.
        param: the request's field that holds them.

    Raises:
        UserError: with both numbers.
    """
    if most_rows is None:
        return
    rows = {unit.key: unit.num_tokens for item in items for unit in item.units}
    if sum(rows.values()) > most_rows:
        raise UserError(
            f"the prompt's {len(rows)} different images have {sum(rows.values())} rows of features to attend to; "
            f"this server has room for {most_rows} (mm_encoder_cache_gb).",
            param=param,
        )
