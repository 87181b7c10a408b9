"""Which units' features the ranks hold, and for whom.

The ranks hold the tensors under the same keys and do what the plan says; this is the only place that decides. A unit
is pinned while a scheduled sequence still has to read its features. Unpinned units stay until room is needed, as far
as so much may be kept; the least recently used go first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass
class _Entry:
    num_bytes: int
    pins: set[str] = field(default_factory=set)


class EncoderCache:
    """Accounting of features by unit key.

    Args:
        row_bytes: bytes of a feature row, of which a unit has one for each of its placeholder tokens.
        capacity: bytes that a rank may hold at a time.
        kept: bytes that it may hold beyond what is pinned; less than ``capacity`` where that is set by the largest
            item rather than by what the operator wants to spend.

    Attributes:
        num_bytes: held now.
        num_pinned_bytes: of these, still to be read.
    """

    def __init__(self, row_bytes: int, capacity: int, kept: int) -> None:
        self._row_bytes = row_bytes
        self._capacity = capacity
        self._kept = kept
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._pinned_by: dict[str, set[str]] = {}
        self._ahead: dict[str, int] = {}
        self._reserved: dict[str, int] = {}
        self.num_bytes = 0
        self.num_pinned_bytes = 0

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def is_pinned_by(self, key: str, holder: str) -> bool:
        """Whether this holder keeps the unit."""
        return key in self._pinned_by.get(holder, ())

    def can_pin(self, units: Mapping[str, int]) -> bool:
        """Whether all these units (key -> rows) can be held at once beside what is pinned or reserved now."""
        extra = sum(rows for key, rows in units.items() if not self._is_pinned(key)) * self._row_bytes
        return self.num_pinned_bytes + self._reserved_beside(units) + extra <= self._capacity

    def can_keep(self, units: Mapping[str, int]) -> bool:
        """Whether these units (key -> rows) can be kept for sequences that have not started.

        They are not pinned. All of them take at most half of what is kept, and none that is new has to go before it
        is there.
        """
        rows = sum(rows for key, rows in units.items() if key not in self._ahead)
        num_bytes = sum(self._ahead.values()) + rows * self._row_bytes
        taken = self.num_pinned_bytes + self._reserved_beside(units)
        return num_bytes <= min(self._kept / 2, min(self._kept, self._capacity) - taken)

    def reserve(self, units: Mapping[str, int]) -> None:
        """Keep room for units (key -> rows) that are under way; the caller has checked ``can_pin``."""
        self._reserved = {key: rows * self._row_bytes for key, rows in units.items()}

    def release(self) -> None:
        """Nothing is under way any more."""
        self._reserved.clear()

    def add_unread(self, key: str, num_rows: int) -> list[str]:
        """Take in a unit for which room was reserved, and which nobody reads in this step.

        Returns:
            Keys that were evicted for it.
        """
        return self._add(key, num_rows)

    def keep(self, key: str, num_rows: int) -> list[str]:
        """Take in a new unit for a sequence that has not started.

        Returns:
            Keys that were evicted for it. The caller has checked ``can_keep``.
        """
        evicted = self._add(key, num_rows)
        self._ahead[key] = self._entries[key].num_bytes
        return evicted

    def keep_ahead_only(self, wanted: Collection[str]) -> None:
        """Count other units as kept for nobody: the sequences that they were kept for don't need them any more."""
        for key in [key for key in self._ahead if key not in wanted]:
            del self._ahead[key]

    def pin(self, key: str, num_rows: int, holder: str) -> list[str]:
        """Keep a unit for a holder, making room for it if it is new.

        Returns:
            Keys that were evicted for it. The caller has checked ``can_pin``.
        """
        evicted = [] if key in self._entries else self._add(key, num_rows)
        self._ahead.pop(key, None)
        entry = self._entries[key]
        self._entries.move_to_end(key)
        if not entry.pins:
            self.num_pinned_bytes += entry.num_bytes
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
            self.num_pinned_bytes -= entry.num_bytes

    def unpin_all(self, holder: str) -> None:
        """The holder ended or was preempted."""
        for key in list(self._pinned_by.get(holder, ())):
            self.unpin(key, holder)

    def forget(self, key: str) -> list[str]:
        """The unit could not be encoded: nobody has it.

        Returns:
            Who held it; the caller ends them.
        """
        entry = self._entries.get(key)
        if entry is None:
            return []
        holders = sorted(entry.pins)
        for holder in holders:
            self.unpin(key, holder)
        self._drop(key)
        return holders

    def trim(self) -> list[str]:
        """Evict what may not be kept now that it is read. Returns its keys."""
        return self._evict_down_to(self._kept)

    def _reserved_beside(self, units: Collection[str]) -> int:
        """Bytes that are reserved for other units."""
        return sum(num_bytes for key, num_bytes in self._reserved.items() if key not in units)

    def _is_pinned(self, key: str) -> bool:
        entry = self._entries.get(key)
        return entry is not None and bool(entry.pins)

    def _evict_down_to(self, num_bytes: int) -> list[str]:
        """Evict until so much is held, or until the rest is pinned."""
        evicted: list[str] = []
        while self.num_bytes > num_bytes:
            # Found soon, however many are held: what is pinned was used lately and stands near the end.
            key = next((key for key, entry in self._entries.items() if not entry.pins), None)
            if key is None:
                break
            self._drop(key)
            evicted.append(key)
        return evicted

    def _add(self, key: str, num_rows: int) -> list[str]:
        """Make room for a new unit and take it in. Returns what was evicted."""
        num_bytes = num_rows * self._row_bytes
        self._reserved.pop(key, None)
        evicted = self._evict_down_to(self._capacity - num_bytes)
        self._entries[key] = _Entry(num_bytes)
        self.num_bytes += num_bytes
        assert self.num_bytes <= self._capacity, (self.num_bytes, self._capacity)
        return evicted

    def _drop(self, key: str) -> None:
        self.num_bytes -= self._entries.pop(key).num_bytes
        self._ahead.pop(key, None)
