"""Torch's profiler on a rank; off, it costs nothing but a call for each phase of a step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, get_args

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from chiasm.errors import UserError
from chiasm.schema.profile import OperatorTime, Phase, RankProfile

_OFF = nullcontext()
_MOST_OPERATORS = 100
_MICROSECOND = 1e-6


class RankProfiler:
    """Records what a rank computes, from ``start`` to ``stop``.

    Args:
        rank: this rank.
        device: that it computes on.
    """

    def __init__(self, rank: int, device: torch.device) -> None:
        self._rank = rank
        self._device = device
        self._running: Any = None  # torch's, whose methods have no types

    def phase(self, name: Phase) -> AbstractContextManager[object]:
        """A context in which what is computed belongs to a phase."""
        return _OFF if self._running is None else record_function(name)

    def start(self) -> None:
        """Begin to record."""
        assert self._running is None
        activities = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._running = profile(activities=activities)
        self._running.start()

    def stop(self, folder: Path) -> RankProfile:
        """End it, and write ``rank-N.json`` into a folder.

        Raises:
            UserError: if the file can't be written. Recording has ended all the same.
        """
        ended, self._running = self._running, None
        assert ended is not None
        ended.stop()
        file = folder / f"rank-{self._rank}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file.open("wb").close()  # torch tells of no failure
            ended.export_chrome_trace(str(file))
        except OSError as error:
            raise UserError(f"profile {file} can't be written: {error.strerror}.", param="profile") from error
        return _summary(self._rank, file, ended.key_averages())


def _summary(rank: int, file: Path, averages: Any) -> RankProfile:
    phases: dict[Phase, float] = dict.fromkeys(get_args(Phase), 0.0)
    operators = []
    for each in averages:
        if each.key in phases:
            # On a GPU there is a second entry, of what the phase started there.
            phases[each.key] += each.cpu_time_total * _MICROSECOND
        else:
            cpu, device = each.self_cpu_time_total, each.self_device_time_total
            operators.append(OperatorTime(each.key, each.count, cpu * _MICROSECOND, device * _MICROSECOND))
    operators.sort(key=lambda one: (one.device_seconds, one.cpu_seconds), reverse=True)
    return RankProfile(rank, str(file), phases, tuple(operators[:_MOST_OPERATORS]))
