"""The process of a part: ``python -m bench.device_check.child FUNCTION DEVICE SCRATCH [ARGUMENT ...]``.

It imports what it needs, waits for a line on standard input, runs the part, and sends records to what was its
standard output. What libraries print goes to standard error.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main(arguments: list[str]) -> int:
    """Run a part; the exit status is 0 if it came to its end, whatever it found."""
    function, device, scratch, *further = arguments
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # asked for where this process hangs
    records = os.dup(1)
    os.dup2(2, 1)
    module, _, name = function.partition(":")
    run = getattr(importlib.import_module(module), name)
    import torch

    from bench.device_check.probe import Probe, send_to

    send = send_to(records)
    send({"kind": "ready"})
    if not sys.stdin.readline():
        return 0  # not wanted any more
    threading.Thread(target=_end_with_parent, daemon=True).start()
    probe = Probe(torch.device("cuda", 0) if device == "cuda" else torch.device(device), Path(scratch), send)
    if probe.is_gpu:
        _report_compiles(probe.compiled)
    run(probe, *further)
    send({"kind": "end"})
    return 0


def _end_with_parent() -> None:
    """Let go of the device when the process that asked for this part is gone, whatever is under way."""
    sys.stdin.read()
    os._exit(1)


def _report_compiles(report: Callable[[str, float], None]) -> None:
    """Tell of each kernel that Triton compiles, and the seconds that it takes."""
    try:
        from triton import knobs
    except ImportError:  # no Triton, or one that tells of no compiles
        return

    def listener(**told: Any) -> None:
        if not told["cache_hit"]:
            report(told["src"].name, told["times"].total * 1e-6)

    knobs.compilation.listener = listener


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
