"""Hashes that name the content of a KV block.

A block's keys and values depend on every token up to its end and on the pixels behind the placeholders among them.
So a block's hash covers its parent's hash, its tokens, and the items and units that begin in it; its parent's covers
those that began before. Of an item it covers where it begins and how fast it goes on: its positions follow from that.
The hash is cryptographic, because a collision would serve one user's context to another.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import blake3

from chiasm.vision.frames import PlacedUnits, items_between


def first_parent(cache_salt: str) -> bytes:
    """The parent of a sequence's first block; sequences with different salts share nothing."""
    return blake3.blake3(b"chiasm-prefix" + cache_salt.encode()).digest()


def block_hash(parent: bytes, token_ids: Sequence[int], start: int, units: PlacedUnits) -> bytes:
    """The hash of one full block.

    Args:
        parent: hash of the block before it, or ``first_parent``.
        token_ids: the block's tokens.
        start: position of its first token in the sequence.
        units: of the sequence's media.
    """
    hasher = blake3.blake3(parent)
    hasher.update(struct.pack(f"<{len(token_ids)}q", *token_ids))
    stop = start + len(token_ids)
    for item in items_between(units.items, start, stop):
        if item.offset >= start:
            hasher.update(struct.pack("<qd", item.offset - start, item.seconds_per_slice))
    for placed in units.beginning(start, stop):
        # Length-framed, so that no two lists of units are written alike.
        key = placed.unit.key.encode()
        hasher.update(struct.pack("<qq", placed.start - start, len(key)) + key)
    return hasher.digest()
