"""From settings to a loaded rank."""

from __future__ import annotations

from pathlib import Path

import torch

from chiasm.config.engine import EngineConfig
from chiasm.dist.group import SOLO, init_world
from chiasm.engine.runner.device import Choice, check_torch, choose_device
from chiasm.engine.runner.runner import Runner


def start_runner(config: EngineConfig, *, rank: int, size: int, store: Path | None = None) -> Runner:
    """Join the other ranks and load the model.

    Args:
        config: the engine's settings.
        rank: this rank.
        size: ranks in all.
        store: file at which more than one rank meet.

    Raises:
        UserError: if the model, a setting or the version of torch is at fault.
    """
    check_torch(torch.__version__)
    choice = choose_device(config.device, rank, size)
    device = torch.device(choice.value)
    assert size == 1 or store is not None
    group = SOLO if store is None else init_world(rank, size, store, device)
    return Runner(config, group, device, _told(choice, device))


def _told(choice: Choice, device: torch.device) -> str:
    """A device as the start-up lines show it, a GPU with its name."""
    if device.type != "cuda":
        return str(choice)
    return str(Choice(f"{choice.value}, {torch.cuda.get_device_name(device)}", choice.reason))
