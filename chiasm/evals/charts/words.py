"""The words and colours that charts are made of. Small closed sets: a model of a few million weights learns them."""

from __future__ import annotations

LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")

LABEL_FAMILIES: dict[str, tuple[str, ...]] = {
    "letter": LETTERS,
    "month": ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
    "day": ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"),
    "city": ("Rome", "Paris", "Oslo", "Lima", "Cairo", "Tokyo", "Delhi", "Kyiv"),
    "fruit": ("Apple", "Pear", "Plum", "Lemon", "Mango", "Grape", "Kiwi", "Fig"),
    "animal": ("Cat", "Dog", "Cow", "Fox", "Owl", "Bear", "Wolf", "Hen"),
    "goods": ("Gold", "Iron", "Wood", "Coal", "Zinc", "Salt", "Rice", "Corn", "Milk", "Fish"),
}
"""What the elements of a chart may be called; those of one chart are of one family."""

LABELS = tuple(label for family in LABEL_FAMILIES.values() for label in family)

TOPICS = (
    "Sales", "Visitors", "Rainfall", "Output", "Score", "Profit", "Cost", "Demand", "Stock", "Votes", "Exports",
    "Imports",
)  # fmt: skip
YEARS = tuple(str(year) for year in range(2015, 2025))

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (214, 39, 40),
    "blue": (31, 100, 190),
    "green": (44, 150, 44),
    "orange": (250, 140, 20),
    "purple": (135, 80, 175),
    "brown": (130, 80, 60),
    "pink": (235, 130, 190),
    "gray": (130, 130, 130),
}
"""The names that questions use, and the colour around which the drawn one lies."""

NOUNS: dict[str, str] = {
    "vertical bars": "bar",
    "horizontal bars": "bar",
    "grouped bars": "bar",
    "table": "row",
    "pie": "slice",
    "line": "point",
    "scatter": "group",
    "clip": "bar",
}
"""What one element of each kind of chart is called."""
