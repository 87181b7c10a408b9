"""The KV cache's blocks: which are free, which are held, and which hold a known prefix.

A block whose last holder let go keeps its content and stays findable by its hash until it is handed out again;
blocks are handed out in the order in which they were let go, so the oldest content is lost first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """Reference-counted blocks with a prefix index.

    Args:
        num_blocks: blocks in all.
        is_caching: whether full blocks are remembered by their hash.
    """

    def __init__(self, num_blocks: int, *, is_caching: bool) -> None:
        self.num_blocks = num_blocks
        self._is_caching = is_caching
        self._holders = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._block_by_hash: dict[bytes, int] = {}
        self._hash_of_block: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def num_held(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - len(self._free)

    def find_prefix(self, hashes: Sequence[bytes]) -> list[int]:
        """Blocks of the longest cached prefix of a chain of block hashes; nothing is held yet."""
        blocks: list[int] = []
        for digest in hashes:
            block = self._block_by_hash.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def can_hold(self, cached: Sequence[int], num_new: int) -> bool:
        """Whether ``hold(cached)`` and then ``allocate(num_new)`` would succeed."""
        num_cached_free = sum(self._holders[block] == 0 for block in cached)
        return num_cached_free + num_new <= self.num_free

    def hold(self, blocks: Iterable[int]) -> None:
        """Become a further holder of blocks that ``find_prefix`` gave."""
        for block in blocks:
            if self._holders[block] == 0:
                del self._free[block]
            self._holders[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Take free blocks; their old content is forgotten. The caller has checked that there are enough."""
        assert count <= self.num_free, (count, self.num_free)
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._forget(block)
            self._holders[block] = 1
        return blocks

    def release(self, blocks: Iterable[int]) -> None:
        """Let go of blocks, given in the order of their sequence.

        The end of a sequence is queued for reuse before its beginning, which others are likelier to share.
        """
        for block in reversed(list(blocks)):
            self._holders[block] -= 1
            assert self._holders[block] >= 0, block
            if self._holders[block] == 0:
                self._free[block] = None

    def remember(self, block: int, digest: bytes) -> None:
        """Make a full, held block findable. A hash that is known already keeps its first block."""
        if self._is_caching and digest not in self._block_by_hash and block not in self._hash_of_block:
            self._block_by_hash[digest] = block
            self._hash_of_block[block] = digest

    def _forget(self, block: int) -> None:
        digest = self._hash_of_block.pop(block, None)
        if digest is not None:
            del self._block_by_hash[digest]
