"""Real pictures for end-to-end tests: photographs that scikit-image packages, and a chart of real data."""

from __future__ import annotations

from PIL import Image, ImageDraw
from vega_datasets import local_data

from tests.multimodal.pictures import packaged_file


def photograph(name: str = "astronaut.png", size: tuple[int, int] | None = None) -> Image.Image:
    """A packaged photograph, scaled to ``size`` (width, height) if that is given."""
    with Image.open(packaged_file(name)) as image:
        rgb = image.convert("RGB")
    return rgb.resize(size) if size else rgb


def chart() -> Image.Image:
    """Bars of Iowa's electricity by source in 2017."""
    table = local_data.iowa_electricity()
    latest = table[table["year"] == table["year"].max()]
    image = Image.new("RGB", (320, 220), "white")
    draw = ImageDraw.Draw(image)
    for index, (source, value) in enumerate(zip(latest["source"], latest["net_generation"], strict=True)):
        left = 30 + 95 * index
        draw.rectangle([left, 190 - value // 200, left + 60, 190], fill=("#4c78a8", "#f58518", "#54a24b")[index])
        draw.text((left, 195), str(source), fill="black")
        draw.text((left, 178 - value // 200), str(value), fill="black")
    return image
