"""Draw a run's log: ``python -m training.plot LOG PNG``. Answer loss above, held-out accuracy by kind below."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from chiasm.evals.charts.fonts import load_font
from chiasm.evals.charts.words import COLOURS

_WIDTH, _HEIGHT, _LEFT, _GAP = 900, 300, 50, 34
_LOSSES = ("answers", "facts", "chars")
_KINDS = ("all", "value by label", "value by color", "largest", "smallest", "smallest value", "count", "scatter")
_LONGEST_STRETCH = 600
"""Steps between two points that are joined by a line; further apart nothing was measured."""
Series = dict[str, list[tuple[float, float]]]


def read_log(path: Path) -> tuple[Series, Series]:
    """The losses and the accuracies over the steps."""
    losses: Series = {name: [] for name in _LOSSES}
    kinds: Series = {name: [] for name in _KINDS}
    for line in path.read_text(encoding="utf-8").splitlines():
        record: dict[str, Any] = json.loads(line)
        for name in _LOSSES:
            if record.get(name):
                losses[name].append((record["step"], record[name]))
        for name in _KINDS:
            if name in record.get("held_out", {}):
                kinds[name].append((record["step"], record["held_out"][name][0]))
    return losses, kinds


def _panel(draw: ImageDraw.ImageDraw, top: int, title: str, series: Series, most: float, last: float) -> None:
    bottom, right = top + _HEIGHT - _GAP, _WIDTH - 160
    draw.text((_LEFT, top - 20), title, fill="black", font=load_font(14))
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = bottom - share * (bottom - top)
        draw.line((_LEFT, y, right, y), fill=(225, 225, 225))
        draw.text((_LEFT - 6, y), f"{share * most:g}", fill="black", font=load_font(11), anchor="rm")
    for index, (name, points) in enumerate(series.items()):
        colour = list(COLOURS.values())[index]
        for (x, y), (next_x, next_y) in pairwise(points):
            if next_x - x <= _LONGEST_STRETCH:
                ends = [
                    (_LEFT + at / last * (right - _LEFT), bottom - min(height, most) / most * (bottom - top))
                    for at, height in ((x, y), (next_x, next_y))
                ]
                draw.line(ends, fill=colour, width=2)
        draw.text((right + 10, top + 16 * index), name, fill=colour, font=load_font(13))
    draw.text((right, bottom + 4), f"step {last:g}", fill="black", font=load_font(11), anchor="ra")


def draw_log(log: Path, out: Path) -> None:
    """Write the picture."""
    losses, kinds = read_log(log)
    last = max(x for points in losses.values() for x, _ in points)
    image = Image.new("RGB", (_WIDTH, 2 * _HEIGHT + 40), "white")
    draw = ImageDraw.Draw(image)
    _panel(draw, 30, "Loss", losses, 3.0, last)
    _panel(draw, 50 + _HEIGHT, "Held-out accuracy (exact) in the range of the stage", kinds, 1.0, last)
    image.save(out, optimize=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("png", type=Path)
    options = parser.parse_args(arguments)
    draw_log(options.log, options.png)


if __name__ == "__main__":
    main()
