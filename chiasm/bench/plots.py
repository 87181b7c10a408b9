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
from chiasm.bench.results import Figure as ResultFigure
from chiasm.bench.results import Group, common_figures
from chiasm.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Distinct for eyes that see red and green alike (Okabe and Ito, 2008).
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v")  # open ones: equal points show through each other
_LATENCIES = {"ttfts": "Time to first token", "itls": "Inter-token latency"}
_DPI = 120
_MAX_NAME = 48  # characters
_NAMES_IN_A_ROW = 3
_ROW_INCHES = 0.25

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Comparison of serving benchmarks</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; }} th, td {{ padding: .3rem .8rem; text-align: left; white-space: pre; }}
tr:nth-child(even) {{ background: #f2f4f7; }} th {{ border-bottom: 2px solid #888; }}
svg {{ max-width: 100%; height: auto; }}
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
    """Latencies of each group as cumulative shares, and throughput by rate, or by group where all have one rate.

    Latencies are those at the highest rate that all groups have.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("Pictures need matplotlib: pip install 'chiasm[plot]'.", param="png") from error
    shown = [key for key in _LATENCIES if any(group.gathered(key) for group in groups)]
    legend_rows = math.ceil(len(groups) / _NAMES_IN_A_ROW)
    size = (5.5 * (len(shown) + 1), 4.4 + _ROW_INCHES * legend_rows)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(shown) + 1, squeeze=False)[0]
    rates = {rate for group in groups for rate in group.rates}
    alike, how_fast = _at_one_rate(groups) if len(rates) > 1 else (groups, "")
    for axis, key in zip(axes, shown, strict=False):
        _draw_distribution(axis, key, alike, how_fast)
    if len(rates) > 1:
        _draw_by_rate(axes[-1], groups)
    else:
        _draw_bars(axes[-1], groups)
    if shown or len(rates) > 1:
        _add_legend(figure, groups)
    return figure


def _at_one_rate(groups: Sequence[Group]) -> tuple[Sequence[Group], str]:
    """The groups at the highest rate that all have, and which it is; all of their runs where there is none."""
    common = set(groups[0].rates).intersection(*(group.rates for group in groups))
    if not common:
        return groups, ", rates that differ"
    rate = max(common)
    return [group.at(rate) for group in groups], ", all at once" if math.isinf(rate) else f", {rate:g} requests / s"


def _draw_distribution(axis: Axes, key: str, groups: Sequence[Group], how_fast: str) -> None:
    for index, group in enumerate(groups):
        values = np.sort(1e3 * np.asarray(group.gathered(key)))
        if values.size:
            shares = np.arange(1, values.size + 1) / values.size
            axis.step(np.append(values[0], values), np.append(0, shares), where="post", **_style(index))
    axis.axhline(0.99, color="#999", linewidth=0.8, linestyle=":")
    axis.annotate("P99", (0.005, 0.985), xycoords=("axes fraction", "data"), va="top", fontsize=8, color="#555")
    axis.set(
        title=f"{_LATENCIES[key]}{how_fast}",
        xlabel="ms",
        ylabel="share of all that is at most so long",
        ylim=(0, 1.02),
    )
    if _is_wide([value for group in groups for value in group.gathered(key)]):
        axis.set_xscale("log")
    axis.grid(alpha=0.3)


def _throughput(groups: Sequence[Group]) -> ResultFigure:
    """Of tokens, or of requests where results have none."""
    found = {figure.key: figure for figure in common_figures(groups)}
    return found.get("output_throughput") or found["request_throughput"]


def _draw_by_rate(axis: Axes, groups: Sequence[Group]) -> None:
    throughput = _throughput(groups)
    for index, group in enumerate(groups):
        medians = {rate: group.at(rate).spread(throughput.key).median for rate in group.rates}
        finite = [rate for rate in medians if math.isfinite(rate)]
        points = [medians[rate] for rate in finite]
        marker = _MARKERS[index % len(_MARKERS)]
        axis.plot(finite, points, marker=marker, markersize=9, fillstyle="none", **_style(index))
        if math.inf in medians:
            axis.axhline(medians[math.inf], alpha=0.5, **_style(index))
    has_infinite = any(math.inf in group.rates for group in groups)
    title = "Throughput by rate" + (" (pale: all at once)" if has_infinite else "")
    axis.set(title=title, xlabel="requests sent / s", ylabel=throughput.title)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)


def _draw_bars(axis: Axes, groups: Sequence[Group]) -> None:
    throughput = _throughput(groups)
    for index, group in enumerate(groups):
        spread = group.spread(throughput.key)
        reach = [[spread.median - min(spread.runs)], [max(spread.runs) - spread.median]]
        error = reach if len(spread.runs) > 1 else None
        axis.barh([index], [spread.median], xerr=error, capsize=4, color=_COLORS[index % len(_COLORS)], height=0.6)
    names = [_short(group.name) for group in groups]
    axis.set_yticks(range(len(groups)), names, fontsize=9, parse_math=False)
    axis.invert_yaxis()
    axis.set(title="Throughput (bars: median, range of runs)", xlabel=throughput.title)
    axis.grid(axis="x", alpha=0.3)


def _add_legend(figure: Figure, groups: Sequence[Group]) -> None:
    """One for all, below them, where it hides nothing."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], **_style(index)) for index in range(len(groups))]
    labels = [str(index) for index in range(len(groups))]
    legend = figure.legend(lines, labels, loc="outside lower center", ncols=_NAMES_IN_A_ROW, fontsize=9)
    for text, group in zip(legend.get_texts(), groups, strict=True):  # names may be what matplotlib reads otherwise
        text.set_parse_math(False)
        text.set_text(_short(group.name))


def _short(name: str) -> str:
    """A name with its middle left out where it is long: names differ at their ends."""
    half = (_MAX_NAME - 1) // 2
    return name if len(name) <= _MAX_NAME else f"{name[:half]}…{name[-half:]}"


def _style(index: int) -> dict[str, Any]:
    style = _STYLES[index // len(_COLORS) % len(_STYLES)]
    return {"color": _COLORS[index % len(_COLORS)], "linestyle": style}


def _is_wide(values: Sequence[float]) -> bool:
    positive = [value for value in values if value > 0]
    return bool(positive) and max(positive) > 50 * float(np.median(positive))
