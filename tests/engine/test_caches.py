"""Accounting of the KV blocks and of the encoder's features."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chiasm.engine.cache.block_hash import block_hash, first_parent
from chiasm.engine.cache.block_pool import BlockPool
from chiasm.engine.cache.encoder_cache import EncoderCache
from chiasm.schema.media import MediaItem, PixelRef, Unit
from chiasm.vision.frames import PlacedUnits

NONE = PlacedUnits(())

_PIXELS = PixelRef("", 0, 4, 1)


def _item(offset: int, *keys: str) -> MediaItem:
    return MediaItem("image", offset, len(keys), tuple(Unit(key, (2, 2), 1, _PIXELS) for key in keys))


def test_blocks_are_handed_out_once_and_come_back() -> None:
    pool = BlockPool(4, is_caching=True)
    first = pool.allocate(3)
    second = pool.allocate(1)
    assert sorted(first + second) == [0, 1, 2, 3]
    assert pool.num_free == 0
    pool.release(first)
    assert pool.num_free == 3
    assert pool.num_held == 1


def test_released_blocks_stay_findable_until_reused_the_end_of_a_sequence_first() -> None:
    pool = BlockPool(3, is_caching=True)
    blocks = pool.allocate(2)
    for block, digest in zip(blocks, (b"a", b"b"), strict=True):
        pool.remember(block, digest)
    pool.release(blocks)
    assert pool.find_prefix([b"a", b"b"]) == blocks
    pool.allocate(2)  # the one never used, then the end of the sequence
    assert pool.find_prefix([b"a", b"b"]) == blocks[:1]


def test_a_found_prefix_is_held_and_counts_as_taken() -> None:
    pool = BlockPool(2, is_caching=True)
    blocks = pool.allocate(1)
    pool.remember(blocks[0], b"a")
    pool.release(blocks)
    assert not pool.can_hold(blocks, 2)
    assert pool.can_hold(blocks, 1)
    pool.hold(blocks)
    pool.hold(blocks)
    pool.release(blocks)
    assert pool.num_held == 1, "a second holder remains"


def test_a_hash_that_is_known_keeps_its_first_block() -> None:
    pool = BlockPool(3, is_caching=True)
    first, second = pool.allocate(1), pool.allocate(1)
    pool.remember(first[0], b"a")
    pool.remember(second[0], b"a")
    assert pool.find_prefix([b"a"]) == first
    pool.release(second)
    pool.allocate(2)  # reuses the second, which must not take the first's hash with it
    assert pool.find_prefix([b"a"]) == first


def test_without_caching_nothing_is_findable() -> None:
    pool = BlockPool(1, is_caching=False)
    pool.remember(pool.allocate(1)[0], b"a")
    assert pool.find_prefix([b"a"]) == []


@pytest.mark.parametrize(
    "other",
    [
        block_hash(first_parent("salt"), (1, 2), 0, NONE),
        block_hash(first_parent(""), (1, 3), 0, NONE),
        block_hash(first_parent(""), (1, 2), 0, PlacedUnits((_item(1, "k"),))),
        block_hash(block_hash(first_parent(""), (1, 2), 0, NONE), (1, 2), 2, NONE),
    ],
    ids=["salt", "tokens", "pixels", "parent"],
)
def test_hash_depends_on_all_that_the_keys_and_values_depend_on(other: bytes) -> None:
    assert block_hash(first_parent(""), (1, 2), 0, NONE) != other


def test_hash_depends_on_which_unit_and_where() -> None:
    parent = first_parent("")
    hashes = {
        block_hash(parent, (9, 9, 9), 0, PlacedUnits(items))
        for items in [(_item(0, "a", "b"),), (_item(0, "b", "a"),), (_item(1, "a", "b"),), (_item(0, "a", "a"),)]
    }
    assert len(hashes) == 4


def test_hash_depends_on_what_positions_depend_on() -> None:
    """Two clips side by side are not one, nor is a clip the same at another speed."""
    parent, units = first_parent(""), _item(0, "a", "b", "c", "d").units
    together = MediaItem("video", 0, 4, units, 1.0)
    faster = MediaItem("video", 0, 4, units, 0.5)
    apart = (MediaItem("video", 0, 2, units[:2], 1.0), MediaItem("video", 2, 2, units[2:], 1.0))
    hashes = {block_hash(parent, (9, 9, 9, 9), 0, PlacedUnits(items)) for items in ((together,), (faster,), apart)}
    assert len(hashes) == 3


def test_hash_ignores_media_outside_the_block() -> None:
    parent, around = first_parent(""), PlacedUnits((_item(0, "a"), _item(6, "b")))
    assert block_hash(parent, (1, 2), 4, around) == block_hash(parent, (1, 2), 4, NONE)


def test_pinned_units_stay_and_the_least_recently_used_go() -> None:
    cache = EncoderCache(2, 20, 20)
    assert cache.pin("a", 4, "r1") == []
    assert cache.pin("b", 4, "r2") == []
    cache.unpin("a", "r1")
    cache.unpin("b", "r2")
    cache.pin("a", 4, "r3")  # used again: now the younger one
    cache.unpin("a", "r3")
    assert cache.pin("c", 5, "r3") == ["b"]
    assert "a" in cache
    assert "b" not in cache
    assert cache.num_bytes == 18


def test_a_unit_pinned_twice_is_counted_once() -> None:
    cache = EncoderCache(2, 20, 20)
    cache.pin("a", 6, "r1")
    assert cache.can_pin({"a": 6, "b": 4})
    assert not cache.can_pin({"b": 5})
    cache.pin("a", 6, "r2")
    cache.unpin_all("r1")
    assert cache.num_pinned_bytes == 12
    cache.unpin_all("r2")
    assert cache.num_pinned_bytes == 0


def test_a_failed_unit_leaves_no_trace() -> None:
    cache = EncoderCache(2, 20, 20)
    cache.pin("a", 6, "r1")
    cache.forget("a")
    cache.unpin_all("r1")
    assert (cache.num_bytes, cache.num_pinned_bytes) == (0, 0)
    assert "a" not in cache


def test_what_is_read_goes_when_less_may_be_kept_than_held() -> None:
    cache = EncoderCache(2, 20, 6)
    for key in "abc":
        cache.pin(key, 3, "r")
    assert cache.trim() == []
    cache.unpin("b", "r")
    assert cache.trim() == ["b"]
    cache.unpin_all("r")
    assert cache.trim() == ["a"]
    assert cache.num_bytes == 6


_STEPS = st.lists(st.tuples(st.sampled_from("ppuut"), st.integers(0, 5), st.integers(0, 3)), max_size=60)


@given(steps=_STEPS, kept=st.integers(0, 8))
def test_encoder_cache_adds_up_whatever_happens(steps: list[tuple[str, int, int]], kept: int) -> None:
    """A mirror that holds what it is told to hold agrees with the accounting, and never exceeds the limits."""
    cache = EncoderCache(3, 3 * 8, 3 * kept)
    held: dict[str, int] = {}
    for action, unit, holder in steps:
        key, rows, name = f"u{unit}", unit % 3 + 1, f"r{holder}"
        if action == "u":
            cache.unpin(key, name)
        elif action == "t":
            for evicted in cache.trim():
                del held[evicted]
            assert cache.num_bytes <= max(3 * kept, cache.num_pinned_bytes)
        elif cache.can_pin({key: rows}):
            for evicted in cache.pin(key, rows, name):
                del held[evicted]
            held[key] = 3 * rows
        assert sum(held.values()) == cache.num_bytes <= 3 * 8
        assert cache.num_pinned_bytes <= cache.num_bytes
    for holder in range(4):
        cache.unpin_all(f"r{holder}")
    assert cache.num_pinned_bytes == 0
