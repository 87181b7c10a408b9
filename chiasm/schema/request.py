"""A request as the engine's core takes it."""

from __future__ import annotations

import msgspec

from chiasm.schema.media import MediaItem
from chiasm.schema.sampling import SamplingParams


class EngineRequest(msgspec.Struct, frozen=True):
    """One sequence to generate; a user's request with ``n`` answers becomes ``n`` of these.

    Attributes:
        request_id: unique among the live requests.
        token_ids: the prompt with every placeholder in place.
        items: its media, in order of their offsets.
        sampling: decoding parameters, with ``max_tokens`` and ``seed`` filled in.
        cache_salt: keeps its prefix-cache blocks apart from those of other salts.
        banned: token sequences that its answer may not hold, of ``SamplingParams.bad_words``.
        num_followers: requests whose media were being prepared when this one was ready.
    """

    request_id: str
    token_ids: tuple[int, ...]
    items: tuple[MediaItem, ...]
    sampling: SamplingParams
    cache_salt: str = ""
    banned: tuple[tuple[int, ...], ...] = ()
    num_followers: int = 0
