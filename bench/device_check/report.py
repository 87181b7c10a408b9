"""What a run has found so far: a JSON file and a table, both written anew with each thing that is found."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

NUM_KERNELS = 20
_OK = ("ok", "skipped")


@dataclass
class PartReport:
    """What a part has found so far.

    Attributes:
        name: of the part.
        status: "ok" if it ended and all it found is right, "WRONG" if something is not; "hung", "aborted", "running",
            "interrupted" or "not reached".
        seconds: that it took, without the start of its process.
        detail: why it is not ok, where that is no finding's.
        facts: what the machine is and what was chosen on it.
        findings: name, status ("ok", "WRONG", "skipped" or "not reached"), detail and seconds of each check.
        speeds: name, value and unit of what was measured, and its share of the device's peak where that is known.
        kernels: name, calls and milliseconds of what took longest, by what was done meanwhile.
        compiled: name and seconds of each kernel that was compiled in this part.
    """

    name: str
    status: str = "not reached"
    seconds: float = 0.0
    detail: str = ""
    facts: list[dict[str, Any]] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)
    speeds: list[dict[str, Any]] = field(default_factory=list)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    compiled: list[dict[str, Any]] = field(default_factory=list)

    def add(self, record: Mapping[str, Any]) -> None:
        """Take in what a part's process has sent."""
        lists = {
            "fact": self.facts,
            "finding": self.findings,
            "speed": self.speeds,
            "kernel": self.kernels,
            "compiled": self.compiled,
        }
        lists[record["kind"]].append({key: value for key, value in record.items() if key != "kind"})

    @property
    def is_good(self) -> bool:
        """Whether it ended and everything holds, or is nothing for this device."""
        return self.status in _OK


@dataclass
class Report:
    """All of a run.

    Attributes:
        command: its arguments.
        started: when, in UTC.
        parts: in their order.
        seconds: so far.
        detail: why none was begun, where that is so.
    """

    command: str
    started: str
    parts: list[PartReport]
    seconds: float = 0.0
    detail: str = ""

    @property
    def is_good(self) -> bool:
        """Whether every part was reached, ended and is right."""
        return all(part.is_good for part in self.parts)

    def write(self, folder: Path) -> None:
        """``report.json`` and ``report.md``, so that a reader sees the old ones or the new ones whole."""
        content = {**asdict(self), "is_good": self.is_good}
        _replace(folder / "report.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
        _replace(folder / "report.md", "\n".join(self.table()) + "\n")

    def table(self) -> Iterator[str]:
        """Lines of Markdown."""
        yield f"# Device check: {'everything holds' if self.is_good else 'NOT everything holds'}"
        yield ""
        yield f"`{self.command}`, {self.started} UTC, {self.seconds:.0f} s. {self.detail}".strip()
        yield from _facts(self.parts)
        yield from _parts(self.parts)
        yield from _wrong(self.parts)
        yield from _skipped(self.parts)
        yield from _speeds(self.parts)
        yield from _kernels(self.parts)
        yield from _compiled(self.parts)
        yield from _findings(self.parts)


def _facts(parts: list[PartReport]) -> Iterator[str]:
    facts = [fact for part in parts for fact in part.facts]
    yield from _section("The device, and what was chosen on it", ("", ""), [(f["name"], f["value"]) for f in facts])


def _parts(parts: list[PartReport]) -> Iterator[str]:
    rows = []
    for part in parts:
        counts = [
            sum(finding["status"] == status for finding in part.findings) for status in ("ok", "WRONG", "skipped")
        ]
        rows.append((part.name, part.status, *counts, f"{part.seconds:.1f}", part.detail))
    yield from _section("Parts", ("part", "status", "ok", "wrong", "skipped", "s", ""), rows)


def _wrong(parts: list[PartReport]) -> Iterator[str]:
    rows = [
        (f"{part.name}: {finding['name']}", finding["status"], finding["detail"])
        for part in parts
        for finding in part.findings
        if finding["status"] not in _OK
    ]
    yield from _section("What is wrong", ("check", "status", "detail"), rows)


def _skipped(parts: list[PartReport]) -> Iterator[str]:
    reasons = Counter(
        finding["detail"] for part in parts for finding in part.findings if finding["status"] == "skipped"
    )
    yield from _section("What was skipped", ("reason", "checks"), list(reasons.items()))


def _speeds(parts: list[PartReport]) -> Iterator[str]:
    rows = []
    for speed in (speed for part in parts for speed in part.speeds):
        share = f"{100 * speed['share']:.0f} % of {speed['of']}" if "share" in speed else ""
        rows.append((speed["name"], f"{speed['value']:,.4g}", speed["unit"], share))
    yield from _section("Speed", ("measured", "", "unit", "share of the peak"), rows)


def _kernels(parts: list[PartReport]) -> Iterator[str]:
    during = dict.fromkeys(kernel["during"] for part in parts for kernel in part.kernels)
    for words in during:
        own = [kernel for part in parts for kernel in part.kernels if kernel["during"] == words]
        rows = [(f"`{k['name']}`", k["calls"], f"{k['milliseconds']:.3f}", f"{100 * k['share']:.1f} %") for k in own]
        yield from _section(f"Longest kernels: {words}", ("kernel", "calls", "ms", "of all"), rows)


def _compiled(parts: list[PartReport]) -> Iterator[str]:
    rows = []
    for part in parts:
        if part.compiled:
            seconds = [each["seconds"] for each in part.compiled]
            rows.append((part.name, len(seconds), f"{sum(seconds):.1f}", f"{max(seconds):.1f}"))
    header = ("part", "kernels", "s in all", "longest")
    yield from _section("Compiled by Triton, within the times of the parts", header, rows)


def _findings(parts: list[PartReport]) -> Iterator[str]:
    rows = [
        (f"{part.name}: {finding['name']}", finding["status"], finding["detail"], f"{finding['seconds']:.1f}")
        for part in parts
        for finding in part.findings
    ]
    yield from _section("Checks", ("check", "status", "detail", "s"), rows)


def _section(title: str, header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Iterator[str]:
    if not rows:
        return
    yield from ("", f"## {title}", "", _row(header), _row(("---",) * len(header)))
    yield from map(_row, rows)


def _row(cells: tuple[Any, ...]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _replace(file: Path, text: str) -> None:
    new = file.with_suffix(f".{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.replace(file)
