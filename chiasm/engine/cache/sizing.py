"""How the memory of the ranks is shared out. Pure arithmetic, in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chiasm.config.engine import EngineConfig
from chiasm.errors import UserError
from chiasm.schema.wire import RankMemory

GIB = 2**30
CPU_LIMIT = 4 * GIB
"""Most that the KV cache of a rank takes of a host's memory, unless it is told."""

_CPU_SHARE = 0.25  # of free memory: there are other programs


class CacheBudget(NamedTuple):
    """Bytes for the KV cache of a rank, none or fewer where there is no room for it, and how they were found."""

    num_bytes: int
    reason: str


@dataclass(frozen=True)
class MemoryPlan:
    """What has to share the memory.

    Attributes:
        config: the engine's settings.
        memories: of all ranks.
        item_bytes: features of the largest image or slice, for which the encoder cache has always room; 0 where the
            KV cache lends it what it lacks.
        seen_bytes: keys and values of the largest image that text attends to; 0 where it attends to none.
    """

    config: EngineConfig
    memories: Sequence[RankMemory]
    item_bytes: int
    seen_bytes: int = 0

    @property
    def is_on_host(self) -> bool:
        """Whether all ranks share the host's memory."""
        return self.memories[0].device == "cpu"

    @property
    def encoder_bytes(self) -> int:
        """Of the encoder cache of each rank."""
        return max(self._own_bytes, self.item_bytes)

    @property
    def pixel_bytes(self) -> int:
        """Most that is held of pixels, for all ranks together; the folder is in the host's memory."""
        media = self.config.media
        return media.max_pixel_bytes_in_flight + round(media.mm_processor_cache_gb * GIB)

    @property
    def free_bytes(self) -> int:
        """Beside the weights, where there is least; on a CPU all ranks share them."""
        return min(memory.free_bytes for memory in self.memories)

    @property
    def room(self) -> int:
        """Most that the KV cache of each rank could take beside all else; below 0 where the rest is too much."""
        ranks = len(self.memories)
        if self.is_on_host:
            steps = sum(memory.working_bytes for memory in self.memories)
            return (self.free_bytes - steps - self.pixel_bytes) // ranks - self.encoder_bytes
        return min(memory.free_bytes - memory.working_bytes for memory in self.memories) - self.encoder_bytes

    def budget(self) -> CacheBudget:
        """For the KV cache of each rank.

        Raises:
            UserError: if ``kv_cache_memory_bytes`` asks for more than is free.
        """
        asked, room, ranks = self.config.kv_cache_memory_bytes, self.room, len(self.memories)
        if asked is not None:
            self._check_asked(asked)
            return CacheBudget(asked, "as asked")
        if not self.is_on_host:
            share = self.config.gpu_memory_utilization
            unused = round(max(memory.total_bytes for memory in self.memories) * (1 - share))
            return CacheBudget(room - unused, f"what the rest leaves of gpu_memory_utilization={share:g}")
        quarter = int(self.free_bytes * _CPU_SHARE / ranks)
        if room < min(quarter, CPU_LIMIT):
            return CacheBudget(room, "what the rest leaves of free memory")
        reason = f"a quarter of free memory over the ranks, at most {CPU_LIMIT // GIB} GiB"
        return CacheBudget(min(quarter, CPU_LIMIT), reason)

    @property
    def token_bytes(self) -> int:
        """What the KV cache of each rank has for tokens."""
        num_bytes = self.budget().num_bytes
        return num_bytes - self.lent_bytes(num_bytes)

    def lent_bytes(self, cache_bytes: int) -> int:
        """Of a KV cache, for keys and values of images that text attends to: what the encoder's cache lacks.

        An image's weigh as much as those of a thousand tokens or more, and sequences keep them to their end: they get
        half of the KV cache's, or as much as all sequences could use with an image each.
        """
        return max(0, min(max(0, cache_bytes) // 2, self._most_seen_bytes) - self._own_bytes)

    def with_token_bytes(self, needed: int) -> int:
        """The least KV cache that has so much for tokens."""
        rest = needed - self._own_bytes
        return max(needed, min(2 * rest, rest + self._most_seen_bytes))

    @property
    def _own_bytes(self) -> int:
        return round(self.config.mm_encoder_cache_gb * GIB)

    @property
    def _most_seen_bytes(self) -> int:
        return self.config.max_num_seqs * self.seen_bytes

    def _check_asked(self, asked: int) -> None:
        most, where = self.room, f"on the GPU beside all else: {self.in_words()}"
        if self.is_on_host:
            most, where = self.free_bytes // len(self.memories), "of the host's memory for each rank"
        if asked > most:
            raise UserError(
                f"kv_cache_memory_bytes={asked} ({in_units(asked)}) is more than the {in_units(max(0, most))} that "
                f"are free {where}.",
                param="kv_cache_memory_bytes",
            )

    def in_words(self) -> str:
        """What memory is taken by, beside the KV cache."""
        memory = max(self.memories, key=lambda one: one.step.peak_bytes)
        step = memory.step
        words = (
            f"weights {in_units(memory.weight_bytes)}, activations {in_units(step.peak_bytes)} (biggest step: "
            f"{step.num_tokens} tokens, {step.most_patches} patches), encoder cache {in_units(self.encoder_bytes)}"
        )
        if len(self.memories) > 1:
            words += " on each rank"
        return f"{words}, pixels up to {in_units(self.pixel_bytes)}" if self.is_on_host else words


def in_units(num_bytes: int) -> str:
    """As people read it."""
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB else f"{num_bytes / 2**20:.1f} MiB"
