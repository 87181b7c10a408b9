"""A sequence while the scheduler knows it."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from chiasm.engine.cache.block_hash import block_hash, first_parent
from chiasm.schema.request import EngineRequest
from chiasm.vision.frames import PlacedUnits


@dataclass(eq=False)
class Sequence:
    """A request's tokens and how far they are computed.

    Attributes:
        request: as it came.
        token_ids: the prompt, then what was generated.
        num_computed_tokens: tokens whose keys and values are in held blocks.
        was_started: whether it has run before, also if it has given way since.
        num_scored: tokens of the prompt, from the first on, that those behind have been reported for.
        num_cached_tokens: prompt tokens that the prefix cache gave when it first ran.
        block_ids: the blocks it holds, in order.
        is_known_to_ranks: whether the ranks have its record; preemption takes it away.
        encoder_seconds: predicted time of what was encoded for it, on one rank.
        own_seconds: the same of all that it reads and was encoded since it came, for whomever.
        owed_seconds: the same of what others had while it was left out of a wave, less what it got.
        arrival: how many came before it.
        waits_until: the newest of those that its first token waits for, by arrival.
        waited_seconds: how long its first token was held back.
        unsent_token_id: the newest token, until a plan has carried it to the ranks.
        num_prompt_tokens: length of the prompt.
        units: of its media, by position.
        unit_keys: theirs.
        reads_until: one past its last token that reads a unit; text may attend to units for ever.
    """

    request: EngineRequest
    token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    was_started: bool = False
    num_scored: int = 0
    num_cached_tokens: int = 0
    block_ids: list[int] = field(default_factory=list)
    is_known_to_ranks: bool = False
    encoder_seconds: float = 0.0
    own_seconds: float = 0.0
    owed_seconds: float = 0.0
    arrival: int = 0
    waits_until: int | None = None
    waited_seconds: float = 0.0
    unsent_token_id: int | None = None
    num_prompt_tokens: int = field(init=False)
    units: PlacedUnits = field(init=False)
    unit_keys: frozenset[str] = field(init=False)
    reads_until: int = field(init=False)
    _block_hashes: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start with the prompt."""
        self.token_ids = list(self.request.token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.units = PlacedUnits(self.request.items)
        self.unit_keys = frozenset(unit.key for item in self.request.items for unit in item.units)
        self.reads_until = max((item.seen_until or item.end for item in self.request.items), default=0)

    @property
    def request_id(self) -> str:
        """Its name."""
        return self.request.request_id

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens still to compute before the next one can be sampled; 1 while it decodes."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def keeps_units(self) -> bool:
        """Whether its text attends to its units, so that it keeps them beyond the step that needs them first."""
        items = self.request.items
        return bool(items) and items[0].seen_until is not None

    @property
    def is_decoding(self) -> bool:
        """Whether it runs, and its next token needs one more computed, and no more of its prompt.

        One that gave way and finds all else in the prefix cache doesn't decode yet: it let go of its units.
        """
        num_tokens = len(self.token_ids)
        is_last = num_tokens > self.num_prompt_tokens and num_tokens - self.num_computed_tokens == 1
        return is_last and self.is_known_to_ranks

    def block_hashes(self, num_blocks: int, block_size: int) -> Seq[bytes]:
        """Hashes of its first ``num_blocks`` full blocks."""
        hashes = self._block_hashes
        while len(hashes) < num_blocks:
            start = len(hashes) * block_size
            parent = hashes[-1] if hashes else first_parent(self.request.cache_salt)
            tokens = self.token_ids[start : start + block_size]
            hashes.append(block_hash(parent, tokens, start, self.units))
        return hashes[:num_blocks]
