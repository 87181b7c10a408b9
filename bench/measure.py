"""Sides measured in turn, their medians, and tables of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TypeVar

Result = TypeVar("Result")


def alternate(
    sides: Mapping[str, Callable[[int], Result]], repeats: int, *, warm: bool = True
) -> dict[str, list[Result]]:
    """Run the sides in turn, ``repeats`` times each, so that what disturbs the machine disturbs all.

    Args:
        sides: by name; each is given the number of its run, for pictures that no run had before.
        repeats: runs that count.
        warm: whether each side runs once before, uncounted.
    """
    results: dict[str, list[Result]] = {name: [] for name in sides}
    for number in range(repeats + warm):
        for name, run in sides.items():
            result = run(number)
            if number >= warm:
                results[name].append(result)
    return results


def show(values: Sequence[float], digits: int = 2) -> str:
    """The median and the range."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table in Markdown."""
    print(f"\n{title}\n")
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def print_faults(faults: Sequence[str], shown: int = 50) -> None:
    """How many there are, and the first of them."""
    print(f"\n{len(faults)} faults")
    for fault in faults[:shown]:
        print(f"- {fault}")
