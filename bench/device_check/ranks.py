"""Engines on several ranks, each with a GPU of its own, against the model in float64."""

from __future__ import annotations

from functools import partial

import torch

from bench.device_check.families import Family, Setup, against_reference
from bench.device_check.probe import Outcome, Probe, Skip

_NUM_RANKS = 2


def check_ranks(probe: Probe) -> None:
    """Both ways of sharing the encoder, in both types."""
    family = Family("qwen3_vl", probe.scratch, probe.device)
    for setup in (
        Setup("bfloat16", num_ranks=_NUM_RANKS),
        Setup("float32", num_ranks=_NUM_RANKS),
        Setup("float32", num_ranks=_NUM_RANKS, encoder_mode="weights"),
    ):
        words = f"{setup.num_ranks} ranks, mm_encoder_tp_mode={setup.encoder_mode}, {setup.dtype}"
        probe.check(f"answers on {words}", partial(_check, probe, family, setup))


def _check(probe: Probe, family: Family, setup: Setup) -> Outcome:
    if probe.is_gpu and torch.cuda.device_count() < setup.num_ranks:
        raise Skip(f"there is one GPU, not {setup.num_ranks}")
    return against_reference(family, setup)
