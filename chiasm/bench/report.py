"""Rows of the encoder's benchmark as a table and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from chiasm.bench.encoder import MODES, Row

_WIDE = 14
_UNKNOWN = "-"


def as_text(rows: Sequence[Row]) -> str:
    """The modes side by side: a block for each workload and number of ranks, a line for each figure."""
    blocks: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        blocks.setdefault((row.workload, row.ranks), {})[row.mode] = row
    wide = max(len(_title(*key)) for key in blocks)
    lines = [_line(" " * wide, "", MODES)]
    for (workload, ranks), by_mode in blocks.items():
        title = _title(workload, ranks)
        for name, cells in _figures([by_mode.get(mode) for mode in MODES]):
            lines.append(_line(title.ljust(wide), name, cells))
            title = ""
    return "\n".join(lines)


def write_rows(file: Path, rows: Sequence[Row]) -> None:
    """A JSON list of the rows."""
    file.write_bytes(msgspec.json.format(msgspec.json.encode(rows)))


def _title(workload: str, ranks: int) -> str:
    return f"{workload}, {ranks} ranks"


def _line(title: str, name: str, cells: Iterable[str]) -> str:
    return f"{title}  {name:<15}{''.join(cell.rjust(_WIDE) for cell in cells)}".rstrip()


def _figures(rows: Sequence[Row | None]) -> list[tuple[str, list[str]]]:
    """(name, a cell for each mode) of what is known."""
    figures = [
        ("efficiency", _cells(rows, lambda row: row.efficiency, ".3f")),
        ("predicted ms", _cells(rows, lambda row: row.predicted_seconds, ".2f", 1e3)),
        ("measured ms", _cells(rows, lambda row: row.measured_seconds, ".2f", 1e3)),
        ("exchanged MB", _cells(rows, lambda row: row.bytes, ".1f", 1e-6)),
        ("for cuts MB", _cells(rows, lambda row: row.cut_bytes, ".1f", 1e-6)),
        ("measured MB", _cells(rows, lambda row: row.measured_cut_bytes, ".1f", 1e-6)),
        ("peak MiB a rank", _cells(rows, lambda row: max(row.peak_memory_bytes or (0,)) or None, ".0f", 2**-20)),
    ]
    return [(name, cells) for name, cells in figures if set(cells) != {_UNKNOWN}]


def _cells(
    rows: Sequence[Row | None], figure: Callable[[Row], float | None], form: str, scale: float = 1.0
) -> list[str]:
    values = [None if row is None else figure(row) for row in rows]
    return [_UNKNOWN if value is None else format(value * scale, form) for value in values]
