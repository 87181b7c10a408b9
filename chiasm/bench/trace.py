"""Timelines of ranks in the Chrome trace format, which Perfetto and chrome://tracing show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from chiasm.vision.cost import CostModel, PlanCost

Activity = Literal["compute", "exchange", "gather"]


class Span(NamedTuple):
    """What a rank does for a while; seconds from the start of the plan."""

    rank: int
    activity: Activity
    start: float
    seconds: float


class Timeline(NamedTuple):
    """The spans of a plan, under the name of its workload and mode."""

    name: str
    spans: tuple[Span, ...]


def predicted_timeline(name: str, cost: PlanCost, model: CostModel) -> Timeline:
    """A plan as the cost model sees it.

    Ranks that exchange go from layer to layer together: in each they compute, exchange, and wait for the slowest.
    """
    spans: list[Span] = []
    end = max(cost.done_seconds)
    for rank, compute in enumerate(cost.compute_seconds):
        spans.extend(_layers(rank, compute, cost.exchange_seconds[rank], cost.done_seconds[rank], model))
        if cost.gather_seconds:
            spans.append(Span(rank, "gather", end, cost.gather_seconds))
    return Timeline(name, tuple(spans))


def _layers(rank: int, compute: float, exchange: float, done: float, model: CostModel) -> Iterator[Span]:
    shape = model.shape
    num_steps = shape.num_full_attention_layers if exchange else 1
    for step in range(num_steps if compute else 0):
        start = step * done / num_steps
        yield Span(rank, "compute", start, compute / num_steps)
        if exchange:
            yield Span(rank, "exchange", start + compute / num_steps, exchange / num_steps)


def measured_timeline(name: str, rank_seconds: Sequence[float], seconds: float) -> Timeline:
    """A plan that was run: each rank's own part, and from the end of the longest the gathering."""
    end = max(rank_seconds)
    parts = [Span(rank, "compute", 0.0, own) for rank, own in enumerate(rank_seconds)]
    gathers = [Span(rank, "gather", end, max(0.0, seconds - end)) for rank in range(len(rank_seconds))]
    return Timeline(name, (*parts, *gathers))


def write_trace(file: Path, timelines: Sequence[Timeline]) -> None:
    """One process for each timeline, one thread for each rank."""
    events: list[dict[str, Any]] = []
    for number, timeline in enumerate(timelines):
        events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": timeline.name}})
        for rank in sorted({span.rank for span in timeline.spans}):
            name = {"name": f"rank {rank}"}
            events.append({"ph": "M", "name": "thread_name", "pid": number, "tid": rank, "args": name})
        events.extend(_event(number, span) for span in timeline.spans)
    file.write_bytes(msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"}))


def _event(pid: int, span: Span) -> dict[str, Any]:
    times = {"ts": 1e6 * span.start, "dur": 1e6 * span.seconds}  # microseconds
    return {"ph": "X", "name": span.activity, "cat": span.activity, "pid": pid, "tid": span.rank, **times}
