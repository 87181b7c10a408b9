"""Pictures of results: how latencies are distributed, and throughput by the rate of requests."""

from __future__ import annotations

import html
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chiasm.bench.compare import Table
from chiasm.bench.results import Group
from chiasm.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Distinct for eyes that see red and green alike (Okabe and Ito, 2008).
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", ":")
_LATENCIES = {"ttfts": "Time to first token", "itls": "Inter-token latency"}
_DPI = 120

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Comparison of serving benchmarks</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; }} th, td {{ padding: .3rem .8rem; text-align: left; }}
tr:nth-child(even) {{ background: #f2f4f7; }} th {{ border-bottom: 2px solid #888; }} svg {{ max-width: 100%; }}
</style></head><body><h1>Comparison of serving benchmarks</h1>
<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table><p>{note}</p>{picture}</body></html>
"""


def write_png(file: Path, groups: Sequence[Group]) -> None:
    """A picture.

    Raises:
        UserError: if matplotlib isn't installed.
    """
    draw(groups).savefig(file, format="png", dpi=_DPI)


def write_html(file: Path, groups: Sequence[Group], table: Table) -> None:
    """A page with the table and the picture in it, that needs nothing else.

    Raises:
        UserError: if matplotlib isn't installed.
    """
    picture = io.StringIO()
    draw(groups).savefig(picture, format="svg")
    svg = picture.getvalue()
    rows = "".join(f"<tr>{_cells(row, 'td')}</tr>" for row in table.rows)
    page = _PAGE.format(
        head=_cells(table.head, "th"), rows=rows, note=html.escape(table.note), picture=svg[svg.index("<svg") :]
    )
    file.write_text(page, encoding="utf-8")


def _cells(texts: Sequence[str], tag: str) -> str:
    return "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts)


def draw(groups: Sequence[Group]) -> Figure:
    """Latencies of each group as cumulative shares, and throughput by rate, or by group where all have one rate."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("Pictures need matplotlib: pip install 'chiasm[plot]'.", param="png") from error
    shown = [key for key in _LATENCIES if any(group.gathered(key) for group in groups)]
    figure = Figure(figsize=(5.5 * (len(shown) + 1), 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(shown) + 1, squeeze=False)[0]
    for axis, key in zip(axes, shown, strict=False):
        _draw_distribution(axis, key, groups)
    _draw_throughput(axes[-1], groups)
    return figure


def _draw_distribution(axis: Axes, key: str, groups: Sequence[Group]) -> None:
    for index, group in enumerate(groups):
        values = np.sort(1e3 * np.asarray(group.gathered(key)))
        if values.size:
            shares = np.arange(1, values.size + 1) / values.size
            axis.step(np.append(values[0], values), np.append(0, shares), where="post", **_style(index, group.name))
    axis.axhline(0.99, color="#999", linewidth=0.8, linestyle=":")
    axis.annotate("P99", (0.005, 0.985), xycoords=("axes fraction", "data"), va="top", fontsize=8, color="#555")
    axis.set(title=_LATENCIES[key], xlabel="ms", ylabel="share of all that is at most so long", ylim=(0, 1.02))
    if _is_wide([value for group in groups for value in group.gathered(key)]):
        axis.set_xscale("log")
    _finish(axis)


def _draw_throughput(axis: Axes, groups: Sequence[Group]) -> None:
    rates = {rate for group in groups for rate in group.rates}
    if len(rates) < 2:
        _draw_bars(axis, groups)
        return
    for index, group in enumerate(groups):
        medians = {rate: group.at(rate).spread("output_throughput").median for rate in group.rates}
        finite = [rate for rate in medians if math.isfinite(rate)]
        points = [medians[rate] for rate in finite]
        axis.plot(finite, points, marker="o", markersize=4, **_style(index, group.name))
        if math.inf in medians:
            axis.axhline(medians[math.inf], alpha=0.5, **_style(index, f"{group.name}, all at once"))
    axis.set(title="Throughput by rate", xlabel="requests sent / s", ylabel="output tokens / s")
    axis.set_ylim(bottom=0)
    _finish(axis)


def _draw_bars(axis: Axes, groups: Sequence[Group]) -> None:
    for index, group in enumerate(groups):
        spread = group.spread("output_throughput")
        reach = [[spread.median - min(spread.runs)], [max(spread.runs) - spread.median]]
        axis.bar([index], [spread.median], yerr=reach, capsize=4, color=_COLORS[index % len(_COLORS)], width=0.6)
    axis.set_xticks(range(len(groups)), [group.name for group in groups], rotation=20, ha="right")
    axis.set(title="Throughput (bars: median, range of runs)", ylabel="output tokens / s")
    axis.grid(axis="y", alpha=0.3)


def _finish(axis: Axes) -> None:
    axis.grid(alpha=0.3)
    axis.legend(fontsize=9, loc="best")


def _style(index: int, label: str) -> dict[str, Any]:
    style = _STYLES[index // len(_COLORS) % len(_STYLES)]
    return {"label": label, "color": _COLORS[index % len(_COLORS)], "linestyle": style}


def _is_wide(values: Sequence[float]) -> bool:
    positive = [value for value in values if value > 0]
    return bool(positive) and max(positive) > 50 * float(np.median(positive))
