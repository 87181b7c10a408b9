"""A part's findings, without a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.device_check.probe import Probe


class Probed:
    """Runs a part in this process, on the CPU.

    Attributes:
        records: all that it sent.
    """

    def __init__(self, run: Callable[..., None], scratch: Path, *arguments: str) -> None:
        self.records: list[dict[str, Any]] = []
        run(Probe(torch.device("cpu"), scratch, self.records.append), *arguments)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["kind"] == kind]

    @property
    def statuses(self) -> dict[str, str]:
        return {record["name"]: record["status"] for record in self.of("finding")}

    @property
    def wrong(self) -> list[str]:
        return [name for name, status in self.statuses.items() if status == "WRONG"]
