"""What a run of the tests left out, in a line at its end: how many of each kind, and how to have them run."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable

import torch

from tests.isa import SETTINGS, VARIABLES, describe

_REASON = re.compile(r"(?:Skipped: )?(.+ tests): (.+)")


def needs(kind: str, remedy: str) -> str:
    """The reason to skip tests of a kind that would run if somebody did something about it."""
    return f"{kind} tests: {remedy}"


def skipped_line(reasons: Iterable[str]) -> str:
    """How many were skipped for each reason of ``needs``, and how many for others; empty if none was."""
    kinds: Counter[tuple[str, str]] = Counter()
    num_others = 0
    for reason in reasons:
        if found := _REASON.fullmatch(reason):
            kinds[found[1], found[2]] += 1
        else:
            num_others += 1
    parts = [f"{count} {kind} ({remedy})" for (kind, remedy), count in kinds.most_common()]
    parts += [f"{num_others} that do not apply here"] if num_others else []
    return f"skipped: {', '.join(parts)}" if parts else ""


def settings_line() -> str:
    """In which setting of ``tests.isa`` this was run, with whose kernels torch computed, and which are left."""
    told = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    ours = [name for name, setting in SETTINGS.items() if setting.variables == told and not setting.num_busy_loops]
    run = ours[0] if ours else describe(told)
    others = ", ".join(name for name in SETTINGS if name != run)
    kernels = torch.backends.cpu.get_cpu_capability()
    return f"setting that was run: {run} (torch's kernels: {kernels}); make test-isa runs {others}"
