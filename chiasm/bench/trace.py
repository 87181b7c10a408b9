"""Timelines of ranks in the Chrome trace format, which Perfetto and chrome://tracing show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from chiasm.vision.cost import CostModel, PlanCost
from chiasm.vision.timeline import read_spans


class Block(NamedTuple):
    """What a rank does for a while; seconds from the start of the plan."""

    rank: int
    activity: str
    start: float
    seconds: float


class Chart(NamedTuple):
    """The blocks of a plan, under the name of its workload and mode."""

    name: str
    blocks: tuple[Block, ...]


def predicted_chart(name: str, cost: PlanCost, model: CostModel) -> Chart:
    """A plan as the cost model sees it.

    Ranks that exchange go from layer to layer together: in each they compute, exchange, and wait for the slowest.
    """
    blocks: list[Block] = []
    end = max(cost.done_seconds)
    for rank, compute in enumerate(cost.compute_seconds):
        blocks.extend(_layers(rank, compute, cost.exchange_seconds[rank], cost.done_seconds[rank], model))
        if cost.gather_seconds:
            blocks.append(Block(rank, "gather", end, cost.gather_seconds))
    return Chart(name, tuple(blocks))


def _layers(rank: int, compute: float, exchange: float, done: float, model: CostModel) -> Iterator[Block]:
    shape = model.shape
    num_steps = shape.num_full_attention_layers if exchange else 1
    for step in range(num_steps if compute else 0):
        start = step * done / num_steps
        yield Block(rank, "compute", start, compute / num_steps)
        if exchange:
            yield Block(rank, "exchange", start + compute / num_steps, exchange / num_steps)


def measured_chart(name: str, folder: Path, num_ranks: int, start: float, stop: float) -> Chart:
    """A plan that was run from ``start`` to ``stop``; waiting for an exchange lies within the encoding.

    Args:
        name: of its workload and mode.
        folder: where its ranks, which have ended, noted what they did.
        num_ranks: how many.
        start: on the machine's monotonic clock.
        stop: when rank 0 was done; another rank's last span can end a little later.
    """
    blocks = [
        Block(rank, span.name, span.start - start, span.stop - span.start)
        for rank in range(num_ranks)
        for span in read_spans(folder, rank)
        if start <= span.start < stop
    ]
    return Chart(name, tuple(blocks))


def write_trace(file: Path, charts: Sequence[Chart]) -> None:
    """One process for each timeline, one thread for each rank."""
    events: list[dict[str, Any]] = []
    for number, one in enumerate(charts):
        events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": one.name}})
        for rank in sorted({block.rank for block in one.blocks}):
            name = {"name": f"rank {rank}"}
            events.append({"ph": "M", "name": "thread_name", "pid": number, "tid": rank, "args": name})
        events.extend(_event(number, block) for block in one.blocks)
    file.write_bytes(msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"}))


def _event(pid: int, block: Block) -> dict[str, Any]:
    times = {"ts": 1e6 * block.start, "dur": 1e6 * block.seconds}  # microseconds
    return {"ph": "X", "name": block.activity, "cat": block.activity, "pid": pid, "tid": block.rank, **times}
