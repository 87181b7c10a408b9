"""What benchmarks find as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from chiasm.bench.encoder import MODES, Row
from chiasm.schema.profile import EngineProfile, RankProfile

if TYPE_CHECKING:  # it brings the engine with it
    from chiasm.bench.latency import Latency

_WIDE = 14
_UNKNOWN = "-"
_TOP_OPERATORS = 15


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


def latency_text(latency: Latency) -> str:
    """The figures of batches, in seconds."""
    batch = latency.batch
    size = f"{batch.image_height}x{batch.image_width}"
    noun = "image" if batch.num_images == 1 else "images"
    images = f" and {batch.num_images} {noun} of {size}" if batch.num_images else ""
    figures = {"mean": latency.avg_latency, "median": latency.median_latency}
    figures |= {f"p{percent}": seconds for percent, seconds in latency.percentiles.items()}
    return "\n".join(
        [
            f"{len(latency.latencies)} batches of {batch.num_prompts} prompts with {batch.input_len} tokens of "
            f"text{images}, {batch.output_len} tokens each; seconds for a batch:",
            *(f"  {name:<8}{seconds:10.4f}" for name, seconds in figures.items()),
        ]
    )


def profile_text(profile: EngineProfile) -> str:
    """Where the time of the steps went on each rank, the costliest operators, and the traces."""
    ranks = profile.ranks
    figures: dict[str, list[float]] = {
        "schedule": [profile.schedule_seconds] * len(ranks),
        **{phase: [rank.phase_seconds[phase] for rank in ranks] for phase in ranks[0].phase_seconds},
        "rest of the step": [profile.rest_seconds(rank) for rank in ranks],
        "all": [profile.step_seconds] * len(ranks),
    }
    lines = [_line(f"{profile.num_steps} steps, ms".ljust(_WIDE), "", [f"rank {rank.rank}" for rank in ranks])]
    for name, seconds in figures.items():
        lines.append(_line(" " * _WIDE, name, [f"{1e3 * each:.2f}" for each in seconds]))
    for rank in ranks:
        lines += ["", *_operator_lines(rank), f"trace: {rank.trace}"]
    return "\n".join(lines)


def _operator_lines(rank: RankProfile) -> list[str]:
    has_device = any(operator.device_seconds for operator in rank.operators)
    head = ["calls", "CPU ms", *(["GPU ms"] if has_device else [])]
    lines = [f"{f'operators of rank {rank.rank}':<44}{''.join(cell.rjust(_WIDE) for cell in head)}"]
    for operator in rank.operators[:_TOP_OPERATORS]:
        cells = [str(operator.calls), f"{1e3 * operator.cpu_seconds:.2f}"]
        cells += [f"{1e3 * operator.device_seconds:.2f}"] if has_device else []
        lines.append(f"{operator.name[:43]:<44}{''.join(cell.rjust(_WIDE) for cell in cells)}")
    return lines


def _title(workload: str, ranks: int) -> str:
    return f"{workload}, {ranks} ranks"


def _line(title: str, name: str, cells: Iterable[str]) -> str:
    return f"{title}  {name:<17}{''.join(cell.rjust(_WIDE) for cell in cells)}".rstrip()


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
