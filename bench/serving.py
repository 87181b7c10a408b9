"""A server of this checkout in a process of its own, for the benchmarks beside this file."""

from __future__ import annotations

import httpcore2

from bench.idle import parse_samples
from chiasm.bench.server import ServerProcess


class BenchServer(ServerProcess):
    """``chiasm serve`` with the given arguments, on a free port while the context is open."""

    def __init__(self, *arguments: str) -> None:
        super().__init__(arguments)

    @property
    def pid(self) -> int:
        """Process id of the server's main process."""
        return self.process.pid

    def metrics(self) -> dict[str, float]:
        """All samples of ``/metrics``; a name's labels are part of it."""
        return parse_samples(httpcore2.request("GET", f"{self.url}/metrics").content.decode())
