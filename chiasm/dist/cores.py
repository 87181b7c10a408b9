"""How many cores there are for us."""

from __future__ import annotations

import os


def num_usable_cores() -> int:
    """Cores that this process may run on; where the system does not tell, all there are."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
