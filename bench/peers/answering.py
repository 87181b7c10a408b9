"""The child's side of a worker: calls come as lines of JSON, results go back as such.

Read by this project's Python and by the peers', so it needs the standard library alone.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TextIO


def claim_output() -> TextIO:
    """Keep standard output for results: what libraries print goes to standard error from here on."""
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return results


def answer_calls(results: TextIO, methods: Mapping[str, Callable[..., Any]]) -> None:
    """Say that this worker is ready, then obey the calls of its parent until that closes the pipe."""
    _tell(results, {"result": "ready"})
    for line in sys.stdin:
        call = json.loads(line)
        try:
            _tell(results, {"result": methods[call["method"]](**call["arguments"])})
        except Exception:
            _tell(results, {"error": traceback.format_exc()})


def _tell(results: TextIO, message: Mapping[str, Any]) -> None:
    results.write(json.dumps(message) + "\n")
    results.flush()
