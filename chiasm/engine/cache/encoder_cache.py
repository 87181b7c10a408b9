"""Which units' features the ranks hold, and for whom.

The ranks hold the tensors under the same keys and do what the plan says; this is the only place that decides. A unit
is pinned while a scheduled sequence still has to read its features; unpinned units stay until room is needed, the
least recently used go first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass
class _Entry:
    num_tokens: int
    pins: set[str] = field(default_factory=set)


class EncoderCache:
    """Accounting of features by unit key.

    Args:
        capacity: feature rows (one per placeholder token) that the ranks may hold.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._pinned_by: dict[str, set[str]] = {}
        self.num_tokens = 0
        self.num_pinned_tokens = 0

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def can_pin(self, units: dict[str, int]) -> bool:
        """Whether all these units (key -> rows) can be held at once beside what is pinned now."""
        extra = sum(rows for key, rows in units.items() if not self._is_pinned(key))
        return self.num_pinned_tokens + extra <= self.capacity

    def pin(self, key: str, num_tokens: int, holder: str) -> list[str]:
        """Keep a unit for a holder, making room for it if it is new.

        Returns:
            Keys that were evicted for it. The caller has checked ``can_pin``.
        """
        evicted: list[str] = []
        if key not in self._entries:
            evicted = self._make_room(num_tokens)
            self._entries[key] = _Entry(num_tokens)
            self.num_tokens += num_tokens
        entry = self._entries[key]
        self._entries.move_to_end(key)
        if not entry.pins:
            self.num_pinned_tokens += entry.num_tokens
        entry.pins.add(holder)
        self._pinned_by.setdefault(holder, set()).add(key)
        return evicted

    def unpin(self, key: str, holder: str) -> None:
        """The holder has read the unit's features; no harm if it held none."""
        keys = self._pinned_by.get(holder)
        if keys is None or key not in keys:
            return
        keys.discard(key)
        if not keys:
            del self._pinned_by[holder]
        entry = self._entries[key]
        entry.pins.discard(holder)
        if not entry.pins:
            self.num_pinned_tokens -= entry.num_tokens

    def unpin_all(self, holder: str) -> None:
        """The holder ended or was preempted."""
        for key in list(self._pinned_by.get(holder, ())):
            self.unpin(key, holder)

    def forget(self, key: str) -> None:
        """The unit could not be encoded: nobody has it. Its holders are ended by the caller."""
        entry = self._entries.get(key)
        if entry is None:
            return
        for holder in list(entry.pins):
            self.unpin(key, holder)
        del self._entries[key]
        self.num_tokens -= entry.num_tokens

    def _is_pinned(self, key: str) -> bool:
        entry = self._entries.get(key)
        return entry is not None and bool(entry.pins)

    def _make_room(self, num_tokens: int) -> list[str]:
        evicted: list[str] = []
        for key in [k for k, entry in self._entries.items() if not entry.pins]:
            if self.num_tokens + num_tokens <= self.capacity:
                break
            self.num_tokens -= self._entries.pop(key).num_tokens
            evicted.append(key)
        assert self.num_tokens + num_tokens <= self.capacity, (self.num_tokens, num_tokens, self.capacity)
        return evicted
